"""Each of Flower's strategies against a formula, and the guard before them."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.serverapp.exception import AggregationError
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds.records import FAILED, from_record, to_record
from nosology.federated.rounds.replies import read_update
from nosology.federated.rounds.strategy import GuardedStrategy, SiteUpdate

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
    made = {name: (size * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}
    made["hidden.0.norm.running_var"] = np.abs(made["hidden.0.norm.running_var"]) + np.float32(1e-4)
    return made


def update(site: str, arrays, notes: float = 10.0, known=None, loss: float = 0.5) -> SiteUpdate:
    return SiteUpdate(site, arrays, notes, loss, np.ones(L, bool) if known is None else np.asarray(known, bool))


def guarded(strategy: str, **changes) -> GuardedStrategy:
    made = GuardedStrategy(FederationSettings(strategy=strategy, **changes))
    made.start = weights(99)
    return made


def applied(strategy: GuardedStrategy, updates: list[SiteUpdate], number: int = 1) -> dict[str, np.ndarray]:
    return from_record(strategy.aggregate(number, updates)[0])


def near(found, wanted, within: float = 1e-6) -> None:
    assert list(found) == list(SHAPES)
    for name in SHAPES:
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], wanted[name], atol=within, rtol=within, err_msg=name)


def mean(updates: list[SiteUpdate]) -> dict[str, np.ndarray]:
    share = np.array([item.notes for item in updates]) / sum(item.notes for item in updates)
    return {name: np.tensordot(share, [item.arrays[name] for item in updates], 1) for name in SHAPES}


FIVE = [update(f"s{i}", weights(i), notes) for i, notes in enumerate((10, 1, 30, 7, 2))]


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox"])
def test_fedavg_and_fedprox_are_the_mean_by_notes(strategy):
    """sum n_i w_i / sum n_i."""
    near(applied(guarded(strategy), FIVE), mean(FIVE))


def buffers_of(wanted: dict, updates: list[SiteUpdate]) -> dict:
    plain = mean(updates)
    return wanted | {name: plain[name] for name in SHAPES if "running" in name}


def test_fedadam_is_adam_on_the_mean_update_with_a_correction_one_round_ahead():
    """m = .9 m + .1 d, v = .99 v + .01 d^2, w + rate sqrt(1 - .99^(t+1)) / (1 - .9^(t+1)) m / (sqrt v + tau).

    Flower corrects with t + 1 where Adam has t: the first step is 0.74 of the rate, not all of it. tau is added to the
    root, 0.001, so it damps updates that are smaller.
    """
    strategy = guarded("fedadam", server_rate=0.02)
    m = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    v, w = dict(m), strategy.start
    for number in (1, 2, 3):
        sent = [update(f"s{i}", weights(10 * number + i), 5 + i) for i in range(3)]
        d = {name: value - w[name] for name, value in mean(sent).items()}
        m = {name: 0.9 * m[name] + 0.1 * d[name] for name in m}
        v = {name: 0.99 * v[name] + 0.01 * d[name] ** 2 for name in v}
        rate = 0.02 * np.sqrt(1 - 0.99 ** (number + 1)) / (1 - 0.9 ** (number + 1))
        wanted = {name: w[name] + rate * m[name] / (np.sqrt(v[name]) + 1e-3) for name in m}
        found = applied(strategy, sent, number)
        near(found, buffers_of(wanted, sent), 1e-5)
        strategy.start = w = found


def test_fedyogi_is_yogi_on_the_mean_update_without_a_correction():
    """m = .9 m + .1 d, v = v - .01 d^2 sign(v - d^2), w + rate m / (sqrt v + tau)."""
    strategy = guarded("fedyogi", server_rate=0.02)
    m = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    v, w = dict(m), strategy.start
    for number in (1, 2, 3):
        sent = [update(f"s{i}", weights(10 * number + i), 5 + i) for i in range(3)]
        d = {name: value - w[name] for name, value in mean(sent).items()}
        m = {name: 0.9 * m[name] + 0.1 * d[name] for name in m}
        v = {name: v[name] - 0.01 * d[name] ** 2 * np.sign(v[name] - d[name] ** 2) for name in v}
        wanted = {name: w[name] + 0.02 * m[name] / (np.sqrt(v[name]) + 1e-3) for name in m}
        found = applied(strategy, sent, number)
        near(found, buffers_of(wanted, sent), 1e-5)
        strategy.start = w = found


@pytest.mark.parametrize("strategy", ["fedadam", "fedyogi"])
def test_running_variances_stay_positive_under_server_moments(strategy):
    """Moments would carry a falling variance on below 0."""
    made = guarded(strategy, server_rate=0.5)
    for number in range(1, 12):
        sent = [update(f"s{i}", made.start, 5.0) for i in range(2)]
        for item in sent:
            item.arrays["hidden.0.norm.running_var"] = made.start["hidden.0.norm.running_var"] * np.float32(0.3)
        made.start = applied(made, sent, number)
        assert (made.start["hidden.0.norm.running_var"] > 0).all()


def test_server_moments_go_on_after_a_restart():
    first, second = guarded("fedadam"), guarded("fedadam")
    first.start = applied(first, FIVE, 1)
    second.put_moments(first.moments())
    second.start = first.start
    near(applied(second, FIVE[:3], 2), applied(first, FIVE[:3], 2), 0)


def test_trimmed_mean_leaves_out_the_outermost_and_forgets_the_notes():
    """Per value: sorted, int(trim n) cut at each end, plain mean of the rest; ties are cut like any others."""
    made = guarded("trimmed_mean", trim=0.2)
    tied = [*FIVE[:3], update("s3", FIVE[0].arrays, 7), update("s4", weights(4, 1e6), 2)]
    for sent in (FIVE, tied):
        stacked = {name: np.sort([item.arrays[name] for item in sent], 0)[1:4].mean(0) for name in SHAPES}
        near(applied(made, sent), stacked, 1e-5)


def test_trimmed_mean_needs_sites_enough_to_trim():
    """int(0.2 x 4) = 0: with four sites nothing would be cut off."""
    assert guarded("trimmed_mean", trim=0.2).least == 5
    assert guarded("trimmed_mean", trim=0.0).least == 1


def test_median_is_the_median_of_each_value_and_forgets_the_notes():
    near(applied(guarded("median"), FIVE), {name: np.median([i.arrays[name] for i in FIVE], 0) for name in SHAPES})
    near(
        applied(guarded("median"), FIVE[:4]),
        {name: np.median([i.arrays[name] for i in FIVE[:4]], 0) for name in SHAPES},
    )


def krum(arrays: list[dict[str, np.ndarray]], malicious: int) -> int:
    flat = np.array([np.concatenate([each[name].ravel() for name in SHAPES]) for each in arrays], dtype=np.float64)
    distance = ((flat[:, None] - flat[None]) ** 2).sum(-1)
    scores = [np.sort(np.delete(row, i))[: len(flat) - malicious - 2].sum() for i, row in enumerate(distance)]
    return int(np.argmin(scores))


def test_krum_takes_the_site_with_the_nearest_neighbours_whatever_its_notes():
    """argmin_i of the sum of squared distances to the n - f - 2 nearest others."""
    assert guarded("krum", malicious=1).least == 5
    near(applied(guarded("krum", malicious=1), FIVE), FIVE[krum([i.arrays for i in FIVE], 1)].arrays)


def test_krum_tells_small_updates_of_large_weights_apart():
    """Flower's distances are |x|^2 + |y|^2 - 2xy: of whole weights in float32 they would be rounding errors."""
    made = guarded("krum", malicious=1)
    made.start = {name: 1000 * array for name, array in weights(99).items()}
    steps = [weights(i, 1e-2) for i in range(7)]
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(7)
        arrays = [{name: made.start[name] + steps[i][name] for name in SHAPES} for i in order]
        sent = [update(f"s{i}", each) for i, each in enumerate(arrays)]
        near(applied(made, sent), arrays[krum(arrays, 1)])


