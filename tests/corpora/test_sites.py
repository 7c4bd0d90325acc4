from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import Code, ConfigError, Evidence, Note
from nosology.corpora.corpus import write_corpus
from nosology.corpora.roster import Row, read_roster
from nosology.corpora.sites import assign_sites, site_corpus

CHAPTERS = "ACEFGIJKMNRSZ"


def notes(count: int, seed: int = 0, patients: int = 0) -> list[Note]:
    """Notes of patients who each have one chapter of their own and a few codes of all others."""
    rng = np.random.default_rng(seed)
    held = []
    for number in range(count):
        patient = int(rng.integers(patients)) if patients else number
        letters = [CHAPTERS[patient % len(CHAPTERS)]] * 4 + list(rng.choice(list(CHAPTERS), 2))
        codes = {Code("icd10cm", f"{letter}{rng.integers(10, 20)}") for letter in letters}
        text = " ".join(map(str, rng.integers(0, 5000, 20)))
        held.append(Note(f"note{number:05d}", text, patient=f"p{patient}", codes=tuple(sorted(codes))))
    return held


def skewness(roster: list[Row], site: dict[str, str]) -> float:
    """The mean distance (total variation) of the sites' code frequencies from the whole corpus's."""
    whole = Counter(code for row in roster for code in row.codes)
    by_site: dict[str, Counter] = defaultdict(Counter)
    for row in roster:
        by_site[site[row.id]].update(row.codes)
    total = whole.total()
    return float(
        np.mean([sum(abs(c[code] / c.total() - whole[code] / total) for code in whole) / 2 for c in by_site.values()])
    )


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["equal", "size", "dirichlet"]), st.integers(1, 6), st.integers(0, 10**6))
def test_no_patient_is_ever_at_two_sites_and_no_site_is_empty(skew, sites, seed):
    held = notes(120, seed, patients=60)
    site = assign_sites(read_roster(held), sites, skew=skew, seed=seed)
    of_patient = defaultdict(set)
    for note in held:
        of_patient[note.patient].add(site[note.id])
    assert all(len(found) == 1 for found in of_patient.values())
    assert len(set(site.values())) == sites


def test_equal_sites_have_one_size_and_one_mix():
    roster = read_roster(notes(2000, patients=900))
    site = assign_sites(roster, 5)
    assert all(abs(count - 400) <= 5 for count in Counter(site.values()).values())
    dealt = {row.id: str(number) for row, number in zip(roster, np.random.default_rng(0).integers(5, size=2000))}
    assert skewness(roster, site) < 0.5 * skewness(roster, dealt)


def test_the_sizes_of_skewed_sites_follow_the_power_law():
    roster = read_roster(notes(2200))
    sizes = Counter(assign_sites(roster, 4, skew="size", exponent=1).values())
    shares = np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12)
    assert [sizes[f"site-0{number}"] / 2200 for number in range(4)] == pytest.approx(shares, abs=0.005)


def test_the_smaller_alpha_the_more_the_sites_differ_at_about_one_size():
    roster = read_roster(notes(1500))
    even = skewness(roster, assign_sites(roster, 5))
    skewed = []
    for alpha in (100, 1, 0.1):
        site = assign_sites(roster, 5, skew="dirichlet", alpha=alpha, seed=1)
        skewed.append(skewness(roster, site))
        assert all(abs(count - 300) < 60 for count in Counter(site.values()).values())
    assert even < skewed[0] < skewed[1] < skewed[2]
    assert skewed[2] > 0.3


def test_with_one_code_a_note_label_skew_is_the_usual_dirichlet_partition():
    codes = [Code("icd10cm", f"{letter}10") for letter in CHAPTERS[:10]]
    held = [Note(f"n{n:04d}", f"{n}", codes=(codes[n % 10],)) for n in range(1000)]
    site = assign_sites(read_roster(held), 5, skew="dirichlet", alpha=0.05, seed=2)
    largest = [max(Counter(site[note.id] for note in held if note.codes[0] == code).values()) for code in codes]
    assert np.mean(largest) > 70


def test_existing_splits_keep_their_shares_at_each_site():
    held = [replace(note, split="test" if number % 5 == 0 else "train") for number, note in enumerate(notes(1000))]
    site = assign_sites(read_roster(held), 4)
    for number in range(4):
        found = Counter(note.split for note in held if site[note.id] == f"site-0{number}")
        assert found["test"] / found.total() == pytest.approx(0.2, abs=0.02)


def test_a_code_stays_only_if_each_site_can_get_enough_notes_of_it(tmp_path):
    common, rare = Code("icd10cm", "I10"), Code("icd10cm", "A00.0")
    evidence = (Evidence(rare, 0, 1),)
    held = [Note(f"n{n:03d}", f"text {n}", codes=(common, rare) if n < 19 else (common,)) for n in range(100)]
    held[0] = replace(held[0], evidence=evidence)
    held.append(Note("n999", "only the rare one", codes=(rare,)))
    write_corpus(held, tmp_path / "in", source={}, filters=[], counts={})
    written = site_corpus(tmp_path / "in", tmp_path / "out", 7, min_notes=3)
    assert {code for note in written.notes() for code in note.codes} == {common}
    assert next(written.notes()).evidence == ()
    kept, dealt = written.manifest["filters"]
    assert (kept["min_count"], kept["code_occurrences_left_out"], kept["notes_left_out"]) == (21, 20, 1)
    assert (dealt["sites"], dealt["skew"]) == (7, "equal")
    assert len({note.site for note in written.notes()}) == 7
    with pytest.raises(ConfigError, match="no note is left for 7 sites: no code has 700 notes"):
        site_corpus(tmp_path / "in", tmp_path / "none", 7, min_notes=100)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sites": 2, "skew": "zipf"}, "skew must be one of equal, size, dirichlet; got 'zipf'"),
        ({"sites": 31}, r"sites must lie between 1 and the 30 patients .*; got 31"),
        ({"sites": 0}, "sites must lie between 1 and"),
        ({"sites": 2, "alpha": 0}, "alpha must be positive; got 0"),
    ],
)
def test_wrong_settings_are_answered_in_a_sentence(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        assign_sites(read_roster(notes(30)), **settings)
