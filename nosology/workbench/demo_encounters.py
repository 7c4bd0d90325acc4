"""Encounters of the demo: fictional patients, written for this project, with the codes that a coder would bill.

`data/demo` has one TOML file per encounter: data of the encounter, its documents, and its final codes in billing order,
diagnoses with their present-on-admission indicator (exempt codes and outpatients have none).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nosology.core import Code, Note
from nosology.workbench.uploads import normalize_encounter

FOLDER = Path(__file__).parent / "data" / "demo"
COLUMNS = ("setting", "sex", "born", "admitted", "discharged", "disposition", "payer")


@dataclass(frozen=True)
class DemoEncounter:
    """An encounter: its notes as an import has them, and its final codes in order with their POA indicator or ""."""

    id: str
    notes: tuple[Note, ...]
    final: Mapping[Code, str]


@cache
def load_encounters() -> tuple[DemoEncounter, ...]:
    """All encounters, in the order of their ids."""
    paths = sorted(FOLDER.glob("*.toml"))
    return tuple(_encounter(tomllib.loads(path.read_text(encoding="utf-8"))) for path in paths)


def _encounter(value: Mapping[str, Any]) -> DemoEncounter:
    diagnoses = (entry.partition(" ") for entry in value["diagnoses"])
    final = {Code("icd10cm", code): poa for code, _, poa in diagnoses}
    final |= {Code("icd10pcs", code): "" for code in value["procedures"]}
    notes = (_note(value, number, part) for number, part in enumerate(value["documents"], 1))
    return DemoEncounter(value["id"], tuple(notes), final)


def _note(value: Mapping[str, Any], number: int, part: Mapping[str, Any]) -> Note:
    """A document of an encounter."""
    about = {name: str(value[name]) for name in COLUMNS}
    about |= {"encounter": value["id"], "document": part["kind"], "title": part["title"]}
    about["document_date"] = str(part["date"])
    name, text = f"{value['id']}-{number}", part["text"].strip() + "\n"
    return normalize_encounter(Note(name, text, value["patient"], value["site"], lang="en", extra=about))
