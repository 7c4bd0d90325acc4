"""Text of the simulated notes: sentence patterns, phrase files, and paraphrases of code descriptions.

No coder reads the tables in data/.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random

SentenceSlot = tuple[str, str]  # the words before and after a mention

_CHOICE = re.compile(r"\{([^{}]*\|[^{}]*)\}")
_NUMBER = re.compile(r"<(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)>")
_OTHER_SEX = {
    "F": re.compile(r"\b([Hh]e|[Hh]is|man|M|wife|prostate)\b"),
    "M": re.compile(r"\b([Ss]he|[Hh]er|woman|F|husband|uterus)\b"),
}

_ENCOUNTER = re.compile(r",? (initial|subsequent) encounter.*$|, sequela$")
_VAGUE = re.compile(
    r"\b(unspecified|other specified|not elsewhere classified|in diseases classified elsewhere|not otherwise specified"
    r"|without mention of [\w ]+|not stated as [\w ]+|not applicable or unspecified|nos|nec)\b|\(current\) "
)
_SIDE = re.compile(r"\b(left|right|bilateral|first|second|third) (trimester )?")
_DETAIL = re.compile(r",| with | without | due to | affecting | complicating | following |\(")
_LINK = re.compile(r"^(of|in|to|with|into|from|using) ")
_APPROACHES = {
    "percutaneous endoscopic approach": ("laparoscopic", "minimally invasive"),
    "percutaneous approach": ("percutaneous", "perc"),
    "open approach": ("open", ""),
    "via natural or artificial opening endoscopic": ("endoscopic", ""),
}
_ABBREVIATION = re.compile(r"\b[A-Z][A-Z0-9]{1,5}s?\b|\w/|\bs/p\b|\bfx\b|\bhx\b|\bdz\b")


def read_data(name: str) -> str:
    """The text of a file in data/."""
    return files("nosology.corpora.simulate").joinpath(f"data/{name}").read_text(encoding="utf-8")


def read_tsv(name: str) -> list[list[str]]:
    """The rows of a tab-separated file in data/, without its header."""
    return list(csv.reader(read_data(name).splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


def expand_pattern(pattern: str, limit: int = 12, numbers: int = 5) -> list[str]:
    """Up to `limit` distinct sentences of a pattern, always the same ones.

    `{a|b}` is a or b and may be nested, `<10-20>` is a number, `{}` stays. A pattern with numbers and no choice gives
    about `numbers` sentences.
    """
    if "{" not in pattern.replace("{}", ""):
        limit = numbers if _NUMBER.search(pattern) else 1
    rng = Random(pattern)
    sentences = {_sample_sentence(pattern, rng): None for _ in range(2 * limit if limit > 1 else 1)}
    return list(sentences)[:limit]


def _sample_sentence(pattern: str, rng: Random) -> str:
    def choose(match: re.Match[str]) -> str:
        choices = match[1].split("|")
        return choices[int(rng.random() * len(choices))]

    text, changed = pattern, 1
    while changed:
        text, changed = _CHOICE.subn(choose, text)
    return _NUMBER.sub(lambda match: _sample_number(match, rng), text)


def _sample_number(match: re.Match[str], rng: Random) -> str:
    low, high = match.groups()
    digits = len(low.partition(".")[2])
    number = f"{float(low) + rng.random() * (float(high) - float(low)):.{digits}f}"
    return number.zfill(len(low)) if low[0] == "0" and not digits else number


@cache
def pattern_sentences(name: str) -> dict[str, list[list[str]]]:
    """heading -> sentences of each pattern, from a file in data/phrases."""
    patterns: dict[str, list[list[str]]] = {}
    heading = ""
    for line in read_data(f"phrases/{name}.txt").splitlines():
        if line.startswith("[") and line.endswith("]"):
            heading = line[1:-1]
            patterns[heading] = []
        elif line and not line.startswith("# "):
            patterns[heading].append(expand_pattern(line, 24, 120 if heading == "labs" else 12))
    return patterns


@cache
def sentences(name: str) -> dict[str, list[str]]:
    """heading -> sentences of all its patterns."""
    return {heading: [s for group in groups for s in group] for heading, groups in pattern_sentences(name).items()}


@cache
def sentence_slots(name: str) -> dict[str, list[SentenceSlot]]:
    """heading -> sentences with a `{}` for a mention, split there."""
    return {
        heading: [(before, after) for s in texts for before, slot, after in [s.partition("{}")] if slot]
        for heading, texts in sentences(name).items()
    }


def for_sex(phrases: dict[str, list], sex: str) -> dict[str, list]:
    """The phrases (sentences or slots) without words about a patient of the other sex."""
    other = _OTHER_SEX[sex]

    def fits(phrase: str | SentenceSlot) -> bool:
        return not other.search(phrase if isinstance(phrase, str) else " ".join(phrase))

    return {heading: [phrase for phrase in group if fits(phrase)] for heading, group in phrases.items()}


@dataclass(frozen=True, slots=True)
class Wording:
    """Synonyms of a concept; the `short` ones contain abbreviations."""

    long: tuple[str, ...] = ()
    short: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: list[str]) -> Wording:
        """The names, divided by whether they look abbreviated."""
        short = tuple(name for name in names if _ABBREVIATION.search(name) or len(name) < 5)
        return cls(tuple(name for name in names if name not in short), short)

    def __bool__(self) -> bool:
        return bool(self.long or self.short)


NO_WORDING = Wording()


@cache
def _rewrites() -> list[tuple[str, list[str]]]:
    return [(old, new.split("|")) for old, new in read_tsv("rewrites.tsv")]


@cache
def _operations() -> list[tuple[str, list[str]]]:
    operations = [(name.lower(), words.split("|")) for name, words in read_tsv("operations.tsv")]
    return sorted(operations, key=lambda pair: -len(pair[0]))


def diagnosis_wordings(description: str, terms: Iterable[str] = ()) -> tuple[Wording, Wording]:
    """(exact, vague) paraphrases of a description and its inclusion terms; vague ones fit several codes."""
    plain = _tidy(_VAGUE.sub("", _ENCOUNTER.sub("", description.lower())))
    forms = [description.lower(), plain, *_reorder(plain), *(_tidy(_VAGUE.sub("", term.lower())) for term in terms)]
    forms += [_rewrite(form, variant) for form in forms[1:3] for variant in range(4)]
    head = _tidy(_SIDE.sub("", _DETAIL.split(plain)[0]))
    vague = [head, *_reorder(head), _rewrite(head, 0), _rewrite(head, 1)] if len(head) > 3 else [plain]
    return _wording(forms), _wording(vague)


def procedure_wordings(description: str) -> tuple[Wording, Wording]:
    """(exact, vague) paraphrases of an ICD-10-PCS description; vague ones omit side, device and approach."""
    text = description.lower()
    for name, words in _operations():  # noqa: B007  both are read after the loop
        if text.startswith(name):
            break
    else:
        return diagnosis_wordings(description)
    parts = [part.strip() for part in text[len(name) :].split(",")]
    if parts[-1] == "diagnostic":
        words = ["biopsy", "diagnostic " + words[0]]
        parts.pop()
    approaches = next((_APPROACHES[part] for part in parts if part in _APPROACHES), ("",))
    body_part = _LINK.sub("", parts[0]) or "site"
    brief = _tidy(_SIDE.sub("", re.split(r" with | using | into ", body_part)[-1 if " into " in body_part else 0]))
    exact = [f"{approach} {word} of {body_part}" for approach in approaches for word in words]
    exact += [f"{approach} {_rewrite(body_part, i)} {word}" for approach in approaches for i, word in enumerate(words)]
    vague = [f"{brief} {word}" for word in words] + [f"{word} of the {brief}" for word in words]
    return _wording([*exact, text]), _wording(vague)


def _reorder(text: str) -> list[str]:
    """The text with the clauses around a comma or an "of" exchanged."""
    reordered = []
    head, comma, rest = text.partition(", ")
    if comma:
        reordered.append(f"{rest} {head}" if len(rest.split()) < 4 else f"{head} ({rest})")
        reordered.append(f"{head} {rest}".replace(",", ""))
    head, of, rest = text.partition(" of ")
    if of and len(head.split()) < 4 and len(rest.split()) < 6:
        reordered.append(f"{rest.removeprefix('the ')} {head}")
    return reordered


def _rewrite(text: str, variant: int) -> str:
    """The text with some of its words replaced by abbreviations or synonyms."""
    for old, new in _rewrites():
        if old in text:
            draw = zlib.crc32(f"{variant}{old}{text}".encode())
            if draw % 10 < 7:
                text = text.replace(old, new[draw // 10 % len(new)], 1)
    return text


def _tidy(text: str) -> str:
    text = re.sub(r"\bother (?!than)", "", text)
    return re.sub(r"\s+", " ", re.sub(r"(\s*,\s*)+", ", ", text)).strip(" ,;-")


def _wording(forms: list[str]) -> Wording:
    return Wording.of([form for form in dict.fromkeys(" ".join(form.split()) for form in forms) if len(form) > 1])
