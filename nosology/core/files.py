"""Files: atomic output, hashes and the cache folder."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from nosology.core.errors import OutputError
from nosology.core.progress import activity

_PARTIAL, _REPLACED = ".partial", ".replaced"  # endings of unfinished outputs and of outputs on their way out
_DESKTOP_FILES = {".DS_Store", "Thumbs.db", "desktop.ini"}  # file managers write them into any folder
_ABANDONED_SECONDS = 7 * 24 * 3600
_MAX_DEPTH = 100  # of lists and objects in a JSON file of ours; Python's functions fail on some hundreds


def _temporary_path(target: Path, ending: str = _PARTIAL) -> Path:
    """A new path in the folder of the target; a rename between the two is atomic. Its name has host and process."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".{target.name}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}{ending}")


def remove_abandoned(target: Path) -> None:
    """Removes temporary files of `target` whose process was killed: it is gone from this host, or they are a week old.

    A replaced folder is removed only if its successor is there: the process may have died between two renames.
    """
    for path in target.parent.glob(f".{glob.escape(target.name)}.*"):
        host, _, process = path.stem.rpartition(".")[0].removeprefix(f".{target.name}.").rpartition(".")
        is_finished = path.suffix == _PARTIAL or (path.suffix == _REPLACED and target.exists())
        if not (is_finished and process.isdigit()):
            continue
        is_dead = host == socket.gethostname() and not _is_running(int(process))
        with suppress(OSError):
            if is_dead or time.time() - path.lstat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


@contextmanager
def output_errors(target: Path) -> Iterator[None]:
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
    with output_errors(target):
        target = Path(os.path.realpath(target))
        if target.exists() and not target.is_file():
            kind = "a folder" if target.is_dir() else "a device"
            raise OutputError(f"cannot write the file {target}: it is {kind}")
        temporary = _temporary_path(target)
        remove_abandoned(target)
        try:
            yield temporary
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(target: str | Path, *, marker: str, files: Sequence[str] = ()) -> Iterator[Path]:
    """A temporary empty folder to write to; on success it becomes `target`, on failure it is removed.

    An existing `target` is replaced only if it is empty or an older output of this kind: it has the file `marker`, and
    every other file matches one of the patterns in `files`. This is checked again when the folders are exchanged.
    """
    target = check_output_folder(target, marker=marker, files=files)
    with output_errors(target):
        temporary = _temporary_path(target)
        remove_abandoned(target)
        temporary.mkdir()
        try:
            yield temporary
            _exchange(temporary, target, marker, files)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _exchange(temporary: Path, target: Path, marker: str, files: Sequence[str]) -> None:
    """Renames `temporary` to `target`. An older output is renamed first, so that nobody can add to it, and checked."""
    if not target.exists():
        temporary.rename(target)  # fails if a folder with files appeared in the meantime
        return
    old = _temporary_path(target, _REPLACED)
    target.rename(old)
    if reason := _reason_to_keep(old, marker, files):
        old.rename(target)
        raise OutputError(f"will not overwrite {target}: {reason}")
    try:
        temporary.rename(target)
    except OSError:
        with suppress(OSError):
            old.rename(target)
        raise
    shutil.rmtree(old)


def check_output_folder(target: str | Path, *, marker: str, files: Sequence[str] = ()) -> Path:
    """The resolved path of `target`; OutputError if `atomic_folder` cannot or must not write to it."""
    given = Path(target)
    with output_errors(given):
        if given.name in ("", ".."):
            raise OutputError(f"cannot write {given}: give a folder by its name")
        # Resolved before anything is checked: `missing/../folder` is `folder` once the parents have been created.
        resolved = Path(os.path.realpath(given))
        if reason := _reason_to_keep(resolved, marker, files):
            raise OutputError(f"will not overwrite {given}: {reason}")
        check_parent_folder(given)
    return resolved


def check_parent_folder(target: str | Path) -> None:
    """OutputError if `target` cannot be created: the nearest folder above it that exists is no folder, or read-only."""
    with output_errors(Path(target)):
        parent = next(path for path in Path(os.path.realpath(target)).parents if path.exists())
    if not parent.is_dir():
        raise OutputError(f"cannot write {target}: {parent} is no folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write {target}: no permission to write in {parent}")


