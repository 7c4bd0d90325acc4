"""Plots of an audit as inline SVG: bars with their values as text, and a description for screen readers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _ROW = 960, 26
_LABEL, _VALUE = 360, 220  # the room for labels on the left and values on the right
_MAX_LABEL = 48  # characters
MAX_BARS = 20


class Bar(NamedTuple):
    """A row of a plot: label, value, and the value in words. below: of a second bar to the left of zero, negative."""

    label: str
    value: float
    words: str
    below: float = 0.0


def bar_plot(name: str, title: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars on one scale, the first MAX_BARS of them; "" if there are none. name: unique in the page."""
    bars = bars[:MAX_BARS]
    if not bars:
        return ""
    low, high = min(0.0, *(bar.below for bar in bars)), max(0.0, *(bar.value for bar in bars))
    scale = (_WIDTH - _LABEL - _VALUE) / ((high - low) or 1.0)
    zero = _LABEL - low * scale
    rows = "".join(_row(bar, number * _ROW, zero, scale) for number, bar in enumerate(bars))
    height = _ROW * len(bars) + 4
    described = "; ".join(f"{bar.label}: {bar.words}" for bar in bars)
    axis = f'<line x1="{zero:.1f}" x2="{zero:.1f}" y1="0" y2="{height}" stroke="var(--line)"/>'
    return (
        f'<svg role="img" aria-labelledby="{name}-title {name}-desc" viewBox="0 0 {_WIDTH} {height}" '
        f'style="width:100%;max-width:{_WIDTH}px;height:auto;font-size:13px" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(described)}</desc>'
        f"{axis}{rows}</svg>"
    )


def _row(bar: Bar, top: int, zero: float, scale: float) -> str:
    """The label, the bars and the value of a row."""
    label = bar.label if len(bar.label) <= _MAX_LABEL else f"{bar.label[: _MAX_LABEL - 1]}…"
    parts = [f'<text x="{_LABEL - 10}" y="{top + 18}" text-anchor="end" fill="var(--ink)">{escape(label)}</text>']
    if bar.below:
        width = -bar.below * scale
        parts.append(_rectangle(zero - width, top, width, "var(--soft)"))
    if bar.value:
        parts.append(_rectangle(zero, top, bar.value * scale, "var(--blue)"))
    end = zero + bar.value * scale + 8
    parts.append(f'<text x="{end:.1f}" y="{top + 18}" fill="var(--ink)">{escape(bar.words)}</text>')
    return "".join(parts)


def _rectangle(left: float, top: int, width: float, colour: str) -> str:
    return f'<rect x="{left:.1f}" y="{top + 6}" width="{width:.1f}" height="16" rx="2" fill="{colour}"/>'
