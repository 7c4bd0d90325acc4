"""Plots of an audit: the bars have the proportions of the values, which are also there as text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.audit.audit_folder import summarise
from nosology.audit.audit_page import audit_page
from nosology.audit.audit_plots import MAX_BARS, Bar, bar_plot

UP, DOWN = (st.floats(low, high).map(lambda it: round(it, 4)) for low, high in ((0, 1e6), (-1e6, 0)))  # as weights are
SVG = "{http://www.w3.org/2000/svg}"


@given(st.lists(st.tuples(st.text("ab<>&\"' ü", max_size=60), UP, DOWN), min_size=1, max_size=30))
def test_bars_are_inside_the_picture_and_in_proportion(rows):
    bars = [Bar(label, value, f"{value:g}", below) for label, value, below in rows]
    root = ElementTree.fromstring(bar_plot("p", "Title <1>", bars))
    width = float(root.get("viewBox").split()[2])
    shown = bars[:MAX_BARS]
    lengths = [float(it.get("width")) for it in root.iter(f"{SVG}rect")]
    values = [abs(it) for bar in shown for it in (bar.below, bar.value) if it]
    assert len(lengths) == len(values) and all(0 <= it <= width for it in lengths)
    if values:
        scale = max(lengths) / max(values)
        assert lengths == pytest.approx([scale * it for it in values], abs=0.2)
    names = {it.get("id"): it.text for it in root if it.get("id")}
    assert root.get("aria-labelledby") == " ".join(names) and names["p-title"] == "Title <1>"
    assert names["p-desc"] == "; ".join(f"{bar.label}: {bar.words}" for bar in shown)
    assert [it.text for it in root.iter(f"{SVG}text")][1::2] == [bar.words for bar in shown]


def test_nothing_is_plotted_of_nothing():
    assert bar_plot("p", "Title", []) == ""


def record(number, coder, *findings):
    items = [
        {
            "kind": kind,
            "system": "icd10cm",
            "code": code,
            "instead": "",
            "reason": "",
            "rule": "",
            "confidence": 0.9,
            "evidence": [],
            "looked_for": [],
            "effect": {"drg": 1, "drg_after": after, "weight": weight, "risk": 0.0, "added": (), "dropped": ()},
        }
        for kind, code, after, weight in findings
    ]
    return {"id": str(number), "coder": coder, "billed": [{}, {}], "findings": items}


def test_the_page_has_plots_by_kind_chapter_coder_and_weight():
    records = [
        record(1, "kim <1>", ("unsupported", "J18.9", 2, -0.5), ("not_billed", "I10", 1, 0.0)),
        record(2, "lee", ("not_billed", "N17.9", 3, 0.75)),
    ]
    summary = summarise(records)
    assert summary["weights"]["unsupported"] == {"drg": 1, "raised": 0.0, "lowered": -0.5}
    assert summary["weights"]["not_billed"] == {"drg": 1, "raised": 0.75, "lowered": 0.0}
    page = audit_page(summary, records)
    described = re.findall(r"<desc[^>]*>(.*?)</desc>", page)
    assert len(described) == 4 and "<script" not in page and len(re.findall(r'id="([^"]+)"', page)) == 8
    assert "billed without support: 1; supported, not billed: 2" in described[0]
    assert "10. Diseases of the respiratory system" in described[1]
    assert "kim &lt;1&gt;: 100.0 (2 findings, 2 codes); lee: 50.0 (1 findings, 2 codes)" in described[2]
    assert "billed without support: -0.50 / +0.00; supported, not billed: +0.00 / +0.75" in described[3]
    for item in records[0]["findings"] + records[1]["findings"]:
        item["effect"]["weight"] = None
    page = audit_page(summarise(records), records)
    assert "Corrections that change the DRG" in page and "Change of DRG weights" not in page
