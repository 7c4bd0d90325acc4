"""Tests of secure aggregation and noise in a federation."""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from nosology.core import ConfigError, FederationError
from nosology.federated.federation_settings import PrivacySettings
from nosology.federated.privacy.dp_sgd import PrivacyAccountant
from nosology.federated.privacy.masking import from_fixed_point, to_fixed_point
from nosology.federated.privacy.secure_round import from_vector, to_vector, vector_size
from nosology.federated.privacy.site_noise import PrivacyBudget, clip_update, update_norm, weight_difference
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import ARRAYS, CONFIG, TRAIN, from_record, make_content
from nosology.federated.rounds.simulation import InProcessGrid, simulation_grid
from nosology.federated.rounds.site_policy import read_recipe
from nosology.federated.rounds.site_results import SiteUpdate
from tests.federated.small_hospitals import CODES, recipe, site, sites

STAGES = ["query.secure_keys", "query.secure_shares", "train.secure", "query.secure_confirm", "query.secure_unmask"]
COUNTED = STAGES[3:]  # a site that is lost here has sent its vector


def secret(head="deep", rounds=3, privacy=None, **federation):
    settings = {"min_sites": 3, "quorum": 3, "privacy": {"secure": True} | (privacy or {})}
    settings = recipe(head, rounds, **(settings | federation))
    return settings.model_copy(update={"model": settings.model.model_copy(update={"norm": "layer"})})


def plain(head="deep", rounds=3, **federation):
    settings = recipe(head, rounds, **({"min_sites": 3, "quorum": 3} | federation))
    return settings.model_copy(update={"model": settings.model.model_copy(update={"norm": "layer"})})


def weights(result) -> np.ndarray:
    return np.concatenate([value.numpy().ravel() for value in result.bundle.model.net.state_dict().values()])


class Watched(InProcessGrid):
    """A grid that records all messages and drops the replies for which `lose` is true."""

    def __init__(self, grid: InProcessGrid, lose=lambda kind, site, number: False):
        self.__dict__ = grid.__dict__
        self.lose, self.seen, self.numbers = lose, [], {}

    def send_and_receive(self, messages, *, timeout=None):
        names = {node: context.node_config["site-name"] for node, context in self._contexts.items()}
        replies = []
        for message in messages:
            kind, name = message.metadata.message_type, names[message.metadata.dst_node_id]
            self.numbers[kind, name] = self.numbers.get((kind, name), 0) + 1
            reply = super().send_and_receive([message])[0]
            self.seen += [(kind, name, message.content), (kind, name, reply.content if reply.has_content() else None)]
            if not self.lose(kind, name, self.numbers[kind, name]):
                replies.append(reply)
        return replies


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedadam"])
def test_secure_federation_equals_plain_federation(tmp_path, strategy):
    """Codes that only some sites know and sites of several sizes among it."""
    hospitals = [
        *sites(3),
        site("some", 9, 50, code_list=frozenset(CODES[:7])),
        site("others", 8, 33, code_list=frozenset(CODES[5:])),
    ]
    one = FlowerFederation(simulation_grid(hospitals), plain(strategy=strategy)).run(tmp_path / "plain")
    two = FlowerFederation(simulation_grid(hospitals), secret(strategy=strategy)).run(tmp_path / "secure")
    assert np.abs(weights(one) - weights(two)).max() < (1e-5 if strategy != "fedadam" else 1e-3)
    assert [row["loss"] for row in two.history] == pytest.approx([row["loss"] for row in one.history], abs=1e-6)
    assert two.history[-1]["micro_f1"] == pytest.approx(one.history[-1]["micro_f1"], abs=1e-9)


def test_secure_aggregation_of_batch_norm(tmp_path):
    settings = {"min_sites": 3, "quorum": 3}
    one = FlowerFederation(simulation_grid(sites()), recipe("deep", **settings)).run(tmp_path / "plain")
    secure = recipe("deep", **settings, privacy={"secure": True})
    two = FlowerFederation(simulation_grid(sites()), secure).run(tmp_path / "secure")
    assert np.abs(weights(one) - weights(two)).max() < 1e-5


