import os
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather

from nosology.core import Code, ConfigError, DataError, Evidence, Note
from nosology.corpora import corpus as corpus_module
from nosology.corpora import splits as splits_module
from nosology.corpora.corpus import NOTES, Corpus, write_corpus
from nosology.corpora.group_splits import NoteSummary, group_names, summarize_notes
from nosology.corpora.splits import (
    assign_sites,
    site_corpus,
    split_by_files,
    split_corpus,
    stratified_splits,
    summarize_corpus,
)


def notes(count: int, seed: int = 0, patients: int = 0) -> list[Note]:
    """Notes of random words and long-tailed codes; with patients, each note has one."""
    rng = np.random.default_rng(seed)
    return [
        Note(
            f"note{number:05d}",
            " ".join(map(str, rng.integers(0, 5000, 30))),
            patient=f"p{rng.integers(patients)}" if patients else None,
            codes=tuple(Code("icd10cm", f"A{code:02d}") for code in np.unique(rng.zipf(1.6, 3).clip(max=90))),
        )
        for number in range(count)
    ]


def corpus(folder: Path, all_notes: list[Note]) -> Path:
    write_corpus(all_notes, folder, source={"kind": "table"}, filters=[{"filter": "before"}], counts={})
    return folder


@settings(max_examples=30, deadline=None)
@given(st.integers(10, 120), st.integers(5, 40), st.integers(0, 10**6))
def test_no_patient_is_in_two_splits(count, patients, seed):
    all_notes = notes(count, seed, patients)
    roster = summarize_notes(all_notes)
    if len({note.patient for note in all_notes}) < 3:
        return
    split = stratified_splits(roster, seed=seed)[0]
    splits_of_patient = defaultdict(set)
    for note in all_notes:
        splits_of_patient[note.patient].add(split[note.id])
    assert all(len(splits) == 1 for splits in splits_of_patient.values())
    assert split.keys() == {note.id for note in all_notes}


def test_ratios_hold_with_patients_and_for_every_frequent_code():
    all_notes = notes(3000, patients=1200)
    split = stratified_splits(summarize_notes(all_notes), (0.6, 0.1, 0.3))[0]
    sizes = Counter(split.values())
    assert sizes["train"] / 3000 == pytest.approx(0.6, abs=0.005)
    assert sizes["dev"] / 3000 == pytest.approx(0.1, abs=0.005)
    of_code = Counter(code for note in all_notes for code in note.codes)
    in_test = Counter(code for note in all_notes if split[note.id] == "test" for code in note.codes)
    for code, count in of_code.items():
        if count >= 50:
            assert in_test[code] / count == pytest.approx(0.3, abs=0.05)


def test_split_depends_on_the_seed_and_not_on_the_order_of_notes():
    all_notes = notes(300, patients=100)
    first, second = stratified_splits(summarize_notes(all_notes), seed=5, k=2)
    assert stratified_splits(summarize_notes(all_notes[::-1]), seed=5) == [first]
    assert first != second
    assert stratified_splits(summarize_notes(all_notes), seed=6)[0] != first


def test_duplicates_stay_together_across_patients():
    all_notes = notes(200, patients=200)
    all_notes += [
        replace(note, id=f"copy{note.id}", patient=f"other{number}", text=note.text.upper())
        for number, note in enumerate(all_notes[:60])
    ]
    split = stratified_splits(summarize_notes(all_notes))[0]
    assert all(split[note.id] == split[f"copy{note.id}"] for note in all_notes[:60])
    apart = stratified_splits(summarize_notes(all_notes, texts=False))[0]
    assert any(apart[note.id] != apart[f"copy{note.id}"] for note in all_notes[:60])


def test_group_names_are_the_first_key_of_the_group():
    all_notes = [
        Note("n1", "one two three", patient="b"),
        Note("n2", "four five six", patient="b"),
        Note("n3", "ONE, two: three", patient="a"),
        Note("n4", "seven eight nine"),
        Note("n5", "four five six"),
    ]
    assert group_names(all_notes) == {"a": "a", "b": "a", "n5": "a", "n4": "n4"}
    assert group_names(all_notes[::-1]) == group_names(all_notes)


def test_each_site_gets_its_share_of_every_split():
    all_notes = [replace(note, site=f"s{number % 4}") for number, note in enumerate(notes(1000, patients=600))]
    split = stratified_splits(summarize_notes(all_notes))[0]
    for site in range(4):
        counts = Counter(split[note.id] for note in all_notes if note.site == f"s{site}")
        assert counts["test"] / 250 == pytest.approx(0.15, abs=0.02)


