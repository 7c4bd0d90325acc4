"""Official files inside installed packages, and a cache of the tables that are built from them."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nosology.core import DataError, OutputError
from nosology.core.files import atomic_file, cache_folder, text_sha256

FORMAT = 2  # increase it when the format of cached values changes
DATA = Path(__file__).parent / "data"


@cache
def package_file(package: str, pattern: str) -> Path:
    """The one file of an installed package that matches a glob pattern; the package is not imported."""
    spec = find_spec(package)
    roots = list(spec.submodule_search_locations or []) if spec else []
    paths = sorted(path for root in roots for path in Path(root).glob(pattern))
    if len(paths) != 1:
        raise DataError(f"expected one file {pattern} in the package {package}; got {len(paths)} (is it installed?)")
    return paths[0]


def read_lines(path: Path) -> list[str]:
    """The lines of an official text file in UTF-8 or Latin-1."""
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
        raise DataError(f"{path} is XML in an unknown encoding; save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def cached_json(name: str, sources: list[Path], build: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The value of `build`, cached as JSON until a source file or FORMAT changes.

    If the cache cannot be read or written, the value is built again.
    """
    stats = [(path.name, stat.st_size, stat.st_mtime_ns) for path in sources for stat in (path.stat(),)]
    key = text_sha256(repr((FORMAT, stats)))[:16]
    path = cache_folder() / "codes" / f"{name}-{key}.json"
    try:
        with garbage_collection_off():
            cached = json.loads(path.read_text(encoding="utf-8"))
        if cached["key"] == key:
            return cached["value"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # absent or damaged
    with garbage_collection_off():
        value = build()
    try:
        with atomic_file(path) as temporary:
            text = json.dumps({"key": key, "value": value}, ensure_ascii=False, separators=(",", ":"))
            temporary.write_text(text, encoding="utf-8")
    except (OutputError, OSError):
        pass  # the cache folder is not writable
    return value


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Turns garbage collection off while a large table is built: it would take half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
