"""The page of a study: OUT/index.html, with tables, significance tests, figures, failed runs and the setting.

It has its style and pictures inside, runs no script and needs no network. A call for one table keeps the sections of
the other tables from earlier calls, OUT/sections/<table>.json.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

from nosology.core import OutputError, __version__
from nosology.core.files import atomic_file, write_json
from nosology.corpora.corpus import Corpus
from nosology.reproduce.result_tables import (
    Cell,
    ResultFigure,
    SignificanceLine,
    Table,
    label,
    missing,
    number,
)
from nosology.reproduce.runner import Results, flatten, read_json_or_none

SIMULATED = (
    "The notes are of a simulated hospital. These numbers do not replicate the paper's; they show whether the order of "
    "the rows is the same."
)
LEGEND = (
    "A cell has our mean ± standard deviation over the runs. Below it are the paper's value, in brackets, and our mean "
    "minus it. The best of our means in a column is bold. Rows marked “(paper)” have no run of ours."
)


@dataclass(frozen=True)
class StudyCall:
    """What a call of `nosology reproduce` was given."""

    title: str  # of the paper
    tables: Mapping[str, str]  # all of the paper: name -> title
    command: str
    settings: Mapping[str, Any]
    corpora: Sequence[Corpus]
    simulated: bool  # whether the corpora are


def check_paper(out: Path, title: str) -> None:
    """Raises OutputError if a folder has the tables of another paper: tables of two papers have the same names."""
    for path in sorted((out / "sections").glob("*.json")):
        other = (read_json_or_none(path) or {}).get("paper", title)
        if other != title:
            raise OutputError(f"will not write to {out}: it has tables of {other}; give another folder")


def write_page(
    out: Path, call: StudyCall, tables: Sequence[Table], results: Results, failed: Mapping[str, str]
) -> Path:
    """The path of the page, with these tables and those of earlier calls; the figures must have been written."""
    for name in dict.fromkeys(table.name for table in tables):
        chosen = [table for table in tables if table.name == name]
        write_json(out / "sections" / f"{name}.json", _section(out, call, chosen, results, failed))
    sections = {
        name: section for name in call.tables if (section := read_json_or_none(out / "sections" / f"{name}.json"))
    }
    template = Template((files("nosology.reproduce") / "result_page.html").read_text(encoding="utf-8"))
    text = template.substitute(
        title=escape(call.title),
        version=f"nosology {__version__}",
        notice=f'<p class="notice">{SIMULATED}</p>' if any(s["simulated"] for s in sections.values()) else "",
        contents=_contents(call.tables, sections),
        legend=LEGEND,
        sections="\n".join(section["html"] for section in sections.values()),
        setting=_setting(call),
    )
    with atomic_file(out / "index.html") as temporary:
        temporary.write_text(text, encoding="utf-8")
    return out / "index.html"


def _contents(titles: Mapping[str, str], sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A list of all tables of the paper, with the state of their runs."""
    lines = []
    for name, title in titles.items():
        heading, section = f"<b>{escape(label(name))}</b> {escape(title)}", sections.get(name)
        if section is None:
            lines.append(f'<li>{heading} <span class="state open">not run yet</span></li>')
        else:
            kind = "state" if section["complete"] else "state open"
            state = f'<span class="{kind}">{escape(section["state"])}</span>'
            lines.append(f'<li><a href="#{_anchor(name)}">{heading}</a> {state}</li>')
    return f"<ul>{''.join(lines)}</ul>"


def _anchor(name: str) -> str:
    return escape(label(name).lower().replace(" ", "-").replace("'", ""))


