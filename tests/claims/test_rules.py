"""Each rule of the rule files: its positive examples make it fire, its negative examples do not."""

from __future__ import annotations

import re

import pytest

from nosology.claims.claim import Claim, build_claim
from nosology.claims.rules import Example, Rule, rules
from nosology.codes import table
from nosology.serving.coder import Coder

POSITIVE = [(rule, example) for rule in rules() for example in rule.positive]
NEGATIVE = [(rule, example) for rule in rules() for example in rule.negative]


@pytest.fixture(scope="module")
def coder():
    return Coder.for_claims("day-one")


def claim_of(coder, example: Example, off: tuple[str, ...] = ()) -> Claim:
    return build_claim(
        "example", example.text, coder.code(example.text), {"setting": example.setting}, off=(*off, "calibration")
    )


def agrees(claim: Claim, example: Example) -> bool:
    """Whether a claim has the codes of an example and none of those that it must not have."""
    codes = {item.code for item in claim.codes}
    return set(example.codes) <= codes and not codes & set(example.without)


def fired(claim: Claim) -> set[str]:
    """The rules that changed a claim."""
    return {item.rule for item in (*claim.codes, *claim.left_out, *claim.queries)}


def ids(pairs: list[tuple[Rule, Example]]) -> list[str]:
    return [f"{number}-{rule.id}" for number, (rule, _) in enumerate(pairs)]


@pytest.mark.parametrize(("rule", "example"), POSITIVE, ids=ids(POSITIVE))
def test_positive_examples_fire(coder, rule, example):
    claim = claim_of(coder, example)
    codes = [item.code for item in claim.codes]
    assert agrees(claim, example), codes
    if rule.id not in fired(claim):  # the coder may have found the right code itself
        assert agrees(claim_of(coder, example, off=(rule.id,)), example) and (example.codes or example.without), codes


@pytest.mark.parametrize(("rule", "example"), NEGATIVE, ids=ids(NEGATIVE))
def test_negative_examples_do_not_fire(coder, rule, example):
    claim = claim_of(coder, example)
    assert rule.id not in fired(claim)
    assert agrees(claim, example), [item.code for item in claim.codes]


def test_rules_are_complete():
    names = [rule.id for rule in rules()]
    assert len(set(names)) == len(names)
    lines = table("icd10cm")
    for rule in rules():
        assert rule.positive and rule.negative, rule.id
        assert re.match(r"(?:I|II|III|IV)\.[A-Z]", rule.section) or rule.section == "tabular", rule.id
        results = (
            rule.add,
            rule.rows,
            rule.substances,
            rule.choose,
            rule.ranges,
            rule.drop,
            rule.query,
            rule.drop_within,
            rule.swap,
        )
        assert any(results), rule.id
        assert [row[0] for row in rule.rows if row[0] not in lines] == [], rule.id
        assert [pair for pair in rule.swap if not (lines.billable(pair[0]) and lines.billable(pair[2]))] == [], rule.id
        fixed = [
            code for code in (*rule.add, *(c for _, c in rule.choose), *(c for *_, c in rule.ranges)) if "{" not in code
        ]
        assert [code for code in fixed if not lines.billable(code)] == [], rule.id
