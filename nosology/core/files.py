"""Output that is whole or not there: it is written aside, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nosology.core.errors import OutputError


def _beside(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")


@contextmanager
def atomic_file(target: str | Path) -> Iterator[Path]:
    """A path to write to; on success it becomes `target` (replacing it), on any failure it is removed."""
    target = Path(target)
    with _blaming(target):
        if target.is_dir():
            raise OutputError(f"cannot write the file {target}: a folder of that name exists")
        aside = _beside(target)
        try:
            yield aside
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)


@contextmanager
def _blaming(target: Path) -> Iterator[None]:
    """Turns an OSError into an OutputError that names the target, and the file at fault if that is another."""
    try:
        yield
    except OSError as error:
        fault = f" ({error.filename})" if error.filename and target.name not in str(error.filename) else ""
        raise OutputError(f"cannot write {target}: {error.strerror or error}{fault}") from error


@contextmanager
def atomic_folder(target: str | Path, *, marker: str) -> Iterator[Path]:
    """An empty folder to fill; on success it becomes `target`, on any failure it is removed.

    An existing `target` is replaced only if it holds the file `marker`, that is, if it is an older output of the same
    kind (or empty); anything else there is somebody's data.
    """
    target = Path(target)
    check_output_folder(target, marker=marker)
    with _blaming(target):
        if target.is_symlink():
            target = target.resolve()
        aside = _beside(target)
        aside.mkdir()
        try:
            yield aside
            if target.exists():
                old = _beside(target)
                target.rename(old)
                aside.rename(target)
                shutil.rmtree(old)
            else:
                aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def check_output_folder(target: str | Path, *, marker: str) -> None:
    """Raises OutputError where `new_folder` would not write."""
    target = Path(target)
    with _blaming(target):
        if target.exists() and not (target.is_dir() and ((target / marker).exists() or not any(target.iterdir()))):
            raise OutputError(f"will not overwrite {target}: it exists and holds no {marker}")
        if target.name in ("", ".."):
            raise OutputError(f"cannot write {target}: give a folder by its name")


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: str | Path, value: Any) -> None:
    """Writes `value` as indented JSON, whole or not at all; NaN and infinity are refused."""
    with atomic_file(path) as aside:
        aside.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def cache_folder() -> Path:
    """The folder for tables that can be made again: $NOSOLOGY_CACHE, else the user's cache folder."""
    root = os.environ.get("NOSOLOGY_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nosology"
