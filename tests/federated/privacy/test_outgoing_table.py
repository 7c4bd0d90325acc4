"""The table in docs/privacy.md of what leaves a site is that of real messages."""

from __future__ import annotations

import pytest

from nosology.federated.rounds.learner import LEARNERS
from nosology.federated.rounds.messages import make_content
from tests.federated.outgoing_table import END, PAGE, START, describe, replace_table, tables
from tests.federated.small_hospitals import recipe, sites


def test_page_has_the_table_of_the_messages(tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    for name, table in tables(tmp_path).items():
        shown = page.partition(START.format(name))[2].partition(END.format(name))[0].strip()
        assert shown == table.strip(), "run `python -m tests.federated.outgoing_table`"
        assert replace_table(page, name, table) == page


def test_kinds_with_the_messages_of_words():
    """The table of words is made with CAML."""
    assert {kind for kind, learner in LEARNERS.items() if learner == LEARNERS["caml"]} == {"caml", "laat", "dual_laat"}


def test_a_new_field_is_noticed(tmp_path, monkeypatch):
    def with_more(*arguments, **values):
        return make_content(*arguments, **values | ({"patients": 7} if "metadata" in values else {}))

    monkeypatch.setattr("nosology.federated.rounds.messages.make_content", with_more)
    with pytest.raises(KeyError, match=r"a site sends 'patients' in query\.metadata: describe it in FIELDS"):
        describe(lambda _: sites(2), recipe("mlp", 1), tmp_path, {})


def test_noise_that_is_missing_is_noticed(tmp_path, monkeypatch):
    """Weights with record noise are random; without the noise they would be exact."""
    private = recipe("mlp", 1, privacy={"record_noise": 1.0})
    assert describe(lambda _: sites(2), private, tmp_path / "noise", {})["train", "weights"] == "random"
    plain = recipe("mlp", 1)
    assert describe(lambda _: sites(2), plain, tmp_path / "plain", {})["train", "weights"] == "constant"  # same notes


def test_page_must_have_the_marks():
    with pytest.raises(ValueError, match="has no marks of the table heads"):
        replace_table("# Privacy\n", "heads", "")
