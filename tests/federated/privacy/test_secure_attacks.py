"""Attacks on secure aggregation: a server that lies to sites, sends old messages, or makes sums overflow."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import DataError, FederationError
from nosology.federated.privacy.masking import combine_shares, from_fixed_point, keystream, to_fixed_point
from nosology.federated.privacy.secure_aggregation import (
    SecureSession,
    add_pairwise_mask,
    mask_context,
    min_threshold,
    seed_mask_key,
)
from nosology.federated.privacy.secure_round import MASK, request_digest
from nosology.federated.privacy.secure_server import SecureServer
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import ARRAYS, CONFIG, PREPARE, REFUSED, UNPREPARED, from_record, to_record
from nosology.federated.rounds.simulation import simulation_grid
from tests.federated.privacy.test_secure_aggregation import World, server, signatures
from tests.federated.privacy.test_secure_round import Watched, secret
from tests.federated.small_hospitals import sites

SEVEN = list("ABCDEFG")


class LyingServer:
    """A server that tells each site what it likes, and collects shares."""

    def __init__(self, names: list[str], size: int = 5, signed: bool = False):
        self.names, self.world = names, World(names, size, signatures=signatures(names) if signed else None)
        self.honest = server(quorum=2)
        self.keys = {name: self.world.call(name, "keys", self.honest.request) for name in names}
        self.answers: dict[str, dict] = {}
        self.refusals: dict[str, str] = {}

    def share(self, views: Mapping[str, str], mask_sets: Mapping[str, str]) -> None:
        """Stages 2 and 3. views: the sites that a site is shown. mask_sets: whose shares are forwarded to it."""
        self.views = {name: {other: self.keys[other] for other in views.get(name, self.names)} for name in self.names}
        least = min(site.min_sites for site in self.world.sites.values())
        self.thresholds = {name: min_threshold(len(view), least) for name, view in self.views.items()}
        shares, masked = {}, {}
        for name, view in self.views.items():
            request = {**self.honest.request, "keys": view, "threshold": self.thresholds[name]}
            shares[name] = self._ask(name, "shares", request)
        for name in self.names:
            senders = [other for other in mask_sets.get(name, self.views[name]) if other != name]
            replies = {other: shares[other]["encrypted_shares"] for other in senders if shares[other]}
            encrypted = {other: reply[name] for other, reply in replies.items() if name in reply}
            request = {**self.honest.request, "encrypted_shares": encrypted}
            vector = to_fixed_point(self.world.vectors[name], len(self.names))
            masked[name] = self._ask(name, "mask", request, vector)
        self.masked = {name: vector for name, vector in masked.items() if vector is not None}

    def unmask(self, lists: Mapping[str, str]) -> None:
        """Stages 4 and 5, with another list of lost sites for each site. All codes are forwarded."""
        codes = {}
        for name, sent in lists.items():
            codes[name] = self._ask(name, "confirm", {**self.honest.request, "sent": list(sent)})
        for name in lists:
            got = {other: reply["codes"].get(name, "") for other, reply in codes.items() if reply}
            self.answers[name] = self._ask(name, "unmask", {**self.honest.request, "codes": got}) or {}

    def _ask(self, name: str, stage: str, request: dict, *more):
        try:
            return self.world.call(name, stage, request, *more)
        except FederationError as error:
            self.refusals.setdefault(name, str(error))
            return None

    def shares_of(self, kind: str, name: str) -> dict[int, bytes]:
        """The shares of a secret of a site that were revealed, by position."""
        places = {other: place for place, other in enumerate(sorted(self.views[name]), 1)}
        found = {other: reply.get(kind, {}).get(name) for other, reply in self.answers.items() if other in places}
        return {places[other]: bytes.fromhex(share) for other, share in found.items() if share}

    def knows(self, kind: str, name: str) -> bool:
        return len(self.shares_of(kind, name)) >= self.thresholds[name]

    def vector_of(self, name: str, mask_set: str) -> np.ndarray | None:
        """The vector of a site, if seeds and mask keys were revealed that are enough to unmask it."""
        others = [other for other in mask_set if other != name]
        if name not in self.masked or not self.knows("seeds", name):
            return None
        if not self.knows("masks", name) and not all(self.knows("masks", other) for other in others):
            return None

        def recover(kind: str, owner: str) -> bytes:
            return combine_shares(dict(list(self.shares_of(kind, owner).items())[: self.thresholds[owner]]))

        session, keys = self.honest.session, self.keys
        vector = self.masked[name] - keystream(seed_mask_key(session, name, recover("seeds", name)), self.world.size)
        context = mask_context(session, self.views[name], self.thresholds[name], "")
        for other in others:
            if self.knows("masks", name):
                minus = np.zeros_like(vector)
                add_pairwise_mask(minus, context, name, other, recover("masks", name), keys[other]["mask"])
                vector -= minus
            else:
                add_pairwise_mask(vector, context, other, name, recover("masks", other), keys[name]["mask"])
        return from_fixed_point(vector)


@pytest.mark.parametrize("signed", [False, True])
def test_a_server_without_lies_gets_the_seeds_only(signed):
    attack = LyingServer(SEVEN, signed=signed)
    attack.share({}, {})
    attack.unmask(dict.fromkeys(SEVEN, "ABCDEFG"))
    assert not attack.refusals and all(attack.knows("seeds", name) for name in SEVEN)
    assert all(attack.vector_of(name, "ABCDEFG") is None for name in SEVEN)


LISTS = {"B": "ABEFG", "C": "ACEFG", "E": "AEFG", "F": "AEFG", "G": "AEFG"}  # unmask A if nobody compares lists


def test_different_lists_of_lost_sites_reveal_nothing():
    """A got shares of B, C, D only; the others are told that these are lost. Without codes this gave A's vector."""
    attack = LyingServer(SEVEN)
    attack.share({}, {"A": "ABCD"})
    attack.unmask(LISTS)
    assert attack.vector_of("A", "ABCD") is None
    assert attack.refusals.keys() >= {"B", "C", "E", "F", "G"}
    assert all("sites have the same list of vectors, 4 are needed" in reason for reason in attack.refusals.values())


