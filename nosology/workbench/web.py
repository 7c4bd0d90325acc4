"""What pages share: templates, the frame around every page, how times and shares are written."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import Path as InPath
from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from nosology.workbench.accounts import User
from nosology.workbench.review import POA, REASONS, STATUSES

HERE = Path(__file__).parent
STATIC = HERE / "static"
LARGEST_INT = 2**31 - 1  # of the store's numbers
Number = Annotated[int, InPath(ge=1, le=LARGEST_INT)]  # of a row, in an address


@cache
def static_path() -> str:
    """Where pages find scripts and styles: named by what is in them, so that a browser never mixes two versions."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return f"/static/{digest.hexdigest()[:12]}"


def when(seconds: float | None) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M") if seconds else "–"


def ago(seconds: float | None) -> str:
    """How long ago a time was, roughly."""
    if not seconds:
        return "–"
    past = max(0.0, time.time() - seconds)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if past >= size:
            return f"{int(past // size)} {unit} ago"
    return "just now"


def share(value: float | None, digits: int = 0) -> str:
    """A number in [0, 1] as a percentage."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def duration(seconds: float | None) -> str:
    """Seconds as minutes and seconds."""
    if seconds is None:
        return "–"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s" if seconds >= 60 else f"{int(seconds)} s"


def key(item: Mapping[str, Any]) -> str:
    """system:code of a suggestion."""
    return f"{item['system']}:{item['code']}"


def environment() -> Environment:
    """The templates; everything is escaped, and a name that is not given is an error."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(when=when, ago=ago, share=share, duration=duration, key=key)
    made.globals.update(STATUSES=STATUSES, REASONS=REASONS, POA=POA, static=static_path())
    made.globals["help_sheet"] = Markup(made.get_template("help.html").render())  # the same on every page
    for name in made.list_templates():  # compiled now, not at the first visit
        made.get_template(name)
    return made


def page(
    request: Request, name: str, user: User | None, values: Mapping[str, Any] | None = None, *, status: int = 200
) -> HTMLResponse:
    """A template filled in."""
    template = request.app.state.templates.get_template(name)
    demo = request.app.state.services.settings.demo
    html = template.render(user=user, path=request.url.path, demo=demo, **(values or {}))
    return HTMLResponse(html, status_code=status)
