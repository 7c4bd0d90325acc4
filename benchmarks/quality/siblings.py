"""The choice between sibling codes: python benchmarks/quality/siblings.py FOLDER [--bundle DIR] [--lang en]

python benchmarks/quality/siblings.py --claims FILE [--bundle DIR]: codes of claims beside the verifier's choice, and
how many claims are better or worse with it (right codes less wrong ones). FILE: as of claims.py. DIR: else day-one.

FOLDER holds the notes files codiesp_LANG_train.jsonl and codiesp_LANG_dev.jsonl. A lexicon is trained on the train
notes, and its verifier with it; --bundle keeps it, or reads it if it exists. Then, for each dev note and each category
(or parent) of which the note has a code and that has two or more codes: is the first choice one of the note's codes?
A code that the lexicon does not know is counted as wrong for all. Nothing is chosen on dev. `better`
and `worse`: questions that only the verifier, or only the lexicon, answers correctly.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from claims import read_cases, stated_fields  # beside this file

from nosology.claims.claim import build_claim
from nosology.codes import table
from nosology.config import load_recipe
from nosology.core import Code, Note
from nosology.corpora.corpus import write_corpus
from nosology.corpora.notes_file import read_notes
from nosology.models.bundle import DAY_ONE, Bundle
from nosology.models.lexicon.lexicon_model import Lexicon
from nosology.models.lexicon.lexicon_siblings import lexicon_question, siblings_asked, siblings_by_category
from nosology.models.siblings.sibling_chooser import SiblingChooser
from nosology.models.siblings.sibling_verifier import SiblingVerifier
from nosology.models.train import train
from nosology.serving.coder import Coder

RESULTS = Path(__file__).parents[1] / "results" / "quality_siblings.json"


def trained(folder: Path, lang: str, out: Path) -> Bundle:
    """The lexicon of the train notes, trained if `out` does not exist."""
    if out.exists():
        return Bundle.load(out)
    notes = list(read_notes(folder / f"codiesp_{lang}_train.jsonl"))
    with TemporaryDirectory() as name:
        corpus = write_corpus(notes, Path(name) / "c", source={}, filters=[], counts={})
        return train(load_recipe("lexicon", ["labels.systems=['icd10cm']"]), [corpus], out)


def parent_of(code: Code, release: str | None) -> str:
    """The parent of a code inside its category; "" for a category."""
    lines = table(code.system, release)
    known = lines.parent(code.code) if code.code in lines else None
    return known or code.code[:-1].rstrip(".") if len(code.code) > 3 else ""


def measure(lexicon: Lexicon, notes: list[Note]) -> dict[str, dict[str, float]]:
    """The scores given the right category and given the right parent."""
    assert lexicon.siblings is not None
    release, verifier = lexicon.recipe.codes.release, lexicon.siblings.verifier
    by_category = siblings_by_category(lexicon.labels.codes)
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for note in notes:
        own = lexicon.probabilities([note])[0]
        for siblings in siblings_asked(note, by_category):
            columns = [lexicon.labels.column(code) for code in siblings]
            rows = lexicon_question(lexicon, note.text, siblings).features()
            values = [
                own[columns],
                lexicon.train_counts[columns],
                SiblingVerifier.shipped().probabilities(rows),
                verifier.probabilities(rows),
            ]
            gold = [code for code in note.codes if code.code[:3] == siblings[0].code[:3]]
            found["category"].append(_right(siblings, values, gold))
            parents = np.array([parent_of(code, release) for code in siblings])
            for parent in sorted({parent_of(code, release) for code in gold} - {""}):
                place = np.flatnonzero(parents == parent)
                if len(place) < 2:
                    continue
                below = [code for code in gold if parent_of(code, release) == parent]
                parts = [value[place] for value in values]
                parts[-1] = parts[-1] / parts[-1].sum()
                found["parent"].append(_right([siblings[at] for at in place], parts, below))
    return {name: _scores(np.array(rows), verifier.sure_from) for name, rows in found.items()}


def compare_claims(path: Path, bundle: str | Path = DAY_ONE) -> dict[str, int]:
    """How often the verifier would change a code of a claim, who is right then, and which claims get better."""
    coder, chooser, counts = Coder.for_claims(bundle, systems=["icd10cm"]), SiblingChooser.load(bundle), Counter[str]()
    assert chooser is not None
    for case in read_cases([path]):
        suggestions = coder.code(case["text"])
        scores = {Code(item.system, item.code): item.probability for item in suggestions}
        claim = build_claim(case["id"], case["text"], suggestions, stated_fields(case))
        other = build_claim(case["id"], case["text"], suggestions, stated_fields(case), chooser=chooser)
        gold, present = {item["code"] for item in case["codes"]}, {item.code for item in claim.codes}
        chosen = {item.code for item in other.codes}
        gain = len(chosen & gold) - len(chosen - gold) - len(present & gold) + len(present - gold)
        counts["claims"] += 1
        if chosen != present:
            counts["claims better" if gain > 0 else "claims worse" if gain < 0 else "claims changed"] += 1
        for item in claim.codes:
            code = Code("icd10cm", item.code)
            own = {code: max(item.probability, scores.get(code, 0.0))}
            choice = chooser.choose(case["text"], code, item.evidence, scores | own, release=claim.encounter.release)
            counts["codes"] += 1
            if choice is None or choice.abstains or choice.best == code:
                counts["no siblings" if choice is None else "abstains" if choice.abstains else "same"] += 1
            elif choice.best.code in present:
                counts["other, in the claim already"] += 1
            else:
                counts["other"] += 1
                counts["other, claim right"] += item.code in gold
                counts["other, verifier right"] += choice.best.code in gold
    return dict(counts)


def _right(siblings: list[Code] | tuple[Code, ...], values: list[np.ndarray], gold: list[Code]) -> tuple[float, ...]:
    """Whether the sibling with the highest of each of some values is right, and last the highest of the last value."""
    return (*(float(siblings[int(np.argmax(value))] in gold) for value in values), float(values[-1].max()))


def _scores(rows: np.ndarray, sure_from: float) -> dict[str, float]:
    sure = rows[:, -1] >= sure_from
    named = ("lexicon", "most_frequent", "verifier_shipped", "verifier")
    scores = {name: rows[:, column].mean() for column, name in enumerate(named)}
    scores |= {
        "coverage": sure.mean(),
        "verifier_where_sure": rows[sure, 3].mean(),
        "lexicon_where_sure": rows[sure, 0].mean(),
    }
    whole = {"better": int((rows[:, 3] > rows[:, 0]).sum()), "worse": int((rows[:, 3] < rows[:, 0]).sum())}
    return {"questions": len(rows), **whole} | {name: round(float(value), 3) for name, value in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--claims", type=Path)
    parser.add_argument("--lang", choices=["en", "es"], default="en")
    parser.add_argument("--bundle", type=Path)
    arguments = parser.parse_args()
    if arguments.claims:
        _write(f"claims of {arguments.claims.stem}", compare_claims(arguments.claims, arguments.bundle or DAY_ONE))
    if arguments.folder is None:
        return
    with TemporaryDirectory() as name:
        bundle = trained(arguments.folder, arguments.lang, arguments.bundle or Path(name) / "bundle")
        notes = list(read_notes(arguments.folder / f"codiesp_{arguments.lang}_dev.jsonl"))
        notes = [
            Note(note.id, note.text, codes=[code for code in note.codes if code.system == "icd10cm"]) for note in notes
        ]
        assert isinstance(bundle.model, Lexicon)
        result = {"held-out train": bundle.provenance["found"]["siblings"], "dev": measure(bundle.model, notes)}
        if arguments.lang == "en":
            result["dev, day one"] = measure(Bundle.load(DAY_ONE).model, notes)
    _write(arguments.lang, result)


def _write(key: str, result: dict[str, Any]) -> None:
    print(json.dumps(result, indent=2))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[key] = result
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
