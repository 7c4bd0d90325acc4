"""How long notes are for each embedder, how much of them it reads, and what that takes: a table and a plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nosology.core.files import atomic_file, write_json
from nosology.encoders.embedding_cache import INDEX, RECORD, EmbeddingCache

if TYPE_CHECKING:
    from nosology.encoders.embedder import Embedder

REPORT, PAGE, PLOT = "report.json", "report.md", "time_against_length.png"
_POINTS = 4_000  # of a plot
_INK, _BLUE, _ORANGE, _PALE = "#1f2933", "#2563a8", "#d9730d", "#d5dce4"
_COLUMNS = {
    "model": "model",
    "notes": "notes",
    "tokens_mean": "tokens: mean",
    "tokens_lower_quartile": "lower quartile",
    "tokens_median": "median",
    "tokens_upper_quartile": "upper quartile",
    "tokens_max": "most",
    "limit": "limit",
    "over_limit": "notes cut there",
    "window": "window",
    "in_windows": "notes in windows",
    "tokens_a_second": "tokens/s",
}


def summarise(cache: EmbeddingCache, rows: np.ndarray, embedder: Embedder, new: int) -> dict[str, Any]:
    """What is to be said of the notes at these rows (N,) of a cache, `new` of them embedded just now."""
    records = cache.records[rows]
    tokens, limit = records["tokens"].astype(np.int64), embedder.settings.max_tokens
    seconds = float(records["milliseconds"].astype(np.float64).sum()) / 1000
    lower, median, upper = np.percentile(tokens, (25, 50, 75)) if len(tokens) else (0, 0, 0)
    return {
        "model": embedder.name,
        "notes": len(rows),
        "new": new,
        "empty": int((tokens == 0).sum()),
        "tokens_mean": float(tokens.mean()) if len(tokens) else 0.0,
        "tokens_lower_quartile": float(lower),
        "tokens_median": float(median),
        "tokens_upper_quartile": float(upper),
        "tokens_max": int(tokens.max(initial=0)),
        "limit": limit,
        "over_limit": int((tokens > limit).sum()) if limit else 0,
        "window": embedder.window,
        "in_windows": int((records["windows"] > 1).sum()),
        "tokens_a_second": float(records["read"].sum()) / seconds if seconds else 0.0,
        "device": str(embedder.device),
        "identity": embedder.identity,
        "key": embedder.key,
    }


def write_report(root: str | Path, cache: EmbeddingCache, summary: dict[str, Any]) -> Path:
    """The page of a cache folder, written anew: one row and one plot for each embedder that has a report."""
    root = Path(root)
    write_json(cache.folder / REPORT, summary)
    found = [one for path in sorted(root.glob(f"*/{REPORT}")) if (one := _read(path)) is not None]
    found.sort(key=lambda one: (one["model"], one["key"]))
    with atomic_file(root / PLOT) as aside:
        aside.write_bytes(_plot(root, found))
    with atomic_file(root / PAGE) as aside:
        aside.write_text(_page(found), encoding="utf-8")
    return root / PAGE


def _read(path: Path) -> dict[str, Any] | None:
    """The report of an embedder, None if the file is of another program."""
    try:
        one = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    if not isinstance(one, dict) or not {*_COLUMNS, "device", "key"} <= one.keys() or one["key"] != path.parent.name:
        return None
    return one


def _page(found: list[dict[str, Any]]) -> str:
    lines = [
        "# Notes and the embedders that read them",
        "",
        "| " + " | ".join(_COLUMNS.values()) + " |",
        "|---" * len(_COLUMNS) + "|",
        *("| " + " | ".join(_cell(name, one[name]) for name in _COLUMNS) + " |" for one in found),
        "",
        "Tokens are the model's own, with those that begin and end a text. Behind the limit a note is not read. A note",
        "longer than the window goes in windows; its vector is their mean, weighted by the note's tokens in each.",
        "tokens/s is of the model alone, reading and storing left out.",
        "",
        f"![time against length]({PLOT})",
        "",
        "A point is a note: its share, by tokens, of the time that its batch took.",
        "",
        "These vectors are personal data: keep them as you keep the notes.",
        "",
    ]
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if name == "limit" and not value:
        return "none"
    return str(value).replace("|", "\\|") if isinstance(value, str) else f"{value:,.0f}"


def _plot(root: Path, found: list[dict[str, Any]]) -> bytes:
    """Milliseconds against tokens, one panel an embedder, as the bytes of a PNG."""
    from io import BytesIO

    from matplotlib.figure import Figure

    columns = min(3, len(found))
    lines = -(-len(found) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * lines), dpi=110, layout="constrained")
    for number, one in enumerate(found):
        records = np.fromfile(root / one["key"] / INDEX, dtype=RECORD)
        chosen = np.unique(np.linspace(0, len(records) - 1, _POINTS).astype(int)) if len(records) else []
        axes = figure.add_subplot(lines, columns, number + 1)
        axes.plot(records["tokens"][chosen], records["milliseconds"][chosen], ".", color=_BLUE, ms=3, alpha=0.4)
        if one["limit"]:
            axes.axvline(one["limit"], color=_ORANGE, lw=1, ls="--")
        axes.set_title(f"{one['model']} ({one['device']})", color=_INK, fontsize=10)
        axes.set_xlabel("tokens of the note", color=_INK)
        axes.set_ylabel("milliseconds", color=_INK)
        axes.set_xlim(0, 1.1 * max(1, int(records["tokens"].max(initial=0))))
        axes.set_ylim(bottom=0)
        axes.tick_params(colors=_INK, length=0)
        axes.grid(color=_PALE, lw=0.7)
        for side in axes.spines.values():
            side.set_visible(False)
    out = BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
