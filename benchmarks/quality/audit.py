"""Audits of gold code sets with planted errors: precision and recall by kind of error, false alarms.

python benchmarks/quality/audit.py FILE [--coder BUNDLE] [--auditor DIR] [--reference claim|coder] [--limit N]
    [--evidence coder] [--kinds KIND ...] [--fit PATIENTS]

FILE: JSON lines with id, text, codes (gold), and optionally setting, principal, optional (codes neither right nor
wrong) and evidence; or the number of patients of a simulated hospital, whose ICD-10 discharge summaries are audited.
Each note is audited once as it is, and once for each kind of error, with a quarter of its codes (at least one)

  dropped   left out
  sibling   replaced by another billable code of the category that is not gold
  foreign   added: codes of another note of categories that this note does not have
  moved     put first in place of the principal diagnosis (needs `principal`; one code)
  negated   billed, while the text is changed: "no evidence of" before all places of their evidence (needs `evidence`)
  aged      the same with "history of ..., resolved years ago"

With `--evidence coder`, notes without gold evidence get that of the coder for gold codes that it suggests: codes that
it does not find cannot be negated or aged then. `--fit` fits an auditor on the discharge summaries of another simulated
hospital with this number of patients.

An error is found by a finding of its kind about its code: not_billed; less_specific, more_specific or other_code;
unsupported (also of negated and aged ones); sequencing. `flagged`: by any finding about the code. Precision: of the
findings of that kind in these bills. False alarms: billed codes of the untouched bills with a finding that the code is
unsupported or another one.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nosology.audit.encounter_audit import REFERENCES, audit_encounter
from nosology.audit.finding import BilledCode, EncounterAudit
from nosology.audit.planted_errors import SHARE, PlantedBill, plant_errors
from nosology.audit.support_features import MAX_SUGGESTIONS
from nosology.audit.support_model import SupportModel, coder_fingerprint
from nosology.audit.support_training import fit_support_model
from nosology.core import Code, Suggestion
from nosology.corpora.simulate.hospital import simulate_notes
from nosology.models.lexicon.cross_validation import note_folds
from nosology.serving.coder import Coder

RELATED = ("less_specific", "more_specific", "other_code")
FOUND_BY = {
    "dropped": ("not_billed",),
    "sibling": RELATED,
    "foreign": ("unsupported",),
    "moved": ("sequencing",),
    "negated": ("unsupported",),
    "aged": ("unsupported",),
}
KINDS = ("untouched", *FOUND_BY)
EDITS = {
    "negated": {"en": r"no evidence of \g<0>", "es": r"sin evidencia de \g<0>"},
    "aged": {"en": r"history of \g<0>, resolved years ago", "es": r"antecedentes de \g<0>, resuelto hace años"},
}
YEARS = (2016, 2019)  # of simulated notes: ICD-10-CM
RESULTS = Path(__file__).parents[1] / "results" / "quality_audit.json"


class Edited(NamedTuple):
    """A text in which some codes have lost their support."""

    text: str
    codes: set[str]


def edit_evidence(kind: str, case: dict[str, Any], gold: list[str], chance: random.Random) -> Edited:
    """The text after the evidence of a quarter of the codes was negated or moved to the past.

    Chosen are codes whose words are not evidence of another code. All places of a note with these words are changed.
    """
    words: dict[str, set[str]] = {}
    for item in case["evidence"]:
        for start, end in item.get("spans") or [(item["start"], item["end"])]:
            words.setdefault(item["code"].upper(), set()).add(case["text"][start:end].lower())
    allowed = [
        code
        for code in gold
        if words.get(code)
        and not any(_is_inside(a, b) for other in words if other != code for a in words[code] for b in words[other])
    ]
    chosen = chance.sample(allowed, min(len(allowed), max(1, round(SHARE * len(gold)))))
    places = {word for code in chosen for word in words[code]}
    if not places:
        return Edited(case["text"], set())
    longest = "|".join(re.escape(word) for word in sorted(places, key=len, reverse=True))
    form = EDITS[kind][case.get("lang", "en")]
    return Edited(re.sub(rf"(?<!\w)(?:{longest})(?!\w)", form, case["text"], flags=re.IGNORECASE), set(chosen))


def _is_inside(one: str, other: str) -> bool:
    return one in other or other in one


def measure(
    cases: list[dict[str, Any]],
    coder: Coder,
    reference: str,
    seed: int,
    auditor: SupportModel | None = None,
    kinds: Sequence[str] = KINDS,
    with_evidence: bool = False,
) -> dict[str, Any]:
    """Counts and scores by kind of error, and false alarms; with_evidence: of the coder for notes that have none."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    top = MAX_SUGGESTIONS if auditor else None
    for number, case in enumerate(cases):
        gold, optional = gold_codes(case), {item["code"] for item in case.get("optional", ())}
        others = gold_codes(cases[(number + 1) % len(cases)])
        known = coder.code(case["text"], top)
        if with_evidence and not case.get("evidence"):
            case = case | {"evidence": _coder_evidence(known, gold)}
        stated = {"setting": case["setting"].split()[0]} if case.get("setting") else {}
        for kind, counter in counts.items():
            chance = random.Random(f"{seed} {case['id']} {kind}")
            text, suggestions = case["text"], known
            if kind in EDITS:
                text, edited = edit_evidence(kind, case, gold, chance) if case.get("evidence") else (text, set())
                bill = PlantedBill(gold, edited)
                suggestions = coder.code(text, top) if edited else known
            else:
                bill = plant_errors(kind, gold, others, chance)
            if (kind in EDITS and not bill.planted) or (kind == "moved" and not case.get("principal")):
                continue
            billed = [BilledCode(Code("icd10cm", code)) for code in bill.codes]
            judgement = auditor.judge(text, bill.codes, suggestions) if auditor else None
            result = audit_encounter(
                case["id"], text, billed, suggestions, stated, reference=reference, judgement=judgement
            )
            _count(counter, result, bill, kind, optional)
    return {kind: _scores(kind, counter) for kind, counter in counts.items() if counter}


