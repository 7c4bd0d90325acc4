import json
import random
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from nosology.core import Code, DataError, Evidence, Note, OutputError
from nosology.corpora import corpus as corpus_module
from nosology.corpora.corpus import MANIFEST, NOTES, Corpus, write_corpus

CODES = st.builds(Code, st.sampled_from(["icd10cm", "icd9proc"]), st.sampled_from(["I10", "E11.9", "39.95"]))
EXTRA = st.dictionaries(
    st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5) | st.lists(st.floats(0, 1))
)
NOTES_STRATEGY = st.lists(
    st.builds(
        Note,
        id=st.text(min_size=1, max_size=5),
        text=st.text(),
        patient=st.none() | st.text(min_size=1, max_size=3),
        site=st.none() | st.just("north"),
        split=st.sampled_from([None, "train", "dev", "test"]),
        codes=st.lists(CODES, unique=True).map(tuple),
        evidence=st.lists(st.builds(Evidence, CODES, st.integers(0, 5), st.integers(6, 9), EXTRA), max_size=2).map(
            tuple
        ),
        extra=EXTRA.map(lambda extra: {f"x{key}": value for key, value in extra.items()}),
    ),
    unique_by=lambda note: note.id,
    max_size=8,
)


def write(notes, folder):
    return write_corpus(notes, folder, source={"kind": "test"}, filters=[], counts={})


@settings(max_examples=40, deadline=None)
@given(NOTES_STRATEGY)
def test_written_notes_are_read_unchanged(tmp_path_factory, notes):
    folder = tmp_path_factory.mktemp("corpus") / "c"
    written = write(iter(notes), folder)
    corpus = Corpus.open(folder)
    assert list(corpus.notes()) == notes
    assert corpus.manifest == written.manifest == json.loads((folder / MANIFEST).read_text())
    assert len(corpus) == len(notes)
    assert [note.id for note in corpus.notes("dev", text=False)] == [note.id for note in notes if note.split == "dev"]
    assert list(corpus.notes(text=False)) == [replace(note, text="", evidence=()) for note in notes]


@pytest.mark.parametrize("more", [{}, {"parts": [1], "of": {"a": [2]}}], ids=["flat", "nested"])
def test_spans_with_equal_extra_do_not_share_it(tmp_path, more):
    extra = {"kind": "mention"} | more
    spans = tuple(Evidence(Code("icd10cm", "I10"), start, start + 1, extra) for start in range(3))
    corpus = write([Note(id="a", text="words", evidence=spans)], tmp_path / "c")
    [read] = corpus.notes()
    read.evidence[0].extra["kind"] = "changed"
    for values in filter(None, (read.evidence[0].extra.get("parts"), read.evidence[0].extra.get("of"))):
        values.clear()
    assert [span.extra for span in read.evidence[1:]] == [extra, extra]
    assert next(corpus.notes()).evidence == spans


def note(number, **fields):
    return Note(id=f"n{number}", text=f"word {number}", **fields)


def test_counts(tmp_path):
    notes = [
        note(1, split="train", patient="p", codes=(Code("icd10cm", "I10"), Code("icd10cm", "E11.9"))),
        note(2, split="train", patient="p", codes=(Code("icd10cm", "I10"),)),
        note(3),
    ]
    assert write(notes, tmp_path / "c").manifest["counts"] == {
        "notes": 3,
        "patients": 1,
        "notes_without_codes": 1,
        "splits": {"train": 2, "none": 1},
        "systems": {"icd10cm": {"codes": 2, "occurrences": 3}},
    }


def test_counts_are_read_after_the_last_note(tmp_path):
    counts = {}

    def notes():
        yield note(1)
        counts["seen"] = 1

    corpus = write_corpus(notes(), tmp_path / "c", source={}, filters=[], counts=counts)
    assert corpus.manifest["counts"]["seen"] == 1


def test_hash_depends_only_on_content_and_order(tmp_path, monkeypatch):
    notes = [note(number, extra={"b": 1, "a": 2}) for number in range(5)]
    first = write(notes, tmp_path / "a").hash
    monkeypatch.setattr(corpus_module, "_GROUP_NOTES", 2)
    assert write([note(number, extra={"a": 2, "b": 1}) for number in range(5)], tmp_path / "b").hash == first
    assert list(Corpus.open(tmp_path / "b").notes()) == notes
    assert write(notes[::-1], tmp_path / "c").hash != first
    assert write([*notes[:4], note(4, split="dev")], tmp_path / "d").hash != first