def test_without_the_comparison_of_lists_the_vector_is_revealed(monkeypatch):
    """The attack is real: sites that accept any code are unmasked."""
    monkeypatch.setattr("nosology.federated.privacy.secure_aggregation.compare_digest", lambda got, expected: True)
    attack = LyingServer(SEVEN)
    attack.share({}, {"A": "ABCD"})
    attack.unmask(LISTS)
    assert np.allclose(attack.vector_of("A", "ABCD"), attack.world.vectors["A"])


@pytest.mark.parametrize("signed", [False, True])
def test_different_participants_are_noticed(signed):
    """A is shown three sites, the rest seven: the seed of A from the three, mask keys of B and C from the rest."""
    attack = LyingServer(SEVEN, signed=signed)
    attack.share({"A": "ABC"}, {"A": "ABC"})
    attack.unmask({"A": "ABC", "B": "ABCDEFG", "C": "ABCDEFG"} | dict.fromkeys("DEFG", "ADEFG"))
    assert "the encrypted share of site B was changed, or that site has other keys" in attack.refusals["A"]
    assert "A" not in attack.masked and attack.vector_of("A", "ABC") is None


def test_no_lists_of_three_sites_reveal_a_vector():
    """All lists of lost sites that a server can tell three sites, with a threshold of two of them."""
    choices = ["abc", "ab", "ac", "bc"]
    unmasked = 0
    for lists in itertools.product(choices, repeat=3):
        names = list("abc")
        attack = LyingServer(names)
        for site in attack.world.sites.values():
            site.min_sites = 2
        attack.share({}, {})
        attack.unmask(dict(zip(names, lists)))
        for victim in names:
            assert not (attack.knows("seeds", victim) and attack.knows("masks", victim))
            assert attack.vector_of(victim, "abc") is None
        unmasked += any(attack.answers.values())
    assert 0 < unmasked < len(choices) ** 3  # honest lists are answered, others are not


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_lies_reveal_no_vector(data):
    """Random participants, forwarded shares and lists of five to seven sites."""
    names = SEVEN[: data.draw(st.integers(4, 7))]
    subset = st.lists(st.sampled_from(names), min_size=3, max_size=len(names), unique=True).map(sorted).map("".join)
    attack = LyingServer(names, size=2)
    sets = {name: data.draw(subset) for name in names if data.draw(st.booleans())}
    attack.share({}, sets)
    attack.unmask({name: data.draw(subset) for name in names})
    for victim in names:
        assert attack.vector_of(victim, sets.get(victim, "".join(names))) is None