@pytest.mark.parametrize("kind", STAGES)
def test_site_lost_at_any_stage_is_only_missing(tmp_path, kind):
    grid = Watched(
        simulation_grid(sites(5)), lambda what, name, number: what == kind and name == "site-02" and number == 2
    )
    result = FlowerFederation(grid, secret()).run(tmp_path / "bundle")
    counted = [row["sites"] for row in result.history]
    assert counted == ([5, 5, 5] if kind in COUNTED else [5, 4, 5])
    assert [row["refused"] for row in result.history] == [0, 1, 0]
    without = FlowerFederation(simulation_grid(sites(5)), plain()).run(tmp_path / "plain")
    if kind in COUNTED:
        assert np.abs(weights(result) - weights(without)).max() < 1e-5


@pytest.mark.parametrize("secure", ["[" * 200_000, '{"mask": ' + "[" * 40 + "]" * 40 + "}"])
def test_nested_reply_excludes_only_its_site(tmp_path, secure):
    grid = simulation_grid(sites(4))
    app = grid.app

    def nested(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == STAGES[0] and context.node_config["site-name"] == "site-02":
            reply.content[CONFIG]["secure"] = secure
        return reply

    grid.app = nested
    federation = FlowerFederation(grid, secret(rounds=1))
    history = federation.run(tmp_path / "bundle").history
    assert [(row["sites"], row["refused"]) for row in history] == [(3, 1)]
    assert federation.checkpoint.refused == {"site-02": "its reply cannot be read"}


@pytest.mark.parametrize("kind", STAGES)
def test_two_of_three_sites_are_enough_for_a_threshold_of_two(tmp_path, kind):
    lose = lambda what, name, number: what == kind and name == "site-02"  # noqa: E731 (in every round)
    settings = secret(privacy={"secure_threshold": 2}, quorum=2)
    lines = []
    result = FlowerFederation(Watched(simulation_grid(sites(3)), lose), settings, lines.append).run(tmp_path / "two")
    assert lines[0].startswith("3 sites, secure sums need 2 of them; one may be lost; in a sum over two sites each")
    assert [row["sites"] for row in result.history] == [3 if kind in COUNTED else 2] * 3
    if kind in COUNTED:
        plainly = FlowerFederation(simulation_grid(sites(3)), plain()).run(tmp_path / "plain")
        assert np.abs(weights(result) - weights(plainly)).max() < 1e-5
    with pytest.raises(
        FederationError, match=r"round 1 failed .* 3 are needed"
    ):  # by default one lost site is too many
        FlowerFederation(Watched(simulation_grid(sites(3)), lose), secret()).run(tmp_path / "three")


@pytest.mark.parametrize(
    ("count", "threshold", "message"),
    [
        (5, 2, "secure_threshold must be more than half of the 5 sites, else the server could unmask"),
        (4, 2, "secure_threshold must be more than half of the 4 sites"),
        (3, 4, "federation.min_sites and federation.quorum must be at least 4"),
    ],
)
def test_impossible_thresholds_are_refused(tmp_path, count, threshold, message):
    settings = secret(privacy={"secure_threshold": threshold}, quorum=3)
    with pytest.raises((FederationError, ConfigError), match=message):
        FlowerFederation(simulation_grid(sites(count)), settings).run(tmp_path / "bundle")


def test_site_policy_refuses_a_low_threshold():
    content = make_content(recipe=secret(privacy={"secure_threshold": 2}, quorum=2).model_dump(mode="json"))
    message, config = SimpleNamespace(content=content), {"secure-sites": "3"}
    assert read_recipe(message, Context(0, 0, {}, RecordDict(), {}))
    with pytest.raises(FederationError, match=r"demands federation\.privacy\.secure_threshold of at least 3; got 2"):
        read_recipe(message, Context(0, 0, config, RecordDict(), {}))


def test_round_with_too_few_sites_is_repeated_or_fails(tmp_path):
    grid = Watched(
        simulation_grid(sites(5)),
        lambda kind, name, number: kind == "train.secure" and number == 1 and name > "site-01",
    )
    lines = []
    result = FlowerFederation(grid, secret(quorum=4, max_retries=1), lines.append).run(tmp_path / "bundle")
    assert any("round 1 is repeated: secure round 1, attempt 1 ends: 2 sites" in line for line in lines)
    same = FlowerFederation(simulation_grid(sites(5)), plain()).run(tmp_path / "plain")
    assert np.abs(weights(result) - weights(same)).max() < 1e-5
    grid = Watched(simulation_grid(sites(5)), lambda kind, name, number: kind == "train.secure" and name > "site-01")
    with pytest.raises(
        FederationError, match=r"round 1 failed .*secure round 1, attempt 2 ends: 2 sites \(site-00, site-01\)"
    ):
        FlowerFederation(grid, secret(quorum=4, max_retries=1)).run(tmp_path / "none")


def texts(seen) -> str:
    """All that passed, arrays and values as hex or text."""
    result = []
    for _, _, records in seen:
        for record in (records or RecordDict()).values():
            for item in record.values():
                result.append(item.numpy().tobytes().hex() if hasattr(item, "numpy") else str(item))
    return "\n".join(result)


def test_server_never_sees_the_update_of_one_site(tmp_path):
    """Everything that passes the grid and everything on the server's disk is searched for each site's update."""
    hospitals, learned = sites(4), []
    for hospital in hospitals:
        original = hospital.train

        def noted(start, *rest, original=original):
            update = original(start, *rest)
            learned.append((start, update))
            return update

        hospital.train = noted
    grid = Watched(simulation_grid(hospitals))
    FlowerFederation(grid, secret("mlp", rounds=2)).run(tmp_path / "bundle")
    seen = texts(grid.seen) + "".join(path.read_bytes().hex() for path in tmp_path.rglob("*") if path.is_file())
    assert len(learned) == 8
    for start, update in learned:
        vector = to_fixed_point(to_vector(update, start, PrivacySettings(), 3), 4)
        first = update.arrays["hidden.0.linear.weight"].ravel()
        added = weight_difference(update.arrays, start)["hidden.0.linear.weight"].ravel()
        for i in range(0, 60):
            assert vector[i].tobytes().hex() not in seen
            assert first[i : i + 2].tobytes().hex() not in seen
            assert added[i].tobytes().hex() not in seen
        assert repr(float(update.loss)) not in seen
        assert start["out.weight"].tobytes().hex() in seen, "the search can find what was sent"
    kinds = {kind for kind, _, _ in grid.seen}
    assert TRAIN not in kinds


def test_plain_update_is_refused():
    hospitals = sites(3)
    grid = simulation_grid(hospitals)
    request = make_content({"a": np.zeros(1)}, recipe=secret().model_dump(mode="json"), round=1, setup="")
    for node in grid.get_node_ids():
        reply = grid.send_and_receive([Message(request, node, TRAIN)])[0]
        assert "only with secure aggregation" in reply.error.reason
    open_recipe = make_content({"a": np.zeros(1)}, recipe=plain().model_dump(mode="json"), round=1, setup="")
    node = grid.get_node_ids()[0]
    grid._contexts[node].node_config["secure-only"] = "yes"
    reply = grid.send_and_receive([Message(open_recipe, node, TRAIN)])[0]
    assert "only with secure aggregation" in reply.error.reason


def test_vector_round_trips():
    rng = np.random.default_rng(0)
    start = {
        "hidden.0.linear.weight": rng.normal(size=(5, 4)),
        "out.weight": rng.normal(size=(3, 5)),
        "out.bias": np.zeros(3),
    }
    start = {name: array.astype(np.float32) for name, array in start.items()}
    updates = []
    for notes, label_mask in ((10, [1, 1, 0]), (30, [1, 0, 0])):
        label_mask = np.array(label_mask, bool)
        after = {name: (array + rng.normal(size=array.shape)).astype(np.float32) for name, array in start.items()}
        for name in ("out.weight", "out.bias"):
            after[name][~label_mask] = start[name][~label_mask]
        updates.append(SiteUpdate("site", after, notes, loss=notes / 100, label_mask=label_mask))
    privacy = PrivacySettings()
    total = sum(to_vector(update, start, privacy, 3) for update in updates)
    assert total.shape == (vector_size(start),)
    mean = from_vector(from_fixed_point(to_fixed_point(total, 1)), start, privacy)
    assert mean.notes == 40 and mean.loss == pytest.approx((10 * 0.1 + 30 * 0.3) / 40)
    assert mean.label_mask.tolist() == [True, True, False]
    a, b = (update.arrays for update in updates)
    hidden = "hidden.0.linear.weight"
    assert np.allclose(mean.arrays[hidden], (10 * a[hidden] + 30 * b[hidden]) / 40, atol=1e-6)
    assert np.allclose(
        mean.arrays["out.weight"][0], (10 * a["out.weight"][0] + 30 * b["out.weight"][0]) / 40, atol=1e-6
    )
    assert np.allclose(mean.arrays["out.weight"][1], a["out.weight"][1], atol=1e-6)
    assert np.array_equal(mean.arrays["out.weight"][2], start["out.weight"][2])


def test_sites_clip_and_add_their_part_of_the_noise():
    rng = np.random.default_rng(0)
    start = {"out.weight": np.zeros((40, 50), np.float32), "out.bias": np.zeros(40, np.float32)}
    after = {name: (array + rng.normal(size=array.shape)).astype(np.float32) for name, array in start.items()}
    update = SiteUpdate("site", after, 10, 0.5, np.ones(40, bool))
    only_clip = to_vector(update, start, PrivacySettings(site_clip=0.1), 9)
    assert np.linalg.norm(only_clip[: -40 - 3]) == pytest.approx(0.1)
    assert np.allclose(only_clip[:2000], clip_update(weight_difference(after, start), 0.1)["out.weight"].ravel())
    noisy = PrivacySettings(site_clip=0.1, site_noise=6.0)
    drawn = to_vector(update, start, noisy, 9) - only_clip
    assert drawn[:2040].std() == pytest.approx(6.0 * 0.1 / 3, rel=0.1), "9 sites together: 6.0 x 0.1"
    assert (drawn[2040:] == 0).all(), "counts are exact"
    everybody = sum(to_vector(update, start, noisy, 9) - only_clip for _ in range(9))
    assert everybody[:2040].std() == pytest.approx(0.6, rel=0.1)


@pytest.mark.parametrize("secure", [False, True])
def test_clip_and_noise_in_a_federation(tmp_path, secure):
    """A clip alone gives the same with and without secure sums; noise moves the weights as much as it should."""
    clip = {"site_clip": 0.05, "secure": secure}
    one = FlowerFederation(simulation_grid(sites()), secret("mlp", 1, clip)).run(tmp_path / "clip")
    two = FlowerFederation(simulation_grid(sites()), secret("mlp", 1, clip | {"site_noise": 30.0, "delta": 1e-3})).run(
        tmp_path / "noise"
    )
    off = weights(two) - weights(one)
    more = np.sqrt(4 / 3) if secure else 1.0  # all 4 sites add what 3 must
    assert off.std() == pytest.approx(30.0 * 0.05 / 4 * more, rel=0.25)
    assert one.history[-1]["epsilon"] is None
    assert 0.01 < two.history[-1]["epsilon"] < 0.2
    assert two.history[-1]["sites"] == 4
    plain_clip = FlowerFederation(simulation_grid(sites()), secret("mlp", 1, {"site_clip": 0.05, "secure": False})).run(
        tmp_path / "p"
    )
    assert np.abs(weights(plain_clip) - weights(one)).max() < 1e-6
    start = FlowerFederation(simulation_grid(sites()), secret("mlp", 1, {"site_clip": 1e-9})).run(tmp_path / "start")
    assert update_norm({"all": weights(one) - weights(start)}) <= 0.05 + 1e-6


@pytest.mark.parametrize("plain", [{}, {"strategy": "fedadam", "optimizer": "fedsgd"}])
def test_record_noise_in_a_federation(tmp_path, plain):
    """DP-SGD at the sites, epsilon of the smallest site in every row, and other weights at each run."""
    private = secret("deep", 2, {"secure": False, "record_noise": 1.5, "record_clip": 0.5}, **plain)
    hospitals = sites()
    one = FlowerFederation(simulation_grid(hospitals), private).run(tmp_path / "one")
    two = FlowerFederation(simulation_grid(sites()), private).run(tmp_path / "two")
    spent = [row["record_epsilon"] for row in one.history]
    assert 0 < spent[0] < spent[1] == two.history[1]["record_epsilon"]
    assert spent[1] == pytest.approx(max(hospital.accountant.epsilon(1e-5) for hospital in hospitals))
    assert not np.allclose(weights(one), weights(two))
    with (tmp_path / "one" / "history.csv").open() as file:
        assert float(list(csv.DictReader(file))[-1]["record_epsilon"]) == pytest.approx(spent[1])
    assert one.bundle.provenance["federation"]["record_epsilon"] == spent[1]


def test_privacy_budget_survives_a_restart():
    settings = secret(privacy={"site_clip": 1.0, "site_noise": 2.0, "record_noise": 1.0})
    privacy = PrivacyBudget(settings)
    privacy.record_training({"a": 100, "b": 40})
    privacy.record_secure_sum(["a"])
    again = PrivacyBudget(settings, json.loads(json.dumps(privacy.to_json())))
    assert again.epsilons() == privacy.epsilons()


@pytest.mark.parametrize("place", ["train", "evaluate"])
def test_killed_server_accounts_for_every_attempt(tmp_path, place):
    """A server that is killed in its first round has accounted for every request and every sum."""
    privacy = {"secure": False, "record_noise": 1.5, "site_clip": 1.0, "site_noise": 2.0}
    settings, hospitals = secret("mlp", 2, privacy, evaluate_every=1), sites()

    class Killed(Watched):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages := list(messages))
            if any(message.metadata.message_type == place for message in messages):
                raise KeyboardInterrupt
            return replies

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            FlowerFederation(Killed(simulation_grid(hospitals)), settings).run(tmp_path / "bundle")
    rows = FlowerFederation(simulation_grid(hospitals), settings).run(tmp_path / "bundle").history
    assert [row["round"] for row in rows] == [1, 2]
    expected = PrivacyAccountant(
        [(1.5, 1 / 4, 4 * 4)]
    )  # four times, four steps of the smallest site's 30 notes in batches of 8
    assert rows[-1]["record_epsilon"] == pytest.approx(expected.epsilon(1e-5))
    assert rows[-1]["record_epsilon"] >= max(hospital.accountant.epsilon(1e-5) for hospital in hospitals) - 1e-9
    sent = 2 + (2 if place == "evaluate" else 0)
    assert rows[-1]["epsilon"] == pytest.approx(PrivacyAccountant([(2.0, 1.0, sent)]).epsilon(1e-5))


def test_secure_replies_contain_only_masked_vectors(tmp_path):
    """Replies of secure rounds hold masked vectors and protocol answers, nothing else."""
    grid = Watched(simulation_grid(sites(4)))
    FlowerFederation(grid, secret("mlp", rounds=1)).run(tmp_path / "bundle")
    replies = [records for i, (kind, _, records) in enumerate(grid.seen) if kind == "train.secure" and i % 2]
    assert len(replies) == 4
    for records in replies:
        assert set(records) == {ARRAYS, CONFIG} and not records[CONFIG]
        assert list(from_record(records[ARRAYS])) == ["masked"]
