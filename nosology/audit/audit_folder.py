"""The folder of an audit: findings.jsonl (one line per encounter, appended), findings.csv, summary.json, index.html.

All of its files can have words of notes, so only its owner can read them. An audit that was stopped continues with the
encounters that are not in findings.jsonl yet.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nosology.audit.audit_page import audit_page
from nosology.audit.finding import KINDS
from nosology.codes import table
from nosology.core.files import atomic_file, escape_formula, write_json
from nosology.core.record_folder import RecordFolder

FINDINGS, SETTINGS = "findings.jsonl", "audit.json"
COLUMNS = ("id", "coder", "kind", "system", "code", "instead", "confidence", "reason", "rule", "evidence")
COLUMNS += ("document", "start", "end", "looked_for", "drg", "drg_after", "weight", "risk", "hcc_added", "hcc_dropped")


class AuditFolder(RecordFolder):
    """The results of an audit while it runs."""

    def __init__(self, folder: str | Path, settings: Mapping[str, Any]):
        """settings: what was audited and how; OutputError if the folder has an audit with other ones."""
        members = ("coder", "billed", "findings")
        super().__init__(folder, settings, what="an audit", records=FINDINGS, manifest=SETTINGS, members=members)

    def finish(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """The summary, after findings.csv, summary.json and index.html are written. counts: further numbers for it."""
        stored = list(self.records())
        records = [record for record in stored if "error" not in record]
        failed = len(stored) - len(records)
        summary = {**summarise(records), "not_audited": failed, **counts}
        left_out = {"encounters_with_an_error": failed, **counts}
        with (
            atomic_file(self.path / "findings.csv") as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(map(escape_formula, row) for record in records for row in _rows(record))
        write_json(self.path / "summary.json", summary)
        with atomic_file(self.path / "index.html") as temporary:
            temporary.write_text(audit_page(summary, records, left_out), encoding="utf-8")
        return summary


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Numbers of encounters, codes and findings, by kind, by chapter of ICD-10-CM and by the person who coded.

    weights: of each kind, the number of corrections that change the DRG, and the sums of raised and lowered weights.
    """
    kinds: Counter[str] = Counter()
    chapters: dict[str, Counter[str]] = {}
    coders: dict[str, Counter[str]] = {}
    weights = {kind: {"drg": 0, "raised": 0.0, "lowered": 0.0} for kind in KINDS}
    for record in records:
        own = coders.setdefault(record["coder"], Counter())
        own["encounters"] += 1
        own["codes"] += len(record["billed"])
        for item in record["findings"]:
            kinds[item["kind"]] += 1
            own[item["kind"]] += 1
            chapters.setdefault(_chapter(item), Counter())[item["kind"]] += 1
            changed = (item["effect"] or {}).get("weight") or 0.0
            weights[item["kind"]]["drg"] += _changes_drg(item)
            weights[item["kind"]]["raised" if changed > 0 else "lowered"] += changed
    return {
        "encounters": len(records),
        "codes": sum(len(record["billed"]) for record in records),
        "with_findings": sum(bool(record["findings"]) for record in records),
        "drg_changes": sum(any(_changes_drg(item) for item in record["findings"]) for record in records),
        "kinds": {kind: kinds[kind] for kind in KINDS},
        "weights": {kind: {name: round(it, 4) for name, it in sums.items()} for kind, sums in weights.items()},
        "chapters": {name: dict(counter) for name, counter in sorted(chapters.items())},
        "coders": {name: dict(counter) for name, counter in sorted(coders.items()) if name},
    }


def _chapter(item: Mapping[str, Any]) -> str:
    if item["system"] != "icd10cm":
        return "procedures"
    lines = table("icd10cm")
    name = item["code"] if item["code"] in lines else item["code"][:3]
    return lines.chapter(name) if name in lines else "unknown"


def _changes_drg(item: Mapping[str, Any]) -> bool:
    effect = item["effect"]
    return effect is not None and effect["drg"] != effect["drg_after"]


def _rows(record: Mapping[str, Any]) -> Iterator[list[Any]]:
    for item in record["findings"]:
        effect, spans = item["effect"] or {}, item["evidence"]
        yield [
            record["id"],
            record["coder"],
            *(item[name] for name in COLUMNS[2:9]),
            " | ".join(" ".join(span["text"].split()) for span in spans),
            " ".join(dict.fromkeys(_document(record, span["start"]) for span in spans)),
            *(" ".join(str(span[name]) for span in spans) for name in ("start", "end")),
            " | ".join(item["looked_for"]),
            *(effect.get(name) for name in ("drg", "drg_after", "weight", "risk")),
            *(" ".join(effect.get(name, ())) for name in ("added", "dropped")),
        ]


def _document(record: Mapping[str, Any], start: int) -> str:
    """The id of the document with a character; "" if the encounter has one text."""
    return next((it["id"] for it in reversed(record.get("documents", ())) if it["start"] <= start), "")
