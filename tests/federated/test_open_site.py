"""A site as a node's config names it."""

from __future__ import annotations

import pytest
from flwr.app import Context, RecordDict

from nosology.core import ConfigError
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.client_app import open_site


def context(**config: str) -> Context:
    return Context(1, 1, {name.replace("_", "-"): value for name, value in config.items()}, RecordDict(), {})


def test_a_site_that_codes_with_some_codes_alone_names_no_others(small_corpus, tmp_path):
    (tmp_path / "codes.csv").write_text("code,system\nI50.9,icd10cm\nJ18.9,icd10cm\n")
    told = {"site_name": "a", "corpus": str(small_corpus.folder), "cache": str(tmp_path / "vectors")}
    every = open_site(context(**told), FederatedHeadsRecipe())
    some = open_site(context(**told, codes=str(tmp_path / "codes.csv")), FederatedHeadsRecipe())
    assert {code.code for code in some.facts(1).codes} == {"I50.9", "J18.9"}
    assert len(every.facts(1).codes) == 6
    labels = FederatedHeadsRecipe().labels.model_copy(update={"systems": ["icd10pcs"]})
    other = open_site(context(**told), FederatedHeadsRecipe(labels=labels))
    assert {code.system for code in other.facts(1).codes} == {"icd10pcs"}


def test_programs_of_an_embedder_run_only_where_the_site_allows_them(small_corpus, tmp_path):
    trusting = FederatedHeadsRecipe.model_validate({"embedder": {"trust_remote_code": True}})
    told = {"site_name": "a", "corpus": str(small_corpus.folder), "cache": str(tmp_path / "vectors")}
    with pytest.raises(ConfigError, match="has no trust-remote-code"):
        open_site(context(**told), trusting)
    with pytest.raises(ConfigError, match="must name corpus"):
        open_site(context(site_name="a"), FederatedHeadsRecipe())