@pytest.mark.parametrize("ratios", [(0.7, 0.2, 0.2), (0.5, 0.5), (1.2, -0.1, -0.1), (float("nan"), 0.5, 0.5)])
def test_invalid_ratios_raise_config_error(ratios):
    with pytest.raises(ConfigError, match="ratios must be three numbers for train, dev and test that sum to 1; got"):
        stratified_splits(summarize_notes(notes(20)), ratios)


def test_a_split_without_dev_leaves_dev_empty():
    split = stratified_splits(summarize_notes(notes(100)), (0.8, 0, 0.2))[0]
    assert set(split.values()) == {"train", "test"}
    assert abs(Counter(split.values())["train"] - 80) <= 1


def test_too_few_patients_raise_config_error():
    all_notes = [replace(note, patient="one") for note in notes(10)]
    with pytest.raises(ConfigError, match=r"the notes form 1 group of patients, fewer than the 3 splits"):
        stratified_splits(summarize_notes(all_notes, texts=False))


def test_a_corpus_that_is_too_small_for_its_splits_is_named_with_the_cause(tmp_path):
    few = [replace(note, patient=f"p{n % 2}") for n, note in enumerate(notes(10))]
    alike = [replace(note, text=few[0].text) for note in notes(10)]
    sentences = {
        "few": r"the corpus .*few has 2 patients .*, fewer than the 3 splits of --ratios",
        "alike": r"form 1 group of patients and \(near-\)duplicates, fewer than the 3 splits .*; see --no-keep-dup",
        "none": r"the corpus .*none has no notes",
    }
    for (name, sentence), of_corpus in zip(sentences.items(), (few, alike, [])):
        write_corpus(of_corpus, tmp_path / name, source={}, filters=[], counts={})
        with pytest.raises(ConfigError, match=sentence):
            split_corpus(tmp_path / name, tmp_path / "out")
    assert split_corpus(tmp_path / "alike", tmp_path / "out", keep_duplicates_together=False)


@pytest.mark.parametrize("k", [None, 2])
def test_several_processes_write_the_same_split(tmp_path, monkeypatch, k):
    monkeypatch.setattr(corpus_module, "_GROUP_NOTES", 30)  # several row groups
    folder = corpus(tmp_path / "in", notes(200))
    groups = Corpus.open(folder).row_groups
    assert groups == 7
    one = split_corpus(folder, tmp_path / "one", k=k)
    parent, encode = os.getpid(), splits_module.encode_notes

    def encode_elsewhere(some):
        assert os.getpid() != parent
        return encode(some)

    monkeypatch.setattr(splits_module, "encode_notes", encode_elsewhere)
    two = split_corpus(folder, tmp_path / "two", k=k, workers=2)
    for left, right in zip(one, two, strict=True):
        assert (left.folder / NOTES).read_bytes() == (right.folder / NOTES).read_bytes()
        assert left.manifest == right.manifest


@pytest.mark.parametrize("texts", [True, False])
def test_summaries_of_a_corpus_are_those_of_its_notes(tmp_path, monkeypatch, texts):
    monkeypatch.setattr(corpus_module, "_GROUP_NOTES", 30)
    written = Corpus.open(corpus(tmp_path / "in", notes(100)))
    expected = summarize_notes(written.notes(), texts=texts)
    for workers in (1, 2):
        found = summarize_corpus(written, texts=texts, workers=workers).notes
        assert [replace(note, fingerprint=None) for note in found] == [replace(n, fingerprint=None) for n in expected]
        if texts:
            for note, other in zip(found, expected):
                assert note.fingerprint.digest == other.fingerprint.digest
                assert np.array_equal(note.fingerprint.shingles, other.fingerprint.shingles)
        else:
            assert {note.fingerprint for note in found} == {None}


def test_split_corpus_keeps_notes_and_records_the_step(tmp_path):
    folder = corpus(tmp_path / "in", notes(60))
    (written,) = split_corpus(folder, tmp_path / "out", seed=3)
    assert [replace(note, split=None) for note in written.notes()] == list(Corpus.open(folder).notes())
    step = written.manifest["filters"][-1]
    assert step["filter"] == "split"
    assert step["seed"] == 3
    assert step["corpus"] == Corpus.open(folder).hash
    assert written.manifest["filters"][0] == {"filter": "before"}
    assert written.manifest["counts"]["splits"] == {"train": 42, "dev": 9, "test": 9}


def test_k_splits_are_folders_and_a_corpus_may_be_split_in_place(tmp_path):
    folder = corpus(tmp_path / "in", notes(60))
    many = split_corpus(folder, tmp_path / "many", k=3)
    assert [one.folder.name for one in many] == ["split-00", "split-01", "split-02"]
    assert len({one.hash for one in many}) == 3
    (same,) = split_corpus(folder, folder)
    assert same.hash == many[0].hash == Corpus.open(folder).hash


