"""The support model: planted errors, statistics of bills, what it finds in bills that it has not seen, its files."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace

import numpy as np
import pytest

from nosology.audit.auditor import load_auditor
from nosology.audit.bill_context import CONTEXT, context_rows
from nosology.audit.bill_statistics import BillStatistics
from nosology.audit.description_similarity import SIMILARITIES, DescriptionSimilarity
from nosology.audit.encounter_audit import audit_encounter
from nosology.audit.finding import BilledCode
from nosology.audit.planted_errors import plant_errors
from nosology.audit.support_features import FEATURES, MAX_SUGGESTIONS, NoteFeatures
from nosology.audit.support_model import Judgement, SupportModel, coder_fingerprint
from nosology.audit.support_training import MIN_NOTES, best_threshold, fit_auditor
from nosology.cli import main
from nosology.config import load_recipe
from nosology.core import BundleError, Code, ConfigError, DataError, EvidenceSpan, Note, Suggestion
from nosology.corpora.corpus import write_corpus
from nosology.models.lexicon.lexicon_settings import LearnSettings, LexiconRecipe
from nosology.models.train import train
from nosology.serving.coder import Coder

DISEASES = {
    "Essential hypertension": "I10", "Gout": "M10.9", "Asthma": "J45.909", "Hypothyroidism": "E03.9",
    "Iron deficiency anemia": "D50.9", "Migraine": "G43.909", "Psoriasis": "L40.9", "Crohn's disease": "K50.90",
    "Osteoporosis": "M81.0", "Glaucoma": "H40.9",
}  # fmt: skip


def _notes(count: int, seed: int) -> list[Note]:
    chance, notes = random.Random(seed), []
    for number in range(count):
        names = chance.sample(sorted(DISEASES), 5)
        text = "ASSESSMENT:\n" + "\n".join(f"{place}. {name}" for place, name in enumerate(names[:4], 1))
        text += f"\nNo {names[4].lower()}.\n"
        codes = tuple(Code("icd10cm", DISEASES[name]) for name in names[:4])
        notes.append(Note(f"n{number}", text, patient=f"p{number}", split="train", codes=codes))
    return notes


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auditor") / "corpus"
    return write_corpus(_notes(40, 0), folder, source={}, filters=[], counts={})


@pytest.fixture(scope="module")
def model(corpus):
    return fit_auditor("day-one", corpus)


@pytest.fixture(scope="module")
def coder():
    return Coder.for_claims("day-one", systems=["icd10cm"])


def test_each_kind_of_error_is_planted_as_it_says():
    gold, others = ["I10", "M10.9", "J45.909", "E03.9"], ["M10.00", "D50.9"]
    for seed in range(20):
        dropped, foreign, sibling, moved = (
            plant_errors(kind, gold, others, random.Random(seed)) for kind in ("dropped", "foreign", "sibling", "moved")
        )
        assert set(gold) - set(dropped.codes) == dropped.planted and len(dropped.planted) == 1
        assert foreign.codes == [*gold, "D50.9"] and foreign.planted == {"D50.9"}  # M10 is a category of the note
        (new,) = sibling.planted or {"I10"}  # I10 has no sibling
        assert len(sibling.codes) == 4 and new[:3] in {code[:3] for code in gold}
        assert sorted(moved.codes) == sorted(gold) and moved.codes[0] != "I10" and moved.planted == {moved.codes[0]}
    assert plant_errors("untouched", gold, others, random.Random(0)) == (gold, set())


def test_codes_of_one_bill_have_affinity_and_the_numbers_survive_a_file():
    known = BillStatistics.count([(["I10", "N18.4"], {"kidney"}), (["I10", "N18.4"], {"kidney"}), (["M10.9"], {"toe"})])
    assert known.code_affinity("N18.4", "I10") == known.code_affinity("I10", "N18.4") > 0
    assert known.category_affinity("I10", "M10") < 0
    assert known.topic({"kidney"}, "N18") > known.topic({"toe"}, "N18") == 0
    assert known.rarity("toe") > known.rarity("kidney")
    assert BillStatistics.from_arrays(json.loads(json.dumps(known.names())), known.arrays()) == known
    assert BillStatistics.from_arrays(BillStatistics().names(), BillStatistics().arrays()) == BillStatistics()
    between = known.category_affinity("N18", "I10")
    of_codes = known.affinities(["N18.4", "I10", "N18.5"]).tolist()
    assert of_codes == [
        [0, between, 0],
        [between, 0, between],
        [0, between, 0],
    ]


def test_suspect_codes_count_less_for_the_others_and_an_empty_bill_has_no_rows():
    affinities = np.array([[0.0, 2.0, 1.0], [2.0, 0.0, -1.0], [1.0, -1.0, 0.0]])
    rows = dict(zip(CONTEXT, context_rows(np.array([0.1, 0.9, 0.2]), affinities).T))
    assert rows["trust"] == pytest.approx([0.45, 0.85, 0.5])
    assert rows["more_suspect"].tolist() == [2, 0, 1] and rows["suspected"] == pytest.approx([1.2] * 3)
    assert rows["trusted_sum"] == pytest.approx([2 * 0.1 + 0.8, 2 * 0.9 - 0.8, 0.9 - 0.1])
    assert rows["suspect_affinity"] == pytest.approx([1.8, 0.2, 0.1])
    assert context_rows(np.zeros(0), np.zeros((0, 0))).shape == (0, len(CONTEXT))


def test_features_of_a_code_do_not_depend_on_its_own_place_in_the_bill(coder):
    (note,) = _notes(1, 5)
    features = NoteFeatures(note.text, coder.code(note.text, MAX_SUGGESTIONS), BillStatistics())
    codes = [code.code for code in note.codes]
    rows = features.rows(codes, codes)
    assert rows.shape == (4, len(FEATURES)) and np.isfinite(rows).all()
    assert np.allclose(rows[::-1], features.rows(codes[::-1], codes[::-1]))


def test_wrong_and_missing_codes_of_new_notes_are_found(model, coder):
    right, wrong, missing = [], [], []
    for note in _notes(10, 1):
        gold = [code.code for code in note.codes]
        foreign = next(code for code in DISEASES.values() if code not in gold)
        suggestions = coder.code(note.text, MAX_SUGGESTIONS)
        judged = model.judge(note.text, [*gold[1:], foreign], suggestions)
        right += [judged.unsupported[code] for code in gold[1:]]
        wrong.append(judged.unsupported[foreign])
        missing.append(judged.is_found("not_billed", gold[0]))
    assert min(wrong) > max(right) and min(wrong) >= model.thresholds["unsupported"]
    assert sum(missing) >= 9


def test_a_stored_auditor_judges_alike_and_refuses_other_coders(model, coder, tmp_path):
    model.save(tmp_path / "auditor")
    (note,) = _notes(1, 2)
    bill, suggestions = ["I10", "M10.9", "K50.90"], coder.code(note.text, MAX_SUGGESTIONS)
    again = SupportModel.for_coder(tmp_path / "auditor", "day-one")
    assert again.judge(note.text, bill, suggestions) == model.judge(note.text, bill, suggestions)
    stored = json.loads((tmp_path / "auditor" / "auditor.json").read_text("utf-8"))
    (tmp_path / "auditor" / "auditor.json").write_text(json.dumps(stored | {"coder": "x"}), encoding="utf-8")
    with pytest.raises(ConfigError, match="another coder"):
        SupportModel.for_coder(tmp_path / "auditor", "day-one")
    (tmp_path / "auditor" / "auditor.json").write_text(json.dumps(stored | {"thresholds": {}}), encoding="utf-8")
    with pytest.raises(BundleError, match="cannot be read"):
        SupportModel.load(tmp_path / "auditor")
    with pytest.raises(BundleError, match="audit-fit"):
        SupportModel.load(tmp_path)


def test_a_lexicon_has_an_auditor_from_its_own_train_notes(corpus, tmp_path):
    learn = LearnSettings(folds=2, rounds=10, forest=5, min_leaf=5)
    train(LexiconRecipe(learn=learn), [corpus], tmp_path / "bundle")
    model = fit_auditor(tmp_path / "bundle", corpus)
    assert model.coder == coder_fingerprint(tmp_path / "bundle") and model.statistics.notes == 40
    assert model.measured["foreign"]["recall"] > 0.9 and model.measured["untouched"]["codes"] == 160
    (note,) = _notes(1, 4)
    gold = [code.code for code in note.codes]
    foreign = next(code for code in DISEASES.values() if code not in gold)
    suggestions = Coder.for_claims(tmp_path / "bundle").code(note.text, MAX_SUGGESTIONS)
    judged = model.judge(note.text, [*gold, foreign], suggestions)
    assert judged.unsupported[foreign] > max(judged.unsupported[code] for code in gold)


def test_a_coder_that_knows_the_notes_and_has_no_folds_is_refused(corpus, tmp_path):
    train(load_recipe("linear", []), [corpus], tmp_path / "bundle")
    with pytest.raises(ConfigError, match="linear needs a corpus that it was not trained on"):
        fit_auditor(tmp_path / "bundle", corpus)
    known = replace(_notes(1, 0)[0], id="another id")
    another = write_corpus([*_notes(39, 8), known], tmp_path / "another", source={}, filters=[], counts={})
    with pytest.raises(ConfigError, match="was not trained on"):  # one of its notes has a text that the coder knows
        fit_auditor(tmp_path / "bundle", another)


def test_few_notes_are_refused(tmp_path):
    few = write_corpus(_notes(MIN_NOTES - 1, 0), tmp_path / "few", source={}, filters=[], counts={})
    with pytest.raises(DataError, match=f"needs {MIN_NOTES} notes .* has {MIN_NOTES - 1}"):
        fit_auditor("day-one", few)


def test_findings_of_a_judgement_have_its_probabilities_and_come_by_confidence():
    text = "Gout of the toe and weak pump, no asthma."
    suggestions = [
        Suggestion("icd10cm", name, "", 0.5, True, (EvidenceSpan(*span, text[slice(*span)], 0.5),))
        for name, span in {"M10.9": (0, 4), "I50.9": (20, 29)}.items()
    ]
    billed = [BilledCode(Code("icd10cm", code)) for code in ("I50.23", "J45.909")]
    judgement = Judgement(
        unsupported={"I50.23": 0.1, "J45.909": 0.4},
        other_code={"I50.23": 0.7, "J45.909": 0.9},  # no other code of the category of asthma is suggested
        not_billed={"M10.9": 0.6, "I50.9": 0.8},
        thresholds={"unsupported": 0.3, "other_code": 0.5, "not_billed": 0.5},
    )
    result = audit_encounter("n", text, billed, suggestions, {}, reference="coder", judgement=judgement)
    found = [(item.kind, item.code.code, item.instead, item.confidence) for item in result.findings]
    assert found == [
        ("more_specific", "I50.23", "I50.9", 0.7),
        ("not_billed", "M10.9", "", 0.6),
        ("unsupported", "J45.909", "", 0.4),
    ]
    assert all(item.evidence for item in result.findings) and result.findings[2].rule == "negated"
    sure = audit_encounter("n", text, billed, suggestions, {}, judgement=judgement, min_confidence=0.65)
    assert [item.code.code for item in sure.findings if item.kind != "conflict"] == ["I50.23"]


@pytest.mark.parametrize(
    ("mention", "rule"), [("No asthma.", "negated"), ("History of asthma, resolved years ago.", "resolved")]
)
def test_a_code_that_is_denied_or_over_is_an_error_unless_the_coders_of_the_corpus_code_it(model, mention, rule):
    text = f"Gout of the toe. {mention}"
    start = text.index("asthma")
    suggestions = [Suggestion("icd10cm", "J45.909", "", 0.9, True, (EvidenceSpan(start, start + 6, "asthma", 0.9),))]
    billed = [BilledCode(Code("icd10cm", code)) for code in ("M10.9", "J45.909")]
    thresholds = {"unsupported": 0.3, "other_code": 0.5, "not_billed": 0.5}
    for denied_counts, expected in ((True, [("unsupported", "J45.909", rule)]), (False, [])):
        judgement = Judgement({}, {}, {}, thresholds, denied_counts)
        result = audit_encounter("n", text, billed, suggestions, {}, reference="coder", judgement=judgement)
        found = [(item.kind, item.code.code, item.rule) for item in result.findings if item.kind != "conflict"]
        assert found == expected
    assert model.denied_counts and model.measured["untouched"]["denied_or_over"] == 0
    measured = {"untouched": model.measured["untouched"] | {"denied_or_over": 0.05}}
    assert not replace(model, measured=measured).denied_counts


def test_the_best_threshold_counts_errors_that_have_no_row():
    probabilities, target = np.array([0.9, 0.8, 0.3, 0.2]), np.array([True, True, False, True])
    assert best_threshold(probabilities, target, 3) == 0.2
    assert best_threshold(probabilities[:3], target[:3], 2) == 0.8


def test_the_lowest_threshold_with_a_precision_is_chosen_and_the_best_f1_where_it_finds_little():
    probabilities, target = np.array([0.9, 0.8, 0.7, 0.6, 0.5]), np.array([True, True, True, False, True])
    assert best_threshold(probabilities, target, 4, precision=0.9) == 0.7
    assert best_threshold(probabilities, target, 4, precision=0.8) == best_threshold(probabilities, target, 4) == 0.5
    few = np.array([True, False, True, True, True])  # at a precision of 0.9 it finds one of four
    assert best_threshold(probabilities, few, 4, precision=0.9) == best_threshold(probabilities, few, 4) == 0.5
    assert best_threshold(np.zeros(0), np.zeros(0, dtype=bool), 3, precision=0.9) == 1.0


def test_a_threshold_counts_all_codes_of_its_probability():
    probabilities = np.array([0.9, 0.8, 0.7, 0.5, 0.5, 0.5])
    target = np.array([True, True, True, True, False, False])
    assert best_threshold(probabilities, target, 4, precision=0.9) == 0.7
    assert best_threshold(probabilities, target, 4) == 0.7


def test_an_embedder_finds_descriptions_in_other_words_and_survives_a_file(tmp_path):
    notes = _notes(3, 6)
    similarity = DescriptionSimilarity.fit("minilm", DISEASES.values(), [note.text for note in notes])
    vectors = similarity.of_note("The skin shows scaly psoriatic plaques. Blood pressure was high.")
    codes = ["L40.9", "I10", "H40.9", "K50.90"]
    rows = dict(zip(SIMILARITIES, similarity.rows(vectors, codes, ["L40.9", "I10"]).T))
    assert set(np.argsort(-rows["above_usual"])[:2].tolist()) == {0, 1}
    assert (rows["near_windows"] <= rows["window_cosine"] + 1e-6).all()
    alone = similarity.rows(vectors, ["L40.9"], ["L40.9"])[0]
    assert alone[SIMILARITIES.index("billed_cosine")] == 0 and np.allclose(
        alone[:4], [rows[name][0] for name in SIMILARITIES[:4]]
    )
    assert similarity.rows(vectors, [], codes).shape == (0, len(SIMILARITIES))
    assert np.isfinite(similarity.rows(similarity.of_note(""), ["ZZZ.9", "I10"], ["I10"])).all()
    stored = DescriptionSimilarity.from_arrays("minilm", similarity.arrays())
    assert np.allclose(stored.rows(vectors, codes, codes), similarity.rows(vectors, codes, codes), atol=1e-6)


def test_an_auditor_with_an_embedder_is_fitted_stored_and_used(corpus, coder, tmp_path):
    model = fit_auditor("day-one", corpus, embedder="minilm")
    model.save(tmp_path / "auditor")
    again = SupportModel.load(tmp_path / "auditor")
    assert again.similarity and again.similarity.embedder == "minilm" and again.measured == model.measured
    (note,) = _notes(1, 7)
    gold = [code.code for code in note.codes]
    foreign = next(code for code in DISEASES.values() if code not in gold)
    judged = again.judge(note.text, [*gold, foreign], coder.code(note.text, MAX_SUGGESTIONS))
    assert judged.unsupported[foreign] > max(judged.unsupported[code] for code in gold)


def test_a_missing_embedder_ends_the_audit_before_it_starts(model, tmp_path):
    similarity = DescriptionSimilarity(str(tmp_path / "no model"), np.zeros(385, np.float32))
    replace(model, similarity=similarity).save(tmp_path / "auditor")
    with pytest.raises(ConfigError, match="embedder"):
        load_auditor("day-one", "coder", None, {}, tmp_path / "auditor")


def test_notes_without_different_codes_are_refused(tmp_path):
    notes = [replace(note, codes=_notes(1, 0)[0].codes) for note in _notes(MIN_NOTES + 5, 0)]
    corpus = write_corpus(notes, tmp_path / "same", source={}, filters=[], counts={})
    with pytest.raises(DataError, match="no errors of kind foreign can be planted"):
        fit_auditor("day-one", corpus)


def test_the_commands_fit_and_use_an_auditor(corpus, tmp_path, monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["nosology", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out

    assert "40 notes" in run("audit-fit", "--corpus", corpus.folder, "--out", tmp_path / "auditor")
    (note,) = _notes(1, 3)
    gold = [code.code for code in note.codes]
    foreign = next(code for code in DISEASES.values() if code not in gold)
    (tmp_path / "notes.jsonl").write_text(json.dumps({"id": "a", "text": note.text}), encoding="utf-8")
    (tmp_path / "billed.csv").write_text("id,code\n" + "\n".join(f"a,{it}" for it in [*gold[1:], foreign]) + "\n")
    files = "--notes", tmp_path / "notes.jsonl", "--billed", tmp_path / "billed.csv"
    run("audit", *files, "--out", tmp_path / "report", "--auditor", tmp_path / "auditor", "--reference", "coder")
    record = json.loads((tmp_path / "report" / "findings.jsonl").read_text("utf-8"))
    kinds = {item["code"]: item["kind"] for item in record["findings"]}
    assert (kinds[foreign], kinds[gold[0]]) == ("unsupported", "not_billed")
