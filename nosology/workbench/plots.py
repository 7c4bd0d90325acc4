"""Small plots as SVG, drawn with the colours of the page they stand in; the numbers stand beside them as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560, 200, 44, 24, 12


def line(points: Sequence[tuple[str, float]], title: str, *, top: float | None = 1.0, unit: str = "") -> Markup:
    """A line through named points; top: the largest value of the axis, by default 1, None for that of the points."""
    if len(points) < 2:
        return Markup("")
    largest = top or _round_up(max(value for _, value in points)) or 1.0
    wide, high = _WIDTH - _LEFT - 12, _HEIGHT - _BOTTOM - _TOP
    places = [
        (_LEFT + wide * i / (len(points) - 1), _TOP + high * (1 - min(value, largest) / largest))
        for i, (_, value) in enumerate(points)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = Markup("").join(
        Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3"><title>{}: {:.3g}</title></circle>').format(
            x, y, name, value
        )
        for (x, y), (name, value) in zip(places, points)
    )
    ends = Markup('<text x="{}" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text>').format(
        _LEFT, _HEIGHT - 6, points[0][0], _WIDTH - 12, _HEIGHT - 6, points[-1][0]
    )
    drawn = _axis(largest, high, unit) + Markup('<polyline class="curve" points="{}"/>').format(path) + dots + ends
    return _svg(drawn, title, _HEIGHT)


def _round_up(value: float) -> float:
    """The next value that an axis can end at: 1, 2, 4, 6, 8 or 10 times a power of ten."""
    size = 10 ** math.floor(math.log10(value)) if value > 0 else 0
    return next((size * step for step in (1, 2, 4, 6, 8, 10) if value <= size * step), 0)


def _axis(largest: float, high: float, unit: str) -> Markup:
    drawn = Markup("")
    for part in (0, 0.5, 1):
        y = _TOP + high * (1 - part)
        label = f"{largest * part:.0%}" if largest == 1.0 else f"{largest * part:.3g}{unit}"
        drawn += Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(_LEFT, _WIDTH - 12, y, y)
        drawn += Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(_LEFT - 6, y + 4, label)
    return drawn


def bars(rows: Sequence[tuple[str, float | None, float | None]], names: tuple[str, str]) -> Markup:
    """Two bars a row, each a share; a share that is not known has none."""
    if not rows:
        return Markup("")
    drawn, y, label = Markup(""), 22.0, 250
    drawn += Markup('<text class="first" x="{}" y="12">{}</text>').format(label, names[0])
    drawn += Markup('<text class="second" x="{}" y="12">{}</text>').format(label + 60, names[1])
    for title, first, second in rows:
        plain = title.partition(" (")[0]
        short = plain if len(plain) <= 36 else plain[:35] + "…"
        drawn += Markup('<text x="{}" y="{:.0f}" text-anchor="end">{}<title>{}</title></text>').format(
            label - 8, y + 12, short, title
        )
        for value, kind, shift in ((first, "first", 0), (second, "second", 8)):
            if value is not None:
                drawn += Markup('<rect class="{}" x="{}" y="{:.0f}" width="{:.1f}" height="7" rx="2"/>').format(
                    kind, label, y + shift, max(1.0, (_WIDTH - label - 12) * value)
                )
        y += 24
    return _svg(drawn, f"{names[0]} and {names[1]}", int(y + 4))


def _svg(drawn: Markup, title: str, height: int) -> Markup:
    return Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, height, escape(title), drawn
    )
