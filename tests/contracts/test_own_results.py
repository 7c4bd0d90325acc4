"""Results and caches that a later command reads: a damaged or edited file never gives an error for programmers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.audit.audit_folder import FINDINGS, AuditFolder
from nosology.audit.auditor import BilledEncounter, load_auditor
from nosology.audit.billed_codes import Bill
from nosology.audit.finding import BilledCode
from nosology.audit.support_model import SupportModel
from nosology.audit.support_training import fit_auditor
from nosology.claims.drg_weights import read_drg_weights
from nosology.claims.gap_records import GapFinder, PlacedNote
from nosology.claims.gap_report import RECORDS, GapFolder
from nosology.codes.sources import cached_json
from nosology.core import Code, Note
from nosology.corpora.corpus import write_corpus
from nosology.corpora.prepare import built_in_recipes, load_corpus_recipe
from nosology.encoders.state_cache import EncoderStateCache
from nosology.models.word_tokenizer import _stored_vectors
from nosology.training.curves import COLUMNS, TrainingCurves
from nosology.workbench.database import open_database
from tests.audit.test_support_model import _notes
from tests.claims.test_drg_weights import CSV, TEXT
from tests.contracts.damaged_files import SECRET, changed, contents, damaged, edited, few, outcome, restore

NOTE = Note(
    "a",
    f"DISCHARGE DIAGNOSES:\n1. Pneumonia\n2. Heart failure, {SECRET}\n",
    extra={"setting": "inpatient", "sex": "F", "age": 78, "date": "2026-02-01"},
)


@pytest.fixture(scope="module")
def records():
    """The record of an audit, and of documentation gaps."""
    bill = Bill((BilledCode(Code("icd10cm", "I10")), BilledCode(Code("icd10cm", "J18.9"))), "coder", {})
    auditor = load_auditor("day-one", "claim", None, {})
    finder = GapFinder(lambda note: next(auditor.coder.code_all([note])))
    return auditor(BilledEncounter(NOTE, bill, "row 1")), finder(PlacedNote(NOTE, "row 1"))


@pytest.mark.parametrize("kind", [AuditFolder, GapFolder])
@few
@given(data=st.data())
def test_records_of_encounters(records, tmp_path_factory, kind, data):
    """A record that was changed ends the command that continues the run with a sentence."""
    folder = tmp_path_factory.mktemp("records")
    record, name = (records[0], FINDINGS) if kind is AuditFolder else (records[1], RECORDS)
    assert record.get("findings") or record.get("gaps")
    kind(folder, {"package": "1"}).append(record)
    if data.draw(st.booleans()):
        content = json.dumps(data.draw(edited(record))).encode() + b"\n"
    else:
        content = data.draw(damaged((folder / name).read_bytes()))
    (folder / name).write_bytes(content)
    outcome(lambda: kind(folder, {"package": "1"}).finish({"repeated_ids": 0, "malformed_rows": 0}))


@pytest.fixture(scope="module")
def auditor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auditor")
    corpus = write_corpus(_notes(40, 0), folder / "corpus", source={}, filters=[], counts={})
    fit_auditor("day-one", corpus).save(folder / "auditor")
    return folder / "auditor"


@few
@given(data=st.data())
def test_auditor(auditor, data):
    original = contents(auditor)
    path = data.draw(st.sampled_from(sorted(original)))
    path.write_bytes(data.draw(changed(original[path])))
    outcome(SupportModel.load, auditor)
    restore(original)


@few
@given(data=st.data())
def test_weights_of_drgs(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "drg_weights"
    path.write_bytes(data.draw(changed(data.draw(st.sampled_from([TEXT, CSV])).encode())))
    found = outcome(read_drg_weights, path)
    assert found is None or all(0 < weight.weight < 100 for weight in found[1].values())


@few
@given(data=st.data())
def test_curves_of_a_run(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    rows = [",".join(COLUMNS), "1,0,0.5,0.1,9.0", "2,0,0.4,0.1,9.0", ""]
    (folder / "curves.csv").write_bytes(data.draw(changed("\n".join(rows).encode())))
    if (curves := outcome(TrainingCurves, folder, 1)) is not None:
        curves.close()


@few
@given(data=st.data())
def test_cache_of_code_tables(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cache")
    (folder / "source").write_text("a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOSOLOGY_CACHE", str(folder))
        assert cached_json("table", [folder / "source"], lambda: {"a": 1}) == {"a": 1}
        path = next((folder / "codes").iterdir())
        path.write_bytes(data.draw(damaged(b"{" + b" " * 50 + b"}")))
        assert cached_json("table", [folder / "source"], lambda: {"a": 1}) == {"a": 1}


@few
@given(data=st.data())
def test_corpus_recipe(tmp_path_factory, data):
    text = built_in_recipes()[data.draw(st.sampled_from(sorted(built_in_recipes())))].read_bytes()
    path = tmp_path_factory.getbasetemp() / "recipe.toml"
    path.write_bytes(data.draw(changed(text)))
    outcome(load_corpus_recipe, path)


@few
@given(data=st.data())
def test_word_vectors_of_a_run(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("vectors")
    expected = _stored_vectors(folder, "k" * 64, lambda: torch.ones(2, 3))
    path = next(folder.glob("*.safetensors"))
    path.write_bytes(data.draw(changed(path.read_bytes())))
    assert torch.equal(_stored_vectors(folder, "k" * 64, lambda: torch.ones(2, 3)), expected)


@few
@given(data=st.data())
def test_cache_of_encoder_states(tmp_path_factory, data):
    folder, texts = tmp_path_factory.mktemp("states"), [np.arange(3), np.arange(5)]

    def encode(missing):
        yield np.arange(len(missing)), [np.full((len(text), 2), len(text), np.float16) for text in missing]

    EncoderStateCache(folder, "key", 2).add(texts, encode)
    original = contents(folder / "key")
    path = data.draw(st.sampled_from(sorted(original)))
    path.write_bytes(data.draw(changed(original[path])))
    states = outcome(lambda: EncoderStateCache(folder, "key", 2).add(texts, encode))
    assert states is None or states.spans[:, 1].tolist() == [3, 5]


@settings(few, max_examples=25)
@given(data=st.data())
def test_store(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("store") / "store.db"
    open_database(str(path)).dispose()
    path.write_bytes(data.draw(changed(path.read_bytes())))
    engine = outcome(open_database, str(path))
    if engine is not None:
        engine.dispose()
