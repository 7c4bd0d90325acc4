"""The status of a run: sites, rounds, loss, bytes, last reply; as JSON, on a terminal and as a page without scripts.

The ServerApp writes status.json and status.html into the state folder of the server after every line that it reports.
They contain names of sites and sums over notes; no notes, no codes, no keys.
"""

from __future__ import annotations

import datetime
import html
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nosology.core import DataError
from nosology.core.files import atomic_file, read_json, write_json

STATUS, PAGE = "status.json", "status.html"
ENVIRONMENT = "NOSOLOGY_FEDERATION_STATUS"  # the folder that the ServerApp writes to
SITE_COLUMNS = ("site", "state", "last reply", "sent", "received", "cut off", "reason")
ROUND_COLUMNS = ("round", "phase", "loss", "sites", "refused", "micro F1", "seconds")

Status = dict[str, Any]


class Traffic:
    """Bytes and time of the messages of each site."""

    def __init__(self) -> None:
        self.sites: dict[str, dict[str, float]] = {}

    def record(self, site: str, *, sent: int = 0, received: int = 0) -> None:
        """Adds a message to a site (sent) or a reply of it (received)."""
        values = self.sites.setdefault(site, {"sent": 0, "received": 0, "last_reply": 0.0})
        values["sent"] += sent
        values["received"] += received
        if received:
            values["last_reply"] = time.time()


def make_status(
    line: str,
    rounds: int,
    history: Iterable[Mapping[str, Any]],
    known: Iterable[str],
    online: Iterable[str],
    refused: Mapping[str, str],
    failed: Mapping[str, str],
    traffic: Traffic,
) -> Status:
    """The content of status.json. line: the last line of the run; known: the sites of the server.

    refused: sites that do not take part, and why. failed: sites that are missing in the last round, and why.
    """
    online, sites = set(online), {}
    for site in sorted({*known, *traffic.sites}):
        values = traffic.sites.get(site, {"sent": 0, "received": 0, "last_reply": 0.0})
        state = "refused" if site in refused else "online" if site in online else "offline"
        sites[site] = {"state": state, "reason": refused.get(site, failed.get(site, "")), **values}
    names = ("round", "phase", "loss", "sites", "refused", "micro_f1", "seconds")
    history = list(history)
    for site, shares in cut_by_site(history).items():
        if site in sites:
            sites[site]["cut"] = shares
    rows = [{name: row.get(name) for name in names} for row in history]
    return {"updated": time.time(), "line": line, "rounds": rounds, "history": rows, "sites": sites}


def cut_by_site(history: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The mean share of the updates of each site that a robust rule has cut off, over its rounds; else empty."""
    shares: dict[str, list[float]] = {}
    for row in history:
        for site, share in row.get("cut", {}).items():
            shares.setdefault(site, []).append(share)
    return {site: sum(values) / len(values) for site, values in shares.items()}


def write_status(status: Status, folder: Path) -> None:
    """Writes status.json and status.html."""
    write_json(folder / STATUS, status)
    with atomic_file(folder / PAGE) as temporary:
        temporary.write_text(status_page(status), encoding="utf-8")


def read_status(folder: Path) -> Status:
    """The last status in the state folder of a server, or in the folder of `nosology federate init`."""
    for path in (folder / STATUS, folder / "state" / STATUS):
        if path.exists():
            try:
                status = read_json(path)
                status_text(status)
                status_page(status)
            except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
                raise DataError(f"{path} is not a status of a federation") from error
            return status
    raise DataError(f"no {STATUS} in {folder}: no run has been started there")


def _site_rows(status: Status) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for site, values in status["sites"].items():
        seen = _moment(values["last_reply"]) if values["last_reply"] else "never"
        sizes = (_bytes(values["sent"]), _bytes(values["received"]))
        cut = f"{values['cut']:.0%}" if "cut" in values else ""
        rows.append((site, values["state"], seen, *sizes, cut, values["reason"]))
    return rows


def _round_rows(status: Status) -> list[tuple[str, ...]]:
    return [
        (
            str(row["round"]),
            row.get("phase") or "",
            f"{row['loss']:.4f}" if row["loss"] or not row.get("phase") else "",
            str(row["sites"]),
            str(row["refused"]),
            "" if row["micro_f1"] is None else f"{row['micro_f1']:.4f}",
            f"{row['seconds']:.1f}",
        )
        for row in status["history"]
    ]


def status_text(status: Status, last: int = 5) -> str:
    """The status for a terminal, with the last rounds."""
    lines = [f"{_moment(status['updated'])}  {len(status['history'])} of {status['rounds']} rounds  {status['line']}"]
    for header, rows in ((SITE_COLUMNS, _site_rows(status)), (ROUND_COLUMNS, _round_rows(status)[-last:])):
        if rows:
            widths = [max(map(len, column)) for column in zip(header, *rows)]
            lines += ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in (header, *rows))]
    return "\n".join(lines)


def status_page(status: Status) -> str:
    """The status as HTML; a browser reloads it every 30 seconds."""
    done, rounds = len(status["history"]), int(status["rounds"])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="30">'
        "<title>Federation</title><style>body{font:16px sans-serif;margin:2em;max-width:60em}"
        "table{border-collapse:collapse;margin:1em 0}th,td{text-align:left;padding:.3em 1em .3em 0;"
        "border-bottom:1px solid #ccc}progress{width:20em}</style></head><body><h1>Federation</h1>"
        f'<p><progress value="{done}" max="{rounds}"></progress> {done} of {rounds} rounds</p>'
        f"<p>{_moment(status['updated'])}: {html.escape(status['line'])}</p>"
        f"<h2>Sites</h2>{_table(SITE_COLUMNS, _site_rows(status))}"
        f"<h2>Rounds</h2>{_table(ROUND_COLUMNS, _round_rows(status)[::-1])}</body></html>\n"
    )


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f'<th scope="col">{name}</th>' for name in header)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _moment(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
