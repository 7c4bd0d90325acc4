"""The support model: planted errors, statistics of bills, what it finds in bills that it has not seen, its files."""

from __future__ import annotations

import json
import random
import sys

import numpy as np
import pytest

from nosology.audit.bill_statistics import BillStatistics
from nosology.audit.encounter_audit import audit_encounter
from nosology.audit.finding import BilledCode
from nosology.audit.planted_errors import plant
from nosology.audit.support_features import FEATURES, MAX_SUGGESTIONS, NoteFeatures
from nosology.audit.support_model import Judgement, SupportModel, coder_fingerprint
from nosology.audit.support_training import best_threshold, fit_auditor
from nosology.cli import main
from nosology.config import load_recipe
from nosology.core import BundleError, Code, ConfigError, EvidenceSpan, Note, Suggestion
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
            plant(kind, gold, others, random.Random(seed)) for kind in ("dropped", "foreign", "sibling", "moved")
        )
        assert set(gold) - set(dropped.codes) == dropped.planted and len(dropped.planted) == 1
        assert foreign.codes == [*gold, "D50.9"] and foreign.planted == {"D50.9"}  # M10 is a category of the note
        (new,) = sibling.planted or {"I10"}  # I10 has no sibling
        assert len(sibling.codes) == 4 and new[:3] in {code[:3] for code in gold}
        assert sorted(moved.codes) == sorted(gold) and moved.codes[0] != "I10" and moved.planted == {moved.codes[0]}
    assert plant("untouched", gold, others, random.Random(0)) == (gold, set())


def test_codes_of_one_bill_have_affinity_and_the_numbers_survive_a_file():
    known = BillStatistics.count([(["I10", "N18.4"], {"kidney"}), (["I10", "N18.4"], {"kidney"}), (["M10.9"], {"toe"})])
    assert known.code_affinity("N18.4", "I10") == known.code_affinity("I10", "N18.4") > 0
    assert known.category_affinity("I10", "M10") < 0
    assert known.topic({"kidney"}, "N18") > known.topic({"toe"}, "N18") == 0
    assert known.rarity("toe") > known.rarity("kidney")
    assert BillStatistics.from_json(json.loads(json.dumps(known.to_json()))) == known


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


def test_the_best_threshold_counts_errors_that_have_no_row():
    probabilities, target = np.array([0.9, 0.8, 0.3, 0.2]), np.array([True, True, False, True])
    assert best_threshold(probabilities, target, 3) == 0.2
    assert best_threshold(probabilities[:3], target[:3], 2) == 0.8


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
