"""A report folder: index.html, the plots as PNG, metrics.json, and tables of codes, strata and chapters as CSV.

It has codes, counts and scores, and no text of a note. The page has its style and pictures inside and runs no script.
"""

from __future__ import annotations

import base64
import csv
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from nosology.core import Code
from nosology.core.files import atomic_folder, check_output_folder, write_json
from nosology.evaluation import plots
from nosology.evaluation.metrics import Evaluation, Metrics, Row, by_chapter, by_frequency
from nosology.evaluation.reliability import Reliability, reliability

HEADLINES = ("micro_f1", "macro_f1", "map", "p@8", "micro_auc")
MAX_ROWS = 25  # of the tables of codes in the page
MARKER = "metrics.json"
FILES = ("provenance.json", "per_code.csv", "chapters.csv", "strata.csv", "index.html")
FILES += tuple(f"{name}.png" for name in ("precision_and_recall", "reliability", "chapters", "frequency"))

Pictures = dict[str, tuple[str, bytes]]  # heading -> (explanation, PNG)
Tables = dict[str, tuple[str, Sequence[Row]]]  # heading -> (explanation, rows)


def check_report_folder(folder: str | Path) -> None:
    """OutputError if a report must not be written to this folder."""
    check_output_folder(folder, marker=MARKER, files=FILES)


def write_report(
    folder: str | Path,
    evaluation: Evaluation,
    *,
    train_counts: Mapping[Code, int] | None = None,
    provenance: Mapping[str, Any] | None = None,
    title: str = "Evaluation",
) -> Metrics:
    """The content of metrics.json. The folder is written atomically.

    train_counts: number of training notes per code; without it there are no strata. provenance: what produced the
    result (recipe, corpus hash, version, seed, hardware), for the page and provenance.json.
    """
    calibration = reliability(evaluation.scored)
    ece_all = reliability(evaluation.scored, bins="equal_width", floor=0).ece
    metrics = evaluation.metrics | {"ece": calibration.ece, "ece_all": ece_all}
    codes, chapters = per_code(evaluation, train_counts), by_chapter(evaluation)
    strata = by_frequency(evaluation, train_counts) if train_counts is not None else []
    pictures = _pictures(evaluation, calibration, chapters, codes if train_counts is not None else [])
    with atomic_folder(folder, marker=MARKER, files=FILES) as temporary:
        write_json(temporary / MARKER, metrics)
        write_json(temporary / "provenance.json", dict(provenance or {}))
        _write_csv(temporary / "per_code.csv", codes)
        _write_csv(temporary / "chapters.csv", chapters)
        if train_counts is not None:
            _write_csv(temporary / "strata.csv", strata)
        for heading, (_, png) in pictures.items():
            (temporary / f"{heading.lower().replace(' ', '_')}.png").write_bytes(png)
        html = _page(title, metrics, pictures, _tables(codes, chapters, strata), provenance or {})
        (temporary / "index.html").write_text(html, encoding="utf-8")
    return metrics


def _pictures(
    evaluation: Evaluation, calibration: Reliability, chapters: Sequence[Row], codes_with_counts: Sequence[Row]
) -> Pictures:
    bins = "Cells with a probability of 0.01 or more, in 15 bins of equal size."
    pictures = {
        "Precision and recall": ("All thresholds; the dot is the one in use.", plots.precision_recall(evaluation)),
        "Reliability": (bins, plots.reliability_curve(calibration)),
        "Chapters": ("", plots.chapter_bars(chapters)),
    }
    if codes_with_counts:
        counts = np.array([row["train_count"] for row in codes_with_counts], dtype=np.int64)
        explanation = "Each code with a true note, and means of codes with similar frequency."
        pictures["Frequency"] = (explanation, plots.frequency(evaluation, counts))
    return pictures


def _tables(codes: Sequence[Row], chapters: Sequence[Row], strata: Sequence[Row]) -> Tables:
    columns = ("system", "code", "description", "support")
    outside = [{name: row[name] for name in columns} for row in _most_frequent(codes, nameable=False)]
    explanation = f"At most {MAX_ROWS}, most frequent first; each of their notes counts as a miss."
    return {
        "By training frequency": ("The band 1-5 is part of 1-9.", strata),
        "By chapter": ("", chapters),
        "Most frequent codes": (
            f"The first {MAX_ROWS}; all are in per_code.csv.",
            _most_frequent(codes, nameable=True),
        ),
        "True codes outside the label space": (explanation, outside),
    }


def per_code(evaluation: Evaluation, train_counts: Mapping[Code, int] | None = None) -> list[Row]:
    """One row per code, the codes of the label space first; an undefined value is None."""
    from nosology.codes import describe

    counts, scored = evaluation.counts, evaluation.scored
    columns = slice(None) if scored.columns is None else scored.columns
    thresholds = np.broadcast_to(np.asarray(evaluation.threshold, dtype=np.float64), scored.scores.shape[1])[columns]
    rows = []
    for j, code in enumerate(counts.space.codes):
        tp, fp, fn = int(counts.tp[j]), int(counts.fp[j]), int(counts.fn[j])
        rows.append(
            {
                "system": code.system,
                "code": code.code,
                "description": describe(code),
                "nameable": "yes" if j < scored.n_labels else "no",
                "train_count": None if train_counts is None else int(train_counts.get(code, 0)),
                "support": tp + fn,
                "tp": tp,
                "fp": fp,
                "fn": fn,
                "precision": tp / (tp + fp) if tp + fp else None,
                "recall": tp / (tp + fn) if tp + fn else None,
                "f1": 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else None,
                "auc": None if np.isnan(evaluation.aucs[j]) else float(evaluation.aucs[j]),
                "threshold": float(thresholds[j]) if j < scored.n_labels else None,
            }
        )
    return rows


