"""Differences of two codings of one note, and the codes that follow when somebody has decided them. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nosology.claims.checks import PROCEDURES, AssignedCode, AssignedCodes
from nosology.core import Code, ReviewError

SIDES = ("first", "second")  # the coding of the note, and that of its copy
MIN_PREFIX = 3  # characters that two codes share which one note has in place of each other: the category


@dataclass(frozen=True)
class CodeDifference:
    """A difference: first and second are what each coding has. name: of the choice, a code or principal.

    kind: first or second (only that coding has the code), poa (present on admission) or principal (diagnosis).
    """

    kind: str
    name: str
    first: AssignedCode | None
    second: AssignedCode | None

    @property
    def code(self) -> Code | None:
        """The code that it is about; None for the principal diagnosis."""
        either = self.first or self.second
        return either.code if either and self.kind != "principal" else None


@dataclass(frozen=True)
class CodeComparison:
    """Codes that two codings share with the same indicator, and their differences; the order of codes is none."""

    agreed: tuple[AssignedCode, ...]
    differences: tuple[CodeDifference, ...]


def compare_codes(first: AssignedCodes, second: AssignedCodes) -> CodeComparison:
    """The comparison of two codings."""
    agreed, differences = [], []
    if first.principal != second.principal:
        principals = [side.find(side.principal) if side.principal else None for side in (first, second)]
        differences.append(CodeDifference("principal", "principal", *principals))
    for item in first.chosen:
        other = second.find(item.code)
        if other is None:
            differences.append(CodeDifference("first", str(item.code), item, None))
        elif other.poa != item.poa:
            differences.append(CodeDifference("poa", str(item.code), item, other))
        else:
            agreed.append(_merged(item, other))
    missing = [item for item in second.chosen if not first.find(item.code)]
    differences += [CodeDifference("second", str(item.code), None, item) for item in missing]
    # Codes of one category side by side; the principal diagnosis last, because it must be one of the codes kept.
    return CodeComparison(
        tuple(agreed), tuple(sorted(differences, key=lambda item: (item.kind == "principal", item.name)))
    )


def _merged(item: AssignedCode, other: AssignedCode) -> AssignedCode:
    """A code of both codings with the evidence of both."""
    return replace(item, evidence=tuple(dict.fromkeys((*item.evidence, *other.evidence))))


def final_codes(
    first: AssignedCodes, second: AssignedCodes, choices: Mapping[str, str]
) -> tuple[tuple[AssignedCode, ...], list[CodeDifference]]:
    """The codes after a choice of a side per name of a difference, and the differences; ReviewError if one lacks."""
    differences = compare_codes(first, second).differences
    undecided = [item for item in differences if choices.get(item.name) not in SIDES]
    if undecided:
        number = len(undecided)
        raise ReviewError(f"{number} difference{' is' if number == 1 else 's are'} still to be decided")
    left_out = {item.code for item in differences if item.kind in SIDES and choices[item.name] != item.kind}
    kept = [item for item in first.chosen if item.code not in left_out]
    kept = [_merged(item, other) if (other := second.find(item.code)) else item for item in kept]
    kept += [item for item in second.chosen if not first.find(item.code) and item.code not in left_out]
    by_poa = {item.code: getattr(item, choices[item.name]).poa for item in differences if item.kind == "poa"}
    kept = [replace(item, poa=by_poa.get(item.code, item.poa)) for item in kept]
    principal = _principal(differences, choices, kept, first)
    return tuple(sorted(kept, key=lambda item: item.code != principal)), list(differences)


def _principal(
    differences: Iterable[CodeDifference],
    choices: Mapping[str, str],
    kept: Collection[AssignedCode],
    first: AssignedCodes,
) -> Code | None:
    """The principal diagnosis: the chosen one, or that of both codings."""
    code = first.principal
    for item in differences:
        if item.kind == "principal":
            taken = getattr(item, choices[item.name])
            code = taken.code if taken else None
    diagnoses = [item.code for item in kept if item.code.system not in PROCEDURES]
    if diagnoses and code not in diagnoses:
        raise ReviewError("the principal diagnosis must be one of the codes that are kept")
    return code


def code_to_json(item: AssignedCode) -> dict[str, Any]:
    """A code for the details of the decision `adjudicate`."""
    value: dict[str, Any] = {"code": str(item.code), "origin": item.origin, "poa": item.poa, "rule": item.rule}
    value["evidence"] = [list(span) for span in item.evidence]
    return value | ({"instead_of": str(item.instead_of)} if item.instead_of else {})


def count_disagreements(
    pairs: Iterable[tuple[Collection[Code], Collection[Code]]],
) -> list[tuple[Code, Code | None, int]]:
    """(code, other code or None, notes), the most frequent first: what one coding has where the other has another code.

    Codes of one category that only one coding has belong together, those that share the longest prefix first.
    """
    found: Counter[tuple[Code, Code | None]] = Counter()
    for first, second in pairs:
        left, right = sorted(set(first) - set(second)), sorted(set(second) - set(first))
        near = [(-_shared(a, b), a, b) for a in left for b in right if _shared(a, b) >= MIN_PREFIX]
        matched: set[Code] = set()
        for _, a, b in sorted(near):
            if a not in matched and b not in matched:
                matched |= {a, b}
                found[min(a, b), max(a, b)] += 1
        found.update((code, None) for code in (*left, *right) if code not in matched)
    order = sorted(found.items(), key=lambda item: (-item[1], str(item[0][0]), str(item[0][1])))
    return [(code, other, number) for (code, other), number in order]


def _shared(a: Code, b: Code) -> int:
    """The length of the prefix that two codes of one system share."""
    if a.system != b.system:
        return 0
    length = 0
    for x, y in zip(a.code, b.code):
        if x != y:
            break
        length += 1
    return length
