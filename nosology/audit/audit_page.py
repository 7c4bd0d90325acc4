"""The page of an audit: counts by kind, chapter and coder, and the findings with the words of the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from nosology.audit.audit_plots import Bar, bar_plot
from nosology.audit.finding import KINDS
from nosology.codes import table

MAX_FINDINGS = 1000  # in the page; the other files have all of them
TITLES = {
    "unsupported": "billed without support",
    "not_billed": "supported, not billed",
    "less_specific": "less specific than the text",
    "more_specific": "more specific than the text",
    "other_code": "another code of the category",
    "sequencing": "first-listed diagnosis",
    "poa": "present on admission",
    "conflict": "conflicts and edits",
}


def audit_page(
    summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]], left_out: Mapping[str, int] | None = None
) -> str:
    """index.html: one page without scripts or outside files. left_out: numbers of what was not audited."""
    found = [(record["id"], item) for record in records for item in record["findings"]]
    found.sort(key=lambda pair: (-_changes(pair[1]), -pair[1]["confidence"]))
    chapters = {_chapter_title(name): counts for name, counts in summary["chapters"].items()}
    tables = (("Kinds by chapter", chapters), ("Kinds by coder", summary["coders"]))
    body = [_tiles(summary), *_plots(summary), *(_counts(title, groups) for title, groups in tables)]
    body.append(_findings(found[:MAX_FINDINGS], len(found)))
    line = f"{summary['encounters']:,} encounters, {summary['codes']:,} billed codes. Confidential: words of notes."
    if parts := [f"{number:,} {name.replace('_', ' ')}" for name, number in (left_out or {}).items() if number]:
        line += f" Not in this report: {', '.join(parts)}."
    template = Template(files("nosology.evaluation").joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(title="Audit of billed codes", summary=escape(line), body="\n".join(body))


def _changes(item: Mapping[str, Any]) -> bool:
    """Whether the correction changes DRG or risk score."""
    effect = item["effect"]
    return effect is not None and (effect["drg"] != effect["drg_after"] or bool(effect["risk"]))


def _tiles(summary: Mapping[str, Any]) -> str:
    shown = (
        ("findings", sum(summary["kinds"].values())),
        ("encounters with findings", summary["with_findings"]),
        ("encounters whose DRG a correction changes", summary["drg_changes"]),
    )
    tiles = (f'<div class="tile"><b>{number:,}</b><span>{name}</span></div>' for name, number in shown)
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _section(title: str, content: str, note: str = "") -> str:
    """A part of the page; "" if there is nothing to show."""
    if not content:
        return ""
    return f'<section><h2>{title}</h2><p class="note">{escape(note)}</p><div class="scroll">{content}</div></section>'


def _plots(summary: Mapping[str, Any]) -> list[str]:
    """Findings by kind, chapter and coder, and what corrections do to the DRG."""
    kinds = [Bar(TITLES[kind], summary["kinds"][kind], f"{summary['kinds'][kind]:,}") for kind in KINDS]
    sections = [_section("Kinds", bar_plot("kinds", "Findings by kind", kinds))]
    chapters = [(name, sum(counts.values())) for name, counts in summary["chapters"].items()]
    chapters.sort(key=lambda pair: -pair[1])
    bars = [Bar(_chapter_title(name), count, f"{count:,}") for name, count in chapters]
    sections.append(_section("Chapters", bar_plot("chapters", "Findings by chapter", bars)))
    sections.append(_coders(summary["coders"]))
    return [*sections, _drg(summary)]


def _chapter_title(name: str) -> str:
    """A chapter of ICD-10-CM with its number; other groups as they are."""
    lines = table("icd10cm")
    return f"{name}. {lines.description(name)}" if name in lines else name


def _coders(coders: Mapping[str, Mapping[str, int]]) -> str:
    if not coders:
        return ""
    bars = []
    for name, counts in coders.items():
        found = sum(counts.get(kind, 0) for kind in KINDS)
        rate = 100 * found / max(1, counts["codes"])
        bars.append(Bar(name, rate, f"{rate:.1f} ({found:,} findings, {counts['codes']:,} codes)"))
    bars.sort(key=lambda bar: -bar.value)
    note = "Findings for each 100 billed codes. They depend on who codes which patients."
    return _section("Coders", bar_plot("coders", "Findings for each 100 billed codes, by coder", bars), note)


def _drg(summary: Mapping[str, Any]) -> str:
    """The sums of changed weights by kind, or without weights the numbers of corrections that change the DRG."""
    weights = {kind: it for kind, it in summary["weights"].items() if it["raised"] or it["lowered"]}
    if weights:
        bars = [
            Bar(TITLES[kind], it["raised"], f"{it['lowered']:+.2f} / {it['raised']:+.2f}", it["lowered"])
            for kind, it in weights.items()
        ]
        note = "Sums of changes of relative weights, each correction alone: those of one encounter do not add up."
        return _section("Effect on DRG weight", bar_plot("weights", "Change of DRG weights by kind", bars), note)
    changed = [Bar(TITLES[kind], it["drg"], f"{it['drg']:,}") for kind, it in summary["weights"].items() if it["drg"]]
    note = "Corrections that change the DRG; --drg-weights adds what they weigh."
    return _section("Effect on DRG", bar_plot("drg", "Corrections that change the DRG, by kind", changed), note)


def _counts(title: str, groups: Mapping[str, Mapping[str, int]]) -> str:
    if not groups:
        return ""
    heads = "".join(f'<th class="n">{TITLES[kind]}</th>' for kind in KINDS)
    rows = []
    for name, counts in groups.items():
        cells = "".join(f'<td class="n">{counts.get(kind, 0):,}</td>' for kind in KINDS)
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    return _section(title, f"<table><tr><th></th>{heads}</tr>{''.join(rows)}</table>")


def _findings(found: Sequence[tuple[str, Mapping[str, Any]]], total: int) -> str:
    note = "First those that change DRG or risk score, then by confidence."
    if total > len(found):
        note += f" The first {len(found):,} of {total:,}; findings.csv has all."
    heads = "".join(
        f"<th>{name}</th>"
        for name in ("encounter", "finding", "code", "instead", "reason", "text", "effect", "confidence")
    )
    rows = "".join(_row(note_id, item) for note_id, item in found)
    return _section("Findings", f"<table><tr>{heads}</tr>{rows}</table>", note)


def _row(note_id: str, item: Mapping[str, Any]) -> str:
    words = [f"“{' '.join(span['text'].split())}” ({span['start']}–{span['end']})" for span in item["evidence"]]
    if item["looked_for"]:
        words.append("looked for: " + "; ".join(item["looked_for"]))
    cells = (
        note_id,
        TITLES[item["kind"]],
        item["code"],
        item["instead"],
        item["reason"],
        ", ".join(words),
        effect_words(item),
    )
    return (
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}<td class='n'>{item['confidence']:.2f}</td></tr>"
    )


def effect_words(item: Mapping[str, Any]) -> str:
    """The effect of a finding's correction in words; "" if there is none."""
    effect, parts = item["effect"] or {}, []
    if effect.get("drg") != effect.get("drg_after"):
        parts.append(f"DRG {effect['drg'] or 'none'} → {effect['drg_after'] or 'none'}")
    if effect.get("weight"):
        parts.append(f"weight {effect['weight']:+.4f}")
    if effect.get("risk"):
        parts.append(f"risk {effect['risk']:+.3f}")
    parts += [f"+HCC {name}" for name in effect.get("added", ())] + [
        f"−HCC {name}" for name in effect.get("dropped", ())
    ]
    return ", ".join(parts)
