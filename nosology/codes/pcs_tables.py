"""The ICD-10-PCS tables (values by axis), body part key, device key, and names of operations in the index."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from nosology.codes.installed import installed, installed_releases
from nosology.codes.sources import DATA, cached_json, read_xml
from nosology.core import DataError

AXES = ("body_part", "approach", "device", "qualifier")
"""Characters 4 to 7; outside of surgery they have other titles, such as duration and function."""
_VALUE = "\x7f"  # between the values of an axis; occurs in no label
# Names of operations in the index; words such as "Suspension" or "Removal" mean other things in notes.
_NAME = re.compile(r"[a-z-]+(?:tomy|stomy|plasty|scopy|rrhaphy|pexy|desis|lysis|tripsy|centesis|clasis|conization)")


class PcsValue(NamedTuple):
    """A value of an axis: its character and its label."""

    character: str
    label: str


class PcsRow(NamedTuple):
    """A row of a table (section, body system, operation): its values by axis; each combination is a code."""

    table: str
    values: tuple[tuple[PcsValue, ...], ...]


@dataclass(frozen=True, eq=False)
class PcsTables:
    """The rows of all tables of a release; operations: title of the operation by table."""

    release: str
    source: str
    rows: tuple[PcsRow, ...]
    operations: Mapping[str, str]

    @cached_property
    def _by_table(self) -> dict[str, list[PcsRow]]:
        tables: dict[str, list[PcsRow]] = {}
        for row in self.rows:
            tables.setdefault(row.table, []).append(row)
        return tables

    def of(self, table: str) -> list[PcsRow]:
        """The rows of a table such as 0DT; [] if there is none."""
        return self._by_table.get(table, [])

    def tables(self) -> list[str]:
        """The tables, by their three characters."""
        return list(self._by_table)

    def to_json(self) -> dict[str, Any]:
        """The tables as JSON values: axes are stored once and rows refer to them."""
        axes: dict[str, int] = {}
        tables: dict[str, list[Any]] = {}
        for row in self.rows:
            texts = (_VALUE.join(f"{value.character}{value.label}" for value in axis) for axis in row.values)
            numbers = [axes.setdefault(text, len(axes)) for text in texts]
            tables.setdefault(row.table, [self.operations[row.table]]).append(numbers)
        return {"release": self.release, "source": self.source, "axes": list(axes), "tables": tables}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PcsTables:
        """The tables that `to_json` wrote."""
        axes = [tuple(PcsValue(item[0], item[1:]) for item in text.split(_VALUE)) for text in value["axes"]]
        rows = tuple(
            PcsRow(table, tuple(axes[number] for number in numbers))
            for table, (_, *of_table) in value["tables"].items()
            for numbers in of_table
        )
        operations = {table: title for table, (title, *_) in value["tables"].items()}
        return cls(value["release"], value["source"], rows, operations)


@dataclass(frozen=True)
class PcsTerms:
    """What the labels include, by label (body part key, device key), and the tables of operations by name.

    names: a name of the index such as "nephropexy" -> the first characters of its codes, such as 0TQ and 0TS.
    """

    body_parts: Mapping[str, tuple[str, ...]]
    devices: Mapping[str, tuple[str, ...]]
    names: Mapping[str, tuple[str, ...]]


def pcs_tables(release: str | None = None) -> PcsTables:
    """The newest tables that are not newer than a release, else the oldest; by default the newest."""
    known = [_built_in_tables().release, *installed_releases("icd10pcs", ("tables",))]
    past = [name for name in known if release is None or name <= release]
    return _tables(max(past, default=min(known)))


@cache
def _tables(release: str) -> PcsTables:
    files = installed("icd10pcs", release)
    if "tables" not in files:
        return _built_in_tables()
    path = files["tables"]
    return PcsTables.from_json(cached_json(f"pcs-tables-{release}", [path], lambda: read_tables(path).to_json()))


@cache
def _built_in_tables() -> PcsTables:
    return PcsTables.from_json(_read_json("icd10pcs_tables"))


@cache
def pcs_terms() -> PcsTerms:
    """The keys and the names of the newest definitions and index, built in or installed."""
    value = _read_json("icd10pcs_terms")
    for release in installed_releases("icd10pcs", ("definitions", "index")):
        files = installed("icd10pcs", release)
        if "definitions" in files and release >= value["release"]:
            value |= read_definitions(read_xml(files["definitions"]))
        if "index" in files and release >= value["index_release"]:
            value |= {"names": read_names(read_xml(files["index"]))}
    parts = ({name: tuple(texts) for name, texts in value[kind].items()} for kind in ("body_parts", "devices", "names"))
    return PcsTerms(*parts)


def _read_json(name: str) -> dict[str, Any]:
    with gzip.open(DATA / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        return json.load(file)


def read_tables(path: Path) -> PcsTables:
    """The tables of an official file (icd10pcs_tables_YYYY.xml)."""
    return parse_tables(read_xml(path), str(path))


def parse_tables(root: ElementTree.Element, source: str) -> PcsTables:
    """The tables of the root of an official file."""
    rows: list[PcsRow] = []
    operations: dict[str, str] = {}
    for element in root.findall("pcsTable"):
        head = [_values(axis)[0] for axis in element.findall("axis")]
        table = "".join(value.character for value in head)
        operations[table] = head[-1].label
        for row in element.findall("pcsRow"):
            values = tuple(_values(axis) for axis in row.findall("axis"))
            if len(table) + len(values) != 7:
                raise DataError(f"{source} has a row with {len(table) + len(values)} characters in place of 7")
            rows.append(PcsRow(table, values))
    if not rows:
        raise DataError(f"{source} must be the ICD-10-PCS tables; it has no table")
    return PcsTables((root.findtext("version") or "").strip()[:4], source, tuple(rows), operations)


def _values(axis: ElementTree.Element) -> tuple[PcsValue, ...]:
    return tuple(PcsValue(label.get("code", ""), _text(label)) for label in axis.findall("label"))


def read_definitions(root: ElementTree.Element) -> dict[str, dict[str, list[str]]]:
    """The body part key and the device key of the surgical section: label -> what it includes."""
    keys: dict[str, dict[str, list[str]]] = {"body_parts": {}, "devices": {}}
    for section in root.findall("section"):
        for axis in section.findall("axis") if section.get("code") == "0" else ():
            key = keys.get({"4": "body_parts", "6": "devices"}.get(axis.get("pos", ""), ""), {})
            for terms in axis.findall("terms"):
                includes = [_text(element) for element in terms.findall("includes")]
                for title in terms.findall("title") if includes else ():
                    # "Zooplastic Tissue in Heart and Great Vessels": the label is without the body system
                    known = key.setdefault(re.sub(r" (?:in|for) .*", "", _text(title)), [])
                    known.extend(text for text in includes if text not in known)
    return keys


def read_names(root: ElementTree.Element) -> dict[str, list[str]]:
    """The names of operations in the index -> the first characters of their codes."""
    names: dict[str, list[str]] = {}
    for main in root.iter("mainTerm"):
        prefixes = dict.fromkeys(_prefixes(main))
        for name in _text(main.find("title")).lower().split(", ") if prefixes else ():
            if _NAME.fullmatch(name):
                names[name] = list(dict.fromkeys([*names.get(name, ()), *prefixes]))
    return names


def _prefixes(main: ElementTree.Element) -> Iterator[str]:
    """The first characters of the codes of a main term and of the lines directly below it."""
    for element in (main, *main.findall("term")):
        holders: Iterable[ElementTree.Element] = (element, *element.findall("see"))
        for holder in holders:
            for name in ("tab", "codes", "code"):
                yield from (_text(code) for code in holder.findall(name))


def _text(element: ElementTree.Element | None) -> str:
    return " ".join((element.text or "").split()) if element is not None else ""
