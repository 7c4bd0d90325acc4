"""Rows of the queue as elements, all they hold escaped; by hand, for a template takes four times as long for them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from markupsafe import Markup
from sqlalchemy import Row

from nosology.workbench.review import STATUSES
from nosology.workbench.web import ago, share

_CODING = {
    "waiting": ' <span class="muted">being coded</span>',
    "cancelled": ' <span class="muted">not coded</span>',
    "failed": ' <span class="chip error">coder failed</span>',
}


def queue_rows(rows: Sequence[Row]) -> Markup:
    """The body of the table of notes."""
    return Markup("\n".join(map(_row, rows)))


def _row(row: Row) -> str:
    status = f'<span class="chip {row.status}">{STATUSES[row.status]}</span>{_CODING.get(row.coding, "")}'
    cells = (
        f'<th scope="row"><a href="/notes/{row.id}">{_own(row.ref)}</a></th>',
        f"<td>{_own(row.patient)}</td><td>{_own(row.site)}</td><td>{_encounter(row.encounter)}</td>",
        f"<td>{ago(row.received)}</td><td>{status}</td><td>{escape(row.assignee or '–')}</td>",
        f'<td class="n">{row.codes or "–"}</td><td>{_confidence(row.confidence)}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def _own(words: str | None) -> str:
    """Words of unknown writing direction, which must not turn those around them."""
    return f"<bdi>{escape(words or '–')}</bdi>"


def _encounter(about: dict[str, Any]) -> str:
    """Date, sex and age, as far as they are known."""
    sex = f" · {about['sex']}" if about.get("sex") else ""
    age = f" {about['age']}" if about.get("age") is not None else ""
    return escape(f"{about.get('date') or '–'}{sex}{age}")


def _confidence(value: float | None) -> str:
    if value is None:
        return "–"
    return f'<meter min="0" max="1" value="{value:.4f}" aria-label="Confidence"></meter> {share(value)}'
