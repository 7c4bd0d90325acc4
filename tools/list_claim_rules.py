"""Writes docs/claims_rules.md, the table of the claim rules: python tools/list_claim_rules.py"""

from __future__ import annotations

from pathlib import Path

from nosology.claims.rules import FAMILIES, rules

PAGE = Path(__file__).parents[1] / "docs" / "claims_rules.md"
_HEAD = """# Rules of claims

All rules of [`nosology claim`](claims.md) by family and section of the ICD-10-CM Official Guidelines (FY2026). This
page is for coders who look up the name that a claim shows in brackets. `tabular` is an instruction of the tabular list.
Each rule is in nosology/claims/guidelines with its conditions and its test sentences.
`python tools/list_claim_rules.py` makes this page.
"""


def page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for family in FAMILIES:
        of_family = sorted(
            (rule for rule in rules() if rule.family == family), key=lambda rule: (rule.section, rule.id)
        )
        if of_family:
            parts.append(f"\n## {family} ({len(of_family)})\n\n| section | rule | what it says |\n|---|---|---|\n")
            parts += [f"| {rule.section} | {rule.id} | {rule.message.replace('|', '/')} |\n" for rule in of_family]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
