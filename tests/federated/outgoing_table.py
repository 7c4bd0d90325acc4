"""The table of what leaves a site, made of the messages that sites really send in small simulations.

    python -m tests.federated.outgoing_table       rewrites the tables in docs/privacy.md

Each federation is run once and all requests are recorded. Then the same requests are sent to new sites with the same
notes, and to sites with other notes. A value that comes again is "exact"; one that does not is "random": it has noise,
masks or keys, or the request cannot be repeated. A value that is the same for other notes does not depend on notes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from flwr.app import Message

from nosology.config import load_federated_recipe
from nosology.core import Code
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.federated.rounds.federation_modes import make_federation
from nosology.federated.rounds.learner import LocalSite
from nosology.federated.rounds.messages import ARRAYS, get_value
from nosology.federated.rounds.simulation import InProcessGrid, simulated_sites, simulation_grid
from nosology.models.heads.heads_net import CodedVectors
from tests.conftest import small_notes
from tests.encoders.tiny import tiny_hmhan_settings
from tests.federated.small_hospitals import CODES, recipe, site

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
START, END = "<!-- outgoing {}: made by python -m tests.federated.outgoing_table -->", "<!-- end of outgoing {} -->"
SITE_NOISE, SECURE = {"site_clip": 0.5, "site_noise": 1.0}, {"secure": True}
HEADS = {
    "plain": {},
    "bf16": {"compression": "bf16"},
    "record noise": {"privacy": {"record_noise": 1.0}},
    "site noise": {"privacy": SITE_NOISE},
    "secure": {"privacy": SECURE},
    "secure, site noise": {"privacy": SECURE | SITE_NOISE},
}
WORDS = {
    "plain": [],
    "public list": ["federation.vocabulary={list}"],
    "bf16": ["federation.compression=bf16"],
    "site noise": ["federation.privacy.site_clip=0.5", "federation.privacy.site_noise=1.0"],
    "secure": ["federation.privacy.secure=true"],
    "top k": ["federation.compression=top_k"],
    "low rank": ["federation.compression=low_rank"],
    "word noise": ["federation.privacy.word_noise=0.3", "federation.privacy.word_limit=4"],
}
REPORTS = {"plain": [], "secure": ["federation.privacy.secure=true"]}
COUNTS = {"secure": [], "in the clear": ["federation.privacy.secure=false"]}
SMALL_NET = ["federation.vector_rounds=1", "vectors.size=4", "model.filters=4", "training.precision=fp32"]
SMALL_COUNTS = ["statistics.buckets=4096", "statistics.min_patients=2", "statistics.min_sites=1"]
SMALL_LEXICON = ["codes.release=2026", "codes.seventh=true", "learn.terms=false"]
SMALL_LEXICON += ["learn.rounds=5", "learn.forest=4", "learn.min_leaf=5", "learn.folds=3"]
SMALL_PLANT = ["federation.language_rounds=1", "model.size=4", "model.hidden=4", "model.layers=1", "words.min_notes=2"]
SMALL_PLANT += ["ranker.epochs=1", "ranker.steps=5", "language.window=8", "training.precision=fp32"]
WEIGHTS, VECTOR, STAGE = "weights", "vector", "query.stage"
# beginnings of the names of weights in rounds before those of the net
PRETRAINED = {"word2vec.": "word vectors", "relevance.": "shares", "forward.": "language model"}
FIELDS = {  # every field of every message; a field that is not here makes `describe` fail
    ("query.metadata", "site"): "name of the site",
    ("query.metadata", "metadata.package"): "version of nosology",
    ("query.metadata", "metadata.embedder"): "hash of the next",
    ("query.metadata", "metadata.identity"): "embedder or tokenizer, with its settings",
    ("query.metadata", "metadata.dim"): "numbers of a vector",
    ("query.metadata", "metadata.preprocessing"): "how notes are read",
    ("query.metadata", "metadata.notes"): "number of train notes",
    (
        "query.metadata",
        "metadata.codes",
    ): "codes of at least `min_site_notes` train notes, each with its number of notes",
    ("query.statistics", "count"): "number of train notes",
    ("query.statistics", "total"): "sum of the train vectors",
    ("query.statistics", "squares"): "sum of the squares of the train vectors",
    ("query.statistics", "words"): "words of at least `min_site_notes` patients, each with its number of patients",
    ("query.statistics", "columns"): "numbers of reports by ICD version; of metadata columns counts, sums and values",
    ("query.statistics", ""): "nothing",
    ("query.prepare", ""): "nothing",
    ("train", "word vectors"): "vectors of words and of their contexts after local word2vec",
    ("train", "language model"): "weights of the language model after local training",
    ("train", "shares"): "shares of the train notes with each word, each code, and both",
    ("train", WEIGHTS): "weights after local training, or their changes (bf16, top k, low rank)",
    ("train", "num-examples"): "number of train notes",
    ("train", "loss"): "mean training loss",
    ("train", "label-mask"): "which codes the site uses",
    ("train.secure", "masked"): "changes of weights, codes, notes and loss, masked: only sums over sites can be read",
    (f"{STAGE} find", VECTOR): "hashed numbers of patients with words or phrases",
    (f"{STAGE} names", VECTOR): "words or phrases of the site that enough patients at enough sites have",
    (f"{STAGE} counts", VECTOR): "numbers of notes with these words or phrases, and with codes",
    (f"{STAGE} pairs", VECTOR): "hashed numbers of notes with a word or phrase and a code",
    (f"{STAGE} both", VECTOR): "numbers of notes with a phrase and a code",
    (f"{STAGE} mention_trees", VECTOR): "decision trees over features of mentions",
    (f"{STAGE} code_trees", VECTOR): "decision trees over features of codes",
    (f"{STAGE} held_out", VECTOR): "histograms of the probabilities of train notes, by trees of other sites",
    (f"{STAGE} lengths", VECTOR): "histogram of the lengths of note vectors",
    (f"{STAGE} step", VECTOR): "loss and gradients over all train notes",
    (f"{STAGE} calibrate", VECTOR): "histogram of the scores of dev notes",
    ("train.stage", "masked"): "the vector of a stage, masked: only sums over sites can be read",
    ("query.secure_keys", "secure.mask"): "a public key",
    ("query.secure_keys", "secure.encryption"): "a public key",
    ("query.secure_shares", "secure.encrypted_shares"): "shares of secrets, encrypted for the other sites",
    ("query.secure_shares", "secure.commitment"): "a hash of a secret",
    ("query.secure_confirm", "secure.codes"): "codes that authenticate the list of sites in the sum",
    ("query.secure_unmask", "secure.seeds"): "shares of seeds of the sites in the sum",
    ("query.secure_unmask", "secure.masks"): "shares of mask keys of the other sites",
    ("evaluate", "notes"): "number of dev or test notes",
    ("evaluate", "outside"): "number of true codes that are not labels",
    ("evaluate", "cells"): "histogram of logits",
    ("evaluate", "true"): "histogram of the logits of true codes",
    ("evaluate", "precision"): "sum of average precisions, and number of notes with one",
    ("evaluate", "hits"): "true positives, false positives and false negatives of each code",
    ("evaluate", "exact"): "number of exactly coded notes",
}

Values = dict[str, Any]
Sent = list[tuple[int, Message, Values]]  # node, request, fields of the reply
Kinds = dict[tuple[str, str], str]  # by message type and field: constant, exact or random
MakeSites = Callable[[int], list[LocalSite]]  # by a number that chooses the notes


def kind_of(request: Message) -> str:
    """The message type, with the stage of a request for an answer in the clear."""
    kind = request.metadata.message_type
    return f"{kind} {get_value(request.content, 'stage')}" if kind == STAGE else kind


def fields_of(request: Message, reply: Message) -> Values:
    """The fields of a reply. Arrays that are named as those of the request are weights; of a stage, one vector."""
    if reply.has_error():
        return {"error": reply.error.reason}
    found: Values = {}
    weights = request.content.array_records.get(ARRAYS, {})
    for record in reply.content.array_records.values():
        for name, array in record.items():
            kind, first = request.metadata.message_type, name.partition("/")[0]
            field = VECTOR if kind == STAGE else WEIGHTS if kind == "train" and {name, first} & set(weights) else name
            if field == WEIGHTS:
                field = next((what for start, what in PRETRAINED.items() if name.startswith(start)), field)
            found[field] = found.get(field, b"") + array.data
    for records in (reply.content.metric_records, reply.content.config_records):
        for record in records.values():
            for name, packed in record.items():
                value = json.loads(packed) if isinstance(packed, str) else packed
                inner = value if name in ("metadata", "secure") else {"": value}
                found |= {f"{name}.{part}" if part else name: inner[part] for part in inner}
    return found or {"": None}


def record_run(make_sites: MakeSites, checked: Any, folder: Path) -> Sent:
    """All requests of a federation with their replies."""
    grid, sent = simulation_grid(make_sites(0)), []
    app = grid.app

    def recording(message: Message, context: Any) -> Message:
        reply = app(message, context)
        node = grid.get_node_ids().index(message.metadata.dst_node_id)
        sent.append((node, message, fields_of(message, reply)))
        return reply

    grid.app = recording
    make_federation(grid, checked).run(folder / "bundle")
    return sent


def repeat(sent: Sent, grid: InProcessGrid) -> Iterator[Values]:
    """The fields of the replies to the same requests by other sites."""
    for node, first, _ in sent:
        request = Message(first.content, grid.get_node_ids()[node], first.metadata.message_type)
        yield fields_of(request, grid._process(request))


def describe(make_sites: MakeSites, checked: Any, folder: Path, plain: Kinds) -> Kinds:
    """For each field of the messages of a federation: constant, exact or random.

    plain: the same without privacy; decides whether evaluations, which follow from weights with noise, are constant.
    """
    sent = record_run(make_sites, checked, folder)
    again, other = (list(repeat(sent, simulation_grid(make_sites(number)))) for number in (0, 1))
    found: Kinds = {}
    for (_, request, values), same, different in zip(sent, again, other):
        kind = kind_of(request)
        for field, value in values.items():
            if (kind, field) not in FIELDS:
                raise KeyError(f"a site sends {field!r} in {kind}: describe it in FIELDS")
            before = found.get((kind, field), "constant")
            now = "random" if same.get(field) != value else "constant" if different.get(field) == value else "exact"
            if kind == "evaluate" and now != "random":
                now = plain.get((kind, field), now)
            found[kind, field] = max(before, now, key=("constant", "exact", "random").index)
    return found


def render(columns: dict[str, Kinds]) -> str:
    """The table in Markdown, in the order of `FIELDS`."""
    rows = [f"| message | field | content | {' | '.join(columns)} |", "|---" * (3 + len(columns)) + "|"]
    shown = {"constant": "no notes", "exact": "exact", "random": "random", "": "-"}
    for (kind, field), what in FIELDS.items():
        cells = [shown[column.get((kind, field), "")] for column in columns.values()]
        if set(cells) != {"-"}:
            rows.append(f"| `{kind}` | {f'`{field}`' if field else '-'} | {what} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def other_site(name: str, seed: int) -> LocalSite:
    """A hospital that differs in every count: it uses fewer codes, has more notes, and some without codes."""
    made = site(name, seed + 10, 50, code_list=frozenset(CODES[:7]))
    for split in ("dev", "test"):
        vectors, codes = made.notes[split].vectors, made.notes[split].codes
        uncoded = CodedVectors(np.concatenate([vectors, 100 * vectors]), [*codes, *[()] * len(codes)])
        made.notes[split] = replace(uncoded, codes=[*uncoded.codes[:-1], (Code("icd10cm", "Z99"),)])
    made.code_list = frozenset([*CODES[:7], Code("icd10cm", "Z99")])
    return made


def heads_table(folder: Path) -> str:
    """The table of heads."""

    def make_sites(number: int) -> list[LocalSite]:
        return [other_site(f"site-{i}", i) if number else site(f"site-{i}", i, 30 + 4 * i) for i in range(3)]

    columns: dict[str, Kinds] = {}
    for name, settings in HEADS.items():
        checked = recipe("mlp", 1, min_sites=3, quorum=3, **settings)
        columns[name] = describe(make_sites, checked, folder / f"heads {name}", columns.get("plain", {}))
    return render(columns)


def corpora(folder: Path) -> list[Corpus]:
    """Two corpora of three sites: the second differs in every count."""
    made = []
    for number in range(2):
        notes = [
            replace(note, site=f"site-{i // 4 % 3}") for i, note in enumerate(small_notes(60 + 12 * number, number))
        ]
        notes = [replace(note, codes=tuple(c for c in note.codes if c.system == "icd10cm")) for note in notes]
        if number:  # evaluated notes with no code, with all codes and with a code that is no label
            choices = ((), tuple(sorted({code for note in notes for code in note.codes})), (Code("icd10cm", "Z99.89"),))
            notes = [
                note if note.split == "train" else replace(note, codes=choices[i % 3]) for i, note in enumerate(notes)
            ]
        made.append(write_corpus(notes, folder / f"{number}", source={"kind": "test"}, filters=[], counts={}))
    return made


def corpus_table(
    name: str, modes: dict[str, list[str]], settings: list[str], folder: Path, evaluated: Kinds
) -> dict[str, Kinds]:
    """The columns of a recipe, whose sites read corpora. evaluated: of another kind, whose sites evaluate alike."""
    folder.mkdir()
    (folder / "list.txt").write_text("cough\nfever\n")
    both = corpora(folder)
    small = {"rounds": 1, "min_sites": 3, "quorum": 3, "min_site_notes": 2, "min_notes": 1, "max_retries": 0}
    settings = [*settings, *(f"federation.{key}={value}" for key, value in small.items())]
    columns: dict[str, Kinds] = {}
    for mode, more in modes.items():
        checked = load_federated_recipe(name, [*settings, *(text.format(list=folder / "list.txt") for text in more)])

        def make_sites(number: int, checked: Any = checked) -> list[LocalSite]:
            site_of = {note.id: note.site or "" for note in both[number].notes(text=False)}
            sites = simulated_sites([both[number]], site_of, checked, folder / f"states {number}")
            if number:
                codes = sorted({code for note in both[number].notes("train", text=False) for code in note.codes})
                for each in sites:
                    each.code_list = frozenset([*codes[1:], Code("icd10cm", "Z99.89")])
            return list(sites)

        columns[mode] = describe(make_sites, checked, folder / mode, columns.get("plain", evaluated))
    return columns


def tables(folder: Path) -> dict[str, str]:
    """The tables by name. CAML, LAAT and DualLAAT have the same messages: their table is made with CAML."""
    reports = [*tiny_hmhan_settings(folder / "encoder"), "training.precision=fp32"]
    words = corpus_table("caml", WORDS, SMALL_NET, folder / "words", {})
    lexicon = [*SMALL_COUNTS, *SMALL_LEXICON]
    return {
        "heads": heads_table(folder),
        "words": render(words),
        "plant": render(corpus_table("plant", REPORTS, SMALL_PLANT, folder / "plant", {})),
        "reports": render(corpus_table("hmhan", REPORTS, reports, folder / "reports", {})),
        "linear": render(corpus_table("linear", COUNTS, SMALL_COUNTS, folder / "linear", words["plain"])),
        "lexicon": render(corpus_table("lexicon", COUNTS, lexicon, folder / "lexicon", words["plain"])),
    }


def replace_table(page: str, name: str, table: str) -> str:
    """The page with a table between its marks."""
    before, _, rest = page.partition(START.format(name))
    _, _, after = rest.partition(END.format(name))
    if not after:
        raise ValueError(f"{PAGE} has no marks of the table {name}")
    return f"{before}{START.format(name)}\n\n{table}\n{END.format(name)}{after}"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as temporary:
        for title, made in tables(Path(temporary)).items():
            text = replace_table(text, title, made)
    PAGE.write_text(text, encoding="utf-8")
