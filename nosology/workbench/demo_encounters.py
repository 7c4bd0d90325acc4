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
COLUMNS = ("setting", "sex", "birth_date", "admitted", "discharged", "disposition", "payer")


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
    return DemoEncounter(value["id"], (_joined(value),), final)


def _columns(value: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of the encounter; the age is that at admission."""
    born, came = value["birth_date"], value["admitted"]
    age = came.year - born.year - ((came.month, came.day) < (born.month, born.day))
    return {name: str(value[name]) for name in COLUMNS} | {"date": str(value["discharged"]), "age": age}


def _joined(value: Mapping[str, Any]) -> Note:
    """The documents of an encounter as one note."""
    parts = (f"{part['title'].upper()} ({part['date']})\n\n{part['text'].strip()}" for part in value["documents"])
    note = Note(value["id"], "\n\n\n".join(parts), value["patient"], value["site"], lang="en", extra=_columns(value))
    return normalize_encounter(note)
