"""A trained lexicon coder in the workbench."""

from fastapi.testclient import TestClient

from nosology.config import load_recipe
from nosology.corpora.corpus import write_corpus
from nosology.models.train import train
from nosology.workbench.app import create_app
from nosology.workbench.server_settings import ServerSettings
from tests.conftest import small_notes
from tests.workbench.conftest import NOTE, fill_people
from tests.workbench.test_app import HEART, ApiClient


def test_a_trained_lexicon_suggests_codes_with_evidence(tmp_path):
    corpus = write_corpus(small_notes(60), tmp_path / "corpus", source={}, filters=[], counts={})
    recipe = load_recipe("lexicon", ["learn.rounds=10", "learn.forest=5", "learn.folds=2"])
    train(recipe, [corpus], tmp_path / "bundle")
    tokens = fill_people(str(tmp_path / "store.db"))
    app = create_app(ServerSettings(bundle=tmp_path / "bundle", store=str(tmp_path / "store.db")))
    with TestClient(app, base_url="http://localhost") as client:
        ann = ApiClient(client, tokens["ann"])
        case = ann.get(f"/notes/{ann.note('one')}").json()
    suggested = {f"{item['system']}:{item['code']}": item for item in case["suggestions"]}
    words = [NOTE[span["start"] : span["end"]] for span in suggested[HEART]["evidence"]]
    assert suggested[HEART]["accepted"]
    assert "heart" in " ".join(words)
