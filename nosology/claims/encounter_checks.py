"""All checks of the codes of an encounter: tabular list, patient, rules of claims, Medicare Code Editor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from nosology.claims.checks import AssignedCodes, check_codes
from nosology.claims.code_editor import check_with_code_editor
from nosology.claims.code_issue import LEVELS, CodeIssue
from nosology.claims.draft import Draft, Entry
from nosology.claims.encounter import Encounter, with_coding_day
from nosology.claims.final_set import drop_unspecified
from nosology.claims.rules import Rule, apply_rule, rules, rules_for
from nosology.codes import table
from nosology.core import Code, ConfigError, Span


def check_encounter(
    assigned: AssignedCodes,
    encounter: Mapping[str, Any],
    text: str = "",
    evidence: Mapping[Code, Sequence[Span]] | None = None,
) -> list[CodeIssue]:
    """All issues of the assigned codes, errors first; of issues about the same code and problem only the first.

    encounter: may have date or discharged (YYYY-MM-DD), sex (F, M), age and kind (inpatient, outpatient).
    """
    encounter = with_coding_day(encounter)
    diagnoses = [code for code in assigned.codes if code.system == "icd10cm"]
    issues = check_codes(assigned, encounter, text, evidence)
    reported = {(issue.code, issue.kind) for issue in issues}
    issues += [it for it in check_with_code_editor(diagnoses, encounter) if (it.code, it.kind) not in reported]
    excluded = {issue.code for issue in issues if issue.kind == "excludes1"}
    issues += [it for it in check_combinations(diagnoses, encounter, text) if it.code not in excluded]
    return sorted(dict.fromkeys(issues), key=lambda issue: LEVELS.index(issue.level))


@cache
def _rules_about_codes() -> tuple[Rule, ...]:
    """The rules that drop codes because of other codes, whatever the note says."""
    return tuple(
        rule
        for rule in rules()
        if rule.family in ("combination", "companion", "encounter", "integral")
        and rule.codes
        and rule.drop
        and rule.drop != rule.codes  # a rule that takes out a code for itself reads the note
        and not (rule.words or rule.regex or rule.rows or rule.swap or rule.also_words or rule.together)
    )


def check_combinations(codes: Sequence[Code], encounter: Mapping[str, Any], text: str = "") -> Iterator[CodeIssue]:
    """The ICD-10-CM codes that the rules of claims take out of the set, with the codes that they put in their place."""
    stated = {"setting": encounter.get("kind"), **{name: encounter.get(name) for name in ("date", "sex", "age")}}
    try:
        found = Encounter.of(text, stated)
    except ConfigError:
        return  # no code set is known for the date
    names = tuple(code.code for code in codes if code.code in table("icd10cm", found.release))
    if not names:
        return
    reported: set[str] = set()
    for rule in rules_for(names, _rules_about_codes()):
        draft = _draft(text, found, names)
        apply_rule(rule, draft)
        offers = tuple(Code("icd10cm", code) for code in draft.entries if code not in names)
        level = "hint" if rule.family == "integral" else "warning"
        for left in draft.left_out:
            if left.code not in reported:
                message = f"{left.code}: {rule.message} (guideline {rule.section})"
                yield CodeIssue(level, "combination", Code("icd10cm", left.code), message, offers)
        reported |= {left.code for left in draft.left_out}
    draft = _draft(text, found, names)
    drop_unspecified(draft)
    for left in draft.left_out:
        if left.code not in reported:
            yield CodeIssue("warning", "combination", Code("icd10cm", left.code), f"{left.code}: {left.reason}")


def _draft(text: str, encounter: Encounter, codes: Sequence[str]) -> Draft:
    return Draft(text, encounter, entries={code: Entry(code, 1.0) for code in codes})
