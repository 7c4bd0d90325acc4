"""Tests of the strategies against formulas, and of the validation of replies."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.serverapp.exception import AggregationError
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds.messages import FAILED, read_update, to_record
from nosology.federated.rounds.strategy import SiteUpdate, ValidatingStrategy

L, D = 5, 3
SHAPES = {
    "hidden.0.linear.weight": (D, 4),
    "hidden.0.norm.running_mean": (D,),
    "hidden.0.norm.running_var": (D,),
    "out.weight": (L, D),
    "out.bias": (L,),
}


def weights(seed: int, size: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {name: (size * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}
    arrays["hidden.0.norm.running_var"] = np.abs(arrays["hidden.0.norm.running_var"]) + np.float32(1e-4)
    return arrays


def update(site: str, arrays, notes: float = 10.0, label_mask=None, loss: float = 0.5) -> SiteUpdate:
    return SiteUpdate(
        site, arrays, notes, loss, np.ones(L, bool) if label_mask is None else np.asarray(label_mask, bool)
    )


def make_strategy(strategy: str, **changes) -> ValidatingStrategy:
    strategy = ValidatingStrategy(FederationSettings(strategy=strategy, **changes))
    strategy.initial = weights(99)
    return strategy


def aggregate(strategy: ValidatingStrategy, updates: list[SiteUpdate], number: int = 1) -> dict[str, np.ndarray]:
    return strategy.aggregate(number, updates)[0]


def aggregate_replies(strategy: ValidatingStrategy, replies: list[Message], number: int = 1):
    updates = strategy.validate([(strategy.sites[reply.metadata.src_node_id], reply) for reply in replies])
    return strategy.aggregate(number, updates)


def assert_close(result, expected, within: float = 1e-6) -> None:
    assert list(result) == list(SHAPES)
    for name in SHAPES:
        assert result[name].dtype == np.float32
        np.testing.assert_allclose(result[name], expected[name], atol=within, rtol=within, err_msg=name)


def mean(updates: list[SiteUpdate]) -> dict[str, np.ndarray]:
    share = np.array([item.notes for item in updates]) / sum(item.notes for item in updates)
    return {name: np.tensordot(share, [item.arrays[name] for item in updates], 1) for name in SHAPES}


FIVE = [update(f"s{i}", weights(i), notes) for i, notes in enumerate((10, 1, 30, 7, 2))]


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox"])
def test_fedavg_and_fedprox_are_means_weighted_by_notes(strategy):
    """sum n_i w_i / sum n_i."""
    assert_close(aggregate(make_strategy(strategy), FIVE), mean(FIVE))


def buffers_of(expected: dict, updates: list[SiteUpdate]) -> dict:
    plain = mean(updates)
    return expected | {name: plain[name] for name in SHAPES if "running" in name}


def test_fedadam_matches_formula():
    """m = .9 m + .1 d, v = .99 v + .01 d^2, w + rate sqrt(1 - .99^(t+1)) / (1 - .9^(t+1)) m / (sqrt v + tau).

    Flower corrects with t + 1 where Adam has t: the first step is 0.74 of the rate, not all of it. tau is added to the
    root, 0.001, so it damps updates that are smaller.
    """
    strategy = make_strategy("fedadam", server_learning_rate=0.02)
    m = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    v, w = dict(m), strategy.initial
    for number in (1, 2, 3):
        sent = [update(f"s{i}", weights(10 * number + i), 5 + i) for i in range(3)]
        d = {name: value - w[name] for name, value in mean(sent).items()}
        m = {name: 0.9 * m[name] + 0.1 * d[name] for name in m}
        v = {name: 0.99 * v[name] + 0.01 * d[name] ** 2 for name in v}
        rate = 0.02 * np.sqrt(1 - 0.99 ** (number + 1)) / (1 - 0.9 ** (number + 1))
        expected = {name: w[name] + rate * m[name] / (np.sqrt(v[name]) + 1e-3) for name in m}
        result = aggregate(strategy, sent, number)
        assert_close(result, buffers_of(expected, sent), 1e-5)
        strategy.initial = w = result


def test_fedyogi_matches_formula():
    """m = .9 m + .1 d, v = v - .01 d^2 sign(v - d^2), w + rate m / (sqrt v + tau)."""
    strategy = make_strategy("fedyogi", server_learning_rate=0.02)
    m = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    v, w = dict(m), strategy.initial
    for number in (1, 2, 3):
        sent = [update(f"s{i}", weights(10 * number + i), 5 + i) for i in range(3)]
        d = {name: value - w[name] for name, value in mean(sent).items()}
        m = {name: 0.9 * m[name] + 0.1 * d[name] for name in m}
        v = {name: v[name] - 0.01 * d[name] ** 2 * np.sign(v[name] - d[name] ** 2) for name in v}
        expected = {name: w[name] + 0.02 * m[name] / (np.sqrt(v[name]) + 1e-3) for name in m}
        result = aggregate(strategy, sent, number)
        assert_close(result, buffers_of(expected, sent), 1e-5)
        strategy.initial = w = result


@pytest.mark.parametrize("strategy", ["fedadam", "fedyogi"])
def test_running_variances_stay_positive_with_server_optimizer(strategy):
    """They are averaged. The momentum of the server optimizer would move a falling variance below 0."""
    strategy = make_strategy(strategy, server_learning_rate=0.5)
    for number in range(1, 12):
        name = "hidden.0.norm.running_var"
        expected = strategy.initial[name] * np.float32(0.3)
        sent = [update(f"s{i}", strategy.initial | {name: expected}, 5.0) for i in range(2)]
        strategy.initial = aggregate(strategy, sent, number)
        np.testing.assert_allclose(strategy.initial[name], expected, rtol=1e-6)
        assert (strategy.initial[name] > 0).all()


def test_server_optimizer_state_survives_a_restart():
    first, second = make_strategy("fedadam"), make_strategy("fedadam")
    first.initial = aggregate(first, FIVE, 1)
    second.load_optimizer_state(first.optimizer_state())
    second.initial = first.initial
    assert_close(aggregate(second, FIVE[:3], 2), aggregate(first, FIVE[:3], 2), 0)


def test_trimmed_mean_matches_formula():
    """Per value: sorted, int(trim n) cut at each end, plain mean of the rest; ties are cut like any others."""
    strategy = make_strategy("trimmed_mean", trim=0.2)
    tied = [*FIVE[:3], update("s3", FIVE[0].arrays, 7), update("s4", weights(4, 1e6), 2)]
    for sent in (FIVE, tied):
        expected = {name: np.sort([item.arrays[name] for item in sent], 0)[1:4].mean(0) for name in SHAPES}
        assert_close(aggregate(strategy, sent), expected, 1e-5)


def test_trimmed_mean_needs_enough_sites():
    """int(0.2 x 4) = 0: with four sites nothing would be cut off."""
    assert make_strategy("trimmed_mean", trim=0.2).min_replies == 5
    assert make_strategy("trimmed_mean", trim=0.0).min_replies == 1


def test_median_matches_formula():
    assert_close(
        aggregate(make_strategy("median"), FIVE),
        {name: np.median([i.arrays[name] for i in FIVE], 0) for name in SHAPES},
    )
    assert_close(
        aggregate(make_strategy("median"), FIVE[:4]),
        {name: np.median([i.arrays[name] for i in FIVE[:4]], 0) for name in SHAPES},
    )


def krum(arrays: list[dict[str, np.ndarray]], malicious: int) -> int:
    flat = np.array([np.concatenate([each[name].ravel() for name in SHAPES]) for each in arrays], dtype=np.float64)
    distance = ((flat[:, None] - flat[None]) ** 2).sum(-1)
    scores = [np.sort(np.delete(row, i))[: len(flat) - malicious - 2].sum() for i, row in enumerate(distance)]
    return int(np.argmin(scores))


def test_krum_matches_formula():
    """argmin_i of the sum of squared distances to the n - f - 2 nearest others."""
    assert make_strategy("krum", malicious=1).min_replies == 5
    assert_close(
        aggregate(make_strategy("krum", malicious=1), FIVE),
        FIVE[krum([i.arrays for i in FIVE], 1)].arrays,
    )


def test_krum_separates_small_updates_of_large_weights():
    """Flower's distances are |x|^2 + |y|^2 - 2xy: of whole weights in float32 they would be rounding errors."""
    strategy = make_strategy("krum", malicious=1)
    strategy.initial = {name: 1000 * array for name, array in weights(99).items()}
    steps = [weights(i, 1e-2) for i in range(7)]
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(7)
        arrays = [{name: strategy.initial[name] + steps[i][name] for name in SHAPES} for i in order]
        sent = [update(f"s{i}", each) for i, each in enumerate(arrays)]
        assert_close(aggregate(strategy, sent), arrays[krum(arrays, 1)])


