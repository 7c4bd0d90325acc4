"""One run of a grid in a process of its own: python -m nosology.reproduce.grid_run, its task a line of JSON on stdin.

What comes of it is one file, whole or absent: the result, or the sentence that says why there is none. The process ends
when its standard input does, that is, also when the grid is killed.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nosology.core import SYSTEMS, DataError, NosologyError, __version__
from nosology.core.files import write_json
from nosology.corpora.corpus import Corpus
from nosology.encoders.embedding_cache import EmbeddingCache
from nosology.evaluation.counts import Counts
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.models.bundle import Bundle

METRICS = ("macro_precision", "macro_recall", "macro_f1", "micro_precision", "micro_recall", "micro_f1")


@dataclass(frozen=True)
class Task:
    """What a process is to do: embed a corpus, or train on it and measure."""

    setting: str  # embed, central, federated or splits
    corpus: str  # folder
    cache: str  # folder
    recipe: dict[str, Any]
    result: str  # file to write
    failure: str  # file to write in its place
    bundle: str = ""  # folder
    keep: bool = False  # the bundle
    stacked: bool = False
    top: tuple[int, ...] = ()
    vectors: dict[str, Any] | None = None  # key, dim and identity, as embedding told them

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def main() -> None:
    """Does the task; exit code 1 if it failed."""
    import json

    task = Task(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_input, daemon=True).start()
    started = time.monotonic()
    try:
        found = embed(task) if task.setting == "embed" else run(task)
    except NosologyError as error:
        why = str(error)
    except Exception as error:  # its message is not ours and might hold data: only its kind and place are kept
        print("".join(traceback.format_tb(error.__traceback__)), type(error).__name__, file=sys.stderr)
        place = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
    else:
        write_json(task.result, found | {"seconds": round(time.monotonic() - started, 3)} | _made_by())
        return
    write_json(task.failure, {"why": why})
    sys.exit(1)


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def _made_by() -> dict[str, str]:
    machine = f"{platform.system()} {platform.machine()}"
    return {"package": f"nosology {__version__}", "python": platform.python_version(), "machine": machine}


def embed(task: Task) -> dict[str, Any]:
    """Fills the cache; what the vectors are called there."""
    from nosology.encoders.embedder import Embedder

    embedder = Embedder.load(FederatedHeadsRecipe.model_validate(task.recipe).embedder)
    cache = EmbeddingCache.for_embedder(task.cache, embedder)
    before = len(cache)
    cache.rows((note.text for note in Corpus.open(task.corpus).notes()), lambda: embedder)
    return {"key": embedder.key, "dim": embedder.dim, "identity": embedder.identity, "embedded": len(cache) - before}


def run(task: Task) -> dict[str, Any]:
    """Trains a coder and measures it on the test notes."""
    recipe, corpus = FederatedHeadsRecipe.model_validate(task.recipe), Corpus.open(task.corpus)
    recipe = recipe.model_copy(update={"vectors": recipe.vectors.model_copy(update={"cache": task.cache})})
    cache = EmbeddingCache(task.cache, task.vectors["key"], task.vectors["dim"], task.vectors["identity"])
    bundle = (federated if task.setting == "federated" else central)(task, recipe, corpus)
    counts = counts_on_test(bundle, corpus, cache)
    seen = Counter(code for note in corpus.notes("train", text=False) for code in set(note.codes))
    found = {
        "metrics": _chosen(counts),
        "top": {str(k): _chosen(top_counts(counts, seen, k)) for k in task.top},
        "codes": len(bundle.model.labels),
        "parameters": sum(weight.numel() for weight in bundle.model.net.parameters()),
        "notes": {name: bundle.provenance[name] for name in ("n_train", "n_dev")} | {"n_test": counts.n_notes},
        "threshold": bundle.decision.threshold,
        "recipe": task.recipe,
        "corpus_hash": corpus.hash,
        "vectors": task.vectors["key"],
    }
    if not task.keep:
        shutil.rmtree(task.bundle)
    return found


def central(task: Task, recipe: FederatedHeadsRecipe, corpus: Corpus) -> Bundle:
    """The coder of all notes together."""
    from nosology.models.train import train

    return train(recipe, [corpus], task.bundle)


def federated(task: Task, recipe: FederatedHeadsRecipe, corpus: Corpus) -> Bundle:
    """The coder of the corpus's sites."""
    from nosology.federated.rounds.simulation import grid_of, own_sites, simulated_sites

    sites = simulated_sites([corpus], own_sites([corpus]), recipe, Path(task.cache))
    about = [{"hash": corpus.hash, "source": corpus.manifest["source"]}]

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    if task.stacked:
        from nosology.federated.rounds.stacked import run_stacked

        return run_stacked(sites, recipe, task.bundle, corpora=about, say=say)
    from nosology.federated.rounds.federation_server import run_federation

    return run_federation(grid_of(sites), recipe, task.bundle, corpora=about, say=say).bundle


def counts_on_test(bundle: Bundle, corpus: Corpus, cache: EmbeddingCache) -> Counts:
    """The counts on the test notes, the same as `measure` makes, but from vectors that are there already."""
    from nosology.core.label_space import label_versions, mask_other_versions, note_versions
    from nosology.evaluation.scored import Scored
    from nosology.training.calibration import EXCLUDED_LOGIT

    gold, blank = [], []

    def texts():
        for note in corpus.notes("test"):
            gold.append(note.codes)
            blank.append(not note.text.strip())
            yield note.text

    vectors = cache.vectors(texts())
    if not gold:
        raise DataError(f"{corpus.folder} has no test notes: `nosology corpus split` makes them")
    logits = bundle.model.logits_of(vectors)
    logits[blank] = EXCLUDED_LOGIT
    labels = bundle.model.labels
    own = mask_other_versions(bundle.model.to_probabilities(logits), note_versions(gold), label_versions(labels))
    systems = {code.system for codes in gold for code in codes} or set(SYSTEMS)
    scored = Scored.of(labels, gold, own, systems)
    predicted = scored.predicted(bundle.decision.thresholds(labels))
    return Counts.of(scored.space, scored.n_nameable, scored.gold, predicted)


def top_counts(counts: Counts, seen: Counter, k: int) -> Counts:
    """The counts of the k codes with most train notes; of equally frequent ones the first by name."""
    from nosology.core.label_space import LabelSpace

    known = set(counts.space.codes)
    chosen = [code for code in sorted(seen, key=lambda code: (-seen[code], code))[:k] if code in known]
    columns = [counts.space.column(code) for code in chosen]
    hits = (getattr(counts, name)[columns] for name in ("tp", "fp", "fn"))
    return Counts(LabelSpace(chosen), len(chosen), *hits, counts.n_notes, 0)


def _chosen(counts: Counts) -> dict[str, float | None]:
    found = counts.metrics()
    return {name: found[name] for name in METRICS}


if __name__ == "__main__":
    main()
