"""Two processes against one on a CPU: python benchmarks/speed/processes.py [--only train|ray] [--repeats 3]

train  notes/s of training `dual_laat` and `laat` on simulated notes, by one process and by two under torchrun, each
       process with one thread, on a machine with two free cores at least; the fastest of some runs, which alternate,
       because other users of a machine can only slow them down
ray    notes/s of `nosology code --engine ray` with one and with two workers of one thread each, for the day-one coder;
       the start of Ray and of its workers is measured with few notes, and subtracted
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nosology.corpora.corpus import write_corpus
from nosology.corpora.simulate import simulate_notes

RESULT = Path(__file__).parents[1] / "results" / "speed_processes.json"
PATIENTS, STEPS, BATCH = 300, 24, 32
FEW_NOTES = 64
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(command: list[str], out: Path | None = None) -> float:
    """Seconds of a command; out: a file for its output."""
    started = time.monotonic()
    with (out or Path(os.devnull)).open("w") as stream:
        done = subprocess.run(command, env=os.environ | ENVIRONMENT, stdout=stream, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return time.monotonic() - started


def training(folder: Path, recipes: list[str], repeats: int) -> dict[str, Any]:
    """Notes/s of training with one and two processes, each the fastest of some runs."""
    notes = [note for note in simulate_notes(PATIENTS, 0, years=(2016, 2019)) if note.codes]
    write_corpus(notes, folder / "corpus", source={"kind": "simulated"}, filters=[], counts={})
    run([sys.executable, "-m", "nosology", "corpus", "split", str(folder / "corpus"), "--out", str(folder / "split")])
    result: dict[str, Any] = {}
    for recipe in recipes:
        speeds: dict[int, list[float]] = {1: [], 2: []}
        for repeat in range(repeats):
            for processes, found in speeds.items():
                found.append(training_speed(folder, recipe, processes, repeat))
        one, two = max(speeds[1]), max(speeds[2])
        result[recipe] = {"one": round(one, 2), "two": round(two, 2), "ratio": round(two / one, 2), "runs": speeds}
        print(recipe, json.dumps(result[recipe]), flush=True)
    return result


def training_speed(folder: Path, recipe: str, processes: int, repeat: int) -> float:
    """Notes/s of one training."""
    out = folder / f"{recipe}_{processes}_{repeat}"
    several = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if processes == 2 else []
    command = [sys.executable, *several, "-m", "nosology", "train", recipe, "--corpus", str(folder / "split")]
    settings = [f"training.batch={BATCH}", f"training.stop_step={STEPS}", "training.validation_notes=8"]
    run([*command, "--out", str(out), *(argument for setting in settings for argument in ("--set", setting))])
    return round(json.loads((out / "bundle.json").read_text())["provenance"]["found"]["notes_per_second"], 2)


def ray_workers(folder: Path, notes: int) -> dict[str, float]:
    """Notes/s of Ray with one and two workers, without its start."""
    files = {}
    for count in (FEW_NOTES, notes):
        files[count] = folder / f"{count}.jsonl"
        texts = (note.text for note in simulate_notes(count, 1, years=(2016, 2019)) if note.codes)
        with files[count].open("w") as stream:
            for number, text in zip(range(count), texts):
                stream.write(json.dumps({"id": str(number), "text": text}) + "\n")
    speeds = {}
    for workers in (1, 2):
        seconds = {}
        for count, path in files.items():
            options = ["--engine", "ray", "--workers", str(workers), "--json"]
            command = [sys.executable, "-m", "nosology", "code", "day-one", str(path), *options]
            seconds[count] = run(command, folder / "out.jsonl")
        speeds[workers] = (notes - FEW_NOTES) / (seconds[notes] - seconds[FEW_NOTES])
    result = {"one": round(speeds[1], 1), "two": round(speeds[2], 1), "ratio": round(speeds[2] / speeds[1], 2)}
    print("ray", json.dumps(result), flush=True)
    return result | {"notes": notes}


def main() -> None:
    """Prints and writes the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("train", "ray"))
    parser.add_argument("--recipes", nargs="+", default=["dual_laat", "laat"], help="that are trained")
    parser.add_argument("--repeats", type=int, default=3, help="of each training")
    parser.add_argument("--notes", type=int, default=10_000, help="that Ray codes")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    result = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.only != "ray":
            trained = training(Path(temporary), arguments.recipes, arguments.repeats)
            result["training"] = result.get("training", {}) | trained
        if arguments.only != "train":
            result["ray"] = ray_workers(Path(temporary), arguments.notes)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