def test_rows_are_averaged_over_the_sites_that_use_the_label():
    label_mask = np.ones((3, L), bool)
    label_mask[0, 1] = label_mask[0, 2] = label_mask[2, 2] = False
    label_mask[:, 4] = False
    sent = [update(f"s{i}", weights(i), n, label_mask[i]) for i, n in enumerate((10, 1, 30))]
    strategy = make_strategy("fedavg")
    result, plain = aggregate(strategy, sent), mean(sent)
    for name in ("out.weight", "out.bias"):
        rows = [item.arrays[name] for item in sent]
        np.testing.assert_allclose(result[name][1], (rows[1][1] + 30 * rows[2][1]) / 31, rtol=1e-5)
        np.testing.assert_allclose(result[name][2], rows[1][2], rtol=1e-6)
        np.testing.assert_array_equal(result[name][4], strategy.initial[name][4])
        np.testing.assert_allclose(result[name][[0, 3]], plain[name][[0, 3]], rtol=1e-5)
    np.testing.assert_allclose(result["hidden.0.linear.weight"], plain["hidden.0.linear.weight"], rtol=1e-5)


def test_median_of_rows_is_over_the_sites_that_use_the_label():
    label_mask = np.ones((5, L), bool)
    label_mask[:3, 1] = False
    sent = [update(f"s{i}", weights(i), 1, label_mask[i]) for i in range(5)]
    result = aggregate(make_strategy("median"), sent)
    expected = np.median([sent[3].arrays["out.weight"][1], sent[4].arrays["out.weight"][1]], 0)
    np.testing.assert_allclose(result["out.weight"][1], expected, rtol=1e-6)