def test_failed_write_leaves_the_old_corpus(tmp_path):
    old = write([note(1)], tmp_path / "c")

    def broken():
        yield note(2)
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        write(broken(), tmp_path / "c")
    assert Corpus.open(tmp_path / "c").hash == old.hash
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_repeated_id_is_an_error(tmp_path):
    with pytest.raises(DataError, match="'n1' twice"):
        write([note(1), note(1)], tmp_path / "c")


def test_other_folders_are_not_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="will not overwrite"):
        write([note(1)], tmp_path)


def test_invalid_corpus_folders_raise_data_error(tmp_path):
    with pytest.raises(DataError, match="is no corpus"):
        Corpus.open(tmp_path)
    corpus = write([note(1), note(2)], tmp_path / "c")
    with pytest.raises(DataError, match="split must be one of train, dev, test; got 'val'"):
        list(corpus.notes("val"))
    parquet.write_table(parquet.read_table(tmp_path / "c" / NOTES)[:1], tmp_path / "c" / NOTES)
    with pytest.raises(DataError, match=r"has 1 notes; corpus\.json says 2"):
        Corpus.open(tmp_path / "c")
    parquet.write_table(pa.table({"id": ["a", "b"]}), tmp_path / "c" / NOTES)
    with pytest.raises(DataError, match="must have the columns id, text"):
        Corpus.open(tmp_path / "c")
    (tmp_path / "c" / NOTES).write_bytes(b"PAR1")
    with pytest.raises(DataError, match="missing or damaged"):
        Corpus.open(tmp_path / "c")
    (tmp_path / "c" / MANIFEST).write_text('{"format": 1, "counts": {"notes": 2}, "hash": ""}')
    with pytest.raises(DataError, match="damaged: source, filters, counts or hash"):
        Corpus.open(tmp_path / "c")
    (tmp_path / "c" / MANIFEST).write_text('{"format": 9, "counts": {"notes": 2}, "hash": ""}')
    with pytest.raises(DataError, match="format must be 1; got 9"):
        Corpus.open(tmp_path / "c")
    for damaged in ("{", "[" * 100_000, '{"counts": ' * 100_000):
        (tmp_path / "c" / MANIFEST).write_text(damaged)
        with pytest.raises(DataError, match="is damaged"):
            Corpus.open(tmp_path / "c")


@pytest.mark.parametrize("version", ["0.2", "0.1"])
def test_a_flipped_bit_in_the_notes_is_refused(tmp_path, monkeypatch, version):
    monkeypatch.setenv("NOSOLOGY_CACHE", str(tmp_path / "cache"))
    notes = [note(number, codes=(Code("icd10cm", "I10"),), extra={"ward": "w"}) for number in range(30)]
    corpus = write(notes, tmp_path / "c")
    if version == "0.1":  # without a hash of the file
        manifest = json.loads((tmp_path / "c" / MANIFEST).read_text())
        del manifest["sha256"], manifest["digest"]
        (tmp_path / "c" / MANIFEST).write_text(json.dumps(manifest))
    original = (tmp_path / "c" / NOTES).read_bytes()
    rng = random.Random(0)
    for _ in range(60):
        flipped = bytearray(original)
        flipped[rng.randrange(len(original))] ^= 1 << rng.randrange(8)
        (tmp_path / "c" / NOTES).write_bytes(flipped)
        with suppress(DataError):
            read = list(Corpus.open(tmp_path / "c").notes())
            assert version == "0.1" and read == notes
    (tmp_path / "c" / NOTES).write_bytes(original)
    assert list(Corpus.open(tmp_path / "c").notes()) == list(corpus.notes()) == notes


def test_a_flipped_bit_in_the_manifest_is_refused(tmp_path):
    written = write([note(number, codes=(Code("icd10cm", "I10"),)) for number in range(3)], tmp_path / "c")
    path = tmp_path / "c" / MANIFEST
    original = path.read_bytes()
    for position in range(len(original)):
        flipped = bytearray(original)
        flipped[position] ^= 1 << position % 7
        path.write_bytes(flipped)
        with suppress(DataError):  # white space may change
            assert Corpus.open(tmp_path / "c").manifest == written.manifest


def test_an_unchanged_corpus_is_verified_once(tmp_path, monkeypatch):
    monkeypatch.setenv("NOSOLOGY_CACHE", str(tmp_path / "cache"))
    write([note(1)], tmp_path / "c")
    monkeypatch.setattr(corpus_module, "sha256", lambda path: pytest.fail("read again"))
    Corpus.open(tmp_path / "c")
    (tmp_path / "cache" / "verified_corpora.json").write_text("[")
    monkeypatch.undo()
    assert len(Corpus.open(tmp_path / "c")) == 1
