"""Highlighted notes: an HTML page and a PNG picture of the original text, words coloured by weight."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from nosology.core.files import atomic_file
from nosology.explanation.attribution import Attribution

_FOR, _AGAINST = (214, 69, 65), (58, 110, 165)  # colours of positive and negative weights
_STYLE = (
    "body{font:15px/1.6 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "pre{white-space:pre-wrap;font:inherit;border:1px solid #ddd;border-radius:6px;padding:1em}"
    "mark{color:inherit;border-radius:3px;padding:0 1px}h2{font-size:1.05em;margin:1.6em 0 .4em}small{color:#666}"
)
_COLUMNS = 96  # characters of a line in a picture
_CHARACTER = 0.0753  # inches that one of them is wide: 0.602 of the 9 points of the fixed font
_MARGIN = 0.2  # inches
_LINES = 500  # of a picture; the page shows all


def html_page(title: str, text: str, sections: Sequence[tuple[str, Attribution]]) -> str:
    """A self-contained page with the note once per explanation."""
    parts = [f"<h2>{escape(name)}</h2><pre>{highlighted(text, attribution)}</pre>" for name, attribution in sections]
    legend = "<p><small>red supports the code, blue speaks against it; darker means more</small></p>"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1>{legend}{''.join(parts)}</html>\n"
    )


def highlighted(text: str, attribution: Attribution) -> str:
    """The text as HTML, each word marked by its weight."""
    parts, offset = [], 0
    for (start, end), strength in zip(attribution.words.spans(), strengths(attribution)):
        if abs(strength) < 0.05:
            continue
        colour = ",".join(map(str, _FOR if strength > 0 else _AGAINST))
        parts.append(escape(text[offset:start]))
        mark = f'<mark style="background:rgba({colour},{abs(strength):.2f})" title="{strength:+.2f}">'
        parts.append(f"{mark}{escape(text[start:end])}</mark>")
        offset = end
    return "".join([*parts, escape(text[offset:])])


def strengths(attribution: Attribution) -> np.ndarray:
    """The weights (W,) scaled to [-1, 1] by the largest absolute weight."""
    largest = np.abs(attribution.weights).max(initial=0)
    return attribution.weights / largest if largest > 0 else np.zeros(len(attribution.weights))


def write_picture(path: str | Path, title: str, text: str, attribution: Attribution) -> None:
    """Writes the note as a PNG picture with a background colour per word."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = _lines(text, attribution)
    if len(lines) > _LINES:
        lines = [*lines[:_LINES], [(0, f"({len(lines) - _LINES:,} more lines)", None)]]
    height = 0.24 * (len(lines) + 3)
    width = _COLUMNS * _CHARACTER + 2 * _MARGIN
    figure = Figure(figsize=(width, height), dpi=120)
    canvas = FigureCanvasAgg(figure)
    inch = 1 / height
    figure.text(_MARGIN / width, 1 - 0.28 * inch, title, fontsize=8, fontweight="bold", va="center", parse_math=False)
    strength = strengths(attribution)
    for row, line in enumerate(lines):
        y = 1 - (0.24 * (row + 2.2)) * inch
        for column, word, number in line:
            shown: dict[str, Any] = {"fontsize": 9, "family": "monospace", "va": "center", "parse_math": False}
            if number is not None and abs(strength[number]) >= 0.05:
                colour = tuple(part / 255 for part in (_FOR if strength[number] > 0 else _AGAINST))
                shown["bbox"] = {"facecolor": (*colour, abs(strength[number])), "edgecolor": "none", "pad": 1.2}
            figure.text((_MARGIN + column * _CHARACTER) / width, y, word, **shown)
    with atomic_file(path) as temporary:
        canvas.print_png(temporary)


def _lines(text: str, attribution: Attribution) -> list[list[tuple[int, str, int | None]]]:
    """The text as lines of bounded width: pieces with their column and the index of the word, None between words."""
    pieces, offset = [], 0
    for number, (start, end) in enumerate(attribution.words.spans()):
        pieces += [(text[offset:start], None), (text[start:end], number)]
        offset = end
    pieces.append((text[offset:], None))
    lines: list[list[tuple[int, str, int | None]]] = [[]]
    column = 0
    for piece, number in pieces:
        for i, part in enumerate(piece.split("\n")):
            if i:
                lines.append([])
                column = 0
            shown = " ".join(part.split()) if part.strip() else " " * bool(part and column)
            shown = (" " if part[:1].isspace() and shown.strip() and column else "") + shown
            shown += " " if part[-1:].isspace() and shown.strip() else ""
            if column + len(shown) > _COLUMNS and shown.strip():
                lines.append([])
                column, shown = 0, shown.lstrip()
            for start in range(0, len(shown), _COLUMNS):
                if start:
                    lines.append([])
                    column = 0
                chunk = shown[start : start + _COLUMNS]
                if chunk.strip():
                    lines[-1].append((column, chunk, number))
                column += len(chunk)
    return lines