def test_unused_label_is_not_moved_by_server_momentum():
    strategy = make_strategy("fedadam", server_learning_rate=0.1)
    strategy.initial = aggregate(strategy, FIVE, 1)
    label_mask = np.ones(L, bool)
    label_mask[3] = False
    result = aggregate(strategy, [update("s0", weights(5), 10, label_mask)], 2)
    np.testing.assert_array_equal(result["out.weight"][3], strategy.initial["out.weight"][3])
    assert not np.array_equal(result["out.weight"][2], strategy.initial["out.weight"][2])


def reply(node: int, arrays: ArrayRecord | None, metrics=None, label_mask: bytes | None = None) -> Message:
    metadata = Metadata(1, "m", node, 1, "q", "", 0.0, 60.0, "train")
    if arrays is None:
        return Message(error=Error(FAILED, "it failed with KeyError"), metadata=metadata)
    records = {"arrays": arrays, "metrics": MetricRecord(metrics or {"num-examples": 10, "loss": 0.5})}
    packed_mask = np.packbits(np.ones(L, bool)).tobytes() if label_mask is None else label_mask
    return Message(RecordDict(records | {"config": ConfigRecord({"label-mask": packed_mask})}), metadata=metadata)


def changed(name: str, array: np.ndarray | None) -> ArrayRecord:
    arrays = weights(1)
    if array is None:
        del arrays[name]
    else:
        arrays[name] = array
    return to_record(arrays)


