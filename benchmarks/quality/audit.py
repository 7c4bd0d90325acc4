"""Audits of gold code sets with planted errors: precision and recall by kind of error, false alarms.

python benchmarks/quality/audit.py FILE [--coder BUNDLE] [--reference claim|coder] [--limit N] [--seed 0]

FILE: JSON lines with id, text, codes (gold), and optionally setting, principal and optional (codes neither right nor
wrong). Each note is audited once as it is, and once for each kind of error, with a quarter of its codes (at least one)

  dropped   left out
  sibling   replaced by another billable code of the category that is not gold
  foreign   added: codes of another note of categories that this note does not have
  moved     put first in place of the principal diagnosis (needs `principal`; one code)

An error is found by a finding of its kind about its code: not_billed; less_specific, more_specific or other_code;
unsupported; sequencing. `flagged`: by any finding about the code. Precision: of the findings of that kind in these
bills. False alarms: billed codes of the untouched bills with a finding that the code is unsupported or another one.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from nosology.audit.encounter_audit import REFERENCES, audit_encounter
from nosology.audit.finding import BilledCode, EncounterAudit
from nosology.codes import table
from nosology.core import Code
from nosology.serving.coder import Coder

SHARE = 0.25
RELATED = ("less_specific", "more_specific", "other_code")
FOUND_BY = {"dropped": ("not_billed",), "sibling": RELATED, "foreign": ("unsupported",), "moved": ("sequencing",)}
RESULTS = Path(__file__).parents[1] / "results" / "quality_audit.json"


class Bill(NamedTuple):
    """Billed codes in order, and the codes about which a finding is right."""

    codes: list[str]
    planted: set[str]


def plant(kind: str, gold: list[str], others: list[str], chance: random.Random) -> Bill:
    """A bill with errors of one kind; others: codes of another note."""
    count = max(1, round(SHARE * len(gold)))
    if kind == "dropped":
        gone = set(chance.sample(gold, min(count, len(gold) - 1)))
        return Bill([code for code in gold if code not in gone], gone)
    if kind == "foreign":
        categories = {code[:3] for code in gold}
        allowed = sorted({code for code in others if code[:3] not in categories})
        added = chance.sample(allowed, min(count, len(allowed)))
        return Bill([*gold, *added], set(added))
    if kind == "moved":
        first = chance.choice(gold[1:]) if len(gold) > 1 else None
        return Bill([first, *(code for code in gold if code != first)], {first}) if first else Bill(gold, set())
    replaced = {code: _sibling(code, gold, chance) for code in chance.sample(gold, count)}
    replaced = {code: other for code, other in replaced.items() if other}
    return Bill(list(dict.fromkeys(replaced.get(code, code) for code in gold)), set(replaced.values()))


def _sibling(code: str, gold: list[str], chance: random.Random) -> str:
    lines = table("icd10cm")
    below = lines.descendants(code[:3]) if code[:3] in lines else []
    choices = [line for line in below if lines.billable(line) and line not in gold and line != code]
    return chance.choice(choices) if choices else ""


def measure(cases: list[dict[str, Any]], coder: Coder, reference: str, seed: int) -> dict[str, Any]:
    """Counts and scores by kind of error, and false alarms."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in ("untouched", *FOUND_BY)}
    for number, case in enumerate(cases):
        gold, optional = _gold(case), {item["code"] for item in case.get("optional", ())}
        others = _gold(cases[(number + 1) % len(cases)])
        suggestions = coder.code(case["text"])
        stated = {"setting": case["setting"].split()[0]} if case.get("setting") else {}
        for kind, counter in counts.items():
            if kind == "moved" and not case.get("principal"):
                continue
            chance = random.Random(f"{seed} {case['id']} {kind}")
            bill = Bill(gold, set()) if kind == "untouched" else plant(kind, gold, others, chance)
            billed = [BilledCode(Code("icd10cm", code)) for code in bill.codes]
            result = audit_encounter(case["id"], case["text"], billed, suggestions, stated, reference=reference)
            _count(counter, result, bill, kind, optional)
    return {kind: _scores(kind, counter) for kind, counter in counts.items() if counter}


def _gold(case: dict[str, Any]) -> list[str]:
    codes = dict.fromkeys(it["code"].upper() for it in case["codes"] if it.get("system", "icd10cm") == "icd10cm")
    return sorted(codes, key=lambda code: code != case.get("principal"))


def _count(counter: Counter[str], result: EncounterAudit, bill: Bill, kind: str, optional: set[str]) -> None:
    counter["bills"] += 1
    counter["codes"] += len(bill.codes)
    counter["planted"] += len(bill.planted)
    ignored = optional - set(bill.codes)
    pairs = [(it.kind, it.code.code) for it in result.findings if it.code.code not in ignored]
    counter["wrong"] += len({code for name, code in pairs if name in ("unsupported", *RELATED)})
    counter["not_billed"] += sum(name == "not_billed" for name, _ in pairs)
    counter["conflict"] += sum(name == "conflict" for name, _ in pairs)
    counter["sequencing"] += sum(name == "sequencing" for name, _ in pairs)
    of_kind = {code for name, code in pairs if name in FOUND_BY.get(kind, ())}
    counter["findings"] += len(of_kind)
    counter["found"] += len(of_kind & bill.planted)
    counter["flagged"] += len({code for _, code in pairs} & bill.planted)


def _scores(kind: str, counter: Counter[str]) -> dict[str, Any]:
    if kind == "untouched":
        return {
            **{name: counter[name] for name in ("bills", "codes", "not_billed", "conflict", "sequencing")},
            "false_alarms": round(counter["wrong"] / counter["codes"], 3),
        }
    return {
        **{name: counter[name] for name in ("planted", "findings", "found")},
        "recall": round(counter["found"] / max(1, counter["planted"]), 3),
        "precision": round(counter["found"] / max(1, counter["findings"]), 3),
        "flagged": round(counter["flagged"] / max(1, counter["planted"]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--coder", default="day-one")
    parser.add_argument("--reference", choices=REFERENCES, default="claim")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    lines = arguments.file.read_text(encoding="utf-8").splitlines()
    cases = [case for line in lines if line and len(_gold(case := json.loads(line))) > 1][: arguments.limit]
    rows = measure(cases, Coder.for_claims(arguments.coder, systems=["icd10cm"]), arguments.reference, arguments.seed)
    for kind, row in rows.items():
        print(f"{kind:<10}", "  ".join(f"{name} {value}" for name, value in row.items()))
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    name = "trained" if arguments.coder != "day-one" else "day-one"
    known[f"{arguments.file.stem}, {name}, against the {arguments.reference}"] = rows
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
