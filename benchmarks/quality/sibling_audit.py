"""What the verifier of sibling codes changes in audits: python benchmarks/quality/sibling_audit.py FILE [options]

python benchmarks/quality/sibling_audit.py FILE [--coder BUNDLE] [--auditor DIR] [--reference claim|coder] [--limit N]
    [--fit PATIENTS]

FILE, --auditor and --fit: as of audit.py beside this file. Each bill is audited with and without the verifier of the
coder: untouched, with a quarter of its codes replaced by siblings, and with codes of another note. `named`: planted
siblings for which the finding names the code that was replaced. Nothing is chosen here.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path
from typing import Any

from audit import RELATED, audit_cases, fit_simulated_auditor, gold_codes  # beside this file

from nosology.audit.encounter_audit import REFERENCES, audit_encounter
from nosology.audit.finding import BilledCode, EncounterAudit
from nosology.audit.planted_errors import plant_errors
from nosology.audit.support_features import MAX_SUGGESTIONS
from nosology.audit.support_model import SupportModel
from nosology.core import Code
from nosology.models.siblings.sibling_chooser import SiblingChooser
from nosology.serving.coder import Coder

WRONG = ("unsupported", *RELATED)


def measure(
    cases: list[dict[str, Any]],
    coder: Coder,
    chooser: SiblingChooser,
    reference: str,
    auditor: SupportModel | None = None,
) -> dict[str, Counter]:
    """Counts without and with the verifier."""
    counts = {"without": Counter[str](), "with": Counter[str]()}
    for number, case in enumerate(cases):
        gold, others = gold_codes(case), gold_codes(cases[(number + 1) % len(cases)])
        suggestions = coder.code(case["text"], MAX_SUGGESTIONS if auditor else None)
        stated = {"setting": case["setting"].split()[0]} if case.get("setting") else {}
        for kind in ("untouched", "sibling", "foreign"):
            bill = plant_errors(kind, gold, others, random.Random(f"0 {case['id']} {kind}"))
            billed = [BilledCode(Code("icd10cm", code)) for code in bill.codes]
            judgement = auditor.judge(case["text"], bill.codes, suggestions) if auditor else None
            for name, used in (("without", None), ("with", chooser)):
                result = audit_encounter(
                    case["id"],
                    case["text"],
                    billed,
                    suggestions,
                    stated,
                    reference=reference,
                    judgement=judgement,
                    chooser=used,
                )
                _count(counts[name], kind, result, bill.planted, set(gold) - set(bill.codes))
    return counts


def _count(counter: Counter[str], kind: str, result: EncounterAudit, planted: set[str], replaced: set[str]) -> None:
    if kind == "untouched":
        counter["codes"] += len(result.billed)
        counter["false alarms"] += len({it.code.code for it in result.findings if it.kind in WRONG})
        return
    kinds = RELATED if kind == "sibling" else ("unsupported",)
    found = {it.code.code: it for it in result.findings if it.kind in kinds}
    counter[f"{kind} planted"] += len(planted)
    counter[f"{kind} findings"] += len(found)
    counter[f"{kind} found"] += len(planted & found.keys())
    counter[f"{kind} named"] += sum(found[code].instead in replaced for code in planted & found.keys())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="or the number of simulated patients")
    parser.add_argument("--coder", default="day-one")
    parser.add_argument("--auditor", type=Path)
    parser.add_argument("--fit", type=int, metavar="PATIENTS")
    parser.add_argument("--reference", choices=REFERENCES, default="claim")
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    chooser = SiblingChooser.load(arguments.coder)
    if chooser is None:
        parser.error("this coder has no verifier of siblings")
    cases = [case for case in audit_cases(arguments.file) if len(gold_codes(case)) > 1][: arguments.limit]
    coder = Coder.for_claims(arguments.coder, systems=["icd10cm"])
    auditor = SupportModel.for_coder(arguments.auditor, arguments.coder) if arguments.auditor else None
    if arguments.fit:
        auditor = fit_simulated_auditor(coder, arguments.coder, arguments.fit)
    for name, row in measure(cases, coder, chooser, arguments.reference, auditor).items():
        print(f"{name:<8} false alarms {row['false alarms'] / row['codes']:.3f} of {row['codes']:,}", end="")
        for kind in ("sibling", "foreign"):
            planted, findings, found = (row[f"{kind} {it}"] for it in ("planted", "findings", "found"))
            print(
                f"  {kind}: recall {found / planted:.3f} precision {found / max(1, findings):.3f} of {planted}", end=""
            )
        print(f"  named {row['sibling named']} of {row['sibling planted']}")


if __name__ == "__main__":
    main()