NAN = weights(1)["out.bias"] * np.float32(np.nan)
BROKEN = to_record(weights(1))
BROKEN["out.bias"] = Array("float32", (L,), "numpy.ndarray", b"no array at all")
BAD = {
    "it failed": reply(0, None),
    "out.bias contains NaN": reply(0, changed("out.bias", NAN)),
    "out.weight contains NaN or inf": reply(0, changed("out.weight", np.full((L, D), np.inf, "f4"))),
    "out.weight must have shape": reply(0, changed("out.weight", np.zeros((L, D + 1), "f4"))),
    "out.weight must be float32; got float64": reply(0, changed("out.weight", np.zeros((L, D)))),
    "arrays must be those of the model; out.bias": reply(0, changed("out.bias", None)),
    "arrays must be those of the model; more": reply(0, changed("more", np.zeros(3, "f4"))),
    "out.bias cannot be read": reply(0, BROKEN),
    "num-examples must be positive; got 0": reply(0, to_record(weights(1)), {"num-examples": 0, "loss": 0.5}),
    "num-examples must be positive; got -4": reply(0, to_record(weights(1)), {"num-examples": -4, "loss": 0.5}),
    "num-examples must be a finite": reply(0, to_record(weights(1)), {"num-examples": float("inf"), "loss": 0.5}),
    "loss must be a finite number": reply(0, to_record(weights(1)), {"num-examples": 3, "loss": float("nan")}),
    "num-examples must be a": reply(0, to_record(weights(1)), {"num-examples": [3, 4], "loss": 0.1}),
    "its reply has no loss": reply(0, to_record(weights(1)), {"num-examples": 3}),
    "num-examples must be 10, as": reply(0, to_record(weights(1)), {"num-examples": 1000, "loss": 0.5}),
    "loss must be between": reply(0, to_record(weights(1)), {"num-examples": 10, "loss": 1e308}),
    "loss must be between 0 and 1e+06; got -1": reply(0, to_record(weights(1)), {"num-examples": 10, "loss": -1.0}),
    "out.bias contains values beyond 1e+06": reply(0, changed("out.bias", np.full(L, -3e38, "f4"))),
    "label-mask must have 5 bits": reply(0, to_record(weights(1)), label_mask=b"abc"),
}


def test_negative_variance_is_refused():
    start = weights(1) | {"norm.running_var": np.ones(3, "f4")}
    less = start | {"norm.running_var": np.array([1, -5, 1], "f4")}
    assert read_update("a", reply(0, to_record(less)), start) == "norm.running_var contains a negative variance"
    assert not isinstance(read_update("a", reply(0, to_record(start)), start), str)
    strategy = make_strategy("fedavg")
    strategy.initial = start
    with pytest.raises(AggregationError, match="variance"):
        strategy.aggregate(1, [update("a", less, 10)])


@pytest.mark.parametrize("reason", BAD)
def test_invalid_reply_is_refused_with_reason(reason):
    strategy = make_strategy("fedavg")
    strategy.sites, strategy.notes = {0: "north", 1: "south"}, {"north": 10, "south": 10}
    result, loss = aggregate_replies(strategy, [BAD[reason], reply(1, to_record(weights(2)))])
    assert list(strategy.refused) == ["north"] and reason in strategy.refused["north"]
    assert strategy.accepted == ["south"]
    assert_close(result, weights(2), 0)
    assert loss == 0.5


def test_round_without_valid_reply_has_no_update():
    strategy = make_strategy("fedavg")
    strategy.sites, strategy.notes = dict(enumerate(BAD)), dict.fromkeys(BAD, 10)
    replies = [Message(m.content, metadata=m.metadata) if m.has_content() else m for m in BAD.values()]
    assert strategy.validate([(strategy.sites[number], message) for number, message in enumerate(replies)]) == []
    assert strategy.accepted == [] and sorted(strategy.refused) == sorted(BAD)


