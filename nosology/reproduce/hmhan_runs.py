"""The runs behind the tables and figures of Sasikala et al. (2025); each is called in its own process.

run_corpus        Table 1 and figure 1: counts of the corpus and of its most frequent codes
run_encoder       Table 2: the size of the encoder
run_class_counts  Table 3: reports per code without and with SMOTE
run_variant       Tables 3 and 4, ablations: a coder, trained and measured on the test reports
run_lime          Figure 5: LIME on test reports
run_curves        Figure 7: loss and accuracy on train and dev reports after each epoch
run_protocol      leakage
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.special import expit

from nosology.config import parse_recipe
from nosology.core import Code, ConfigError, DataError, Note
from nosology.corpora.corpus import Corpus
from nosology.encoders.state_cache import CachedStates
from nosology.encoders.transformer import load_pretrained, max_positions
from nosology.evaluation import Evaluation
from nosology.explanation.attribution import attribute
from nosology.models.bundle import Bundle
from nosology.models.compare import evaluate_bundle
from nosology.models.hmhan.hmhan_ensemble import HmhanEnsembleTrainer
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.hmhan.hmhan_trainer import dev_metrics
from nosology.models.hmhan.mlsmote import minority_labels
from nosology.models.hmhan.report_batches import ReportBatchBuilder, ReportDataset
from nosology.models.train import train
from nosology.reproduce.hmhan_leakage import metrics_of, protocol_metrics
from nosology.reproduce.predictions import save_predictions
from nosology.reproduce.runner import Task, digest
from nosology.text.tokens import words_of
from nosology.training.curves import read_epoch_curves
from nosology.training.examples import codes_in_labels, codes_in_systems, label_space
from nosology.training.inference import evaluating
from nosology.training.recipe_settings import LabelSettings
from nosology.training.run_folder import CURVES

_BATCH = 64  # reports
_MIN_PATIENTS = 10  # a word in the train reports of fewer patients is not shown: results must identify nobody


def learned_codes(corpus: Corpus, settings: LabelSettings) -> list[Code]:
    """The codes that a recipe learns from the train notes of a corpus (without a split: all), most frequent first."""
    split = "train" if "train" in corpus.manifest["counts"]["splits"] else None
    codes = codes_in_systems(settings, [note.codes for note in corpus.notes(split, text=False)])
    counts = Counter(code for codes_of_note in codes for code in codes_of_note)
    return sorted(label_space(settings, codes).codes, key=lambda code: (-counts[code], code))


def run_corpus(task: Task) -> dict[str, Any]:
    """Counts of all coded reports, of those with a frequent code, and of each of these codes."""
    recipe, [corpus] = parse_recipe(task.recipe, task.function), map(Corpus.open, task.corpora)
    codes = learned_codes(corpus, recipe.labels)
    notes = [note for note in corpus.notes(text=False) if note.codes]
    metrics: dict[str, Any] = {}
    for prefix, chosen in (("all", notes), ("frequent", [note for note in notes if set(note.codes) & set(codes)])):
        ages = [float(age) for note in chosen if (age := note.extra.get("age")) not in (None, "")]
        metrics |= {
            f"{prefix}.reports": len(chosen),
            f"{prefix}.columns": len({column for note in chosen for column in note.extra}),
            f"{prefix}.mean_age": fmean(ages) if ages else None,
            f"{prefix}.male": sum(note.extra.get("gender") == "M" for note in chosen),
            f"{prefix}.female": sum(note.extra.get("gender") == "F" for note in chosen),
            f"{prefix}.codes": len(
                {code for note in chosen for code in note.codes if prefix == "all" or code in codes}
            ),
        }
    for code in codes:
        splits = Counter(note.split for note in notes if code in note.codes)
        metrics[f"{code}.reports"] = splits.total()
        metrics |= {f"{code}.{split}": splits[split] for split in ("train", "dev", "test")}
    return {"metrics": metrics}


def run_encoder(task: Task) -> dict[str, Any]:
    """The size of the encoder of the recipe."""
    recipe = _hmhan_recipe(task)
    _, encoder = load_pretrained(recipe.model.encoder, 0, recipe.report.max_tokens)
    config = encoder.model.config
    metrics = {
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_attention_heads,
        "max_tokens": min(max_positions(encoder.model), recipe.report.max_tokens),
        "parameters": sum(weight.numel() for weight in encoder.parameters()),
    }
    return {"metrics": metrics}


def run_class_counts(task: Task) -> dict[str, Any]:
    """Train reports per code without and with the synthetic rows of MLSMOTE, and the imbalance of both."""
    recipe, [corpus] = _hmhan_recipe(task), map(Corpus.open, task.corpora)
    trainer, _ = _trainer_and_dev(recipe, corpus, Path(task.folder), task.cache)
    rows = np.arange(len(trainer.train))
    synthetic = trainer.synthetic_rows(rows, recipe.seed)
    before = trainer.train.label_counts(rows).astype(int)
    after = before + (0 if synthetic is None else synthetic.targets.sum(0).astype(int))
    metrics: dict[str, Any] = {}
    for code, real, resampled in zip(trainer.model.labels.codes, before.tolist(), after.tolist()):
        metrics |= {f"{code}.without": real, f"{code}.with": resampled, f"{code}.synthetic": resampled - real}
    for name, counts in (("without", before), ("with", after)):
        metrics[f"imbalance.{name}"] = float((counts.max() / np.maximum(counts, 1)).mean())
    return {"metrics": metrics | {"synthetic": 0 if synthetic is None else len(synthetic)}}


def run_variant(task: Task) -> dict[str, Any]:
    """Trains a coder and measures it on the test reports."""
    recipe, [corpus] = parse_recipe(task.recipe, task.function), map(Corpus.open, task.corpora)
    bundle = train(_with_cache(recipe, task.cache), [corpus], Path(task.folder) / "bundle")
    test = list(corpus.notes("test"))
    evaluation = evaluate_bundle(bundle, test)
    metrics = metrics_of(evaluation) | _imbalance_metrics(bundle, corpus, evaluation, len(test))
    return {"metrics": metrics, "predictions": save_predictions(task, evaluation)}


def _imbalance_metrics(bundle: Bundle, corpus: Corpus, test: Evaluation, n: int) -> dict[str, float | None]:
    """Accuracy, recall of rare codes, and F1 on n train reports minus F1 on the test reports.

    Accuracy is the share of right cells (report, code). A code is rare if its IRLbl is above the mean of all codes.
    """
    labels, settings = bundle.model.labels, LabelSettings.model_validate(bundle.recipe["labels"])
    known = list(corpus.notes("train"))
    rare = minority_labels(labels.encode(codes_in_labels(settings, labels, [note.codes for note in known])))
    gold, hits = test.scored.gold[:, rare], test.scored.gold[:, rare].multiply(test.predicted[:, rare])
    on_train = metrics_of(evaluate_bundle(bundle, known[:n]))
    metrics = metrics_of(test)
    return {
        "accuracy": _difference(1.0, metrics["hamming_loss"]),
        "rare_recall": float(hits.sum() / gold.sum()) if gold.sum() else None,
        "overfitting": _difference(on_train["micro_f1"], metrics["micro_f1"]),
    }


def _difference(first: float | None, second: float | None) -> float | None:
    """The difference; None if a value is undefined."""
    return None if first is None or second is None else first - second


def run_lime(task: Task) -> dict[str, Any]:
    """LIME weights of words, each report for its most probable code, and their agreement with attention.

    It explains the first test reports with an accepted code.
    """
    recipe, [corpus] = parse_recipe(task.recipe, task.function), map(Corpus.open, task.corpora)
    bundle = train(_with_cache(recipe, task.cache), [corpus], Path(task.folder) / "bundle")
    model, weights, overlaps = bundle.model, dict[Code, list[tuple[str, float]]](), list[float]()
    test = [note for note in corpus.notes("test") if note.codes]
    scored = zip(test, model.probabilities(test))
    coded = ((note, row) for note, row in scored if bundle.decision.accepted(model.labels, row).any())
    explained = [(note, int(row.argmax())) for note, row in islice(coded, task.options["reports"])]
    if not explained:
        raise DataError("no test report has an accepted code: LIME has nothing to explain")
    for note, label in explained:
        lime = attribute(model, note, label, "lime", samples=task.options["samples"], seed=recipe.seed)
        attention = attribute(model, note, label, "attention")
        overlaps.append(len(set(lime.best(5)) & set(attention.best(5))) / 5)
        pairs = zip((word.lower() for word in lime.words.words), lime.weights.tolist())
        weights.setdefault(model.labels.codes[label], []).extend(pairs)
    words = _word_means(weights, _patient_frequency(corpus))
    metrics = {"reports": len(explained), "codes": len(weights), "overlap": fmean(overlaps)}
    return {"metrics": metrics, "words": words}


def _word_means(
    weights: dict[Code, list[tuple[str, float]]], frequency: Counter[str]
) -> dict[str, list[tuple[str, float]]]:
    """Code -> its ten words with the largest mean LIME weights in absolute value, the largest first."""
    result = {}
    for code, pairs in weights.items():
        by_word: dict[str, list[float]] = {}
        for word, weight in pairs:
            if frequency[word] >= _MIN_PATIENTS:
                by_word.setdefault(word, []).append(weight)
        means = sorted(((word, fmean(values)) for word, values in by_word.items()), key=lambda pair: -abs(pair[1]))
        result[str(code)] = means[:10]
    return result


def _patient_frequency(corpus: Corpus) -> Counter[str]:
    """The number of patients with each word in a train report."""
    pairs = {(note.patient or note.id, word) for note in corpus.notes("train") for word in words_of(note.text)}
    return Counter(word for _, word in pairs)


def run_curves(task: Task) -> dict[str, Any]:
    """Loss and accuracy on train and dev reports after each epoch, with early stopping as in `nosology train`.

    The train loss is the mean over the steps of the epoch, with dropout and synthetic rows; all else is measured after
    it, without them.
    """
    recipe, [corpus] = _hmhan_recipe(task), map(Corpus.open, task.corpora)
    folder = Path(task.folder)
    trainer, dev = _trainer_and_dev(recipe, corpus, folder, task.cache)
    train_part, states = trainer.train, None if trainer.cached_states is None else trainer.encode(dev)

    def validate(model: Hmhan) -> dict[str, float]:
        return dev_metrics(model, dev, states) | {
            "train_accuracy": _accuracy(model, train_part, trainer.cached_states),
            "dev_accuracy": _accuracy(model, dev, states),
            "dev_loss": _loss(model, dev, states),
        }

    _, result = trainer.train_net(0, np.arange(len(train_part)), folder / "net", validate)
    shown = ("dev_loss", "train_accuracy", "dev_accuracy", "micro_f1")
    curves = read_epoch_curves(folder / "net" / CURVES, shown)
    at_best = {name: values[result.best_epoch - 1] for name, values in curves.items()}
    return {"metrics": at_best | {"epochs": result.epochs, "best_epoch": result.best_epoch}, "curves": curves}


def _accuracy(model: Hmhan, dataset: ReportDataset, states: CachedStates | None) -> float:
    """The share of cells (report, code) for which probability 0.5 decides correctly."""
    accepted = expit(model.logits_of(dataset.reports, cached_states=states)) >= 0.5
    return float((accepted == dataset.gold.toarray().astype(bool)).mean())


def _loss(model: Hmhan, dataset: ReportDataset, states: CachedStates | None) -> float:
    """The mean loss over reports, without dropout and synthetic rows."""
    [net] = model.net.nets
    total = 0.0
    with evaluating(net):
        for version in np.unique(dataset.versions):
            rows = np.flatnonzero(dataset.versions == version)
            batches = ReportBatchBuilder(dataset, rows, states, None)
            for start in range(0, len(rows), _BATCH):
                chosen = np.arange(start, min(start + _BATCH, len(rows)))
                total += len(chosen) * float(net(batches.build(chosen, None).to(model.device)))
    return total / len(dataset)


def run_protocol(task: Task) -> dict[str, Any]:
    """Trains and measures under one protocol of the leakage study."""
    recipe, [corpus] = _hmhan_recipe(task), map(Corpus.open, task.corpora)
    metrics = protocol_metrics(_with_cache(recipe, task.cache), corpus, task.options["protocol"], Path(task.folder))
    return {"metrics": metrics}


def _trainer_and_dev(
    recipe: HmhanRecipe, corpus: Corpus, folder: Path, cache: str
) -> tuple[HmhanEnsembleTrainer, ReportDataset]:
    """The trainer of the train reports, and the dev reports as it reads them."""
    known, dev = (_coded(corpus, split) for split in ("train", "dev"))
    identity = digest(recipe.model_dump(mode="json", exclude={"states"}), corpus.hash)
    trainer = HmhanEnsembleTrainer.from_notes(_with_cache(recipe, cache), known, folder / "run", identity)
    return trainer, ReportDataset.from_notes(dev, recipe, trainer.model)


def _coded(corpus: Corpus, split: str) -> list[Note]:
    return [note for note in corpus.notes(split) if note.codes]


def _hmhan_recipe(task: Task) -> HmhanRecipe:
    recipe = parse_recipe(task.recipe, task.function)
    if not isinstance(recipe, HmhanRecipe):
        raise ConfigError(f"recipe must be of kind hmhan; got {recipe.kind}")
    return recipe


def _with_cache(recipe: Any, cache: str) -> Any:
    if not isinstance(recipe, HmhanRecipe) or not cache:
        return recipe
    return recipe.model_copy(update={"states": recipe.states.model_copy(update={"cache": cache})})