def test_a_site_that_does_not_know_a_code_does_not_dilute_it():
    known = np.ones((3, L), bool)
    known[0, 1] = known[0, 2] = known[2, 2] = False
    known[:, 4] = False
    sent = [update(f"s{i}", weights(i), n, known[i]) for i, n in enumerate((10, 1, 30))]
    made = guarded("fedavg")
    found, plain = applied(made, sent), mean(sent)
    for name in ("out.weight", "out.bias"):
        rows = [item.arrays[name] for item in sent]
        np.testing.assert_allclose(found[name][1], (rows[1][1] + 30 * rows[2][1]) / 31, rtol=1e-5)
        np.testing.assert_allclose(found[name][2], rows[1][2], rtol=1e-6)
        np.testing.assert_array_equal(found[name][4], made.start[name][4])
        np.testing.assert_allclose(found[name][[0, 3]], plain[name][[0, 3]], rtol=1e-5)
    np.testing.assert_allclose(found["hidden.0.linear.weight"], plain["hidden.0.linear.weight"], rtol=1e-5)


def test_the_median_of_a_code_is_that_of_the_sites_that_know_it():
    known = np.ones((5, L), bool)
    known[:3, 1] = False
    sent = [update(f"s{i}", weights(i), 1, known[i]) for i in range(5)]
    found = applied(guarded("median"), sent)
    wanted = np.median([sent[3].arrays["out.weight"][1], sent[4].arrays["out.weight"][1]], 0)
    np.testing.assert_allclose(found["out.weight"][1], wanted, rtol=1e-6)