def check_json_output(target: str | Path, *, keys: Collection[str]) -> None:
    """OutputError if `target` cannot be written, or is anything but an older output: a JSON object with these keys."""
    target = Path(target)
    check_parent_folder(target)
    if os.path.lexists(target):
        try:
            value = read_json(target) if target.is_file() else None
        except (OSError, ValueError):
            value = None
        if not (isinstance(value, dict) and value.keys() >= set(keys)):
            raise OutputError(f"will not overwrite {target}: it exists and is no older output of this command")


def _reason_to_keep(folder: Path, marker: str, files: Sequence[str]) -> str | None:
    """Why a folder must not be replaced; None if it may be."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        return "it is a file"
    present = [path for path in folder.rglob("*") if path.name not in _DESKTOP_FILES and not _is_folder(path)]
    if present and not (folder / marker).exists():
        return f"it exists and has no {marker}"
    names = (path.relative_to(folder).as_posix() for path in present)
    others = [name for name in names if not any(_matches(name, pattern) for pattern in (marker, *files))]
    return f"it also has files that nosology did not write there, such as {min(others)}" if others else None


def _matches(name: str, pattern: str) -> bool:
    """Whether a path matches a pattern, part by part: * does not match a slash."""
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


@contextmanager
def exclusive_output(target: str | Path, message: str = "") -> Iterator[None]:
    """Locks `target` for this process while the block runs; OutputError if another process has locked it.

    message: of the error; default: that another process is writing `target`.
    """
    target = Path(target)
    with output_errors(target):
        resolved = Path(os.path.realpath(target))
        if not resolved.name:
            raise OutputError(f"cannot write {target}: give a folder by its name")
        lock = resolved.with_name(f".{resolved.name}.lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_current = os.path.samestat(os.fstat(file.fileno()), lock.stat())  # not the lock of one that just ended
        except OSError:
            is_current = False
        if not is_current:
            default = f"another process is writing {target}; wait for it or give another folder"
            raise OutputError(message or default)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def file_lock(path: Path, waiting: str) -> Iterator[None]:
    """Waits until no other process holds the lock of this file; a killed process holds none.

    The file is created if needed, for this user only. Where the file system has no locks, the block runs at once.
    waiting: what is shown meanwhile.
    """
    with open(path, "ab", opener=private_file) as file:
        with suppress(OSError):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with activity(waiting):
                    fcntl.flock(file, fcntl.LOCK_EX)
        yield


def private_file(path: str, flags: int) -> int:
    """The `opener` of files that only this user can read."""
    return os.open(path, flags, 0o600)


_OUTPUTS = {
    "corpus.json": "a corpus",
    "bundle.json": "a bundle",
    "simulation.json": "a simulated hospital",
    "metrics.json": "a report",
}


def check_results_folder(folder: str | Path, *, own: Sequence[str] = ()) -> None:
    """OutputError if a folder that collects results is a file, or an output of another command.

    own: patterns of names; if given, a folder with other files must have one of these.
    """
    folder = Path(os.path.realpath(folder))
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"cannot write to {folder}: it is a file")
    if kind := next((kind for marker, kind in _OUTPUTS.items() if (folder / marker).exists()), None):
        raise OutputError(f"will not write to {folder}: it is {kind}; give another folder")
    names = sorted(path.name for path in folder.glob("[!.]*")) if own else []
    if names and not any(fnmatchcase(name, pattern) for name in names for pattern in own):
        raise OutputError(f"will not write to {folder}: it has other files, such as {names[0]}; give another folder")


def write_json(path: str | Path, value: Any) -> None:
    """Writes `value` as indented JSON, atomically; NaN and infinity raise ValueError."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with atomic_file(path) as temporary:
        # A path may have bytes that are not UTF-8: as surrogates in JSON's own notation they are read again.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def read_json(path: str | Path) -> Any:
    """The value of a JSON file; ValueError if it is not JSON in UTF-8 or nested too deeply to be read."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raises ValueError for a JSON value whose lists and objects are nested more than 100 deep."""
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return
        level = [part for item in containers for part in (item.values() if isinstance(item, dict) else item)]
    raise ValueError("nested too deeply")


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


def escape_formula(cell: Any) -> Any:
    """A cell of a CSV file that a spreadsheet does not read as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell
