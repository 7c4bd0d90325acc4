"""docs/claims_rules.md lists the rules as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "list_claim_rules.py"


def test_page_of_rules_is_current():
    spec = importlib.util.spec_from_file_location("list_claim_rules", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run: python tools/list_claim_rules.py"
