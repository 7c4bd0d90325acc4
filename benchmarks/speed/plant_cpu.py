"""PLANT on a CPU: python benchmarks/speed/plant_cpu.py [--tree before=/path/to/another/checkout]

CPU milliseconds of forward and backward pass of each stage, without the optimizer, on one thread, at the shape of the
recipe `plant` on CodiEsp: 1,800 codes, 6,000 words, notes of 420 words, states of width 100. `language`: a window of 16
streams; `lists`: the lists of a step of the ranker; `ranker`: the step itself; `classifier`: 16 notes; `frozen`: the
same without gradients of the encoder, as in the first epochs; `coding`: logits of 16 notes. The smallest of --times
runs counts. With --tree another checkout is measured in the same run; `ratio` is its time over that of this one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy import sparse

from nosology.config import load_recipe
from nosology.encoders.word_encoders import AwdLstm
from nosology.models.plant.language_model import LanguageModel, StreamBatch
from nosology.models.plant.plant_model import PlantNet
from nosology.models.plant.plant_settings import PlantRecipe
from nosology.models.plant.ranker import Ranker
from nosology.models.plant.ranker_trainer import RankerNet, WordLists, draw_lists
from nosology.models.plant.relevance import Relevance
from nosology.training.data_loader import Batch

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "speed_plant_cpu.json"
WORDS, CODES, LENGTH, NOTES = 6000, 1800, 420, 16


def recipe() -> PlantRecipe:
    """The recipe `plant`."""
    loaded = load_recipe("plant", [])
    assert isinstance(loaded, PlantRecipe)
    return loaded


def relevance() -> Relevance:
    """The relevance of words in 500 random notes."""
    marks = [sparse.random(500, n, 0.02, "csr", random_state=1) for n in (WORDS, CODES)]
    for matrix in marks:
        matrix.data[:] = 1
    return Relevance.of(*(matrix.astype(np.int8) for matrix in marks))


def language() -> Callable[[], None]:
    """A step of the language model."""
    settings, model = recipe().language, recipe().model
    net = LanguageModel(AwdLstm(WORDS, model.size, model.hidden, model.layers), settings.training.batch)
    tokens = torch.randint(2, WORDS, (settings.training.batch, settings.window + 1))
    return lambda: net(StreamBatch(tokens[:, :-1], tokens[:, 1:], True)).backward()


def ranker_lists() -> Callable[[], object]:
    """The lists of a step of the ranker."""
    settings, of_words, rng = recipe().ranker, relevance(), np.random.default_rng(0)
    labels = rng.integers(0, CODES, settings.batch)
    return lambda: draw_lists(of_words, labels, settings, WORDS, rng)


def ranker() -> Callable[[], None]:
    """A step of the ranker."""
    settings, size = recipe().ranker, recipe().model.size
    net = RankerNet(Ranker(settings, size, WORDS, CODES), torch.randn(WORDS, size), settings.k)
    lists = WordLists(*map(torch.from_numpy, ranker_lists()()))  # type: ignore[arg-type]
    return lambda: net(lists).backward()


def plant(frozen: bool = False) -> tuple[PlantNet, Batch]:
    """A net and a batch of notes; frequent words are repeated, as in a text."""
    rng = np.random.default_rng(0)
    net = PlantNet(recipe().model, recipe().ranker, WORDS, CODES, relevance(), False)
    net.encoder.requires_grad_(not frozen)
    tokens = torch.from_numpy((2 + (WORDS - 2) * rng.random((NOTES, LENGTH)) ** 3).astype(np.int64))
    targets = torch.from_numpy((rng.random((NOTES, CODES)) < 0.006).astype(np.float32))
    lengths = torch.linspace(LENGTH // 2, LENGTH, NOTES).long()
    tokens[torch.arange(LENGTH) >= lengths[:, None]] = 0
    return net, Batch(tokens, lengths, None, targets)


def classifier(frozen: bool = False) -> Callable[[], None]:
    """A step of the classifier."""
    net, batch = plant(frozen)
    return lambda: net(batch).backward()


def coding() -> Callable[[], object]:
    """The logits of notes."""
    net, batch = plant()
    return torch.no_grad()(lambda: net.eval().logits(batch))


STAGES: dict[str, Callable[[], Callable[[], object]]] = {
    "language": language,
    "lists": ranker_lists,
    "ranker": ranker,
    "classifier": classifier,
    "frozen": lambda: classifier(frozen=True),
    "coding": coding,
}


def milliseconds(stage: str, times: int) -> float:
    """The smallest CPU time of a stage."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    step, seconds = STAGES[stage](), []
    for _ in range(times + 1):
        started = time.process_time()
        step()
        seconds.append(time.process_time() - started)
    return 1000 * min(seconds[1:])


def main() -> None:
    """Prints a row per stage and writes all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", metavar="NAME=PATH", help="another checkout to compare with")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--stage", choices=STAGES, help="print the milliseconds of this stage alone")
    arguments = parser.parse_args()
    if arguments.stage:
        print(milliseconds(arguments.stage, arguments.times))
        return
    trees = {"this": str(ROOT)}
    if arguments.tree:
        name, _, path = arguments.tree.partition("=")
        trees = {name: path} | trees
    rows = json.loads(RESULT.read_text())["cpu_ms"] if RESULT.exists() else {}
    for stage in arguments.only:
        command = [sys.executable, __file__, "--stage", stage, "--times", str(arguments.times)]
        rows[stage] = {}
        for name, path in trees.items():
            environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            rows[stage][name] = round(float(run.stdout), 2)
        if arguments.tree:
            rows[stage]["ratio"] = round(rows[stage][next(iter(trees))] / rows[stage]["this"], 2)
        print(f"{stage:12}" + "".join(f"  {key} {value}" for key, value in rows[stage].items()), flush=True)
        result = {"machine": f"{platform.machine()}, one thread", "torch": torch.__version__, "cpu_ms": rows}
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
