"""axe-core in the pages of browser tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

AXE = (Path(__file__).parent / "vendor" / "axe-4.14.0.min.js").read_text(encoding="utf-8")
ALL_RULES = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
CONTRAST = {"type": "rule", "values": ["color-contrast"]}  # nothing else hangs on the colours


def axe_violations(
    page: Page, rules: dict[str, Any] = ALL_RULES, root: str = "document"
) -> list[tuple[str, list[str]]]:
    """(rule, elements) of each violation on a page, or within its element `root`."""
    page.evaluate(AXE)  # the page's own policy lets no other script in; this is the debugger's way
    result = page.evaluate(f"(rules) => axe.run({root}, {{runOnly: rules}})", rules)
    return [(found["id"], [node["html"][:120] for node in found["nodes"][:3]]) for found in result["violations"]]
