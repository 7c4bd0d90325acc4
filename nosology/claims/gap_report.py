"""The folder of `nosology gaps`: encounters.jsonl (one line per encounter, appended), ranked.csv, encounters.csv,
gaps.json and index.html. They have words of notes, so only their owner can read them. A run that was stopped continues
with the encounters that are not in encounters.jsonl yet.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from nosology.claims.documentation_gaps import KINDS
from nosology.claims.gap_ranking import (
    EffectRange,
    EncounterGap,
    RankedGap,
    likely_change,
    rank_gaps,
    summarise_specialties,
)
from nosology.claims.gap_records import GapRecords
from nosology.core.files import atomic_file, escape_formula, write_json
from nosology.core.record_folder import RecordFolder

RECORDS, SETTINGS = "encounters.jsonl", "settings.json"
MAX_ROWS = 500  # of each table of the page; the other files have all of them
_RANKED = ("rank", "specialty", "kind", "subject", "title", "encounters", "drg_can_change", "drg_likely")
_RANKED += ("weight_low", "weight_likely", "weight_high", "risk_low", "risk_likely", "risk_high")
_ENCOUNTERS = ("id", "specialty", "kind", "subject", "code", "question", "evidence", "start", "end", "drg")
_ENCOUNTERS += ("answers", "drg_answers", "weight_likely", "risk_likely")


class GapFolder(RecordFolder):
    """The results of `nosology gaps` while it runs."""

    def __init__(self, folder: str | Path, settings: Mapping[str, Any]):
        """settings: what is read and how; OutputError if the folder has a run with other ones."""
        super().__init__(folder, settings, what="gaps", records=RECORDS, manifest=SETTINGS)

    def finish(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """The summary, after ranked.csv, encounters.csv, gaps.json and index.html are written.

        counts: further numbers for it.
        """
        with self.damage_errors():
            return self._finish(counts)

    def _finish(self, counts: Mapping[str, int]) -> dict[str, Any]:
        stored = GapRecords.of(self.records())
        ranked = rank_gaps(stored.found, stored.frequency)
        summary = {
            "encounters": stored.encounters.total(),
            "gaps": len(stored.found),
            "not_used": stored.failed,
            **counts,
            "specialties": summarise_specialties(stored.found, stored.encounters),
        }
        rows = ([number, *_ranked_row(item)] for number, item in enumerate(ranked, 1))
        _write_csv(self.path / "ranked.csv", _RANKED, rows)
        rows = (_encounter_row(item, stored.frequency) for item in stored.found)
        _write_csv(self.path / "encounters.csv", _ENCOUNTERS, rows)
        with atomic_file(self.path / "index.html") as temporary:
            temporary.write_text(gap_page(ranked, stored.found, summary), encoding="utf-8")
        write_json(self.path / "gaps.json", {**self.settings, **summary, "ranked": [it.to_json() for it in ranked]})
        return summary


def _ranked_row(item: RankedGap) -> list[Any]:
    cells: list[Any] = [item.specialty, item.kind, item.subject, item.title, item.encounters]
    cells += [item.drg_can_change, item.drg_likely]
    for effect in (item.weight, item.risk):
        cells += [effect.low, effect.likely, effect.high] if effect.encounters else ["", "", ""]
    return cells


def _encounter_row(item: EncounterGap, frequency: Mapping[str, int]) -> list[Any]:
    gap = item.gap
    changes = (likely_change(gap, name, frequency) for name in ("weight", "risk"))
    return [
        item.id,
        item.specialty,
        gap.kind,
        gap.subject,
        gap.code,
        gap.question,
        " | ".join(item.words),
        " ".join(str(span.start) for span in gap.evidence),
        " ".join(str(span.end) for span in gap.evidence),
        gap.drg,
        " ".join(answer.code for answer in gap.answers),
        " ".join(str(drg) for drg in sorted({answer.drg for answer in gap.answers if answer.drg is not None})),
        *("" if change is None else round(change, 4) for change in changes),
    ]


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(map(escape_formula, row) for row in rows)


def gap_page(ranked: Sequence[RankedGap], found: Sequence[EncounterGap], summary: Mapping[str, Any]) -> str:
    """index.html: one page without scripts or outside files."""
    tiles = (
        ("encounters", summary["encounters"]),
        ("encounters with gaps", len({item.id for item in found})),
        ("gaps", len(found)),
        ("encounters whose DRG an answer can change", len({it.id for it in found if it.gap.can_change_drg})),
    )
    shown = "".join(f'<div class="tile"><b>{number:,}</b><span>{name}</span></div>' for name, number in tiles)
    body = [f'<div class="tiles">{shown}</div>', _specialties(summary["specialties"])]
    body += [_ranked(ranked), _encounters(found)]
    template = Template(files("nosology.evaluation").joinpath("report.html").read_text(encoding="utf-8"))
    line = f"{summary['encounters']:,} encounters. Confidential: words of notes."
    left_out = {"encounters with an error": summary["not_used"], "rows with a repeated id": summary["repeated_ids"]}
    left_out["malformed rows"] = summary["malformed_rows"]
    if parts := [f"{number:,} {name}" for name, number in left_out.items() if number]:
        line += f" Not in this report: {', '.join(parts)}."
    return template.substitute(title="Documentation gaps", summary=escape(line), body="\n".join(body))


def _section(title: str, note: str, heads: Sequence[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    table = f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
    return f'<section><h2>{title}</h2><p class="note">{escape(note)}</p>{table}</section>'


def _row(cells: Iterable[Any]) -> str:
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"


def _specialties(specialties: Mapping[str, Mapping[str, int]]) -> str:
    rows = (
        _row((name, counts["encounters"], counts["with_gaps"], *(counts.get(kind, 0) for kind in KINDS)))
        for name, counts in specialties.items()
    )
    return _section("Specialties", "", ("specialty", "encounters", "with gaps", *KINDS), rows)


def _ranked(ranked: Sequence[RankedGap]) -> str:
    note = (
        "Changes are sums over encounters if every question is answered with a code: the likely change, in brackets "
        "the least and the greatest. Likely is the mean over the possible codes by how often the claims of these notes "
        "have them; each answer of a query counts once more. That a detail cannot be determined changes nothing."
    )
    heads = ("", "specialty", "what is missing", "kind", "encounters", "DRG can change", "likely")
    heads += ("DRG weight", "HCC risk score")
    rows = (_ranked_cells(number, item) for number, item in enumerate(ranked[:MAX_ROWS], 1))
    return _section("Ranked list", note + _more("ranked.csv", len(ranked)), heads, rows)


def _ranked_cells(number: int, item: RankedGap) -> str:
    counts = (item.encounters, item.drg_can_change, f"{item.drg_likely:.1f}")
    return _row((number, item.specialty, item.title, item.kind, *counts, _of(item.weight), _of(item.risk)))


def _of(effect: EffectRange) -> str:
    if not effect.encounters:
        return "not known"
    return f"{effect.likely:+.3f} ({effect.low:+.3f} to {effect.high:+.3f})"


def _encounters(found: Sequence[EncounterGap]) -> str:
    rows = (
        _row((it.id, it.specialty, it.gap.code, it.gap.question or it.gap.title, ", ".join(f"“{w}”" for w in it.words)))
        for it in found[:MAX_ROWS]
    )
    heads = ("encounter", "specialty", "code", "question", "text")
    return _section("Encounters", "In the order of the notes." + _more("encounters.csv", len(found)), heads, rows)


def _more(name: str, total: int) -> str:
    return f" The first {MAX_ROWS} of {total:,}; {name} has all." if total > MAX_ROWS else ""
