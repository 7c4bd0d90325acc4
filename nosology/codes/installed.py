"""Official releases that a user has installed: which files there are (`install.py` adds and removes them)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

KINDS = {
    "order": "order file",
    "order_addenda": "addenda of the order file",
    "tabular": "tabular list",
    "index": "Alphabetic Index or ICD-10-PCS index",
    "index_addenda": "addenda of the Alphabetic Index",
    "external_causes": "index of external causes",
    "external_causes_addenda": "addenda of the index of external causes",
    "neoplasms": "table of neoplasms",
    "drugs": "table of drugs and chemicals",
    "poa": "list of codes exempt from POA",
    "tables": "ICD-10-PCS tables",
    "definitions": "ICD-10-PCS definitions",
}
"""The kinds of files, by the name under which they are stored."""
TABLES = ("order", "tabular", "tables", "order_addenda")  # kinds that define the codes of a release
MARKER = "release.json"
# cached functions that do not depend on installed files
_INDEPENDENT = ("built_in_table", "package_file", "builtin_synonyms", "_changes", "_lines", "_built_in_tables")


class InstalledFile(NamedTuple):
    """A file of an installed release."""

    system: str
    release: str
    kind: str
    path: Path


def data_folder() -> Path:
    """The folder of installed files: $NOSOLOGY_DATA, else the user's data folder."""
    root = os.environ.get("NOSOLOGY_DATA")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "nosology"


def installed_files() -> tuple[InstalledFile, ...]:
    """All installed files, sorted by system, release and kind; read once per process."""
    # Asked for every code of a table: to build the path of the folder each time took most of the time of a claim.
    return _scan(*map(os.environ.get, ("NOSOLOGY_DATA", "XDG_DATA_HOME", "HOME")))


@cache
def _scan(*_environment: str | None) -> tuple[InstalledFile, ...]:
    files, folder = [], data_folder() / "codes"
    for marker in sorted(folder.glob(f"icd10*-20??/{MARKER}")):
        system, _, release = marker.parent.name.partition("-")
        for path in sorted(marker.parent.iterdir()):
            if path.stem in KINDS:
                files.append(InstalledFile(system, release, path.stem, path))
    return tuple(files)


def installed(system: str, release: str) -> dict[str, Path]:
    """kind -> path of the files of an installed release; {} if it is not installed."""
    return {file.kind: file.path for file in installed_files() if (file.system, file.release) == (system, release)}


def installed_releases(system: str, kinds: Sequence[str] = TABLES) -> list[str]:
    """The installed releases that have a file of one of these kinds, oldest first."""
    return sorted({file.release for file in installed_files() if file.system == system and file.kind in kinds})


def forget_installed() -> None:
    """Makes this process read the installed files again."""
    for name, module in list(sys.modules.items()):
        if name.startswith("nosology.codes."):
            for member, value in vars(module).items():
                if hasattr(value, "cache_clear") and member not in _INDEPENDENT:
                    value.cache_clear()
