"""Where the official files lie inside the packages that carry them, and how each is turned into a table once."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nosology.core import DataError, OutputError
from nosology.core.files import atomic_file, cache_folder

FORMAT = 2  # raise it when what is cached changes
DATA = Path(__file__).parent / "data"


@cache
def package_file(package: str, pattern: str) -> Path:
    """The one file of an installed package that matches a glob pattern; the package itself is not imported."""
    spec = find_spec(package)
    roots = list(spec.submodule_search_locations or []) if spec else []
    found = sorted(path for root in roots for path in Path(root).glob(pattern))
    if len(found) != 1:
        raise DataError(f"expected one file {pattern} in the package {package}; found {len(found)} (is it installed?)")
    return found[0]


def read_lines(path: Path) -> list[str]:
    """The lines of an official text file, whichever of UTF-8 and Latin-1 it is in."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        return content.decode("latin-1").splitlines()


def read_xml(path: Path) -> ElementTree.Element:
    """The root of an official XML file."""
    try:
        return ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise DataError(f"{path} is not well-formed XML: line {error.position[0]}") from error
    except (LookupError, ValueError) as error:
        raise DataError(f"{path} is XML in an encoding that cannot be read: save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def cached_json(name: str, sources: list[Path], build: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `build` returns, kept as JSON until a source file or this code's format changes.

    A cache that cannot be read or written costs time, never the answer.
    """
    stats = [(path.name, stat.st_size, stat.st_mtime_ns) for path in sources for stat in (path.stat(),)]
    key = hashlib.sha256(repr((FORMAT, stats)).encode()).hexdigest()[:16]
    path = cache_folder() / "codes" / f"{name}-{key}.json"
    try:
        with _no_collection():
            value = json.loads(path.read_text(encoding="utf-8"))
        if value["key"] == key:
            return value["value"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # absent or damaged: made anew below
    with _no_collection():
        value = build()
    try:
        with atomic_file(path) as aside:
            text = json.dumps({"key": key, "value": value}, ensure_ascii=False, separators=(",", ":"))
            aside.write_text(text, encoding="utf-8")
    except (OutputError, OSError):
        pass  # nowhere to keep it: it is made again next time
    return value


@contextmanager
def _no_collection() -> Iterator[None]:
    """Stops the search for garbage while a large table without any is built: it takes half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