def test_masks_of_different_tasks_do_not_cancel():
    world, serving = World(list("abcd"), size=50), SecureServer(SecureSession("run", 1), 3, "task")
    requests = serving.receive_keys({name: world.call(name, "keys", serving.request) for name in "abcd"})
    requests = serving.receive_shares({name: world.call(name, "shares", requests[name]) for name in "abcd"})
    for name in "abcd":
        vector = to_fixed_point(world.vectors[name], 4)
        masked = world.call(name, "mask", requests[name], vector, "other" if name == "d" else "task")
        serving.receive_masked(name, masked, 50)
    total = from_fixed_point(serving.receive_unmasked(world.finish(serving)))
    assert np.abs(total - world.plain("abcd")).min() > 1.0  # noise of 2^31


def test_site_with_other_weights_spoils_the_sum(tmp_path):
    """A server cannot get the update of one site by sending the others weights with which they learn nothing."""

    class Inconsistent(Watched):
        def send_and_receive(self, messages, *, timeout=None):
            changed = []
            for message in messages:
                if message.metadata.message_type == MASK and message.metadata.dst_node_id == self.get_node_ids()[0]:
                    arrays = {name: 0 * array for name, array in from_record(message.content[ARRAYS]).items()}
                    content = RecordDict({ARRAYS: to_record(arrays), CONFIG: message.content[CONFIG]})
                    message = Message(content, message.metadata.dst_node_id, MASK, ttl=message.metadata.ttl)
                changed.append(message)
            return super().send_and_receive(changed, timeout=timeout)

    with pytest.raises(FederationError, match="a site has sent a false vector, or sites have different tasks"):
        FlowerFederation(Inconsistent(simulation_grid(sites(4))), secret("mlp", 1)).run(tmp_path / "bundle")


def test_digest_covers_weights_and_settings():
    def content(array, **config):
        return RecordDict({ARRAYS: to_record({"a": array}), CONFIG: ConfigRecord({"recipe": "1", **config})})

    first = request_digest(content(np.zeros(3), secure="x"))
    assert first == request_digest(content(np.zeros(3), secure="y"))
    others = [content(np.ones(3)), content(np.zeros(3, np.float32)), content(np.zeros(3), setup="2")]
    assert len({first, *map(request_digest, others)}) == 4


def test_setup_with_a_false_hash_is_refused(tmp_path):
    """Labels and inputs are part of the task by their hash, so a site computes it."""
    grid = Watched(simulation_grid(sites(3)))
    FlowerFederation(grid, secret("mlp", 1)).run(tmp_path / "bundle")
    content = next(content for kind, _, content in grid.seen if kind == PREPARE)
    arrays = from_record(content[ARRAYS])
    changed = RecordDict({ARRAYS: to_record(arrays | {"mean": arrays["mean"] + 1}), CONFIG: content[CONFIG]})
    node = grid.get_node_ids()[0]
    assert grid._process(Message(content, node, PREPARE)).has_content()
    reply = grid._process(Message(changed, node, PREPARE))
    assert reply.error.code == REFUSED and "labels and inputs are not those of their hash" in reply.error.reason


def test_old_messages_of_a_federation_are_refused(tmp_path):
    """Every message of a finished secure run is sent again, to the site that had got it."""
    grid = Watched(simulation_grid(sites(4)))
    FlowerFederation(grid, secret("mlp", 2)).run(tmp_path / "bundle")
    sent = [(kind, name, content) for kind, name, content in grid.seen[::2] if "secure" in kind]
    assert len(sent) == 2 * 5 * 4
    nodes = {context.node_config["site-name"]: node for node, context in grid._contexts.items()}
    for kind, name, content in sent:
        reply = grid._process(Message(content, nodes[name], kind))
        assert reply.has_error() and reply.error.code in (REFUSED, UNPREPARED)
        assert any(part in reply.error.reason for part in ("is not newer", "not the current one", "out of order"))


