"""Runs behind the tables of Saha Roy et al. (2024): train and measure a coder, count a corpus, train with a leak."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nosology.config import parse_recipe
from nosology.core import SPLITS, Code
from nosology.corpora.corpus import Corpus
from nosology.evaluation import by_frequency
from nosology.evaluation.measure import measure
from nosology.explanation.attribution import methods_of, top_words
from nosology.explanation.explanation_report import measure_explanations
from nosology.models.bundle import Bundle
from nosology.models.neural_trainer import TokenizedNotes
from nosology.models.plant.plant_settings import PlantRecipe
from nosology.models.plant.plant_trainer import PlantPipeline, PlantTrainer, StageCache
from nosology.models.train import train
from nosology.reproduce.predictions import save_predictions
from nosology.reproduce.runner import Task, part_with_codes
from nosology.text.tokens import words_of
from nosology.training.curves import read_epoch_curves
from nosology.training.examples import Examples, train_and_dev
from nosology.training.run_folder import CURVES

FEW = 5  # train notes of a code, at most
RARE = 10  # notes; codes with fewer are rare
TOP_WORDS = 5  # per code in Table 9
READ_WORDS = 20  # per note, of which those of several notes are listed
METRICS = (
    *("macro_auc", "micro_auc", "macro_f1", "caml_macro_f1", "micro_f1", "p@5", "p@8", "p@15", "map"),
    *(f"{mean}_{name}" for mean in ("macro", "micro") for name in ("precision", "recall")),
)


def run(task: Task) -> dict[str, Any]:
    """Trains a coder and measures it on test; in its own process.

    Options: `codes` is "known" for a coder of a set of codes, which is measured on the notes that have one of them, and
    empty for all codes: the result then has metrics of the codes with few train notes ("few.") and of bands of
    frequency ("band."). `leak`: the stages of PLANT see all notes. `explained`: the number of test notes whose
    attention is measured; `examples`: codes whose words with the most attention are listed.
    """
    recipe, [corpus], folder = (
        parse_recipe(task.recipe, task.function),
        map(Corpus.open, task.corpora),
        Path(task.folder),
    )
    if isinstance(recipe, PlantRecipe) and task.options["leak"]:
        bundle = train_on_all_notes(recipe, corpus, folder / "stages")
    else:
        stages = {"stages": task.cache} if isinstance(recipe, PlantRecipe) else {}  # shared by runs
        bundle = train(recipe.model_copy(update=stages), [corpus], folder / "bundle")
    curves, codes = epoch_curves(folder / "bundle"), task.options["codes"] or None
    evaluation = measure(bundle, corpus, "test", folder / "report", codes=codes, tune=codes is not None).evaluation
    predictions = save_predictions(task, evaluation)
    metrics = {name: evaluation.metrics.get(name) for name in METRICS}
    metrics |= {"train_notes": corpus.manifest["counts"]["splits"]["train"]} | curve_metrics(curves)
    if codes is None:
        counts = train_counts(corpus)
        metrics |= {f"band.{band['train_notes']}": band["macro_f1"] for band in by_frequency(evaluation, counts)}
        few = {code for code, count in counts.items() if recipe.labels.min_notes <= count <= FEW}
        part = part_with_codes(corpus, few, folder / "few")
        if {"dev", "test"} <= part.manifest["counts"]["splits"].keys():
            evaluation = measure(bundle, part, "test", folder / "few-report", codes=few, tune=True).evaluation
            metrics |= {f"few.{name}": evaluation.metrics.get(name) for name in METRICS}
            predictions |= save_predictions(task, evaluation, "few")
    words = {}
    if notes := task.options["explained"]:
        method = methods_of(bundle.model)[0]
        measured = measure_explanations(bundle, corpus, "test", [method], limit=notes).get(method, {"explanations": 0})
        names = ("explanations", "comprehensiveness", "sufficiency")
        metrics |= {f"explain.{name}": measured.get(name) for name in names}
        words = example_words(bundle, corpus, task.options["examples"], notes)
    return {"metrics": metrics, "curves": curves, "predictions": predictions, "words": words}


def count_corpus(task: Task) -> dict[str, Any]:
    """Counts the notes, patients, codes and words of a corpus, and the notes of each code; in its own process.

    Words are those that PLANT reads: without tokens that have no letter.
    """
    [corpus] = map(Corpus.open, task.corpora)
    words, codes_per_note, patients = [], [], set()
    codes: Counter[Code] = Counter()
    for note in corpus.notes():
        words.append(sum(any(map(str.isalpha, word)) for word in words_of(note.text)))
        codes_per_note.append(len(set(note.codes)))
        codes.update(set(note.codes))
        patients.add(note.patient)
    splits = corpus.manifest["counts"]["splits"]
    metrics: dict[str, float] = {"documents": len(words), "patients": len(patients - {None}), "codes": len(codes)}
    for name, values in (("codes_per_note", codes_per_note), ("words_per_note", words)):
        quartiles = np.percentile(values, [25, 50, 75], method="closest_observation").tolist()
        metrics |= {f"{name}.{part}": int(value) for part, value in zip(("q1", "median", "q3"), quartiles)}
    metrics |= {f"{split}_percent": round(100 * splits[split] / len(words), 1) for split in SPLITS}
    metrics[f"codes_under_{RARE}"] = sum(count < RARE for count in codes.values())
    return {"metrics": metrics, "curves": {"notes_per_code": sorted(codes.values(), reverse=True)}}


def train_counts(corpus: Corpus) -> Counter[Code]:
    """The number of train notes of each code."""
    return Counter(code for note in corpus.notes("train", text=False) for code in set(note.codes))


def epoch_curves(bundle: Path) -> dict[str, list[float]]:
    """The mean train loss and the dev metrics of each epoch of a neural coder; empty for other coders.

    Of a coder of both directions it is the forward one.
    """
    names = (CURVES, "curves_classifier_forward.csv", "curves_classifier_backward.csv")
    path = next((bundle / name for name in names if (bundle / name).exists()), None)
    return {} if path is None else read_epoch_curves(path, ("dev_loss", "p@15", "map"))


def curve_metrics(curves: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Metrics of the curves of a run, for Figure 5; empty without dev losses."""
    if not curves.get("dev_loss"):
        return {}
    losses, precisions = curves["dev_loss"], curves["p@15"]
    values = {
        "epochs": len(losses),
        "lowest_loss_epoch": 1 + int(np.argmin(losses)),
        "dev_loss_min": min(losses),
        "dev_loss_last": losses[-1],
        "train_loss_last": curves["train_loss"][-1],
        "p@15_best": max(precisions),
        "p@15_last": precisions[-1],
    }
    return {f"curve.{name}": value for name, value in values.items()}


