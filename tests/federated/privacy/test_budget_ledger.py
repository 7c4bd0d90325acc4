"""Tests of the privacy budget that a site keeps over all runs of its notes."""

from __future__ import annotations

import math
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nosology.cli import app
from nosology.config import load_federated_recipe
from nosology.core import ConfigError, DataError, FederationError
from nosology.corpora.corpus import write_corpus
from nosology.federated.federation_settings import PrivacySettings
from nosology.federated.privacy.budget_ledger import BudgetLedger, Charge, NoteTexts
from nosology.federated.privacy.dp_sgd import PrivacyAccountant
from nosology.federated.rounds.federation_server import FlowerFederation
from tests.conftest import small_notes
from tests.federated import budget_program
from tests.federated.budget_program import grid_with_ledger, settings
from tests.federated.small_hospitals import recipe, sites

CHARGE = Charge(2.0, 0.25, 4)
ROUND = [(2.0, 1 / 4, 4)]  # of the first small hospital: 30 notes in batches of 8


def epsilon(history) -> float:
    return PrivacyAccountant(history).epsilon(1e-5)


def corpus_of(notes, folder: Path) -> Path:
    write_corpus(notes, folder, source={"kind": "test"}, filters=[], counts={})
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A corpus, one with half of its notes, and one with other notes."""
    folder, notes = tmp_path_factory.mktemp("ledger"), small_notes(40)
    parts = {"all": notes[:20], "half": notes[:10], "other": notes[20:]}
    return {name: corpus_of(part, folder / name) for name, part in parts.items()}


def test_rounds_of_several_runs_are_composed_per_note(folders, tmp_path):
    ledger, texts = BudgetLedger(tmp_path / "a.budget"), {name: NoteTexts([path]) for name, path in folders.items()}
    assert ledger.charge(texts["half"], CHARGE, "1", 1) == pytest.approx(epsilon([(2.0, 0.25, 4)]))
    assert ledger.charge(texts["half"], CHARGE, "2", 1) == pytest.approx(epsilon([(2.0, 0.25, 8)]))
    assert ledger.charge(texts["other"], CHARGE, "3", 1) == pytest.approx(epsilon([(2.0, 0.25, 4)]))
    more = Charge(1.0, 0.5, 2)  # in the larger corpus, the notes of the smaller one have spent most
    assert ledger.charge(texts["all"], more, "4", 1) == pytest.approx(epsilon([(2.0, 0.25, 8), (1.0, 0.5, 2)]))
    assert ledger.check(texts["half"], CHARGE) == pytest.approx(epsilon([(2.0, 0.25, 12), (1.0, 0.5, 2)]))
    assert [row[1] for row in ledger.spent()] == [2, 1, 1]
    assert ledger.spent()[0][2] == pytest.approx(epsilon([(2.0, 0.25, 8), (1.0, 0.5, 2)]))


def test_a_round_beyond_the_limit_is_refused_and_not_recorded(folders, tmp_path):
    limit = epsilon([(2.0, 0.25, 8)]) + 1e-9
    ledger, texts = BudgetLedger(tmp_path / "a.budget", limit), NoteTexts([folders["all"]])
    for number in (1, 2):
        ledger.charge(texts, CHARGE, "1", number)
    for _ in range(2):
        with pytest.raises(
            FederationError, match=r"allows an epsilon of .* over all runs; .* is spent, and after this"
        ):
            ledger.charge(texts, CHARGE, "2", 1)
    assert ledger.spent()[0][1:] == (2, pytest.approx(limit))
    with pytest.raises(FederationError, match="after this round it would be inf"):
        ledger.charge(texts, Charge(0.0, 1.0, 1), "2", 1)
    other = NoteTexts([folders["other"]])
    assert ledger.charge(other, CHARGE, "2", 1) == pytest.approx(epsilon(ROUND))  # other notes have their own budget


def test_rounds_without_noise_cost_everything(folders, tmp_path):
    ledger, texts = BudgetLedger(tmp_path / "a.budget"), NoteTexts([folders["half"]])
    assert ledger.charge(texts, Charge(0.0, 1.0, 1), "1", 1) == math.inf
    with pytest.raises(FederationError, match="inf is spent"):
        BudgetLedger(tmp_path / "a.budget", 100.0).charge(NoteTexts([folders["all"]]), CHARGE, "2", 1)


@pytest.mark.parametrize(
    ("privacy", "charge"),
    [
        ({}, Charge(0.0, 1.0, 1)),
        ({"record_noise": 1.5}, Charge(1.5, 1 / 4, 8)),
        ({"site_clip": 1.0, "site_noise": 3.0}, Charge(0.0, 1.0, 1)),  # the server adds this noise
        ({"site_clip": 1.0, "site_noise": 3.0, "secure": True}, Charge(3.0, 1.0, 1)),
        ({"record_noise": 1.5, "site_clip": 1.0, "site_noise": 3.0, "secure": True}, Charge(1.5, 1 / 4, 8)),
    ],
)
def test_charge_of_a_recipe(privacy, charge):
    settings = recipe("mlp", local_epochs=2, privacy=privacy)
    assert Charge.of(settings, 30, knows_peers=True) == charge
    if not privacy.get("record_noise"):  # noise of sites that the server may have invented
        assert Charge.of(settings, 30) == Charge(0.0, 1.0, 1)


def test_noise_on_counts_of_words_is_no_protection_of_a_note():
    counted = load_federated_recipe("linear").model_copy(update={"federation": recipe("mlp", 1).federation})
    noisy = {"secure": True, "site_clip": 1.0, "site_noise": 3.0}
    federation = counted.federation.model_copy(update={"privacy": PrivacySettings(**noisy)})
    charge = Charge.of(counted.model_copy(update={"federation": federation}), 30, knows_peers=True)
    assert charge == Charge(0.0, 1.0, 1)


def test_ledger_has_no_text_and_is_private(tmp_path):
    # names so long that random bytes do not spell them
    notes = [replace(note, id=f"note-of-{note.id}", patient=f"patient-{note.patient}") for note in small_notes(20)]
    folder = corpus_of(notes, tmp_path / "corpus")
    path = tmp_path / "a.budget"
    BudgetLedger(path).charge(NoteTexts([folder]), CHARGE, "1", 1)
    content = path.read_bytes()
    assert path.stat().st_mode & 0o077 == 0
    for note in notes:
        words = {note.id, note.patient or "?", *(word for word in note.text.split() if len(word) > 6)}
        assert len(words) > 2 and not any(word.encode() in content for word in words)
    with sqlite3.connect(path) as database:
        hashes = {bytes(row[0]) for row in database.execute("SELECT note FROM members")}
    assert hashes and all(len(value) == 16 and value in content for value in hashes)  # the search can find something
    again = tmp_path / "b.budget"
    BudgetLedger(again).charge(NoteTexts([folder]), CHARGE, "1", 1)
    with sqlite3.connect(again) as database:
        assert hashes.isdisjoint(bytes(row[0]) for row in database.execute("SELECT note FROM members"))


@pytest.mark.parametrize("content", [b"not a database, but long enough to be one" * 100, b"\0" * 4096, b""])
def test_damaged_ledger_is_not_forgotten(folders, tmp_path, content):
    path = tmp_path / "a.budget"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.budget cannot be read or written: restore it"):
        BudgetLedger(path).charge(NoteTexts([folders["half"]]), CHARGE, "1", 1)
    assert path.read_bytes() == content


@pytest.mark.parametrize("table", ["ledger", "groups", "members", "charges"])
def test_ledger_with_a_lost_page_is_not_used(folders, tmp_path, table):
    path, texts = tmp_path / "a.budget", NoteTexts([folders["half"]])
    BudgetLedger(path).charge(texts, CHARGE, "1", 1)
    with sqlite3.connect(path) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    content[(root - 1) * size : root * size] = bytes(size)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.budget cannot be read or written: restore it"):
        BudgetLedger(path).charge(texts, CHARGE, "1", 2)
    assert list(tmp_path.iterdir()) == [path]


def test_site_refuses_runs_that_exceed_its_policy(folders, tmp_path):
    """Two servers, one after the other; each starts anew, only the site remembers."""
    ledger = tmp_path / "a.budget"
    limit = epsilon([(2.0, 1 / 4, 20)]) + 1e-6  # five rounds
    policy = {"epsilon": str(limit), "delta": "1e-5"}
    first = FlowerFederation(grid_with_ledger(ledger, folders["all"], **policy), settings(3)).run(tmp_path / "first")
    assert [row["sites"] for row in first.history] == [3, 3, 3]
    second = FlowerFederation(grid_with_ledger(ledger, folders["all"], **policy), settings(4)).run(tmp_path / "second")
    assert [row["sites"] for row in second.history] == [3, 3, 2, 2]
    third = FlowerFederation(grid_with_ledger(ledger, folders["all"], **policy), settings(1)).run(tmp_path / "third")
    assert third.history[0]["sites"] == 2
    assert "the site policy allows an epsilon of" in next(iter(third.refused.values()))
    assert BudgetLedger(ledger).spent() == [(10, 5, pytest.approx(limit, abs=1e-5))]


def test_site_with_a_limit_refuses_recipes_without_noise(folders, tmp_path):
    grid = grid_with_ledger(tmp_path / "a.budget", folders["all"], epsilon="8")
    result = FlowerFederation(grid, recipe("mlp", 1)).run(tmp_path / "bundle")
    assert result.history[0]["sites"] == 2
    assert "after this round it would be inf" in next(iter(result.refused.values()))


def test_killed_site_has_recorded_the_round(folders, tmp_path):
    """SIGKILL within the training of the second round; the folder of the server is deleted, the ledger stays."""
    ledger = tmp_path / "a.budget"
    command = [sys.executable, budget_program.__file__, str(ledger), str(folders["all"])]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    (notes, rounds, spent) = BudgetLedger(ledger).spent()[0]
    assert (notes, rounds) == (10, 2) and spent == pytest.approx(epsilon([(2.0, 1 / 4, 8)]))
    limit = str(epsilon([(2.0, 1 / 4, 12)]) + 1e-6)
    grid = grid_with_ledger(ledger, folders["all"], sites(3), epsilon=limit)
    again = FlowerFederation(grid, settings(2)).run(tmp_path / "bundle")
    assert [row["sites"] for row in again.history] == [3, 2]


def test_secure_rounds_are_recorded(folders, tmp_path):
    checked = recipe("mlp", 2, min_sites=3, quorum=3, privacy={"secure": True, "site_clip": 1.0, "site_noise": 4.0})
    FlowerFederation(grid_with_ledger(tmp_path / "a.budget", folders["half"]), checked).run(tmp_path / "bundle")
    # The site does not know the keys of the others: their noise may be invented.
    assert BudgetLedger(tmp_path / "a.budget").spent() == [(6, 2, math.inf)]


def test_budget_command(folders, tmp_path):
    path = tmp_path / "anna.budget"
    missing = CliRunner().invoke(app, ["federate", "budget", str(path)])
    assert isinstance(missing.exception, DataError) and "the site has trained in no run" in str(missing.exception)
    BudgetLedger(path).charge(NoteTexts([folders["half"]]), CHARGE, "1", 1)
    BudgetLedger(path).charge(NoteTexts([folders["other"]]), Charge(0.0, 1.0, 1), "2", 1)
    (tmp_path / "site.toml").write_text('name = "anna"\nserver = "localhost:1"\nepsilon = 8.0\n')
    for argument in (path, tmp_path):
        shown = CliRunner().invoke(app, ["federate", "budget", str(argument)])
        assert shown.exit_code == 0, shown.exception
        assert f"{epsilon([(2.0, 0.25, 4)]):.3f}" in shown.output and "trained without noise" in shown.output
    assert "limit of the site: 8" in shown.output
    undefined = CliRunner().invoke(app, ["federate", "budget", str(path), "--delta", "nan"])
    assert isinstance(undefined.exception, ConfigError) and "--delta must be" in str(undefined.exception)
    (tmp_path / "site.toml").write_text('name = "berta"\nserver = "localhost:1"\nledger = "anna.budget"\n')
    shared = CliRunner().invoke(app, ["federate", "budget", str(tmp_path)])  # one ledger for two federations
    assert shared.exit_code == 0 and "limit of the site: none" in shared.output