def test_old_codes_and_shares_are_refused():
    world = World(SEVEN, size=5)
    first = server(1)
    requests = first.receive_keys({name: world.call(name, "keys", first.request) for name in SEVEN})
    old_shares = first.receive_shares({name: world.call(name, "shares", requests[name]) for name in SEVEN})
    for name in SEVEN:
        vector = to_fixed_point(world.vectors[name], 7)
        first.receive_masked(name, world.call(name, "mask", old_shares[name], vector), 5)
    asked = first.confirm_requests()
    old_codes = first.receive_confirmed({name: world.call(name, "confirm", asked[name]) for name in SEVEN})
    second = server(2)
    requests = second.receive_keys({name: world.call(name, "keys", second.request) for name in SEVEN})
    new_shares = second.receive_shares({name: world.call(name, "shares", requests[name]) for name in SEVEN})
    replayed = {**second.request, "encrypted_shares": old_shares["A"]["encrypted_shares"]}
    with pytest.raises(FederationError, match="was changed, or that site has other keys"):
        world.call("A", "mask", replayed, np.zeros(5, np.uint64))
    for name in SEVEN:
        second.receive_masked(name, world.call(name, "mask", new_shares[name], np.zeros(5, np.uint64)), 5)
    for name, request in second.confirm_requests().items():
        world.call(name, "confirm", request)
    with pytest.raises(FederationError, match="1 sites have the same list of vectors, 4 are needed"):
        world.call("A", "unmask", {**second.request, "codes": old_codes["A"]["codes"]})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.integers(1, 1000))
def test_fixed_point_round_trips(values, sites):
    values = np.array(values)
    assert np.abs(from_fixed_point(to_fixed_point(values, sites)) - values).max() <= 2**-33 + 1e-10 * 2**-20


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 500), st.booleans())
def test_sums_of_the_largest_allowed_values_do_not_overflow(count, negative):
    """Exact integer arithmetic: the sum of the largest values that all sites may send is within 64 bits."""
    largest = np.nextafter(2.0**31 / count, 0) * (-1 if negative else 1)
    fixed = to_fixed_point(np.array([largest]), count)
    total = np.zeros(1, np.uint64)
    for _ in range(count):
        total = total + fixed
    exact = count * int(fixed.view(np.int64)[0])
    assert -(2**63) <= exact < 2**63 and int(total.view(np.int64)[0]) == exact
    assert from_fixed_point(total)[0] == pytest.approx(count * largest, rel=1e-9)


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_overflow_is_refused(value):
    for count in (1, 3, 20):
        with pytest.raises(DataError, match="must be below"):
            to_fixed_point(np.array([value * 2.0**31 / count]), count)
    for invalid in (np.nan, value * np.inf):
        with pytest.raises(DataError, match="NaN or infinity"):
            to_fixed_point(np.array([invalid]), 3)


def test_a_site_whose_update_would_overflow_is_named_without_its_values(tmp_path):
    hospitals = sites(5)
    original = hospitals[2].train

    def huge(start, *rest):
        update = original(start, *rest)
        update.arrays["out.bias"][0] = 12345678.0  # x 44 notes is beyond 2^31 / 5
        return update

    hospitals[2].train = huge
    lines = []
    result = FlowerFederation(simulation_grid(hospitals), secret("mlp", 1), lines.append).run(tmp_path / "bundle")
    assert result.history[0]["sites"] == 4 and result.history[0]["refused"] == 1
    line = next(line for line in lines if line.startswith("round 1"))
    assert "site-02: the update of the site times its notes must be below 4.29e+08" in line and "1234" not in line


def test_state_of_a_site_is_json():
    world, serving = World(list("abc"), size=3), server()
    world.run(serving)
    assert json.loads(json.dumps(world.sites["a"].to_json()))["private"] == {}
