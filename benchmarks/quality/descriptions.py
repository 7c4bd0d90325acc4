"""Descriptions as notes: python benchmarks/quality/descriptions.py [--every N] [--errors N]

Each billable description of ICD-10-CM is coded as a note of its own. It yields itself if its code is accepted and, if
several codes are accepted, has the highest probability. The result has the share by chapter; injuries (S and T) apart.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import nosology
from nosology.codes import table

RESULTS = Path(__file__).parents[1] / "results" / "quality_descriptions.json"


def chapter(code: str) -> str:
    """The chapter of a code by its letters; blood (D50 to D89) and ear (H60 to H95) apart."""
    if code[0] == "D":
        return "C-D49" if code < "D50" else "D50-D89"
    if code[0] == "H":
        return "H00-H59" if code < "H60" else "H60-H95"
    return next(group for group in ("AB", "C-D49", "ST", "VWXY", code[0]) if code[0] in group.replace("-D49", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="take each Nth description")
    parser.add_argument("--errors", type=int, default=0, help="print this many descriptions that fail")
    parser.add_argument("--in-sentence", action="store_true", help="inside a sentence, so that no line equals it")
    arguments = parser.parse_args()
    codes = table("icd10cm")
    chosen = list(codes.codes(billable=True))[:: arguments.every]
    frame = "The patient has {}, as noted." if arguments.in_sentence else "{}"
    notes = [frame.format(codes.description(code)) for code in chosen]
    total: Counter[str] = Counter()
    right: Counter[str] = Counter()
    failed = []
    for code, text, suggestions in zip(chosen, notes, nosology.load("day-one").code_all(notes)):
        accepted = [item for item in suggestions if item.accepted]
        best = max(accepted, key=lambda item: item.probability).code if accepted else ""
        total[chapter(code)] += 1
        right[chapter(code)] += best == code
        if best != code:
            failed.append(f"{code} {best or '-'} {text}")
    for line in failed[:: max(1, len(failed) // max(1, arguments.errors))][: arguments.errors]:
        print(line)
    shares = {name: round(right[name] / total[name], 4) for name in sorted(total)}
    rest = [name for name in total if name != "ST"]
    result = {
        "outside_injuries": round(sum(right[name] for name in rest) / max(1, sum(total[name] for name in rest)), 4),
        "injuries": round(right["ST"] / max(1, total["ST"]), 4),
        "descriptions": sum(total.values()),
        "chapters": shares,
    }
    print(json.dumps(result))
    if arguments.every == 1:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        name = "in_sentence" if arguments.in_sentence else "alone"
        RESULTS.write_text(json.dumps(known | {name: result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
