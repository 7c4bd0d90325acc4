"""Codes of chapter 15 by what the note says of the pregnancy: trimester, delivery."""

from __future__ import annotations

import re
from functools import lru_cache

from nosology.claims.draft import Draft
from nosology.codes import table
from nosology.core import Span

_UNSPECIFIED = ", unspecified trimester"
_IN_BRACKETS = re.compile(r" \([^)]*\)")
_NAMES = {"1": "first", "2": "second", "3": "third"}
_DELIVERED = re.compile(
    r"\b(?:vaginal delivery|N?SVD|VAVD|VBAC|FAVD|[rp]?LTCS|CS|C/S|(?:cesarean|c-?) ?(?:delivery|section)|delivered"
    r"|liveborn"
    r"|delivery of (?:a )?(?:viable|live)|delivery (?:note|summary))\b",
    re.IGNORECASE,
)
_PREGNANT = re.compile(
    r"\b(?:is|currently|now) pregnant\b|\bpregnant (?:woman|female|patient|with|and)\b|\bpregnant,"
    r"|\b(?:in|during|complicating) (?:\w+ )?pregnancy\b|\b(?:IUP|intrauterine pregnancy)\b"
    r"|\bG\d+\s?P\d+\b[^.\n]{0,12}(?:@|\bat\b)|\bPPD ?#?\d|\bpostpartum\b",
    re.IGNORECASE,
)


def is_pregnant(draft: Draft) -> bool:
    """Whether the patient is pregnant or has just given birth, as the note says."""
    if draft.pregnant is None:
        encounter = draft.encounter
        is_other = encounter.sex == "M" or draft.is_newborn
        is_other = is_other or (encounter.age is not None and not 10 <= encounter.age <= 60)
        draft.pregnant = not is_other and (bool(draft.trimester) or _said(draft, _PREGNANT))
    return draft.pregnant


def complete_trimesters(draft: Draft) -> None:
    """Replaces codes with an unspecified trimester by those of the trimester or of childbirth."""
    open_codes = [code for code in draft.entries if code[0] == "O" and _UNSPECIFIED in draft.table.description(code)]
    if not open_codes:
        return
    delivered = draft.encounter.is_inpatient and _said(draft, _DELIVERED)
    for code in open_codes:
        if better := _completed(draft, code, delivered):
            reason = f"the note has the words for {better} ({draft.table.description(better)})"
            draft.replace([code], better, reason, draft.entries[code].rule or "trimester")


def _completed(draft: Draft, code: str, delivered: bool) -> str | None:
    by_title = _by_title(draft.encounter.release, code[:3])
    title = draft.table.description(code)
    base = _IN_BRACKETS.sub("", title.replace(_UNSPECIFIED, ""))
    wanted = []
    if delivered:
        wanted = [f"{base} complicating childbirth", f"{base}, complicating childbirth"]
        wanted += [base.replace(f"{word} pregnancy", f"{word} childbirth") for word in ("complicating", "in")]
    if draft.trimester:
        wanted.append(title.replace("unspecified trimester", f"{_NAMES[draft.trimester]} trimester"))
    return next((by_title[text] for text in wanted if by_title.get(text, code) != code), None)


@lru_cache(maxsize=256)
def _by_title(release: str | None, category: str) -> dict[str, str]:
    codes = table("icd10cm", release)
    below = codes.descendants(category) if category in codes else []
    return {codes.description(code): code for code in below if codes.billable(code)}


def _said(draft: Draft, pattern: re.Pattern[str]) -> bool:
    contexts = (draft.context(Span(*match.span())) for match in pattern.finditer(draft.text))
    return any(not (it.negated or it.family or it.hypothetical or it.historical) for it in contexts)
