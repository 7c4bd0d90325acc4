"""The run folder of a training, BUNDLE.run, with checkpoints and curves until the bundle is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nosology.core import __version__
from nosology.core.files import exclusive_output, output_errors, text_sha256
from nosology.training.examples import Examples
from nosology.training.recipe_settings import Recipe
from nosology.training.torchrun import is_first_process

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
CURVES = "curves.csv"
EVENTS = "tensorboard"
_MARK = ".nosology-run"
REFIT = "refit"
VECTORS = "embeddings"
WORD_VECTORS = "word_vectors"  # start of the names of files
STATES = "states"

STAGES = ("language_*", "relevance.*", "ranker_*", "classifier_*", "net_*", "part_*")  # folders and files of stages

_NOT_IN_FINGERPRINT = {"training", "decision", "two_stage", "federation", "states"}  # the trainer adds "training"


def run_folder(out: str | Path) -> Path:
    """The run folder of a bundle that will be written to `out`."""
    out = Path(out)
    return out.with_name(f"{out.name}.run")


def curve_files(folder: Path) -> dict[str, Path]:
    """The curves in a run folder by their names in the bundle: curves.csv, and curves_STAGE.csv for each stage."""
    stages = [path for stage in STAGES for path in sorted(folder.glob(f"{stage}/{CURVES}"))]
    return {path.name: path for path in folder.glob(CURVES)} | {f"curves_{p.parent.name}.csv": p for p in stages}


@contextmanager
def open_run_folder(out: str | Path, message: str = "") -> Iterator[Path]:
    """The run folder of a bundle, locked while the block runs, and removed if it has no files then.

    A new folder gets a mark: only a folder with the mark is deleted after the run. Of several processes, the first one
    does this. message: of the error if the folder is locked.
    """
    folder = run_folder(out)
    if not is_first_process():
        yield folder
        return
    with exclusive_output(out, message):
        if not folder.exists():
            with output_errors(folder):
                folder.mkdir(parents=True)
                (folder / _MARK).touch()
        try:
            yield folder
        finally:
            if folder.is_dir() and [path.name for path in folder.iterdir()] == [_MARK]:
                shutil.rmtree(folder, ignore_errors=True)


def clear_run_folder(folder: Path, *, marked: bool = False) -> None:
    """Deletes the files of a run, and the folder if it is then empty.

    marked: of a folder that `open_run_folder` did not create, only the files that every training run writes.
    """
    if not folder.is_dir():
        return
    for name in (CHECKPOINT, BEST, CURVES):
        (folder / name).unlink(missing_ok=True)
    for path in (*(folder / EVENTS).glob("events.out.*"), *folder.glob(f"{WORD_VECTORS}*")):
        path.unlink()
    if not marked or (folder / _MARK).exists():
        (folder / _MARK).unlink(missing_ok=True)
        clear_run_folder(folder / REFIT)
        for name in (VECTORS, STATES):
            shutil.rmtree(folder / name, ignore_errors=True)
        for path in [path for stage in STAGES for path in folder.glob(stage)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (folder / EVENTS, folder):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def run_fingerprint(recipe: Recipe, *examples: Examples) -> str:
    """Hash of what decides the weights: recipe, corpora, selected notes and package version."""
    settings = recipe.model_dump(mode="json", exclude=_NOT_IN_FINGERPRINT)
    return text_sha256(json.dumps([settings, [part.hash for part in examples], __version__]))
