"""What the MIMIC readers share: tables found by name, and the codes of each admission."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nosology.core import Code, DataError
from nosology.corpora.intake import Intake
from nosology.corpora.lines import columns

# A table's codes by ICD version, the values of icd_version.
DIAGNOSES = {"9": "icd9cm", "10": "icd10cm"}
PROCEDURES = {"9": "icd9proc", "10": "icd10pcs"}


def find_table(paths: Sequence[Path], name: str, suffix: str = ".csv") -> Path | None:
    """The one file NAME.csv or NAME.csv.gz among the paths or anywhere below them; None if there is none.

    Letter case does not matter. Beside an unpacked table its .gz is ignored; two tables of one name in different
    folders are an error.
    """
    wanted = (f"{name}{suffix}", f"{name}{suffix}.gz")
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.name.lower() in wanted and file.is_file():
                folder = file.resolve().parent
                if folder not in found or not file.name.lower().endswith(".gz"):
                    found[folder] = file
    if len(found) > 1:
        raise DataError(f"found several tables {name}: {', '.join(map(str, found.values()))}; give the path of one")
    return next(iter(found.values()), None)


def need_table(paths: Sequence[Path], name: str) -> Path:
    """The table of that name; DataError if there is none."""
    found = find_table(paths, name)
    if found is None:
        raise DataError(f"found no {name}.csv or {name}.csv.gz in {', '.join(map(str, paths))}")
    return found


_Ranked = tuple[int, int, Code]  # table, seq_num, code


class AdmissionCodes:
    """The codes of every admission, diagnoses before procedures, each in the order of seq_num."""

    def __init__(self) -> None:
        self._codes: defaultdict[str, list[_Ranked]] = defaultdict(list)
        self._tables = 0
        self._used: set[str] = set()
        self._repeated = 0

    def load(self, path: Path, code_column: str, systems: Mapping[str, str], intake: Intake) -> None:
        """Adds a table; `systems` maps icd_version to a system, or "" to the one system of tables without versions."""
        required = ["hadm_id", code_column, *([] if "" in systems else ["icd_version"])]
        # One tuple serves all rows with the same place and code, which keeps five million rows small.
        shared: dict[_Ranked, _Ranked] = {}
        for row, (admission, raw, *_, version, rank) in columns(path, intake, required, ["icd_version", "seq_num"]):
            system = systems.get(version.strip())
            if not raw.strip():
                intake.trouble("empty_code", path, row)
            elif system is None:
                intake.trouble("malformed_code", path, row)
            elif code := intake.code(raw, system, path, row):
                key = (self._tables, _number(rank), code)
                self._codes[admission_id(admission)].append(shared.setdefault(key, key))
        self._tables += 1

    def of(self, admission: str) -> tuple[Code, ...]:
        """The codes of an admission, each once; none if it has none."""
        ranked = sorted(self._codes.get(admission, ()))
        codes = tuple(dict.fromkeys(code for _, _, code in ranked))
        self._used.add(admission)
        self._repeated += len(ranked) - len(codes)
        return codes

    def report(self, path: Path, intake: Intake) -> None:
        """Counts the coded admissions that no note of the file at `path` belongs to, and the codes given twice."""
        intake.trouble("codes_without_note", path, times=len(self._codes.keys() - self._used))
        intake.trouble("repeated_code", path, times=self._repeated)


def _number(raw: str) -> int:
    try:
        return int(float(raw))
    except (ValueError, OverflowError):
        return 1 << 30  # MIMIC-III has rows without a sequence number: they come last


def admission_id(raw: str) -> str:
    """The admission's number as text; 123.0, as spreadsheets write a column with gaps, is 123."""
    text = raw.strip()
    number = text.removesuffix(".0")
    return number if number.isdigit() else text


def lookup(path: Path | None, key: str, fields: Sequence[str], intake: Intake) -> dict[str, tuple[str, ...]]:
    """key -> fields of a small table, empty if there is no such table."""
    if path is None:
        return {}
    return {admission_id(values[0]): values[1:] for _, values in columns(path, intake, [key], fields)}


def note_rows(path: Path, intake: Intake, optional: Sequence[str] = ()) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(row, (note_id, subject_id, hadm_id, text, *optional)) of a MIMIC-IV note table, of those the intake accepts."""
    for row, fields in columns(path, intake, ["note_id", "subject_id", "hadm_id", "text"], optional):
        admission = admission_id(fields[2])
        if not admission:
            intake.trouble("no_admission", path, row)
            continue
        note_id, text = fields[0].strip(), intake.text(fields[3], path, row)
        if intake.accepts(note_id, text, path, row):
            yield row, (note_id, admission_id(fields[1]), admission, text, *fields[4:])