def _most_frequent(rows: Iterable[Row], *, nameable: bool) -> list[Row]:
    true = [row for row in rows if (row["nameable"] == "yes") == nameable and row["support"]]
    true.sort(key=lambda row: (-int(row["support"] or 0), row["system"], row["code"]))
    hidden = ("nameable", "threshold", "train_count")
    return [{name: value for name, value in row.items() if name not in hidden} for row in true[:MAX_ROWS]]


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def _page(title: str, metrics: Metrics, pictures: Pictures, tables: Tables, provenance: Mapping[str, Any]) -> str:
    """The page index.html."""
    sections = {heading: section(heading, text, image(heading, png)) for heading, (text, png) in pictures.items()}
    chapters = sections.pop("Chapters")
    body = [_tiles(metrics), f'<div class="pair">{"".join(sections.values())}</div>']
    body += [section("All metrics", "With 95% bootstrap intervals over notes.", _metrics_table(metrics)), chapters]
    body += [section(heading, text, rows_table(rows)) for heading, (text, rows) in tables.items() if rows]
    if provenance:
        rows = (f"<tr><td class='name'>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in _flatten(provenance))
        body.append(section("Provenance", "", f"<table>{''.join(rows)}</table>"))
    return html_page(title, _summary(metrics), body)


def html_page(title: str, summary: str, body: Iterable[str]) -> str:
    """A page in the style of reports, without scripts; body: parts in HTML."""
    template = Template(_read_file("report.html"))
    return template.substitute(title=escape(title), summary=escape(summary), body="\n".join(body))


def _read_file(name: str) -> str:
    return files("nosology.evaluation").joinpath(name).read_text(encoding="utf-8")


def _summary(metrics: Metrics) -> str:
    threshold, outside = metrics["threshold"], metrics["n_true_codes_outside_label_space"]
    decision = "a threshold for each code" if threshold is None else f"accepted from probability {threshold:.3g}"
    misses = f"; {outside:,} true codes outside the label space count as misses" if outside else ""
    return f"{metrics['n_notes']:,} notes, {metrics['n_codes']:,} codes, {decision}{misses}"


def _tiles(metrics: Metrics) -> str:
    tiles = (
        f'<div class="tile"><span>{name}</span><b>{_number(metrics[name])}</b>'
        f"<span>{_interval(metrics, name)}</span></div>"
        for name in HEADLINES
    )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _interval(metrics: Metrics, name: str) -> str:
    if metrics.get(f"{name}_low") is None:
        return ""
    return f"{_number(metrics[f'{name}_low'])} to {_number(metrics[f'{name}_high'])}"


def _metrics_table(metrics: Metrics) -> str:
    rows = ["<tr><th>metric</th><th class='n'>value</th><th class='n'>95% interval</th><th></th></tr>"]
    for row in csv.DictReader(_read_file("metrics.tsv").splitlines(), delimiter="\t"):
        if (name := row["name"]) in metrics:
            rows.append(
                f"<tr><td class='name'>{name}</td><td class='n'>{_number(metrics[name])}</td>"
                f"<td class='n'>{_interval(metrics, name)}</td><td class='note'>{escape(row['meaning'])}</td></tr>"
            )
    return f"<table>{''.join(rows)}</table>"


def rows_table(rows: Sequence[Row]) -> str:
    """Rows as an HTML table; numbers are aligned to the right."""
    style = {
        name: " class=n" if all(isinstance(row[name], int | float | None) for row in rows) else "" for name in rows[0]
    }
    lines = ["".join(f"<th{style[name]}>{escape(name.replace('_', ' '))}</th>" for name in style)]
    lines += ["".join(f"<td{style[name]}>{_number(row[name])}</td>" for name in style) for row in rows]
    return f"<div class='scroll'><table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table></div>"


def image(heading: str, png: bytes) -> str:
    """A PNG inside the HTML."""
    source = base64.b64encode(png).decode()
    return f'<figure><img alt="{escape(heading)}" src="data:image/png;base64,{source}"></figure>'


def section(heading: str, explanation: str, body: str) -> str:
    """A part of a page with a heading; body: HTML."""
    note = f'<p class="note">{escape(explanation)}</p>' if explanation else ""
    return f"<section><h2>{escape(heading)}</h2>{note}{body}</section>"


def _number(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return escape(str(value))
    if abs(value) >= 10:
        return f"{value:,.1f}"
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.2g}"


def _flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """The leaves of nested mappings, with dotted keys."""
    leaves: list[tuple[str, str]] = []
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            leaves += _flatten(inner, f"{prefix}{key}.")
        else:
            text = ", ".join(map(str, inner)) if isinstance(inner, list | tuple) else str(inner)
            leaves.append((f"{prefix}{key}", text))
    return leaves