def example_words(bundle: Bundle, corpus: Corpus, examples: Sequence[str], limit: int) -> dict[str, list[str]]:
    """For some codes, the words with the most attention in test notes that have the code, the highest sum first.

    examples: codes; if the coder knows none of them, its two most frequent. limit: of notes. A word counts if it is
    among the best 20 of two notes or more, so that no word of a single note is listed.
    """
    model = bundle.model
    labels = [label for label, code in enumerate(model.labels.codes) if code.code in examples]
    labels = labels or np.argsort(-np.asarray(model.train_counts), kind="stable")[:2].tolist()
    listed = {}
    for label in labels:
        code = model.labels.codes[label]
        sums: dict[str, float] = defaultdict(float)
        notes: Counter[str] = Counter()
        for number, note in enumerate(note for note in corpus.notes("test") if code in note.codes):
            if number == limit:
                break
            for span in top_words(model, note, [label], READ_WORDS)[0]:
                sums[span.text.lower()] += span.score
                notes[span.text.lower()] += 1
        shared = sorted((word for word in sums if notes[word] > 1), key=lambda word: (-sums[word], word))
        listed[code.code] = shared[:TOP_WORDS]
    return listed


@dataclass(frozen=True)
class StagesOfAllNotes(StageCache):
    """Stages whose language model and mutual information come from a pipeline over all notes, test notes included."""

    everything: PlantPipeline

    def get_or_compute(self, name: str, inputs: list, compute: Any) -> dict[str, Tensor]:
        """The tensors of a stage."""
        if name == "relevance":
            return {key: torch.from_numpy(array) for key, array in self.everything.relevance().arrays().items()}
        if name.startswith("language"):
            return dict(self.everything.language(name.endswith("backward")).state_dict())
        return super().get_or_compute(name, inputs, compute)


def train_on_all_notes(recipe: PlantRecipe, corpus: Corpus, folder: Path) -> Bundle:
    """The coder of a corpus whose language model and mutual information are computed with dev and test notes too.

    It measures the effect of the leak. Do not use such a coder.
    """
    learn, dev, _ = train_and_dev([corpus], recipe.holdout.share, recipe.seed)
    pipeline = PlantPipeline.of(recipe, learn, folder)
    every = Examples([corpus], lambda note: True)
    notes = TokenizedNotes.of(every, recipe.labels, pipeline.tokenizer, pipeline.labels)
    whole = replace(
        PlantPipeline.of(recipe, every, folder / "all"),
        notes=notes,
        tokenizer=pipeline.tokenizer,
        labels=pipeline.labels,
    )
    stages = StagesOfAllNotes(whole.stages.folder, whole.stages.fingerprint, whole)
    trained = PlantTrainer(recipe, folder, stages).train(learn, dev, False)
    provenance = {"found": trained.report}
    return Bundle(trained.model, trained.decision, recipe.model_dump(mode="json"), provenance)
