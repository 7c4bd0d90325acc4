"""Claims against gold code sets: micro precision, recall and F1, principal diagnosis, Excludes1 conflicts.

python benchmarks/quality/claims.py FILE... [--system icd9cm] [--text-only] [--off STAGE] [--ablate] [--errors]
    [--coder BUNDLE] [--no-siblings]

FILE: JSON lines with id, text, codes (gold), fields of the encounter (setting, date, role ...), principal, and optional
(codes neither right nor wrong). With --system icd10pcs the gold codes are procedures.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nosology.claims.claim import STAGES, SYSTEMS, Claim, build_claim
from nosology.claims.icd9 import icd9_on
from nosology.serving.coder import Coder

STATED = ("setting", "date", "sex", "age", "admitted", "discharged", "role")


def read_cases(paths: list[Path], system: str = "icd10cm") -> list[dict[str, Any]]:
    """The cases of all files; ICD-9-CM codes are brought to the release of the case."""
    cases = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines() if line]
    if system == "icd9cm":
        for case in cases:
            for item in (*case["codes"], *case.get("optional", ())):
                item["code"] = icd9_on(item["code"], case.get("date", ""))
    return cases


def stated_fields(case: dict[str, Any], names: Sequence[str] = STATED) -> dict[str, Any]:
    """The named fields of the encounter; a setting such as "outpatient surgery" is outpatient."""
    stated = {name: case[name] for name in names if case.get(name) not in (None, "")}
    if "setting" in stated:
        stated["setting"] = stated["setting"].split()[0]
    return stated


def measure(cases: list[dict[str, Any]], claims: list[Claim]) -> dict[str, Any]:
    """Scores of the claims of some cases."""
    right = wrong = missed = principal = exact = conflicts = with_principal = 0
    for case, claim in zip(cases, claims):
        gold = {code["code"] for code in case["codes"]}
        optional = {code["code"] for code in case.get("optional", ())} - gold
        found = {item.code for item in claim.codes} - optional
        right, wrong, missed = right + len(gold & found), wrong + len(found - gold), missed + len(gold - found)
        exact += gold == found
        if case.get("principal"):
            with_principal += 1
            principal += bool(claim.codes) and claim.codes[0].code == case["principal"]
        conflicts += any(issue.kind == "excludes1" for issue in claim.conflicts)
    precision, recall = right / max(1, right + wrong), right / max(1, right + missed)
    return {
        "notes": len(cases),
        "precision": round(precision, 3),
        "recall": round(recall, 3),
        "micro_f1": round(2 * precision * recall / max(1e-9, precision + recall), 3),
        "exact": exact,
        "principal": f"{principal} of {with_principal}",
        "excludes1_sets": conflicts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--coder", default="day-one")
    parser.add_argument("--no-siblings", action="store_true", help="without the verifier of siblings of the coder")
    parser.add_argument("--system", default="icd10cm", choices=SYSTEMS)
    parser.add_argument("--text-only", action="store_true", help="state only the date; the rest is read from the text")
    parser.add_argument("--off", action="append", default=[], choices=STAGES)
    parser.add_argument("--ablate", action="store_true", help="turn each stage off in turn")
    parser.add_argument("--errors", action="store_true", help="print missed and wrong codes of each note")
    arguments = parser.parse_args()
    cases = read_cases(arguments.files, arguments.system)
    coder = Coder.for_claims(arguments.coder)
    chooser = None if arguments.no_siblings else getattr(coder.model, "siblings", None)
    suggestions = list(coder.code_all([case["text"] for case in cases]))
    names = ("date",) if arguments.text_only else STATED
    encounters = [stated_fields(case, names) for case in cases]

    def claims(off: list[str]) -> list[Claim]:
        return [
            build_claim(case["id"], case["text"], suggested, stated, system=arguments.system, off=off, chooser=chooser)
            for case, stated, suggested in zip(cases, encounters, suggestions)
        ]

    result = claims(arguments.off)
    if arguments.errors:
        _print_errors(cases, result)
    print(json.dumps(measure(cases, result)))
    if arguments.ablate:
        print(json.dumps({"off": "all", **measure(cases, claims(list(STAGES)))}))
        for stage in STAGES:
            print(json.dumps({"off": stage, **measure(cases, claims([stage]))}))


def _print_errors(cases: list[dict[str, Any]], claims: list[Claim]) -> None:
    rules: Counter[str] = Counter()
    for case, claim in zip(cases, claims):
        gold = {code["code"] for code in case["codes"]}
        optional = {code["code"] for code in case.get("optional", ())}
        found = {item.code: item for item in claim.codes}
        missed = [f"{code}{_why(claim, code)}" for code in sorted(gold - set(found))]
        wrong = [
            f"{code}[{item.rule or '/'.join(claim.text[s.start : s.end] for s in item.evidence[:2])!r}]"
            for code, item in found.items()
            if code not in gold | optional
        ]
        rules.update(item.rule for code, item in found.items() if item.rule and code not in gold | optional)
        first = claim.codes[0].code if claim.codes else ""
        principal = "" if first == case.get("principal") else f" | first {first}, gold {case.get('principal')}"
        print(f"{case['id']} missed {' '.join(missed)} | wrong {' '.join(wrong)}{principal}")
    print("wrong by rule:", dict(rules.most_common()))


def _why(claim: Claim, code: str) -> str:
    left_out = next((item for item in claim.left_out if item.code == code), None)
    return f"({left_out.rule})" if left_out else ""


if __name__ == "__main__":
    main()
