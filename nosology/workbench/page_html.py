"""HTML of the pages: request context, templates, formats of times and shares, text of a note.

The text of a note is built without a template, which takes four to ten times as long.
"""

from __future__ import annotations

import hashlib
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from sqlalchemy import Connection, Row

from nosology.claims.encounter import SETTINGS
from nosology.claims.encounter_values import DISPOSITIONS
from nosology.codes import describe
from nosology.core import Code, Span
from nosology.text import Section, contexts, sections
from nosology.workbench.accounts import Forbidden, User
from nosology.workbench.audit_log import log_access, log_access_in
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.documents import DOCUMENT_KINDS
from nosology.workbench.encounter_data import complete_encounter, encounter_words
from nosology.workbench.html_fragments import FragmentCache
from nosology.workbench.review import POA, REASONS, STATUSES
from nosology.workbench.second_review import REVIEW_CHANGES
from nosology.workbench.security import MAX_ID, CurrentUser, ServicesDep, client_address
from nosology.workbench.services import Services
from nosology.workbench.views import visible_text

STATIC_FOLDER = Path(__file__).parent / "static"
CONTEXTS = ("negated", "historical", "family", "uncertain", "hypothetical")


@cache
def static_path() -> str:
    """The URL path of scripts and styles. It contains a hash of the files, so a browser never mixes two versions."""
    digest = hashlib.sha256()
    for path in sorted(STATIC_FOLDER.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return f"/static/{digest.hexdigest()[:12]}"


def format_time(seconds: float | None) -> str:
    """A time in UTC, such as 2025-11-03 14:05."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M") if seconds else "–"


def format_age(seconds: float | None) -> str:
    """The time since a moment, such as 3 h ago."""
    if not seconds:
        return "–"
    past = max(0.0, time.time() - seconds)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if past >= size:
            return f"{int(past // size)} {unit} ago"
    return "just now"


def format_percent(value: float | None, digits: int = 0) -> str:
    """A number in [0, 1] as a percentage."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def format_duration(seconds: float | None) -> str:
    """Seconds as minutes and seconds."""
    if seconds is None:
        return "–"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s" if seconds >= 60 else f"{int(seconds)} s"


def format_evidence(log_wealth: float) -> str:
    """The wealth of a drift monitor by its logarithm: one digit below 10, at most "10,000+"."""
    wealth = math.exp(min(log_wealth, math.log(10_001)))
    return "10,000+" if wealth > 10_000 else f"{wealth:.1f}" if wealth < 10 else f"{wealth:,.0f}"


def shown_in_queue(row: Row) -> tuple[Any, ...]:
    """What a row of the queue shows, in few values: every update of a note changes `changed`."""
    note = (row.id, row.changed, row.codes, format_age(row.received))
    return (*note, row.assignee, row.documents, row.open_queries, row.answered_queries, row.comments)


def template_environment() -> Environment:
    """The Jinja2 templates, compiled. All values are escaped, and an undefined name is an error."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(time=format_time, age=format_age, percent=format_percent, duration=format_duration)
    environment.filters.update(evidence=format_evidence)
    environment.filters.update(shown_in_queue=shown_in_queue)
    environment.filters.update(axis_end=axis_end, complete=complete_encounter, describe=describe, facts=encounter_words)
    shared: dict[str, Any] = environment.globals
    shared.update(remember=FragmentCache().render)
    shared.update(STATUSES=STATUSES, REASONS=REASONS, POA=POA, static=static_path())
    shared.update(
        REVIEW_CHANGES=REVIEW_CHANGES, DISPOSITIONS=DISPOSITIONS, DOCUMENT_KINDS=DOCUMENT_KINDS, SETTINGS=SETTINGS
    )
    for name, physician in (("help_sheet", False), ("physician_help", True)):  # the same on every page
        shared[name] = Markup(environment.get_template("help.html").render(physician=physician))
    for name in environment.list_templates():
        environment.get_template(name)
    return environment


def parse_id(text: str) -> int:
    """The id in a form or a URL; 0 if it is none that the database can store."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else 0
    return number if number <= MAX_ID else 0


def capitalized(text: str) -> str:
    """The text with a capital at its start."""
    return text[:1].upper() + text[1:]


def render_page(
    request: Request, template: str, user: User | None, *, status: int = 200, **values: Any
) -> HTMLResponse:
    """The response of a template."""
    demo, url = request.app.state.services.settings.demo, request.url
    here = f"{url.path}?{url.query}" if url.query else url.path  # to which a person returns after a lock
    html = request.app.state.templates.get_template(template).render(
        user=user, path=url.path, here=here if request.method == "GET" else "/", demo=demo, **values
    )
    return HTMLResponse(html, status_code=status)


@dataclass(frozen=True)
class PageContext:
    """A request for a page: the services of the server and the user who is signed in."""

    request: Request
    services: Services
    user: User

    @property
    def address(self) -> str:
        """The address of the client."""
        return client_address(self.request)

    def reading(self) -> AbstractContextManager[Connection]:
        """A connection for reads."""
        return read_transaction(self.services.engine)

    def writing(self) -> AbstractContextManager[Connection]:
        """A connection whose writes are committed together."""
        return write_transaction(self.services.engine)

    def log(self, what: str, connection: Connection | None = None, *, object: str = "") -> None:
        """Writes an entry of the audit log, within the transaction of the connection if there is one."""
        if connection is None:
            log_access(self.services.engine, self.user.id, what, None, self.address, object)
        else:
            log_access_in(connection, self.user.id, what, None, self.address, object)

    def render(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """The page of a template; its status is 422 if the values contain an error."""
        status = 422 if values.get("error") else status
        return render_page(self.request, template, self.user, status=status, **values)


async def page_context(request: Request, services: ServicesDep, user: CurrentUser) -> PageContext:
    """The context of a request; refuses clients that are not signed in, and API tokens."""
    if user.csrf is None:
        raise Forbidden("an API token opens no pages")
    return PageContext(request, services, user)


def _require_role(role: str) -> Any:
    async def check(page: PageDep) -> PageContext:
        if not page.user.has_role(role):
            raise Forbidden(f"that is for people with the role {role}")
        return page

    return Depends(check)


PageDep = Annotated[PageContext, Depends(page_context)]
ReviewerPage = Annotated[PageContext, _require_role("reviewer")]
AdminPage = Annotated[PageContext, _require_role("admin")]


def axis_end(value: float) -> float:
    """The next value at which the axis of a chart can end: 1, 2, 4, 6, 8 or 10 times a power of ten."""
    size = 10 ** math.floor(math.log10(value)) if value > 0 else 0
    return next((size * step for step in (1, 2, 4, 6, 8, 10) if value <= size * step), 0)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of a note's text with constant annotation.

    keys: the codes for which it is evidence. context: its context, as CSS classes. highlighted: whether one of these
    codes is chosen or accepted by the coder.
    """

    start: int
    text: str
    keys: str = ""
    context: str = ""
    highlighted: bool = False

    @property
    def html(self) -> str:
        """The piece as an element."""
        keys = f' data-k="{escape(self.keys)}"' if self.keys else ""
        classes = f"{self.context} highlighted".strip() if self.highlighted else self.context
        attributes = f' class="{classes}"' if classes else ""
        title = f' title="{self.context.replace(" ", ", ")}"' if self.context else ""
        return f'<span data-s="{self.start}"{keys}{attributes}{title}>{escape(self.text)}</span>'


@dataclass(frozen=True, slots=True)
class NoteSection:
    """A section of a note. Its pieces contain all of its text, also the heading."""

    number: int
    title: str
    pieces: tuple[TextPiece, ...]

    @property
    def html(self) -> Markup:
        """The pieces as elements, with all text escaped."""
        return Markup("".join(piece.html for piece in self.pieces))


def annotate_note(
    text: str,
    evidence: Mapping[Code, Sequence[Span]],
    highlighted: Collection[Code] = (),
    *,
    offset: int = 0,
    first_number: int = 0,
) -> list[NoteSection]:
    """The sections of a note, cut into pieces wherever evidence or context starts or ends.

    Every character of the note stays one character of the page, so positions in both are the same. offset: of the text
    in that of an encounter with several documents, in which evidence and pieces are given.
    """
    evidence = {code: [Span(it[0] - offset, it[1] - offset) for it in spans] for code, spans in evidence.items()}
    visible, context_at, found_sections = _parse_note(text)
    keys_at = _labels_by_position([(span, str(code)) for code, spans in evidence.items() for span in spans], len(text))
    positions = sorted({*context_at, *keys_at})  # the first is 0
    important = frozenset(map(str, highlighted))
    labels, context, keys = [], frozenset(), frozenset()
    for position in positions:
        context, keys = context_at.get(position, context), keys_at.get(position, keys)
        labels.append((context, keys))
    result = []
    for number, section in enumerate(found_sections, first_number):
        start, end = section.span
        first, last = bisect_right(positions, start) - 1, bisect_left(positions, end)
        cuts = pairwise([start, *positions[first + 1 : last], end])
        pieces = tuple(
            TextPiece(
                here + offset,
                visible[here:there],
                " ".join(sorted(keys)),
                " ".join(name for name in CONTEXTS if name in context) if context else "",
                bool(keys & important),
            )
            for (here, there), (context, keys) in zip(cuts, labels[first:last])
        )
        result.append(NoteSection(number, section.title, pieces))
    return result


@lru_cache(maxsize=256)
def _parse_note(text: str) -> tuple[str, dict[int, frozenset[str]], list[Section]]:
    """What depends on the text only: visible text, contexts by position, sections."""
    scopes = [(scope, category) for category, scope, _ in contexts(text) if category in CONTEXTS]
    return visible_text(text), _labels_by_position(scopes, len(text)), sections(text)


def _labels_by_position(spans: Sequence[tuple[Span, str]], length: int) -> dict[int, frozenset[str]]:
    """The labels that apply from each position on at which a span starts or ends."""
    changes: dict[int, list[tuple[str, int]]] = {0: []}
    for span, label in spans:
        start, end = max(0, span.start), min(length, span.end)
        if start < end:
            changes.setdefault(start, []).append((label, 1))
            changes.setdefault(end, []).append((label, -1))
    counts: dict[str, int] = {}
    labels = {}
    for position in sorted(changes):
        for label, step in changes[position]:
            counts[label] = counts.get(label, 0) + step
        labels[position] = frozenset(label for label, count in counts.items() if count)
    return labels