def test_a_code_that_no_site_of_the_round_knows_is_not_moved_by_server_momentum():
    made = guarded("fedadam", server_rate=0.1)
    made.start = applied(made, FIVE, 1)
    known = np.ones(L, bool)
    known[3] = False
    found = applied(made, [update("s0", weights(5), 10, known)], 2)
    np.testing.assert_array_equal(found["out.weight"][3], made.start["out.weight"][3])
    assert not np.array_equal(found["out.weight"][2], made.start["out.weight"][2])


def reply(node: int, arrays: ArrayRecord | None, metrics=None, known: bytes | None = None) -> Message:
    metadata = Metadata(1, "m", node, 1, "q", "", 0.0, 60.0, "train")
    if arrays is None:
        return Message(error=Error(FAILED, "it failed with KeyError"), metadata=metadata)
    records = {"arrays": arrays, "metrics": MetricRecord(metrics or {"num-examples": 10, "loss": 0.5})}
    packed = np.packbits(np.ones(L, bool)).tobytes() if known is None else known
    return Message(RecordDict(records | {"config": ConfigRecord({"known": packed})}), metadata=metadata)


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
    "out.bias holds NaN": reply(0, changed("out.bias", NAN)),
    "out.weight holds NaN or inf": reply(0, changed("out.weight", np.full((L, D), np.inf, "f4"))),
    "out.weight must be of shape": reply(0, changed("out.weight", np.zeros((L, D + 1), "f4"))),
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
    "loss must lie between": reply(0, to_record(weights(1)), {"num-examples": 10, "loss": 1e308}),
    "loss must lie between 0 and 1e+06; got -1": reply(0, to_record(weights(1)), {"num-examples": 10, "loss": -1.0}),
    "out.bias holds numbers beyond 1e+06": reply(0, changed("out.bias", np.full(L, -3e38, "f4"))),
    "known must be 5 bits": reply(0, to_record(weights(1)), known=b"abc"),
}


def test_a_variance_below_nothing_is_refused_from_a_site_and_in_the_mean():
    start = weights(1) | {"norm.running_var": np.ones(3, "f4")}
    less = start | {"norm.running_var": np.array([1, -5, 1], "f4")}
    assert read_update("a", reply(0, to_record(less)), start) == "norm.running_var holds a variance below 0"
    assert not isinstance(read_update("a", reply(0, to_record(start)), start), str)
    made = guarded("fedavg")
    made.start = start
    with pytest.raises(AggregationError, match="variance"):
        made.aggregate(1, [update("a", less, 10)])


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_reply_is_refused_and_named_and_the_round_goes_on_without_it(reason):
    made = guarded("fedavg")
    made.sites, made.notes = {0: "north", 1: "south"}, {"north": 10, "south": 10}
    record, metrics = made.aggregate_train(1, [BAD[reason], reply(1, to_record(weights(2)))])
    assert list(made.refused) == ["north"] and reason in made.refused["north"]
    assert made.accepted == ["south"]
    near(from_record(record), weights(2), 0)
    assert metrics["loss"] == 0.5


