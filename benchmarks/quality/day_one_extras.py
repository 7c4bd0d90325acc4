"""Do other coders help the lexicon? python benchmarks/quality/day_one_extras.py FOLDER [--lang en] [--notes 500]

On the train cases of CodiEsp alone, crosswise: micro F1 and MAP of the code classifier as it is; with the linear
coder's score of the code as an additional feature (stacking); and with the similarity of the code's description to the
words of its best mention, by the built-in sentence encoder. Everything before that classifier is the same in all rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from day_one import EDITION, codiesp_split

from nosology.codes import describe
from nosology.config import load_recipe
from nosology.core import Code, Note
from nosology.core.label_space import LabelSpace
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.models.lexicon.cross_validation import CrossValidation, MentionExamples
from nosology.models.lexicon.mention_features import code_table
from nosology.models.linear.linear_trainer import Choice, fit_linear
from nosology.models.linear.tfidf import Tfidf

RESULTS = Path(__file__).parents[1] / "results" / "quality_day_one_extras.json"
CHOICE = Choice(1.0, 1000)
CodeTables = Sequence[tuple[list[Code], np.ndarray]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lang", choices=["en", "es"], default="en")
    parser.add_argument("--notes", type=int, default=500)
    arguments = parser.parse_args()
    notes = codiesp_split(arguments.folder, arguments.lang, "train", arguments.lang == "es")[: arguments.notes]
    recipe = load_recipe("lexicon", ["labels.systems=['icd10cm']", *EDITION])
    validation = CrossValidation(recipe, ["icd10cm"], notes)
    seen = validation.mentions()
    mention_scores, _ = validation.mention_scores(seen)
    plain = [(item.table.codes, code_table(item.table, of_note)) for item, of_note in zip(seen, mention_scores)]
    gold = [{code for code in note.codes if code.system == "icd10cm"} for note in notes]
    targets = [np.array([code in true for code in codes], dtype=bool) for (codes, _), true in zip(plain, gold)]
    columns = {
        "as it is": None,
        "with the linear coder": _linear(notes, gold, validation.folds, plain),
        "with the sentence encoder": _similar(notes, seen, mention_scores, plain) if arguments.lang == "en" else None,
    }
    rows = {}
    for name, column in columns.items():
        if column is None and rows:
            continue
        tables = plain if column is None else [(c, np.column_stack([x, extra])) for (c, x), extra in zip(plain, column)]
        scores = validation.code_scores([features for _, features in tables], targets).scores
        rows[name] = _quality(gold, tables, scores)
        print(f"{arguments.lang} {name:28}", *(f"{key} {value:.4f}" for key, value in rows[name].items()), flush=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(known | {f"{arguments.lang}, {len(notes)} notes": rows}, indent=2) + "\n")


def _linear(notes: Sequence[Note], gold: list[set[Code]], part: np.ndarray, tables: CodeTables) -> list[np.ndarray]:
    """The linear coder's scores of the codes of each note, learned from the other parts; -2 for codes they lack."""
    recipe = load_recipe("linear")
    scores: list[np.ndarray] = [np.zeros(0)] * len(notes)
    for fold in range(int(part.max()) + 1):
        others, members = np.flatnonzero(part != fold).tolist(), np.flatnonzero(part == fold).tolist()
        labels = LabelSpace(sorted(set().union(*(gold[i] for i in others))))
        tfidf, vectors = Tfidf.fit([notes[i].text for i in others], recipe.features)
        model = fit_linear(recipe, labels, tfidf, vectors, labels.encode([gold[i] for i in others]), CHOICE)
        for i, row in zip(members, model.scores(tfidf.transform([notes[i].text for i in members]))):
            scores[i] = np.array([row[labels.column(code)] if code in labels else -2.0 for code in tables[i][0]])
    return scores


def _similar(
    notes: Sequence[Note], seen: Sequence[MentionExamples], mention_scores: Sequence[np.ndarray], tables: CodeTables
) -> list[np.ndarray]:
    """The cosine of each code's description and the words of the mention that has the highest score for it."""
    pairs = []
    for note, item, of_note, (codes, _) in zip(notes, seen, mention_scores, tables):
        best: dict[Code, tuple[float, str]] = {}
        for (number, code), value in zip(item.table.pairs(), of_note.tolist()):
            mention = item.table.mentions[number]
            if value > best.get(code, (-1.0, ""))[0]:
                best[code] = value, note.text[mention.start : mention.end]
        pairs.append([(describe(code, "2019") or code.code, best[code][1]) for code in codes])
    texts = sorted({text for note_pairs in pairs for pair in note_pairs for text in pair})
    vectors = Embedder.load(EmbedderSettings()).embed(texts)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    row_of = {text: i for i, text in enumerate(texts)}
    return [np.array([vectors[row_of[a]] @ vectors[row_of[b]] for a, b in note_pairs]) for note_pairs in pairs]


def _quality(gold: list[set[Code]], tables: CodeTables, probabilities: Sequence[np.ndarray]) -> dict[str, float]:
    """The best micro F1 over all thresholds, and the mean average precision."""
    true = [
        np.array([code in codes_of_note for code in codes], dtype=bool)
        for codes_of_note, (codes, _) in zip(gold, tables)
    ]
    total = sum(map(len, gold))
    hits = np.cumsum(np.concatenate(true)[np.argsort(-np.concatenate(probabilities), kind="stable")])
    precisions = []
    for codes_of_note, right, p in zip(gold, true, probabilities):
        ranked = right[np.argsort(-p, kind="stable")]
        precision = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
        precisions += [float((precision * ranked).sum()) / len(codes_of_note)] if codes_of_note else []
    return {
        "micro_f1": float((2 * hits / (np.arange(1, len(hits) + 1) + total)).max()),
        "map": float(np.mean(precisions)),
    }


if __name__ == "__main__":
    main()
