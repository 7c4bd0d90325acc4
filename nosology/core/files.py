"""Files: atomic output, hashes and the cache folder."""

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


def _temporary_path(target: Path) -> Path:
    """A new path in the folder of the target; a rename between the two is atomic."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")


@contextmanager
def _output_errors(target: Path) -> Iterator[None]:
    """Raises OutputError in place of OSError; its message has the target and, if another file failed, that file."""
    try:
        yield
    except OSError as error:
        failed = f" ({error.filename})" if error.filename and target.name not in str(error.filename) else ""
        raise OutputError(f"cannot write {target}: {error.strerror or error}{failed}") from error


@contextmanager
def atomic_file(target: str | Path) -> Iterator[Path]:
    """A temporary path to write to; on success it replaces `target`, on failure it is removed."""
    target = Path(target)
    with _output_errors(target):
        if target.is_dir():
            raise OutputError(f"cannot write the file {target}: it is a folder")
        temporary = _temporary_path(target)
        try:
            yield temporary
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(target: str | Path, *, marker: str) -> Iterator[Path]:
    """A temporary empty folder to write to; on success it becomes `target`, on failure it is removed.

    An existing `target` is replaced only if it is empty or has the file `marker`, i.e. is an older output of this kind.
    """
    target = Path(target)
    check_output_folder(target, marker=marker)
    with _output_errors(target):
        if target.is_symlink():
            target = target.resolve()
        temporary = _temporary_path(target)
        temporary.mkdir()
        try:
            yield temporary
            if target.exists():
                old = _temporary_path(target)
                target.rename(old)
                temporary.rename(target)
                shutil.rmtree(old)
            else:
                temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def check_output_folder(target: str | Path, *, marker: str) -> None:
    """Raises OutputError if `atomic_folder` must not write to `target`."""
    target = Path(target)
    with _output_errors(target):
        if target.exists() and not (target.is_dir() and ((target / marker).exists() or not any(target.iterdir()))):
            raise OutputError(f"will not overwrite {target}: it exists and has no {marker}")
        if target.name in ("", ".."):
            raise OutputError(f"cannot write {target}: give a folder by its name")


def write_json(path: str | Path, value: Any) -> None:
    """Writes `value` as indented JSON, atomically; NaN and infinity raise ValueError."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_sha256(text: str) -> str:
    """The SHA-256 of a text in UTF-8, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def json_sha256(value: Any) -> str:
    """The SHA-256 of a JSON value, in hexadecimal digits; the order of keys does not matter."""
    return text_sha256(json.dumps(value, sort_keys=True))


def cache_folder() -> Path:
    """The folder of files that can be built again: $NOSOLOGY_CACHE, else the user's cache folder."""
    root = os.environ.get("NOSOLOGY_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nosology"
