"""Tests of asynchronous rounds on a virtual clock."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from nosology.core import ConfigError, FederationError
from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds.async_rounds import AsyncFederation
from nosology.federated.rounds.federation_modes import make_federation
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.simulation import SITE_NAME, simulation_grid
from nosology.federated.rounds.vectorized import VectorizedFederation
from nosology.federated.rounds.virtual_clock import DAY, VirtualClockGrid, virtual_grid
from tests.federated.rounds.test_federation_server import Broken, assert_near, raising, weights_of
from tests.federated.small_hospitals import recipe, site, sites

HOUR = 3600.0


def clock_grid(hospitals, seconds=(), hours=None) -> VirtualClockGrid:
    """A grid whose sites need 1 second for an update, or the given seconds."""
    times = dict(zip([each.name for each in hospitals], seconds))
    app = simulation_grid(hospitals).app
    return VirtualClockGrid(app, [each.name for each in hospitals], lambda name: times.get(name, 1.0), hours)


class Log:
    """The lines of a run, with the virtual time of each, and the requests to train by site."""

    def __init__(self, grid):
        self.grid, self.lines, self.rounds, self.app = grid, [], [], grid.app
        self.requests: dict[str, list[int]] = {}
        grid.app = self

    def __call__(self, message, context):
        if message.metadata.message_type == "train":
            number = int(message.content["config"]["round"])
            self.requests.setdefault(context.node_config[SITE_NAME], []).append(number)
        return self.app(message, context)

    def report(self, line: str) -> None:
        self.lines.append(line)
        if line.startswith("round ") and "/" in line.split()[1]:
            self.rounds.append(self.grid.now())


def run(grid, settings, out):
    log = Log(grid)
    federation = make_federation(grid, settings, log.report)
    assert isinstance(federation, AsyncFederation) == (settings.federation.mode == "async")
    return federation.run(out), log


@pytest.mark.parametrize("head", ["mlp", "deep"])
def test_sites_of_equal_speed_train_as_in_synchronous_rounds(tmp_path, head):
    """All updates come at the same time, so every buffer has all of them."""
    result, log = run(clock_grid(sites(4)), recipe(head, 4, mode="async", buffer_size=3), tmp_path / "async")
    expected, _ = run(clock_grid(sites(4)), recipe(head, 4), tmp_path / "sync")
    assert_near(weights_of(result), weights_of(expected), 0)
    assert [(row["sites"], row["staleness"]) for row in result.history] == [(4, 0)] * 4
    assert log.rounds == [1, 2, 3, 4]


def test_no_round_waits_for_a_slow_site_and_its_update_is_used_later(tmp_path):
    """The fifth site takes four times as long: a synchronous round takes 4 s, an asynchronous one 1 s."""
    hospitals, times = sites(5), (1, 1, 1, 1, 4)
    result, log = run(clock_grid(hospitals, times), recipe(rounds=9, mode="async", buffer_size=4), tmp_path / "async")
    assert log.rounds == [1, 2, 3, 4, 5, 6, 7, 8, 12]  # the last one is evaluated by all sites
    assert [row["sites"] for row in result.history] == [4, 4, 4, 5, 4, 4, 4, 5, 4]
    assert [row["staleness"] for row in result.history] == [0, 0, 0, 3 / 5, 0, 0, 0, 3 / 5, 0]
    assert log.requests["site-04"] == [1, 5, 9] and log.requests["site-00"] == list(range(1, 10))
    _, log = run(clock_grid(hospitals, times), recipe(rounds=3), tmp_path / "sync")
    assert log.rounds == [4, 8, 12]


def test_small_buffers_use_updates_as_they_come(tmp_path):
    """With a buffer of one, each update is a round, or two that come at the same time."""
    result, log = run(clock_grid(sites(2), (2, 3)), recipe(rounds=4, mode="async", buffer_size=1), tmp_path / "b")
    assert log.rounds == [2, 3, 4, 6]
    assert [row["staleness"] for row in result.history] == [0, 1, 1, 0.5]
    assert [row["sites"] for row in result.history] == [1, 1, 1, 2]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_late_update_is_added_to_the_present_weights(tmp_path, exponent, rate):
    """w3 = w2 + rate x (w1' - w0) / (1 + 2)^exponent for an update of w0 that comes after two rounds."""
    hospitals = [site("fast", seed=1), site("late", seed=2)]
    settings = {"mode": "async", "buffer_size": 1, "staleness_exponent": exponent, "buffer_learning_rate": rate}
    grid, states, replies = clock_grid(hospitals, (1, 2.5)), [], []
    app = grid.app

    def spy(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "train":
            states.append({name: array.numpy() for name, array in message.content["arrays"].items()})
            if context.node_config[SITE_NAME] == "late":
                replies.append({name: array.numpy() for name, array in reply.content["arrays"].items()})
        return reply

    grid.app = spy
    result = make_federation(grid, recipe("deep", 3, **settings)).run(tmp_path / "bundle")
    assert [row["staleness"] for row in result.history] == [0, 0, 2]
    first, before = states[0], states[-1]  # of the first request, and of that after the second round
    for name, value in weights_of(result).items():
        change = replies[0][name].astype(float) - first[name]
        if "running" in name:  # a mean: a difference of variances could be negative
            expected = before[name] + 3**-exponent * (replies[0][name].astype(float) - before[name])
        else:
            expected = before[name] + rate * 3**-exponent * change
        np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=name)


def test_failing_site_is_named_and_the_others_continue(tmp_path):
    grid = clock_grid(sites(4))
    Broken(grid, "site-02", "train", raising)
    result, log = run(grid, recipe(rounds=3, mode="async", buffer_size=3), tmp_path / "bundle")
    assert [(row["sites"], row["refused"]) for row in result.history] == [(3, 1)] * 3
    assert "site-02: its app raised an exception (RuntimeError)" in log.lines[1]


def test_round_that_cannot_be_filled_is_repeated_and_then_the_run_stops(tmp_path):
    grid = clock_grid(sites(3))
    Broken(grid, "site-02", "train", raising)
    lines = []
    settings = recipe(rounds=2, mode="async", buffer_size=3, max_retries=2)
    with pytest.raises(FederationError, match="2 sites have sent an update, 3 are needed; site-02: its app"):
        make_federation(grid, settings, lines.append).run(tmp_path / "bundle")
    assert sum("round 1 is repeated" in line for line in lines) == 2


def test_run_stops_if_no_update_comes_within_the_timeout(tmp_path):
    grid = clock_grid(sites(3), (1, 1, 90))
    settings = recipe(rounds=2, mode="async", buffer_size=3, timeout=60.0)
    with pytest.raises(FederationError, match="site-02: no reply within 60 s"):
        make_federation(grid, settings).run(tmp_path / "bundle")
    assert grid.now() == 60


def test_sites_come_and_go(tmp_path):
    """A site that leaves while it trains is not waited for; one that returns gets the present weights."""
    grid = clock_grid(sites(4), (1, 1, 1, 10))
    log = Log(grid)

    def report(line):
        log.report(line)
        if line.startswith("round 2/"):
            grid.remove("site-03")
        if line.startswith("round 4/"):
            grid.add("site-03")

    settings = recipe(rounds=16, mode="async", buffer_size=3, timeout=60.0)
    result = make_federation(grid, settings, report).run(tmp_path / "bundle")
    assert log.requests["site-03"] == [1, 5, 5, 15]  # the fifth again with the setup, which the new node has not got
    assert [row["round"] for row in result.history if row["sites"] == 4] == [14]
    assert result.history[13]["staleness"] == 9 / 4 and result.refused == {}


def test_restarted_site_gets_the_setup_again(tmp_path):
    grid = clock_grid(sites(3))
    settings = recipe(rounds=4, mode="async", buffer_size=3)
    result = make_federation(grid, settings, lambda line: grid.add("site-01") if "2/4" in line else None).run(
        tmp_path / "bundle"
    )
    assert [row["sites"] for row in result.history] == [3] * 4
    expected, _ = run(clock_grid(sites(3)), settings, tmp_path / "whole")
    assert_near(weights_of(result), weights_of(expected), 0)


def test_site_that_is_open_at_night_takes_part_at_night(tmp_path):
    """It opens at 20:00 for eight hours and needs three hours for an update; the others need one."""
    hospitals = sites(4)
    hours = {"site-03": (20 * HOUR, 4 * HOUR)}
    grid = clock_grid(hospitals, (HOUR, HOUR, HOUR, 3 * HOUR), hours)
    log = Log(grid)
    settings = recipe(rounds=30, mode="async", buffer_size=3, timeout=12 * HOUR)
    result = make_federation(grid, settings, log.report).run(tmp_path / "bundle")
    assert log.rounds == [HOUR * (i + 1) for i in range(30)]
    with_night_site = [row["round"] for row in result.history if row["sites"] == 4]
    assert with_night_site == [3, 23, 26]  # until 4:00, and from 20:00; what is not finished by 4:00 is lost
    assert log.requests["site-03"] == [1, 4, 21, 24, 27]


def test_virtual_clock_has_opening_hours_over_midnight():
    grid = clock_grid(sites(2), hours={"site-01": (22 * HOUR, 6 * HOUR)})
    opened = []
    for _ in range(4):
        opened.append((grid.now() / HOUR, len(grid.get_node_ids())))
        grid.wait(10 * DAY)
    assert opened == [(0, 2), (6, 1), (22, 2), (30, 1)]
    grid.wait(47 * HOUR)
    assert grid.now() == 47 * HOUR


def test_time_of_an_update_follows_from_notes_and_slowness():
    hospitals = sites(2)
    grid = virtual_grid(hospitals, {"site-01": 4.0})
    assert [grid.training_time(each.name) for each in hospitals] == [30, 4 * 37]


def test_killed_run_continues_after_its_last_round(tmp_path):
    """The buffer and open requests are lost: all sites get the weights of the last round."""
    hospitals, times, out = sites(5), (1, 1, 1, 1, 4), tmp_path / "bundle"
    settings = recipe(rounds=6, mode="async", buffer_size=4)

    class Killed(BaseException):
        pass

    def kill(line):
        if line.startswith("round 3/"):
            raise Killed

    with pytest.raises(Killed):
        make_federation(clock_grid(hospitals, times), settings, kill).run(out)
    result, log = run(clock_grid(hospitals, times), settings, out)
    assert "continues after round 3" in log.lines[0] and [row["round"] for row in result.history] == [1, 2, 3, 4, 5, 6]
    assert log.requests["site-04"][0] == 4 and min(log.requests["site-00"]) == 4


def test_robust_rule_and_norm_bound_work_on_buffers(tmp_path):
    settings = recipe(rounds=3, mode="async", buffer_size=3, strategy="median", norm_multiple=1.0)
    result, log = run(clock_grid(sites(4), (1, 1, 1, 2)), settings, tmp_path / "bundle")
    assert [sorted(row["cut"]) for row in result.history][:2] == [
        ["site-00", "site-01", "site-02"],
        ["site-00", "site-01", "site-02", "site-03"],
    ]
    assert "cut off: " in log.lines[1]


def test_noise_is_accounted_for_each_request(tmp_path):
    privacy = {"record_noise": 1.0}
    settings = recipe("mlp", 3, mode="async", buffer_size=2, privacy=privacy)
    result, _ = run(clock_grid(sites(3), (1, 1, 10)), settings, tmp_path / "bundle")
    sync, _ = run(clock_grid(sites(2)), recipe("mlp", 3, privacy=privacy), tmp_path / "sync")
    epsilons = [row["record_epsilon"] for row in result.history]
    assert epsilons == sorted(epsilons) and epsilons[0] > 0
    assert epsilons == pytest.approx([row["record_epsilon"] for row in sync.history])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"privacy": {"secure": True}}, 'mode must be "sync" where privacy.secure is set'),
        ({"fraction_train": 0.5}, 'fraction_train must be 1 where mode is "async"; got 0.5'),
    ],
)
def test_settings_that_need_a_common_start_are_refused(changes, reason):
    with pytest.raises(ValidationError, match=reason):
        FederationSettings(mode="async", **changes)


def test_vectorized_engine_refuses_asynchronous_rounds():
    with pytest.raises(ConfigError, match=r"federation.mode must be sync with the vectorized engine; got async"):
        VectorizedFederation(sites(2), recipe(mode="async"))
    assert isinstance(make_federation(simulation_grid(sites(2)), recipe()), FlowerFederation)
