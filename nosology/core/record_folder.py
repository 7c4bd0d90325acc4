"""A folder that collects one record per encounter, so that a run that was stopped continues."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nosology.core.errors import OutputError
from nosology.core.files import check_results_folder, output_errors, private_file, read_json, write_json


class RecordFolder:
    """The records of a run while it runs: JSON lines, each with an id. Only the owner of the folder can read them."""

    def __init__(self, folder: str | Path, settings: Mapping[str, Any], *, what: str, records: str, manifest: str):
        """settings: what is read and how; OutputError if the folder has records with other ones.

        what: a name of the run for messages. records, manifest: names of the files of records and settings.
        """
        self.path, self.settings = Path(folder), dict(settings)
        self._file = self.path / records
        check_results_folder(self.path, own=(manifest,))
        with output_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
        if self._file.exists() and _read_settings(self.path / manifest) != self.settings:
            raise OutputError(f"{self.path} has {what} of other files or with other settings; give another folder")
        write_json(self.path / manifest, self.settings)
        self.done = self._repair()
        self._is_continued = bool(self.done)

    def _repair(self) -> set[str]:
        """The ids of the records that are complete; a line that was not finished is cut off."""
        if not self._file.exists():
            return set()
        content = self._file.read_bytes()
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            os.truncate(self._file, complete)
        try:
            return {str(json.loads(line)["id"]) for line in content[:complete].splitlines()}
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise OutputError(f"{self._file} is damaged; give another folder") from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Stores the record of an encounter."""
        with output_errors(self.path), open(self._file, "a", encoding="utf-8", opener=private_file) as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self.done.add(record["id"])

    @contextmanager
    def damage_errors(self) -> Iterator[None]:
        """Raises OutputError in place of errors in a block that uses records of an earlier run: they were changed."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            if not self._is_continued:
                raise
            raise OutputError(f"{self._file} is damaged; give another folder") from error

    def records(self) -> Iterator[dict[str, Any]]:
        """The stored records."""
        if self.done:
            with self._file.open(encoding="utf-8", newline="\n") as file:
                yield from map(json.loads, file)


def _read_settings(path: Path) -> Any:
    """The settings in a file; None if they cannot be read."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None
