"""Codes that are exempt from "present on admission" (POA), by release."""

from __future__ import annotations

import gzip
import json
from datetime import date
from functools import cache
from typing import Any

from nosology.codes.installed import installed_files
from nosology.codes.poa_files import read_poa_list
from nosology.codes.releases import effective_date, iso_day
from nosology.codes.sources import DATA
from nosology.codes.spelling import normalise


def is_poa_exempt(code: str, day: date | str | None = None) -> bool:
    """Whether an ICD-10-CM code needs no POA indicator on a day of discharge, by default in the newest list.

    A day before the first list uses that one; a day after the last list uses the last.
    """
    lists = _lists()
    release = max(lists)
    if day is not None:
        text = iso_day(day)
        past = [name for name in lists if effective_date(name).isoformat() <= text]
        release = max(past, default=min(lists))
    return normalise(code, "icd10cm").code in lists[release]


def poa_releases() -> list[str]:
    """The releases with a list, oldest first."""
    return sorted(_lists())


@cache
def _lists() -> dict[str, frozenset[str]]:
    with gzip.open(DATA / "icd10cm_poa_exempt.json.gz", "rt", encoding="utf-8") as file:
        value: dict[str, Any] = json.load(file)
    lists: dict[str, set[str]] = {release: set() for release in value["releases"]}
    for mask, codes in value["codes"].items():
        for bit, release in enumerate(value["releases"]):
            if int(mask) >> bit & 1:
                lists[release].update(codes.split(" "))
    for file in installed_files():
        if file.kind == "poa":
            lists[file.release] = set(read_poa_list(file.path)[1])
    return {release: frozenset(codes) for release, codes in lists.items()}
