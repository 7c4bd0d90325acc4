"""Report of an embedding cache: token lengths, truncation and speed per embedder, as a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nosology.core.files import atomic_file, read_json, write_json
from nosology.encoders.append_only_store import INDEX_FILE
from nosology.encoders.embedding_cache import RECORD, EmbeddingCache

if TYPE_CHECKING:
    from nosology.encoders.embedder import Embedder

REPORT, PAGE, PLOT = "report.json", "report.md", "time_against_length.png"
_MAX_POINTS = 4_000  # per plot
_INK, _BLUE, _ORANGE, _PALE = "#1f2933", "#2563a8", "#d9730d", "#d5dce4"
_COLUMNS = {
    "model": "model",
    "notes": "notes",
    "tokens_mean": "tokens: mean",
    "tokens_lower_quartile": "lower quartile",
    "tokens_median": "median",
    "tokens_upper_quartile": "upper quartile",
    "tokens_max": "maximum",
    "limit": "limit",
    "over_limit": "truncated notes",
    "window": "window",
    "in_windows": "split notes",
    "tokens_a_second": "tokens/s",
}


def summarise(cache: EmbeddingCache, rows: np.ndarray, embedder: Embedder, new: int) -> dict[str, Any]:
    """Statistics of the notes at these rows (N,) of a cache; new: how many of them were embedded in this run."""
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
    """The path of the report page of a cache folder, which has one row and one plot per embedder."""
    root = Path(root)
    write_json(cache.folder / REPORT, summary)
    reports = [report for path in sorted(root.glob(f"*/{REPORT}")) if (report := _read(path)) is not None]
    reports.sort(key=lambda report: (report["model"], report["key"]))
    with atomic_file(root / PLOT) as temporary:
        temporary.write_bytes(_plot(root, reports))
    with atomic_file(root / PAGE) as temporary:
        temporary.write_text(_page(reports), encoding="utf-8")
    return root / PAGE


def _read(path: Path) -> dict[str, Any] | None:
    """The report of an embedder; None if another program wrote the file."""
    try:
        report = read_json(path)
    except (OSError, ValueError):
        return None
    if not isinstance(report, dict) or not {*_COLUMNS, "device", "key"} <= report.keys():
        return None
    is_typed = all(isinstance(report[name], str if name == "model" else int | float) for name in _COLUMNS)
    return report if is_typed and report["key"] == path.parent.name else None


def _page(reports: list[dict[str, Any]]) -> str:
    lines = [
        "# Embedded notes",
        "",
        "| " + " | ".join(_COLUMNS.values()) + " |",
        "|---" * len(_COLUMNS) + "|",
        *("| " + " | ".join(_cell(name, report[name]) for name in _COLUMNS) + " |" for report in reports),
        "",
        "Tokens are those of the model's tokenizer, including special tokens. A note is truncated at the limit. A note",
        "longer than the window is split; its vector is the mean over its windows, weighted by their tokens.",
        "tokens/s is the speed of the model alone, without tokenization and storage.",
        "",
        f"![time against length]({PLOT})",
        "",
        "Each point is a note. Its time is its share, by tokens, of the time of its batch.",
        "",
        "These vectors are personal data: protect them like the notes.",
        "",
    ]
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if name == "limit" and not value:
        return "none"
    return str(value).replace("|", "\\|") if isinstance(value, str) else f"{value:,.0f}"


def _plot(root: Path, reports: list[dict[str, Any]]) -> bytes:
    """A PNG: milliseconds against tokens, one panel per embedder."""
    from io import BytesIO

    from matplotlib.figure import Figure

    columns = min(3, len(reports))
    lines = -(-len(reports) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * lines), dpi=110, layout="constrained")
    for number, report in enumerate(reports):
        records = np.fromfile(root / report["key"] / INDEX_FILE, dtype=RECORD)
        chosen = np.unique(np.linspace(0, len(records) - 1, _MAX_POINTS).astype(int)) if len(records) else []
        axes = figure.add_subplot(lines, columns, number + 1)
        axes.plot(records["tokens"][chosen], records["milliseconds"][chosen], ".", color=_BLUE, ms=3, alpha=0.4)
        if report["limit"]:
            axes.axvline(report["limit"], color=_ORANGE, lw=1, ls="--")
        axes.set_title(f"{report['model']} ({report['device']})", color=_INK, fontsize=10)
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
