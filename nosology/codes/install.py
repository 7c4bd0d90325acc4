"""Installing official releases: each file is recognised by its content, and all are installed or none."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from nosology.codes.alphabetic_index import external_causes, index_tree
from nosology.codes.installed import KINDS, MARKER, InstalledFile, data_folder, forget_installed, installed_files
from nosology.codes.lookup import table
from nosology.codes.official_tables import drug_tree, neoplasm_tree
from nosology.codes.pcs_tables import pcs_tables, pcs_terms
from nosology.codes.pdf_text import pdf_lines
from nosology.codes.poa import poa_releases
from nosology.codes.poa_files import ZIP_ERRORS, is_poa_header, parse_poa_rows, poa_text_rows, spreadsheet_rows
from nosology.codes.releases import releases
from nosology.core import CodeError, DataError
from nosology.core.files import atomic_folder

_MAX_BYTES = 1 << 30  # of one unpacked file
_ORDER = re.compile(rb"\d{5} ([A-Z0-9]{3,7}) *[01] ")
_ORDER_ADDENDA = re.compile(rb"(?:Add|Delete|Revise from|Revise to): +(?:[01] )?([A-Z0-9]{3,7}) ")
_CODE_LIST = re.compile(rb"([A-Z][0-9A][0-9A-Z][0-9A-Z]{0,4}|[0-9A-Z]{7}) +[A-Z]")
_YEAR = re.compile(r"(?<!\d)(20[1-9]\d)(?!\d)|FY(\d\d)(?!\d)", re.IGNORECASE)
_FORMS = (
    "an order file, tabular list, index, table of drugs, neoplasms or external causes, ICD-10-PCS tables, definitions "
    "or index, addenda of the index or order file, or POA-exempt list"
)
_PCS_KINDS = {"ICD10PCS.tabular": "tables", "ICD10PCS.definitions": "definitions", "ICD10PCS.index": "index"}


class OfficialFile(NamedTuple):
    """A recognised file: what it is, the release that it states ("" if it states none), and its content."""

    system: str
    release: str
    kind: str
    content: bytes


def install(paths: Sequence[Path], release: str | None = None) -> list[InstalledFile]:
    """Installs official files; all or none of them. The installed files.

    Each is recognised by its content. Order files do not state their release: it comes from the name of the file or
    archive, or from `release`. Everything is read once in place; if that fails, the former state is restored.
    """
    if release is not None and not re.fullmatch(r"20\d\d", release):
        raise CodeError(f"release must be a year such as 2027; got {release[:20]!r}")
    found: dict[tuple[str, str], dict[str, bytes]] = {}
    for path in paths:
        for file in recognise(_read(path), str(path), release):
            found.setdefault((file.system, file.release), {})[file.kind] = file.content
    root = data_folder() / "codes"
    backups: list[tuple[Path, Path | None]] = []
    with tempfile.TemporaryDirectory() as temporary:
        try:
            for (system, year), contents in found.items():
                target = root / f"{system}-{year}"
                backup = Path(temporary) / target.name if target.exists() else None
                if backup:
                    shutil.copytree(target, backup)
                backups.append((target, backup))
                _write(target, contents)
            forget_installed()
            for system, year in found:
                check_release(system, year)
        except BaseException:
            for target, backup in backups:
                shutil.rmtree(target, ignore_errors=True)
                if backup:
                    shutil.copytree(backup, target)
            forget_installed()
            raise
    kinds = {(system, year, kind) for (system, year), contents in found.items() for kind in contents}
    return [file for file in installed_files() if file[:3] in kinds]


def _write(target: Path, contents: dict[str, bytes]) -> None:
    """Adds files to the folder of a release; the folder is exchanged as a whole."""
    endings = {"<": ".xml", "%": ".pdf"}
    with atomic_folder(target, marker=MARKER, files=[f"{kind}.*" for kind in KINDS]) as folder:
        for path in target.iterdir() if target.is_dir() else ():
            if path.stem not in contents and path.is_file():
                shutil.copy2(path, folder / path.name)
        for kind, content in contents.items():
            first = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1].decode("latin-1")
            (folder / f"{kind}{endings.get(first, '.txt')}").write_bytes(content)
        (folder / MARKER).write_text(json.dumps({"files": sorted(path.name for path in folder.iterdir())}))


def remove(release: str, system: str | None = None) -> list[InstalledFile]:
    """Removes an installed release; the files that were removed. CodeError if there are none."""
    files = [file for file in installed_files() if file.release == release and system in (None, file.system)]
    if not files:
        have = ", ".join(sorted({f"{file.system} {file.release}" for file in installed_files()})) or "none"
        raise CodeError(f"release {release[:20]} is not installed; installed: {have}")
    for folder in {file.path.parent for file in files}:
        hidden = folder.with_name(f".{folder.name}.removed")
        shutil.rmtree(hidden, ignore_errors=True)
        folder.rename(hidden)  # at once; the files themselves go one by one
        shutil.rmtree(hidden)
    forget_installed()
    return files


def check_release(system: str, release: str) -> None:
    """Reads what an installed release consists of; DataError or CodeError if a file cannot be used."""
    if release in releases(system) and not table(system, release).codes(billable=True):
        raise CodeError(f"{system} {release} must have billable codes; the files have none")
    for read in (index_tree, external_causes, neoplasm_tree, drug_tree, poa_releases, pcs_tables, pcs_terms):
        read()


def _read(path: Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def recognise(content: bytes, name: str, release: str | None = None) -> list[OfficialFile]:
    """The official files in a file: itself, or those of an archive. DataError if there is none."""
    if content.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(io.BytesIO(content)) as file:
                return recognise(file.read(_MAX_BYTES), name, release)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{name} is a damaged gzip file") from error
    if content.startswith(b"PK") and not _is_spreadsheet(content):
        return list(_members(content, name, release))
    file = _recognise(content, name)
    year = file.release or release or _year(name)
    if not year:
        raise DataError(f"{name} does not state its release, nor does its name; give --release, such as 2027")
    if release and year != release:
        raise DataError(f"{name} is of release {year}, not {release}")
    return [file._replace(release=year)]


def _members(content: bytes, name: str, release: str | None) -> Iterator[OfficialFile]:
    """The official files of an archive. Of two of a kind the longer one; a full file replaces its addenda."""
    best: dict[tuple[str, str, str], OfficialFile] = {}
    reasons = []
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                if member.is_dir() or member.file_size > _MAX_BYTES:
                    continue
                try:
                    files = recognise(archive.read(member), f"{Path(name).name}/{member.filename}", release)
                except DataError as error:
                    reasons.append(str(error))
                    continue
                for file in files:
                    if len(file.content) > len(best.get(file[:3], file._replace(content=b"")).content):
                        best[file[:3]] = file
    except ZIP_ERRORS as error:
        raise DataError(f"{name} is a damaged or encrypted archive") from error
    if not best:
        stated = next((reason for reason in reasons if "--release" in reason), None)
        raise DataError(stated or f"{name} has no file that can be installed: it must have {_FORMS}")
    for (system, year, kind), file in best.items():
        if (system, year, kind.removesuffix("_addenda")) in best and kind.endswith("_addenda"):
            continue
        yield file


def _year(name: str) -> str:
    """The last year in a name: icd10cm_order_2027.txt, POAexemptCodesFY27.txt; "" if there is none."""
    for part in reversed(name.split("/")[-2:]):
        if years := _YEAR.findall(part):
            full, short = years[-1]
            return full or f"20{short}"
    return ""


def _is_spreadsheet(content: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return "xl/workbook.xml" in archive.namelist() or "[Content_Types].xml" in archive.namelist()
    except zipfile.BadZipFile:
        return False


def _recognise(content: bytes, name: str) -> OfficialFile:
    """What one file is, by its content; its release is "" if it does not state one."""
    start = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:4096]
    if content.startswith(b"PK"):
        if not is_poa_header(rows := spreadsheet_rows(content)):
            raise DataError(f"{name} is a spreadsheet of another kind; it must be {_FORMS}")
        return _poa(rows, name)
    if content.startswith(b"%PDF"):
        return _pdf(content, name)
    if start.startswith(b"<"):
        return _xml(content, name)
    rows = poa_text_rows(content.partition(b"\n")[0])
    if is_poa_header(rows):
        return _poa(poa_text_rows(content), name)
    for kind, pattern in (("order", _ORDER), ("order_addenda", _ORDER_ADDENDA)):
        if match := pattern.match(start):
            # Codes of ICD-10-PCS start with a digit (its first section is 0), those of ICD-10-CM never do.
            return OfficialFile("icd10pcs" if match[1][:1].isdigit() else "icd10cm", "", kind, content)
    if _CODE_LIST.match(start):
        raise DataError(f"{name} is a list of codes without headers; give the order file of the same release")
    raise DataError(f"{name} must be {_FORMS}")


def _poa(rows: list[list[str]], name: str) -> OfficialFile:
    release, codes = parse_poa_rows(rows, name)
    if not codes:
        raise DataError(f"{name} is a list of POA-exempt codes without codes")
    lines = [f"Order{release[2:]}\tPOAexemptCode\tDescription", *(f"\t{code}\t" for code in codes)]
    return OfficialFile("icd10cm", release, "poa", "\n".join(lines).encode())


def _xml(content: bytes, name: str) -> OfficialFile:
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise DataError(f"{name} is not well-formed XML") from error
    release = (root.findtext("version") or "").strip()[:4]
    if root.tag == "ICD10CM.tabular":
        return OfficialFile("icd10cm", release, "tabular", content)
    if root.tag in _PCS_KINDS:
        return OfficialFile("icd10pcs", release, _PCS_KINDS[root.tag], content)
    if root.tag == "ICD10CM.index":
        head = (root.findtext("./indexHeading/head") or "").strip()
        title = (root.findtext("title") or "").upper()
        kind = {"Substance": "drugs", "Neoplasm": "neoplasms"}.get(head)
        return OfficialFile(
            "icd10cm", release, kind or ("external_causes" if "EXTERNAL" in title else "index"), content
        )
    raise DataError(f"{name} is XML of another kind ({root.tag[:40]}); it must be {_FORMS}")


def _pdf(content: bytes, name: str) -> OfficialFile:
    """Addenda of an index; other addenda have tables in columns, and their XML files say the same."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "addenda.pdf"
        path.write_bytes(content)
        lines = ["".join(text for _, text in line) for _, line in zip(range(8), pdf_lines(path))]
    head = " ".join(lines)
    if "Addenda" in head and (year := _YEAR.search(head)):
        for words, kind in (("INDEX to DISEASES", "index_addenda"), ("EXTERNAL CAUSE", "external_causes_addenda")):
            if words in head:
                return OfficialFile("icd10cm", year[1], kind, content)
    raise DataError(
        f"{name} is a PDF; of PDFs only addenda of the index can be installed (tables: give their XML files)"
    )
