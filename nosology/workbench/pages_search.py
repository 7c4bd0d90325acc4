"""The search for codes on the page of a note."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Form
from fastapi.responses import HTMLResponse
from sqlalchemy import Connection, select

from nosology.claims.code_search import ALL, search_codes, table_on
from nosology.core import SYSTEMS
from nosology.workbench.page_html import PageDep
from nosology.workbench.security import MAX_ID
from nosology.workbench.store_tables import notes

router = APIRouter(include_in_schema=False)

SYSTEM_TITLES = {
    "icd10cm": "ICD-10-CM",
    "icd10pcs": "ICD-10-PCS",
    "icd9cm": "ICD-9-CM",
    "icd9proc": "ICD-9-CM procedures",
}
_GROUP_TITLES = {"icd10cm": "Diagnoses", "icd9cm": "Diagnoses", "icd10pcs": "Procedures", "icd9proc": "Procedures"}


@router.post("/codes/search")
def code_search(
    page: PageDep,
    query: Annotated[str, Form(max_length=200)] = "",
    system: Annotated[str, Form(max_length=10)] = ALL,
    note: Annotated[int, Form(ge=0, le=MAX_ID)] = 0,
) -> HTMLResponse:
    """Codes for words or a code, on the date of a note's encounter. A POST: the words may be those of the note."""
    with page.reading() as connection:
        day = encounter_date(connection, note)
    lines = search_codes(query, system if system in SYSTEMS else ALL, day)
    groups = [
        (_GROUP_TITLES[name], f"{SYSTEM_TITLES[name]} {table_on(name, day).release}", list(found))
        for name, found in groupby(lines, key=lambda line: line.system)
    ]
    return page.render("search_results.html", groups=groups, query=query, day=day)


def encounter_date(connection: Connection, note_id: int) -> str:
    """The date of a note's encounter, YYYY-MM-DD; "" if it has none."""
    encounter = connection.scalar(select(notes.c.encounter).where(notes.c.id == note_id))
    return (encounter or {}).get("date") or ""
