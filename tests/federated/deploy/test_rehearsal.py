"""Tests of a rehearsal on simulated notes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict

from nosology.config import load_recipe
from nosology.core import FederationError
from nosology.corpora.corpus import Corpus
from nosology.federated.deploy.rehearsal import rehearsal_settings, write_rehearsal_corpus
from nosology.federated.rounds.client_app import read_recipe
from nosology.federated.rounds.messages import make_content
from tests.federated.small_hospitals import recipe


def test_every_site_has_its_own_simulated_notes(tmp_path):
    notes = {
        site: list(Corpus.open(write_rehearsal_corpus(site, 40, tmp_path / site)).notes()) for site in ("anna", "berta")
    }
    assert not {note.text for note in notes["anna"]} & {note.text for note in notes["berta"]}
    for part in notes.values():
        assert {note.split for note in part} == {"train", "dev", "test"} and all(len(n.text) <= 400 for n in part)
        splits = {(note.patient, note.split) for note in part}
        assert len(splits) == len({patient for patient, _ in splits})  # a patient is in one split
        counts = Counter(code for note in part if note.split == "train" for code in set(note.codes))
        assert counts.most_common(1)[0][1] >= 10  # a site reports codes of at least 10 notes


def test_rehearsals_and_real_runs_do_not_mix():
    assert load_recipe("heads-mlp", rehearsal_settings(3, 2)).federation.rehearsal
    contexts = {name: Context(0, 0, {"rehearsal": name}, RecordDict(), {}) for name in ("", "yes")}
    messages = {
        value: SimpleNamespace(content=make_content(recipe=recipe(rehearsal=value).model_dump(mode="json")))
        for value in (False, True)
    }
    assert read_recipe(messages[False], contexts[""]) and read_recipe(messages[True], contexts["yes"])
    with pytest.raises(FederationError, match="the site has real notes and takes no part in a rehearsal"):
        read_recipe(messages[True], contexts[""])
    with pytest.raises(FederationError, match="rehearses with simulated notes and takes no part in a real run"):
        read_recipe(messages[False], contexts["yes"])
