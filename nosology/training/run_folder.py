"""Where a run keeps checkpoints and curves until its bundle is written; started again, it goes on from there."""

from __future__ import annotations

import shutil
from pathlib import Path

CHECKPOINT, BEST, CURVES, EVENTS, REFIT, VECTORS, STATES = (
    "checkpoint.safetensors",
    "best.safetensors",
    "curves.csv",
    "tensorboard",
    "refit",
    "embeddings",
    "states",
)

STAGES = ("language_*", "relevance.*", "ranker_*", "classifier_*", "member_*")  # folders, and what they have made


def run_folder(out: str | Path) -> Path:
    """The folder beside a bundle to be."""
    out = Path(out)
    return out.with_name(f"{out.name}.run")


def curves(folder: Path) -> dict[str, Path]:
    """The curves of a run by the names they get in its bundle; those of a stage have its name."""
    stages = [path for stage in STAGES for path in sorted(folder.glob(f"{stage}/{CURVES}"))]
    return {path.name: path for path in folder.glob(CURVES)} | {f"curves_{p.parent.name}.csv": p for p in stages}


def clear(folder: Path) -> None:
    """Removes what a run has written, and the folder if nothing else is in it."""
    if not folder.is_dir():
        return
    clear(folder / REFIT)
    for name in (CHECKPOINT, BEST, CURVES):
        (folder / name).unlink(missing_ok=True)
    for name in (EVENTS, VECTORS, STATES):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in [path for stage in STAGES for path in folder.glob(stage)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
