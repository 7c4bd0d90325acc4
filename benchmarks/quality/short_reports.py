"""Short radiology reports, coders under cross-validation: python benchmarks/quality/short_reports.py [--coders ...]

The notes are 978 reports of report_simulator.py, or those of a corpus folder (--corpus). Near-duplicate reports are in
one fold. Coders:

svm        TF-IDF of words, one linear SVM per code (scikit-learn); at least the code with the highest score
boosting   gradient boosting per code over words and pairs (scikit-learn); at least the code with the highest score
words      linear SVM per code over the word features of `reports`: words marked with their context
NAME       a recipe, with the settings of --set; at least one code per report

Each recipe is trained on nine folds (it holds out notes for tuning itself) and codes the tenth.
Folds that are already in --out are not run again: after a change to a coder, use a new file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from report_simulator import short_reports
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.svm import LinearSVC

from nosology.config import load_recipe
from nosology.core import Note
from nosology.core.files import write_json
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.group_splits import group_numbers, summarize_notes
from nosology.models.reports.word_features import WordFeatures
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "quality_short_reports.json"
_ABSENT_SCORE = -9.0  # the score of a code that the train folds do not have


def scores_per_code(fit_and_score: Callable, labels: LabelSpace, x, gold: np.ndarray, z) -> np.ndarray:
    """Scores (B, L) for z of one classifier per code, fitted on x and gold."""
    scores_by_code = np.full((z.shape[0], len(labels)), _ABSENT_SCORE)
    for column in range(len(labels)):
        if 0 < gold[:, column].sum() < len(gold):
            scores_by_code[:, column] = fit_and_score(x, gold[:, column], z)
    return scores_by_code


def svm_scores(x, y: np.ndarray, z) -> np.ndarray:
    """Scores for z of a linear SVM fitted on x and y."""
    return LinearSVC(C=3.0).fit(x, y).decision_function(z)


def boosting_scores(x, y: np.ndarray, z) -> np.ndarray:
    """Scores for z of gradient boosting fitted on x and y."""
    if y.sum() < 5:
        return np.full(z.shape[0], _ABSENT_SCORE)
    fitted = HistGradientBoostingClassifier(max_iter=60, min_samples_leaf=5, learning_rate=0.15).fit(x, y)
    return fitted.decision_function(z)


def at_least_one(scores: np.ndarray) -> np.ndarray:
    """Accepted codes (B, L): those above 0, and the one with the highest score."""
    accepted_codes = scores > 0
    accepted_codes[np.arange(len(accepted_codes)), scores.argmax(1)] = True
    return accepted_codes


def vectors(words: WordFeatures, notes: Sequence[Note]) -> sparse.csr_matrix:
    rows = [words.vector(note.text) for note in notes]
    indptr = np.cumsum([0, *(len(numbers) for numbers, _ in rows)])
    numbers, values = (np.concatenate(part) for part in zip(*rows))
    return sparse.csr_matrix((values, numbers - 1, indptr), shape=(len(rows), len(words)))


def accepted(coder: str, known: list[Note], new: list[Note], settings: list[str]) -> list[set]:
    """The codes that a coder, trained on known notes, assigns to new notes."""
    labels = LabelSpace(sorted({code for note in known for code in note.codes}))
    gold = labels.encode([note.codes for note in known]).toarray()
    texts, new_texts = [note.text for note in known], [note.text for note in new]
    if coder == "svm":
        vectorizer = TfidfVectorizer(sublinear_tf=True).fit(texts)
        decided = at_least_one(
            scores_per_code(svm_scores, labels, vectorizer.transform(texts), gold, vectorizer.transform(new_texts))
        )
    elif coder == "boosting":
        vectorizer = CountVectorizer(binary=True, ngram_range=(1, 2), min_df=3).fit(texts)
        dense = [vectorizer.transform(part).toarray().astype(np.float32) for part in (texts, new_texts)]
        decided = at_least_one(scores_per_code(boosting_scores, labels, dense[0], gold, dense[1]))
    elif coder == "words":
        vectorizer = WordFeatures.fit(texts, 1, 40_000)
        decided = at_least_one(
            scores_per_code(svm_scores, labels, vectors(vectorizer, known), gold, vectors(vectorizer, new))
        )
    else:
        with tempfile.TemporaryDirectory() as folder:
            corpus = write_corpus(known, Path(folder) / "corpus", source={"kind": "folds"}, filters=[], counts={})
            recipe = load_recipe(coder, [*settings, "decision.at_least_one=true"])
            bundle = train(recipe, [corpus], Path(folder) / "bundle")
        labels = bundle.model.labels
        rows = bundle.model.probabilities([Note("", text) for text in new_texts])
        decided = np.stack([bundle.decision.accepted(labels, row) for row in rows])
    return [{labels.codes[j] for j in np.flatnonzero(row)} for row in decided]


def folds_of(notes: list[Note], folds: int) -> np.ndarray:
    """The fold (B,) of each note; notes of one patient, and near-duplicates, are in one fold."""
    summaries = summarize_notes(notes)
    group = dict(zip((note.id for note in summaries), group_numbers(summaries)))
    number = np.array([group[note.id] for note in notes])
    return np.random.default_rng(0).permutation(int(number.max()) + 1)[number] % folds


def measure(coder: str, notes: list[Note], fold: np.ndarray, number: int, settings: list[str]) -> dict:
    """Counts of a coder on one fold: right codes, assigned codes, gold codes; CPU seconds."""
    known = [note for note, f in zip(notes, fold) if f != number]
    new = [note for note, f in zip(notes, fold) if f == number]
    started = time.process_time()
    predicted = accepted(coder, known, new, settings)
    seconds = time.process_time() - started
    hits = sum(len(codes & set(note.codes)) for codes, note in zip(predicted, new))
    n_predicted, true = sum(map(len, predicted)), sum(len(note.codes) for note in new)
    print(f"{coder}, fold {number}: micro F1 {2 * hits / (n_predicted + true):.4f}", flush=True)
    return {"hits": hits, "given": n_predicted, "true": true, "cpu_seconds": round(seconds, 1)}


def summary(folds: dict[str, dict]) -> dict[str, float]:
    """The scores of all folds together."""
    hits, given, true, seconds = (sum(row[key] for row in folds.values()) for key in next(iter(folds.values())))
    return {
        "micro_f1": round(2 * hits / (given + true), 4),
        "precision": round(hits / given, 4),
        "recall": round(hits / true, 4),
        "cpu_seconds_per_fold": round(seconds / len(folds), 1),
    }


def main() -> None:
    """Measures, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coders", nargs="+", default=["svm", "boosting", "words", "linear", "reports", "hmhan"])
    parser.add_argument("--corpus", type=Path, help="coded notes; without it, simulated reports")
    parser.add_argument("--reports", type=int, default=978)
    parser.add_argument("--seed", type=int, default=0, help="of the simulated reports; use another --out")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--only", type=int, nargs="+", help="these folds alone")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting of the recipes")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if arguments.corpus:
        notes = [note for note in Corpus.open(arguments.corpus).notes() if note.codes]
    else:
        notes = list(short_reports(arguments.reports, arguments.seed))
    fold = folds_of(notes, arguments.folds)
    chosen = range(arguments.folds) if arguments.only is None else arguments.only
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for coder in arguments.coders:
        settings = arguments.settings if coder not in ("svm", "boosting", "words", "linear") else []
        folds = results.get(" ".join([coder, *settings]), {}).get("folds", {})
        for number in chosen:
            if str(number) not in folds:
                folds[str(number)] = measure(coder, notes, fold, number, settings)
                results[" ".join([coder, *settings])] = summary(folds) | {"folds": folds}
                write_json(arguments.out, results)
    print(f"\n{'':<50}{'micro F1':>10}{'precision':>11}{'recall':>9}{'folds':>7}{'CPU s per fold':>14}")
    for name, row in results.items():
        print(
            f"{name[:49]:<50}{row['micro_f1']:>10.4f}{row['precision']:>11.4f}{row['recall']:>9.4f}"
            f"{len(row['folds']):>7}{row['cpu_seconds_per_fold']:>14.1f}"
        )


if __name__ == "__main__":
    main()