def test_a_published_file_gives_the_splits_and_counts_what_does_not_match(tmp_path):
    all_notes = [replace(note, extra={"hadm_id": str(1000 + n)}) for n, note in enumerate(notes(6))]
    folder = corpus(tmp_path / "in", all_notes)
    table = pa.table({"_id": [1000, 1001, 1002, 1003, 7777], "split": ["train", "train", "val", "test", "test"]})
    feather.write_feather(table, tmp_path / "splits.feather")
    written = split_by_files(folder, tmp_path / "out", [tmp_path / "splits.feather"])
    assert [note.split for note in written.notes()] == ["train", "train", "dev", "test"]
    step = written.manifest["filters"][-1]
    assert (step["notes_left_out"], step["entries_without_note"]) == (2, 1)


def test_split_file_without_matching_notes_is_an_error(tmp_path):
    folder = corpus(tmp_path / "in", notes(6))
    (tmp_path / "splits.csv").write_text("id,split\nelse,train\n")
    with pytest.raises(DataError, match=r"none of the 1 ids in splits.csv is a note or an admission of"):
        split_by_files(folder, tmp_path / "out", [tmp_path / "splits.csv"])
    assert not (tmp_path / "out").exists()


def test_unknown_split_name_is_an_error_with_its_row(tmp_path):
    folder = corpus(tmp_path / "in", notes(6))
    (tmp_path / "splits.csv").write_text("id,split\nnote00000,train\nnote00001,holdout\n")
    with pytest.raises(DataError, match=r"splits.csv row 3: split must be one of train, dev, test; got 'holdout'"):
        split_by_files(folder, tmp_path / "out", [tmp_path / "splits.csv"])


CHAPTERS = "ACEFGIJKMNRSZ"


def chapter_notes(count: int, seed: int = 0, patients: int = 0) -> list[Note]:
    """Notes of patients with codes of one chapter each and a few codes of other chapters."""
    rng = np.random.default_rng(seed)
    all_notes = []
    for number in range(count):
        patient = int(rng.integers(patients)) if patients else number
        letters = [CHAPTERS[patient % len(CHAPTERS)]] * 4 + list(rng.choice(list(CHAPTERS), 2))
        codes = {Code("icd10cm", f"{letter}{rng.integers(10, 20)}") for letter in letters}
        text = " ".join(map(str, rng.integers(0, 5000, 20)))
        all_notes.append(Note(f"note{number:05d}", text, patient=f"p{patient}", codes=tuple(sorted(codes))))
    return all_notes


def skewness(roster: list[NoteSummary], site: dict[str, str]) -> float:
    """The mean distance (total variation) of the sites' code frequencies from the whole corpus's."""
    overall = Counter(code for row in roster for code in row.codes)
    by_site: dict[str, Counter] = defaultdict(Counter)
    for row in roster:
        by_site[site[row.id]].update(row.codes)
    total = overall.total()
    return float(
        np.mean(
            [sum(abs(c[code] / c.total() - overall[code] / total) for code in overall) / 2 for c in by_site.values()]
        )
    )


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["iid", "size", "dirichlet"]), st.integers(1, 6), st.integers(0, 10**6))
def test_no_patient_is_at_two_sites_and_no_site_is_empty(skew, sites, seed):
    all_notes = chapter_notes(120, seed, patients=60)
    site = assign_sites(summarize_notes(all_notes), sites, skew=skew, seed=seed)
    splits_of_patient = defaultdict(set)
    for note in all_notes:
        splits_of_patient[note.patient].add(site[note.id])
    assert all(len(names) == 1 for names in splits_of_patient.values())
    assert len(set(site.values())) == sites


def test_iid_sites_have_equal_sizes_and_code_distributions():
    roster = summarize_notes(chapter_notes(2000, patients=900))
    site = assign_sites(roster, 5)
    assert all(abs(count - 400) <= 5 for count in Counter(site.values()).values())
    dealt = {row.id: str(number) for row, number in zip(roster, np.random.default_rng(0).integers(5, size=2000))}
    assert skewness(roster, site) < 0.5 * skewness(roster, dealt)


def test_random_sites_have_equal_sizes_and_ignore_patients():
    roster = summarize_notes(notes(300, patients=90))
    site = assign_sites(roster, 7, skew="random", seed=1)
    sizes = Counter(site.values())
    assert len(sizes) == 7 and max(sizes.values()) - min(sizes.values()) <= 1
    assert site == assign_sites(roster, 7, skew="random", seed=1) != assign_sites(roster, 7, skew="random", seed=2)
    by_patient = {}
    for note in roster:
        by_patient.setdefault(note.patient, set()).add(site[note.id])
    assert max(map(len, by_patient.values())) > 1, "notes of a patient are drawn one by one"