def _coder_evidence(suggestions: Sequence[Suggestion], gold: list[str]) -> list[dict[str, Any]]:
    """The words at which the coder finds gold codes, in the form of gold evidence."""
    found = [it for it in suggestions if it.code in gold and it.accepted]
    return [{"code": it.code, "start": span.start, "end": span.end} for it in found for span in it.evidence]


def gold_codes(case: dict[str, Any]) -> list[str]:
    """The ICD-10-CM codes of a case, the principal diagnosis first."""
    codes = dict.fromkeys(it["code"].upper() for it in case["codes"] if it.get("system", "icd10cm") == "icd10cm")
    return sorted(codes, key=lambda code: code != case.get("principal"))


def _count(counter: Counter[str], result: EncounterAudit, bill: PlantedBill, kind: str, optional: set[str]) -> None:
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


def audit_cases(source: str) -> Iterator[dict[str, Any]]:
    """The notes of a JSON-lines file, or the ICD-10 discharge summaries of a simulated hospital."""
    if not source.isdigit():
        yield from map(json.loads, filter(None, Path(source).read_text(encoding="utf-8").splitlines()))
        return
    for note in simulate_notes(int(source), 0, years=YEARS):
        codes = [{"system": code.system, "code": code.code} for code in note.codes]
        spans = [{"code": it.code.code, "start": it.start, "end": it.end} for it in note.evidence]
        yield {"id": note.id, "text": note.text, "setting": "inpatient", "codes": codes, "evidence": spans}


def fit_simulated_auditor(coder: Coder, name: str, patients: int) -> SupportModel:
    """An auditor fitted on the notes of another simulated hospital."""
    notes = list(simulate_notes(patients, 1, years=YEARS))
    suggestions = list(coder.code_all(notes, MAX_SUGGESTIONS))
    return fit_support_model(notes, suggestions, note_folds(notes, 5, 0), coder_fingerprint(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="or the number of simulated patients")
    parser.add_argument("--coder", default="day-one")
    parser.add_argument("--auditor", type=Path)
    parser.add_argument("--reference", choices=REFERENCES, default="claim")
    parser.add_argument("--fit", type=int, metavar="PATIENTS")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--evidence", choices=["coder"])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cases = [case for case in audit_cases(arguments.file) if len(gold_codes(case)) > 1][: arguments.limit]
    auditor = SupportModel.for_coder(arguments.auditor, arguments.coder) if arguments.auditor else None
    coder = Coder.for_claims(arguments.coder, systems=["icd10cm"])
    if arguments.fit:
        auditor = fit_simulated_auditor(coder, arguments.coder, arguments.fit)
    rows = measure(
        cases, coder, arguments.reference, arguments.seed, auditor, arguments.kinds, arguments.evidence == "coder"
    )
    for kind, row in rows.items():
        print(f"{kind:<10}", "  ".join(f"{name} {value}" for name, value in row.items()))
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    source = f"{arguments.file} simulated patients" if arguments.file.isdigit() else Path(arguments.file).stem
    source += f", first {arguments.limit} notes" if arguments.limit else ""
    name = ("trained" if arguments.coder != "day-one" else "day-one") + (" with auditor" if auditor else "")
    name += f" ({auditor.similarity.embedder})" if auditor and auditor.similarity else ""
    known.setdefault(f"{source}, {name}, against the {arguments.reference}", {}).update(rows)
    if auditor:
        known[f"train notes, out of fold, of the auditor for {source}, {name}"] = auditor.measured
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
