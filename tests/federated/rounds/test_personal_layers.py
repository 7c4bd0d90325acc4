"""Tests of personal layers: weights that sites train for themselves and never send."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from pydantic import ValidationError
from typer.testing import CliRunner

from nosology.cli.federate import app
from nosology.core import BundleError, ConfigError, DataError
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.kept_state import FOLDER, KeptState, optimizer_part
from nosology.federated.rounds.messages import EVALUATE, TRAIN, get_arrays
from nosology.federated.rounds.personal_layers import (
    complete_bundle,
    load_personal,
    mark,
    personal_names,
    save_personal,
)
from nosology.federated.rounds.simulation import personal_folder, run_simulation, simulation_grid
from nosology.models.bundle import Bundle
from nosology.serving.coder import Coder
from tests.federated.rounds.test_word_learner import corpus, recipe, sites_of  # noqa: F401 (a fixture)
from tests.federated.small_hospitals import recipe as heads_recipe
from tests.federated.small_hospitals import sites as small_sites

HEADS = {"dual_laat": "classifier.", "caml": "learned.", "laat": "learned."}


def names_sent(grid) -> dict[str, set[str]]:
    """The names of the arrays of all train and evaluate messages and of the replies to train, filled while it runs."""
    seen: dict[str, set[str]] = {"to": set(), "from": set()}
    app = grid.app

    def recording(message, context):
        reply = app(message, context)
        if message.metadata.message_type in (TRAIN, EVALUATE):
            seen["to"] |= set(get_arrays(message.content))
        if message.metadata.message_type == TRAIN:
            seen["from"] |= set(get_arrays(reply.content))
        return reply

    grid.app = recording
    return seen


@pytest.mark.parametrize("kind", list(HEADS))
def test_personal_head_is_in_no_message_and_differs_between_sites(corpus, tmp_path, kind):  # noqa: F811
    settings = recipe(kind, "federation.personal=['head']", "federation.rounds=3")
    grid = simulation_grid(sites_of(corpus, settings), tmp_path / "personal")
    seen = names_sent(grid)
    federation = FlowerFederation(grid, settings)
    bundle = federation.run(tmp_path / "bundle").bundle
    missing = Bundle.load(tmp_path / "bundle").missing_layers
    assert missing and all(name.startswith(HEADS[kind]) for name in missing)
    assert seen["to"] == seen["from"] and seen["to"] == set(bundle.model.net.state_dict()) - set(missing)
    setup = federation.setup
    own = [load_personal(tmp_path / "personal" / f"site-{i}", setup.hash) for i in range(3)]
    for name in missing:
        assert (own[0][name] != own[1][name]).any() and (own[0][name] != setup.personal[name]).any()
        np.testing.assert_array_equal(bundle.model.net.state_dict()[name].numpy(), setup.personal[name])


def test_sites_evaluate_with_their_own_layers(corpus, tmp_path):  # noqa: F811
    """The counts of the run are those of each site with its own layers, and the completed bundle is that of a site."""
    settings = recipe("caml", "federation.personal=['head']", "federation.local_epochs=4")
    sites = sites_of(corpus, settings)
    federation = FlowerFederation(simulation_grid(sites, tmp_path / "personal"), settings)
    bundle = federation.run(tmp_path / "bundle").bundle
    shared = {name: bundle.model.net.state_dict()[name].numpy() for name in federation.setup.initial_weights()}
    own = {site.name: load_personal(tmp_path / "personal" / site.name, federation.setup.hash) for site in sites}
    counts = [site.evaluate(shared | own[site.name], settings, "dev") for site in sites]
    assert bundle.provenance["found"]["dev_micro_f1"] == (counts[0] + counts[1] + counts[2]).best[1]
    other = [site.evaluate(shared | own["site-0"], settings, "dev") for site in sites]
    assert any((a.cells != b.cells).any() for a, b in zip(counts, other))  # so that the line above can fail
    with pytest.raises(BundleError, match="nosology federate complete"):
        Coder.load(tmp_path / "bundle")
    arguments = ["complete", str(tmp_path / "bundle"), "--personal", str(tmp_path / "personal" / "site-1")]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "own")])
    assert result.exit_code == 0, result.output
    completed = Bundle.load(tmp_path / "own")
    assert completed.missing_layers == [] and Coder.load(tmp_path / "own").model
    weights = {name: value.numpy() for name, value in completed.model.net.state_dict().items()}
    for name, array in (shared | own["site-1"]).items():
        np.testing.assert_array_equal(weights[name], array)


def test_one_site_with_personal_layers_trains_as_without(corpus, tmp_path):  # noqa: F811
    """With one site the mean is its update: the personal layers must continue from round to round, also a new node."""
    settings = {name: recipe("caml", *personal) for name, personal in
                (("all", ()), ("own", ("federation.personal=['learned.queries','encoder.']",)))}  # fmt: skip
    results = {}
    for name, each in settings.items():
        site = sites_of(corpus, each)[0]
        federation = FlowerFederation(simulation_grid([site], tmp_path / "personal"), each)
        results[name] = federation.run(tmp_path / name).bundle
    completed = complete_bundle(results["own"], tmp_path / "personal" / "site-0")
    for name, value in results["all"].model.net.state_dict().items():
        np.testing.assert_allclose(completed.model.net.state_dict()[name].numpy(), value.numpy(), atol=1e-6)


def test_interrupted_simulation_continues_with_the_saved_layers(corpus, tmp_path):  # noqa: F811
    settings = recipe("caml", "federation.personal=['head']", "federation.rounds=3", "federation.optimizer_state=reset")
    site_of = {note.id: note.site or "" for note in corpus.notes(text=False)}

    def interrupting(line: str) -> None:
        if line.startswith("round 2/3"):
            raise KeyboardInterrupt

    run_simulation([corpus], site_of, settings, tmp_path / "whole", "flower", lambda line: None)
    with pytest.raises(KeyboardInterrupt):
        run_simulation([corpus], site_of, settings, tmp_path / "again", "flower", interrupting)
    run_simulation([corpus], site_of, settings, tmp_path / "again", "flower", lambda line: None)
    bundles = [Bundle.load(tmp_path / name) for name in ("whole", "again")]
    setup = bundles[0].provenance["federation"]["personal"]["setup"]
    layers = [load_personal(personal_folder(tmp_path / name) / "site-2", setup) for name in ("whole", "again")]
    for name, array in layers[0].items():
        np.testing.assert_array_equal(array, layers[1][name])
    assert bundles[0].provenance["found"]["test"] == bundles[1].provenance["found"]["test"]


@pytest.mark.parametrize("secure", [False, True])
def test_personal_output_layer_of_heads(tmp_path, secure):
    """Also with secure sums, whose vector has no place for the personal layers."""
    limits = {"min_sites": 3, "quorum": 3} if secure else {}
    settings = heads_recipe("mlp", personal=["head"], privacy={"secure": secure}, **limits)
    federation = FlowerFederation(simulation_grid(small_sites(3), tmp_path / "personal"), settings)
    result = federation.run(tmp_path / "bundle")
    assert result.bundle.missing_layers == ["out.weight", "out.bias"]
    own = [load_personal(tmp_path / "personal" / f"site-{i:02d}", federation.setup.hash) for i in range(3)]
    assert (own[0]["out.bias"] != own[1]["out.bias"]).any()


def test_layers_of_a_later_round_are_those_of_another_run(tmp_path):
    save_personal(tmp_path, "abc", 7, {"a": np.arange(3.0)})
    assert load_personal(tmp_path, "abc", 6) == {} and load_personal(tmp_path, "other") == {}
    np.testing.assert_array_equal(load_personal(tmp_path, "abc", 7)["a"], np.arange(3.0))


@pytest.mark.parametrize("restarted", [False, True])
def test_repeated_round_starts_from_the_state_before_it(tmp_path, restarted):
    """Also right after a restart, where only the file is there."""
    initial = {"a": np.zeros(2)}

    def context() -> Context:
        return Context(1, 1, {FOLDER: str(tmp_path)}, RecordDict(), {})

    def train(context: Context, number: int) -> float:
        """The personal layer at the start of a round, to which the round adds 1."""
        kept = KeptState(context, "abc", number, initial)
        before = kept.personal(kept.before_round())
        kept.save(mark({"a": before["a"] + 1}) | {"exp_avg.a": np.ones(2)})
        return before["a"][0]

    node = context()
    assert [train(node, number) for number in (1, 1, 2, 3)] == [0, 0, 1, 2]
    node = context() if restarted else node
    assert [train(node, number) for number in (4, 4, 5)] == [3, 3, 4]
    assert KeptState(node, "abc", 5, initial).personal(KeptState(node, "abc", 5, initial).latest())["a"][0] == 5
    assert optimizer_part(KeptState(node, "abc", 6, initial).before_round()).keys() == {"exp_avg.a"}


def test_wrong_settings_and_files_are_refused(tmp_path, corpus):  # noqa: F811
    weights = ["embedding.weight", "learned.bias"]
    for wrong in ("", "decoder."):
        with pytest.raises(ConfigError, match=r"the beginning of the name of a weight \(embedding, learned\); got"):
            personal_names([wrong], ("learned.",), weights)
    with pytest.raises(ConfigError, match="must leave some weights to share"):
        personal_names(["head", "embedding"], ("learned.",), weights)
    with pytest.raises(ValidationError, match="personal must be empty where optimizer is fedsgd"):
        heads_recipe("mlp", personal=["head"], optimizer="fedsgd", strategy="fedadam")
    settings = recipe("caml", "federation.personal=['head']", "federation.rounds=1")
    bundle = FlowerFederation(simulation_grid(sites_of(corpus, settings)), settings).run(tmp_path / "bundle").bundle
    with pytest.raises(DataError, match="must have the personal layers of the bundle; got 0"):
        complete_bundle(bundle, tmp_path / "nothing")
    whole = recipe("caml", "federation.rounds=1")
    bundle = FlowerFederation(simulation_grid(sites_of(corpus, whole)), whole).run(tmp_path / "whole").bundle
    with pytest.raises(ConfigError, match="must have personal layers that are missing"):
        complete_bundle(bundle, tmp_path)