def test_reasons_do_not_quote_exceptions():
    strategy = make_strategy("fedavg")
    metadata = Metadata(1, "m", 3, 1, "q", "", 0.0, 60.0, "train")
    quoting = Error(2, "<class 'ValueError'>:<'the patient John Doe'>")
    assert strategy.validate([("north", Message(error=quoting, metadata=metadata))]) == []
    assert strategy.refused == {"north": "its app raised an exception (ValueError)"}


def test_overflowing_weights_raise():
    huge = {name: np.full(shape, 3e38, np.float32) for name, shape in SHAPES.items()}
    with pytest.raises(AggregationError, match="not finite"):  # the median of two is half their sum
        make_strategy("median").aggregate(1, [update("a", huge), update("b", huge)])
    with pytest.raises(AggregationError, match="beyond"):  # as a secure sum may give
        make_strategy("fedavg").aggregate(1, [update("all", huge)])


@pytest.mark.parametrize(("notes", "loss"), [(10.0, float("nan")), (10.0, 1e308), (0.0, 0.5)])
def test_infinite_loss_raises(notes, loss):
    with pytest.raises(AggregationError, match="loss of the round is not finite"):
        make_strategy("fedavg").aggregate(1, [update("all", weights(1), notes, loss=loss)])


@settings(max_examples=30, deadline=None)
@given(
    order=st.permutations(range(5)),
    strategy=st.sampled_from(["fedavg", "fedadam", "fedyogi", "trimmed_mean", "median", "krum"]),
    seed=st.integers(0, 100),
)
def test_order_of_replies_and_node_ids_has_no_effect(order, strategy, seed):
    rng = np.random.default_rng(seed)
    label_mask = [np.packbits(rng.random(L) < 0.7).tobytes() for _ in range(5)]
    parts = [(weights(seed + i), {"num-examples": 1 + i, "loss": 0.1 * i}, label_mask[i]) for i in range(5)]
    result = []
    for nodes in (range(5), order):
        validating = make_strategy(strategy)
        validating.sites = {node: f"site-{i}" for i, node in enumerate(nodes)}
        replies = [reply(node, to_record(w), m, k) for node, (w, m, k) in zip(nodes, parts)]
        result.append(aggregate_replies(validating, [replies[i] for i in order]))
    assert result[0][1] == result[1][1]
    for name in SHAPES:
        np.testing.assert_array_equal(result[0][0][name], result[1][0][name])


def test_loss_is_weighted_by_notes():
    strategy = make_strategy("median")
    _, loss = strategy.aggregate(1, [update("a", weights(1), 30, loss=1.0), update("b", weights(2), 10, loss=3.0)])
    assert loss == pytest.approx(1.5)


def test_sample_sites_depends_on_seed_and_round_only():
    strategy = make_strategy("fedavg")
    names = [f"site-{i:02d}" for i in range(20)]
    first = strategy.sample_sites("train", 3, 0.25, names)
    assert len(first) == 5 and first == strategy.sample_sites("train", 3, 0.25, reversed(names))
    assert first != strategy.sample_sites("train", 4, 0.25, names)
    assert strategy.sample_sites("train", 3, 0.01, names[:3]) and strategy.sample_sites("train", 3, 1.0, names) == names
    assert strategy.sample_sites("evaluate", 3, 0.0, names) == []


def test_reduce_replaces_the_updates():
    """As central noise and secure rounds do."""
    seen = []

    def reduce(number, start, updates):
        seen.append((number, [item.site for item in updates]))
        return update("all", weights(5))

    strategy = ValidatingStrategy(FederationSettings(), reduce=reduce)
    strategy.initial, strategy.sites = weights(99), {0: "b", 1: "a"}
    result, _ = aggregate_replies(strategy, [reply(0, to_record(weights(1))), reply(1, to_record(weights(2)))], 4)
    assert_close(result, weights(5), 0)
    assert seen == [(4, ["a", "b"])]
