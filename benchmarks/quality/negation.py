"""Agreement with negspacy on negation: on the test sentences, and on one random word of each sentence of a notes file.

Needs negspacy and spaCy, which are no dependencies: pip install negspacy, then
python benchmarks/quality/negation.py [NOTES.jsonl]
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from nosology.core import Span
from nosology.core.files import write_json
from nosology.text import context_of, sentences, tokenize

ROOT = Path(__file__).parents[2]
SENTENCES = ROOT / "tests" / "text" / "data" / "negation_sentences.tsv"
RESULT = ROOT / "benchmarks" / "results" / "quality_negation.json"

Mention = tuple[str, Span]


def negspacy() -> Callable[[str, Span], bool]:
    """A function that says whether negspacy calls a span of a text negated."""
    import spacy
    from negspacy.negation import Negex  # noqa: F401 (registers the component)
    from negspacy.termsets import termset

    language = spacy.blank("en")
    language.add_pipe("sentencizer")
    negex = language.add_pipe("negex", config={"neg_termset": termset("en_clinical").get_patterns()})

    def negated(text: str, span: Span) -> bool:
        document = language.get_pipe("sentencizer")(language.make_doc(text))
        document.ents = [document.char_span(*span, label="MENTION", alignment_mode="expand")]
        return negex(document).ents[0]._.negex

    return negated


def written() -> Iterator[Mention]:
    """The mentions of the test sentences whose phrases both rule sets know."""
    with SENTENCES.open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE):
            if row["shared_rule"] == "1":
                start = row["sentence"].index(row["mention"])
                yield row["sentence"], Span(start, start + len(row["mention"]))


def drawn(path: Path, seed: int = 0) -> Iterator[Mention]:
    """One random word of more than five letters of each sentence of up to 300 characters."""
    generator = random.Random(seed)
    with path.open(encoding="utf-8") as lines:
        for text in (json.loads(line)["text"] for line in lines):
            for start, end in sentences(text):
                sentence = text[start:end].replace("\n", " ")
                words = [span for span in tokenize(sentence).spans() if span.end - span.start > 5]
                if words and len(sentence) <= 300:
                    yield sentence, generator.choice(words)


def agreement(mentions: Iterator[Mention], oracle: Callable[[str, Span], bool]) -> dict[str, float]:
    """How often both say the same: of all mentions, and of those that either calls negated."""
    answers = [(context_of(text, [span])[0].negated, oracle(text, span)) for text, span in mentions]
    either = [ours == theirs for ours, theirs in answers if ours or theirs]
    return {
        "mentions": len(answers),
        "agreement": round(sum(ours == theirs for ours, theirs in answers) / len(answers), 4),
        "negated_by_either": len(either),
        "agreement_where_either": round(sum(either) / len(either), 4),
    }


def main() -> None:
    """Measures, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notes", type=Path, nargs="?", help="a notes file in JSON lines, English")
    arguments = parser.parse_args()
    oracle = negspacy()
    results = {"test sentences": agreement(written(), oracle)}
    if arguments.notes:
        results["notes"] = agreement(drawn(arguments.notes), oracle)
    for name, result in results.items():
        print(name, *(f"{key} {value}" for key, value in result.items()), sep="   ")
    write_json(RESULT, results)


if __name__ == "__main__":
    main()