def _section(
    out: Path, call: StudyCall, tables: Sequence[Table], results: Results, failed: Mapping[str, str]
) -> dict[str, Any]:
    """The section of a table name with all its corpora, and the state of its runs."""
    name, runs = tables[0].name, {key: run for table in tables for key, run in table.runs.items()}
    state = missing(runs, results, failed)
    parts = [f'<section id="{_anchor(name)}"><h2>{escape(label(name))}. {escape(call.tables[name])}</h2>']
    for table in tables:
        if len(tables) > 1 or table.title != call.tables[name] or table.corpus:
            parts.append(f"<h3>{escape(', '.join(filter(None, (table.corpus, table.title))))}</h3>")
        parts += [_table(table, results) if table.columns else "", _remarks(table, results)]
        parts += [_figure(figure, table, out) for figure in table.figures]
    absent = {key: run.title for key, run in runs.items() if key not in results}
    if absent:
        rows = [(title, failed.get(key, "has not run")) for key, title in absent.items()]
        parts.append(_details(f"{len(absent)} missing runs", _plain_table(("run", "why"), rows), opened=True))
    seconds = sum(results[key].get("seconds", 0.0) for key in runs if key in results)
    made = f"{state}, {_duration(seconds)} of computing. nosology {__version__}:"
    parts.append(f'<p class="made">{made}<br><code>{escape(call.command)}</code></p></section>')
    return {
        "paper": call.title,
        "state": state,
        "complete": not absent,
        "simulated": call.simulated,
        "html": "\n".join(parts),
    }


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _table(table: Table, results: Results) -> str:
    head = [f'<th scope="col">{escape(name)}</th>' for name in table.header]
    head += [f'<th scope="col" class="n">{escape(name)}</th>' for name in ("runs", *table.columns.values())]
    lines = [f"<thead><tr>{''.join(head)}</tr></thead><tbody>"]
    for row, cells in zip(table.rows, table.cells(results)):
        done = sum(run.key in results for run in row.runs)
        runs = "" if not row.runs else str(done) if done == len(row.runs) else f"{done} of {len(row.runs)}"
        names = "".join(
            f'<th scope="row"{" class=long" if len(name) > 24 else ""}>{escape(name)}</th>' for name in row.names
        )
        shown = "".join(_cell(replace(cell, runs=done), is_best, bool(row.runs)) for cell, is_best in cells)
        kind = "" if row.runs else ' class="other"'
        lines.append(f'<tr{kind}>{names}<td class="n runs">{runs}</td>{shown}</tr>')
    return f'<div class="scroll" tabindex="0"><table>{"".join(lines)}</tbody></table></div>'


def _cell(cell: Cell, is_best: bool, has_runs: bool) -> str:
    ours = ""
    if cell.mean is not None:
        mean = f"<b>{number(cell.mean)}</b>" if is_best else number(cell.mean)
        extra = " ".join(filter(None, (cell.spread, cell.partly)))
        ours = f'<span class="ours">{mean} <span class="sd">{extra}</span></span>'
    elif has_runs:
        ours = '<span class="ours">–</span>'
    paper = ""
    if cell.paper is not None:
        minus = "" if cell.difference is None else f" <i>{number(cell.difference, sign='+').replace('-', '−')}</i>"
        paper = f'<span class="paper">[{cell.paper_text}]{minus}</span>'
    return f'<td class="n">{ours}{paper}</td>'


def _remarks(table: Table, results: Results) -> str:
    """Remarks as paragraphs; significance tests that follow each other as a table."""
    parts = []
    for is_test, group in groupby(table.remarks(results), lambda remark: isinstance(remark, SignificanceLine)):
        if is_test:
            lines = [line.parts for line in group if isinstance(line, SignificanceLine)]
            rows = [(pair, table.columns.get(metric, metric), *others) for pair, metric, *others in lines]
            head = ("comparison", "metric", "difference", "95% interval", "p", "test")
            columns = [j for j in range(len(head)) if any(row[j] for row in rows)]
            kept = [[re.sub(r"(?<!\w)-(?=\d)", "−", row[j]) for j in columns] for row in rows]
            parts.append(f"<h4>Significance</h4>{_plain_table([head[j] for j in columns], kept, 'plain tests')}")
        else:
            parts += [f'<p class="remark">{escape(line)}</p>' for line in group]
    return "".join(parts)


def _plain_table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "plain") -> str:
    lines = ["".join(f'<th scope="col">{escape(name)}</th>' for name in head)]
    lines += ["".join(f"<td>{escape(value)}</td>" for value in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll" tabindex="0"><table class="{kind}">{body}</table></div>'


def _figure(figure: ResultFigure, table: Table, out: Path) -> str:
    title = f"{label(figure.name)}. {figure.title}" + (f", {table.corpus}" if table.corpus else "")
    source = base64.b64encode((out / f"{figure.name}.png").read_bytes()).decode()
    image = f'<img alt="{escape(title)}" src="data:image/png;base64,{source}">'
    return f"<figure>{image}<figcaption>{escape(title)}</figcaption></figure>"


def _details(summary: str, body: str, *, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{body}</details>"


def _setting(call: StudyCall) -> str:
    """The command, corpora and settings of this call."""
    corpora = []
    for corpus in call.corpora:
        counts = corpus.manifest["counts"]
        splits = ", ".join(f"{split} {notes:,}" for split, notes in counts["splits"].items())
        corpora.append((corpus.folder.name, f"{counts['notes']:,}", splits, corpus.hash[:12]))
    settings = [(key, _shown(value)) for key, value in flatten(call.settings)]
    return (
        f"<p><code>{escape(call.command)}</code></p>"
        + _plain_table(("corpus", "notes", "of which", "hash"), corpora)
        + _details("Settings of the study", _plain_table(("setting", "value"), settings))
    )


def _shown(value: Any) -> str:
    """A setting as text."""
    if value == {}:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
