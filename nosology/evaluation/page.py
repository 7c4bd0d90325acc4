"""A report as one HTML page that needs nothing from outside: style and pictures are in it, and it runs no script."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nosology.evaluation.metrics import Metrics
from nosology.evaluation.strata import Row

HEADLINES = ("micro_f1", "macro_f1", "map", "p@8", "micro_auc")
MEANINGS = {
    "micro_f1": "F1 over all codes of all notes together",
    "micro_precision": "share of accepted codes that are true",
    "micro_recall": "share of true codes that are accepted",
    "macro_f1": "mean F1 of the codes with a true note",
    "macro_f1_all": "mean F1 of all codes; those never true and never accepted add 0",
    "macro_precision": "mean precision of the codes with a true note",
    "macro_recall": "mean recall of the codes with a true note",
    "caml_macro_f1": "harmonic mean of macro precision and macro recall, as in the CAML paper",
    "micro_auc": "area under the ROC curve over all cells",
    "macro_auc": "mean area under the ROC curve of the codes with a true and a false note",
    "map": "mean average precision of a note's ranking",
    "p@5": "share of true codes among the first 5",
    "p@8": "share of true codes among the first 8",
    "p@15": "share of true codes among the first 15",
    "r@15": "share of a note's true codes found among the first 15",
    "r_precision": "precision among as many codes as are true",
    "coverage_error": "codes to read down the ranking until all true ones are seen",
    "hamming_loss": "share of cells (notes x codes) that are wrong",
    "exact_match": "share of notes whose codes are all right and none too many",
    "ece": "calibration error over cells with a probability of 0.01 or more",
    "ece_all": "calibration error over all cells",
}
COUNTS = {
    "threshold": "accepted from this probability",
    "n_notes": "notes",
    "n_notes_without_codes": "notes without a true code",
    "n_codes": "codes the model can name",
    "n_codes_with_true_note": "codes with a true note",
    "n_true_assignments": "true codes of all notes",
    "n_true_codes_outside_label_space": "true codes the model cannot name",
    "n_true_assignments_outside_label_space": "their notes, all counted as misses",
}
STYLE = """
:root { --ink: #1f2933; --soft: #5f6c7b; --line: #e3e8ee; --blue: #2563a8; --paper: #fff; --wash: #f5f7fa }
* { box-sizing: border-box }
body { margin: 0; background: var(--wash); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px }
h1 { font-size: 28px; margin: 0 0 4px; letter-spacing: -.01em }
h2 { font-size: 18px; margin: 0 0 12px }
p.sub { color: var(--soft); margin: 0 0 28px }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 20px 24px;
  margin: 0 0 20px }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 14px; margin: 0 0 20px }
.tile { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 14px 18px }
.tile b { display: block; font-size: 30px; line-height: 1.2; font-variant-numeric: tabular-nums; color: var(--blue) }
.tile span, .note { color: var(--soft); font-size: 13px }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 20px }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: 14px }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top }
th { color: var(--soft); font-weight: 600; vertical-align: bottom }
td { min-width: 4.2em }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums } td.n { white-space: nowrap }
tr:last-child td { border-bottom: 0 }
td.name { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 13px; white-space: nowrap }
figure { margin: 0 } img { max-width: 100%; height: auto; display: block }
@media print { body { background: #fff } section { break-inside: avoid } }
"""


def page(
    title: str,
    metrics: Metrics,
    pictures: Mapping[str, tuple[str, bytes]],
    tables: Mapping[str, tuple[str, Sequence[Row]]],
    provenance: Mapping[str, Any],
) -> str:
    """The whole page. pictures: heading -> (explanation, PNG); tables: heading -> (explanation, rows)."""
    body = [f"<h1>{escape(title)}</h1>", f'<p class="sub">{_summary(metrics)}</p>', _tiles(metrics)]
    small = [_picture(heading, *picture) for heading, picture in pictures.items() if heading != "Chapters"]
    body.append(f'<div class="pair">{"".join(small)}</div>')
    body.append(_section("All metrics", "With 95% bootstrap intervals over notes.", _metrics_table(metrics)))
    if "Chapters" in pictures:
        body.append(_picture("Chapters", *pictures["Chapters"]))
    body += [_section(heading, words, _rows_table(rows)) for heading, (words, rows) in tables.items() if rows]
    if provenance:
        rows = "".join(
            f"<tr><td class='name'>{escape(k)}</td><td>{escape(_plain(v))}</td></tr>" for k, v in _flat(provenance)
        )
        body.append(_section("Made with", "", f"<table>{rows}</table>"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _summary(metrics: Metrics) -> str:
    outside = metrics["n_true_codes_outside_label_space"]
    words = f"{metrics['n_notes']:,} notes, {metrics['n_codes']:,} codes"
    threshold = metrics["threshold"]
    words += ", a threshold for each code" if threshold is None else f", accepted from probability {threshold:.3g}"
    if outside:
        words += f"; {outside:,} true codes that the model cannot name count as misses"
    return escape(words)


def _tiles(metrics: Metrics) -> str:
    tiles = []
    for name in HEADLINES:
        interval = _interval(metrics, name)
        tiles.append(
            f'<div class="tile"><span>{escape(name)}</span><b>{_number(metrics[name])}</b><span>{interval}</span></div>'
        )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _interval(metrics: Metrics, name: str) -> str:
    if metrics.get(f"{name}_low") is None:
        return ""
    return f"{_number(metrics[f'{name}_low'])} to {_number(metrics[f'{name}_high'])}"


def _metrics_table(metrics: Metrics) -> str:
    rows = ["<tr><th>metric</th><th class='n'>value</th><th class='n'>95% interval</th><th></th></tr>"]
    for name, meaning in (MEANINGS | COUNTS).items():
        if name in metrics:
            rows.append(
                f"<tr><td class='name'>{escape(name)}</td><td class='n'>{_number(metrics[name])}</td>"
                f"<td class='n'>{_interval(metrics, name)}</td><td class='note'>{escape(meaning)}</td></tr>"
            )
    return f"<table>{''.join(rows)}</table>"


def _rows_table(rows: Sequence[Row]) -> str:
    names = list(rows[0])
    numeric = {name for name in names if all(isinstance(row[name], int | float | None) for row in rows)}
    head = "".join(
        f"<th{' class=n' if name in numeric else ''}>{escape(name.replace('_', ' '))}</th>" for name in names
    )
    lines = [f"<tr>{head}</tr>"]
    for row in rows:
        cells = (f"<td{' class=n' if name in numeric else ''}>{_number(row[name])}</td>" for name in names)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<div class='scroll'><table>{''.join(lines)}</table></div>"


def _picture(heading: str, words: str, png: bytes) -> str:
    source = base64.b64encode(png).decode()
    picture = f'<figure><img alt="{escape(heading)}" src="data:image/png;base64,{source}"></figure>'
    return _section(heading, words, picture)


def _section(heading: str, words: str, body: str) -> str:
    note = f'<p class="note">{escape(words)}</p>' if words else ""
    return f"<section><h2>{escape(heading)}</h2>{note}{body}</section>"


def _number(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(str(value))
    if isinstance(value, int):
        return f"{value:,}"
    return (
        f"{value:,.1f}"
        if abs(value) >= 10
        else (f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.2g}")
    )


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, inner in value.items():
        found += _flat(inner, f"{prefix}{key}.") if isinstance(inner, Mapping) else [(f"{prefix}{key}", inner)]
    return found


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