def test_a_round_of_bad_replies_alone_gives_nothing():
    made = guarded("fedavg")
    made.sites, made.notes = dict(enumerate(BAD)), dict.fromkeys(BAD, 10)
    replies = [Message(m.content, metadata=m.metadata) if m.has_content() else m for m in BAD.values()]
    assert made.aggregate_train(1, replies) == (None, None)
    assert made.accepted == []


def test_flowers_own_errors_are_told_without_what_they_quote():
    made = guarded("fedavg")
    made.sites = {3: "north"}
    metadata = Metadata(1, "m", 3, 1, "q", "", 0.0, 60.0, "train")
    quoting = Error(2, "<class 'ValueError'>:<'the patient John Doe'>")
    made.aggregate_train(1, [Message(error=quoting, metadata=metadata)])
    assert made.refused == {"north": "its app raised an exception (ValueError)"}


def test_weights_that_overflow_are_no_round():
    huge = {name: np.full(shape, 3e38, np.float32) for name, shape in SHAPES.items()}
    with pytest.raises(AggregationError, match="not finite"):  # the median of two is half their sum
        guarded("median").aggregate(1, [update("a", huge), update("b", huge)])
    with pytest.raises(AggregationError, match="beyond"):  # as a secure sum may give
        guarded("fedavg").aggregate(1, [update("all", huge)])


@pytest.mark.parametrize(("notes", "loss"), [(10.0, float("nan")), (10.0, 1e308), (0.0, 0.5)])
def test_a_round_without_a_loss_is_no_round(notes, loss):
    with pytest.raises(AggregationError, match="loss of the round is not finite"):
        guarded("fedavg").aggregate(1, [update("all", weights(1), notes, loss=loss)])


@settings(max_examples=30, deadline=None)
@given(
    order=st.permutations(range(5)),
    strategy=st.sampled_from(["fedavg", "fedadam", "fedyogi", "trimmed_mean", "median", "krum"]),
    seed=st.integers(0, 100),
)
def test_the_order_of_replies_and_of_node_ids_never_matters(order, strategy, seed):
    rng = np.random.default_rng(seed)
    known = [np.packbits(rng.random(L) < 0.7).tobytes() for _ in range(5)]
    parts = [(weights(seed + i), {"num-examples": 1 + i, "loss": 0.1 * i}, known[i]) for i in range(5)]
    found = []
    for nodes in (range(5), order):
        made = guarded(strategy)
        made.sites = {node: f"site-{i}" for i, node in enumerate(nodes)}
        replies = [reply(node, to_record(w), m, k) for node, (w, m, k) in zip(nodes, parts)]
        record, metrics = made.aggregate_train(1, [replies[i] for i in order])
        found.append((from_record(record), metrics["loss"]))
    assert found[0][1] == found[1][1]
    for name in SHAPES:
        np.testing.assert_array_equal(found[0][0][name], found[1][0][name])


def test_the_loss_is_weighted_by_notes():
    made = guarded("median")
    _, metrics = made.aggregate(1, [update("a", weights(1), 30, loss=1.0), update("b", weights(2), 10, loss=3.0)])
    assert metrics["loss"] == pytest.approx(1.5)


def test_sites_are_sampled_by_seed_and_round_whatever_their_order():
    made = guarded("fedavg")
    names = [f"site-{i:02d}" for i in range(20)]
    first = made.sampled("train", 3, 0.25, names)
    assert len(first) == 5 and first == made.sampled("train", 3, 0.25, reversed(names))
    assert first != made.sampled("train", 4, 0.25, names)
    assert made.sampled("train", 3, 0.01, names[:3]) and made.sampled("train", 3, 1.0, names) == names
    assert made.sampled("evaluate", 3, 0.0, names) == []


def test_one_update_that_stands_for_all_can_take_their_place():
    """As central noise and secure rounds do."""
    seen = []

    def reduce(number, start, updates):
        seen.append((number, [item.site for item in updates]))
        return update("all", weights(5))

    made = GuardedStrategy(FederationSettings(), reduce=reduce)
    made.start, made.sites = weights(99), {0: "b", 1: "a"}
    record, _ = made.aggregate_train(4, [reply(0, to_record(weights(1))), reply(1, to_record(weights(2)))])
    near(from_record(record), weights(5), 0)
    assert seen == [(4, ["a", "b"])]