def test_the_sizes_of_skewed_sites_follow_the_power_law():
    roster = summarize_notes(chapter_notes(2200))
    sizes = Counter(assign_sites(roster, 4, skew="size", exponent=1).values())
    shares = np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12)
    assert [sizes[f"site-0{number}"] / 2200 for number in range(4)] == pytest.approx(shares, abs=0.005)


def test_the_smaller_alpha_the_more_the_sites_differ_at_about_one_size():
    roster = summarize_notes(chapter_notes(1500))
    even = skewness(roster, assign_sites(roster, 5))
    skewed = []
    for alpha in (100, 1, 0.1):
        site = assign_sites(roster, 5, skew="dirichlet", alpha=alpha, seed=1)
        skewed.append(skewness(roster, site))
        assert all(abs(count - 300) < 60 for count in Counter(site.values()).values())
    assert even < skewed[0] < skewed[1] < skewed[2]
    assert skewed[2] > 0.3


def test_one_code_per_note_gives_the_usual_dirichlet_partition():
    codes = [Code("icd10cm", f"{letter}10") for letter in CHAPTERS[:10]]
    all_notes = [Note(f"n{n:04d}", f"{n}", codes=(codes[n % 10],)) for n in range(1000)]
    site = assign_sites(summarize_notes(all_notes), 5, skew="dirichlet", alpha=0.05, seed=2)
    largest = [max(Counter(site[note.id] for note in all_notes if note.codes[0] == code).values()) for code in codes]
    assert np.mean(largest) > 70


def test_existing_splits_keep_their_shares_at_each_site():
    all_notes = [
        replace(note, split="test" if number % 5 == 0 else "train") for number, note in enumerate(chapter_notes(1000))
    ]
    site = assign_sites(summarize_notes(all_notes), 4)
    for number in range(4):
        counts = Counter(note.split for note in all_notes if site[note.id] == f"site-0{number}")
        assert counts["test"] / counts.total() == pytest.approx(0.2, abs=0.02)


def test_min_notes_keeps_only_codes_with_enough_notes_for_each_site(tmp_path):
    common, rare = Code("icd10cm", "I10"), Code("icd10cm", "A00.0")
    evidence = (Evidence(rare, 0, 1),)
    all_notes = [Note(f"n{n:03d}", f"text {n}", codes=(common, rare) if n < 19 else (common,)) for n in range(100)]
    all_notes[0] = replace(all_notes[0], evidence=evidence)
    all_notes.append(Note("n999", "only the rare one", codes=(rare,)))
    write_corpus(all_notes, tmp_path / "in", source={}, filters=[], counts={})
    written = site_corpus(tmp_path / "in", tmp_path / "out", 7, min_notes=3)
    assert {code for note in written.notes() for code in note.codes} == {common}
    assert next(written.notes()).evidence == ()
    codes_step, sites_step = written.manifest["filters"]
    assert (codes_step["min_count"], codes_step["code_occurrences_left_out"], codes_step["notes_left_out"]) == (
        21,
        20,
        1,
    )
    assert (sites_step["sites"], sites_step["skew"]) == (7, "iid")
    assert len({note.site for note in written.notes()}) == 7
    with pytest.raises(ConfigError, match="no note is left for 7 sites: no code has 700 notes"):
        site_corpus(tmp_path / "in", tmp_path / "none", 7, min_notes=100)


@pytest.mark.parametrize("min_notes", [0, 3])
def test_sites_of_a_corpus_without_notes_raise(tmp_path, min_notes):
    write_corpus([], tmp_path / "in", source={}, filters=[], counts={})
    with pytest.raises(ConfigError, match=r"the corpus .*in has no notes"):
        site_corpus(tmp_path / "in", tmp_path / "out", 2, min_notes=min_notes)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sites": 2, "skew": "zipf"}, "skew must be one of iid, size, dirichlet, random; got 'zipf'"),
        ({"sites": 31}, r"the notes form 30 groups of .*, fewer than the 31 sites"),
        ({"sites": 0}, "sites must be at least 1; got 0"),
        ({"sites": 31, "skew": "random"}, "sites must be at most the number of notes, 30; got 31"),
        ({"sites": 2, "alpha": 0}, "alpha must be positive; got 0"),
    ],
)
def test_invalid_settings_raise_config_error(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        assign_sites(summarize_notes(chapter_notes(30)), **settings)


def test_old_name_of_iid_is_read_with_a_warning():
    summaries = summarize_notes(chapter_notes(40))
    with pytest.warns(FutureWarning, match="^the skew equal is now named iid$"):
        sites = assign_sites(summaries, 3, skew="equal")
    assert sites == assign_sites(summaries, 3, skew="iid")
