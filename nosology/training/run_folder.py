"""The run folder of a training, BUNDLE.run: it has checkpoints and curves until the bundle is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from nosology.core import __version__
from nosology.core.files import text_sha256
from nosology.training.examples import Examples
from nosology.training.recipe_settings import Recipe

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
CURVES = "curves.csv"
EVENTS = "tensorboard"
REFIT = "refit"
VECTORS = "embeddings"
STATES = "states"

STAGES = ("language_*", "relevance.*", "ranker_*", "classifier_*", "net_*")  # folders and files of stages

_NOT_IN_FINGERPRINT = {"training", "decision", "two_stage", "federation", "states"}  # the trainer adds "training"


def run_folder(out: str | Path) -> Path:
    """The run folder of a bundle that will be written to `out`."""
    out = Path(out)
    return out.with_name(f"{out.name}.run")


def curve_files(folder: Path) -> dict[str, Path]:
    """The curves in a run folder by their names in the bundle: curves.csv, and curves_STAGE.csv for each stage."""
    stages = [path for stage in STAGES for path in sorted(folder.glob(f"{stage}/{CURVES}"))]
    return {path.name: path for path in folder.glob(CURVES)} | {f"curves_{p.parent.name}.csv": p for p in stages}


def clear_run_folder(folder: Path) -> None:
    """Deletes the files of a run, and the folder if it is then empty."""
    if not folder.is_dir():
        return
    clear_run_folder(folder / REFIT)
    for name in (CHECKPOINT, BEST, CURVES):
        (folder / name).unlink(missing_ok=True)
    for name in (EVENTS, VECTORS, STATES):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in [path for stage in STAGES for path in folder.glob(stage)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def fingerprint(recipe: Recipe, *examples: Examples) -> str:
    """Hash of what decides the weights: recipe, corpora, selected notes and package version."""
    settings = recipe.model_dump(mode="json", exclude=_NOT_IN_FINGERPRINT)
    hashes = [[corpus.hash for corpus in part.corpora] + [len(part)] for part in examples]
    return text_sha256(json.dumps([settings, hashes, __version__]))
