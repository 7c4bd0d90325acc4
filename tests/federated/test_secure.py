"""Secure aggregation: the sum is right, whoever is lost; nothing else can be had from what the server ever sees."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nosology.core import DataError, FederationError
from nosology.federated.privacy import masking, secure
from nosology.federated.privacy.masking import from_whole, join_shares, keystream, split_secret, to_whole
from nosology.federated.privacy.secure import SecureSite, Session, Signatures, least_threshold
from nosology.federated.privacy.secure_server import SecureServer

NAMES = [f"site {i}" for i in range(7)]


class World:
    """Sites with vectors, and a record of every message that the server sends or gets."""

    def __init__(self, names=NAMES, size: int = 500, seed: int = 0, signatures=None):
        rng = np.random.default_rng(seed)
        self.vectors = {name: 100 * rng.standard_normal(size) for name in names}
        self.sites = {name: SecureSite(name, signatures=(signatures or {}).get(name)) for name in names}
        self.size, self.log, self.masked = size, [], {}

    def call(self, name: str, stage: str, request, *more):
        """A site's answer; site and request pass through JSON, as they do in a federation."""
        site = self.sites[name]
        site = self.sites[name] = SecureSite(name, json.loads(json.dumps(site.to_json())), site.signatures)
        answer = getattr(site, stage)(json.loads(json.dumps(request)), *more)
        self.log += [request, answer]
        return answer

    def run(self, server: SecureServer, lost: dict[str, Collection[str]] | None = None) -> np.ndarray:
        """The sum; lost: the sites that do not answer a stage, nor any later one."""
        gone: set[str] = set()
        lost = lost or {}
        requests = dict.fromkeys(self.sites, server.request)
        for stage in ("keys", "shares", "mask", "unmask"):
            gone |= set(lost.get(stage, ()))
            asked = {name: request for name, request in requests.items() if name not in gone}
            if stage == "mask":
                for name, request in asked.items():
                    self.masked[name] = self.call(name, stage, request, to_whole(self.vectors[name], len(self.sites)))
                    server.take_masked(name, self.masked[name], self.size)
                requests = server.unmask_requests()
                continue
            answers = {name: self.call(name, stage, request) for name, request in asked.items()}
            if stage == "unmask":
                return server.take_unmasked(answers)
            requests = getattr(server, f"take_{stage}")(answers)
        raise AssertionError

    def plain(self, names: Collection[str]) -> np.ndarray:
        return sum(self.vectors[name] for name in names)


def server(number: int = 1, attempt: int = 1, quorum: int = 3, run: str = "run") -> SecureServer:
    return SecureServer(Session(run, number, attempt), quorum)


def all_text(*things) -> str:
    """Everything that is in some objects, their arrays as hex."""

    def told(value):
        if isinstance(value, np.ndarray):
            return value.tobytes().hex()
        return vars(value) if hasattr(value, "__dict__") else str(value)

    return json.dumps(things, default=told)


def test_the_sum_is_the_plain_sum_up_to_rounding():
    world = World()
    total = from_whole(world.run(server()))
    bound = len(NAMES) * 2**-33  # each site rounds to a multiple of 2^-32
    assert np.abs(total - world.plain(NAMES)).max() <= bound + 1e-12


@pytest.mark.parametrize("stage", ["keys", "shares", "mask", "unmask"])
@pytest.mark.parametrize("lost", [NAMES[:1], NAMES[2:5:2], NAMES[4:]])
def test_sites_that_are_lost_are_no_loss(stage, lost):
    world = World()
    total = from_whole(world.run(server(), {stage: lost}))
    counted = NAMES if stage == "unmask" else [name for name in NAMES if name not in lost]
    assert np.allclose(total, world.plain(counted), atol=1e-8)


def test_sites_lost_at_every_stage():
    world = World([f"site {i}" for i in range(11)], size=40)
    lost = {"keys": ["site 0"], "shares": ["site 3"], "mask": ["site 5", "site 10"], "unmask": ["site 1"]}
    total = from_whole(world.run(server(quorum=6), lost))
    assert np.allclose(total, world.plain({f"site {i}" for i in (1, 2, 4, 6, 7, 8, 9)}), atol=1e-8)


@settings(max_examples=12, deadline=None)
@given(st.integers(3, 8), st.data())
def test_any_pattern_of_losses_gives_the_sum_or_a_named_end(count, data):
    names = [f"h{i}" for i in range(count)]
    stages = data.draw(
        st.lists(st.sampled_from(["keys", "shares", "mask", "unmask", ""]), min_size=count, max_size=count)
    )
    lost = {stage: [n for n, s in zip(names, stages) if s == stage] for stage in ("keys", "shares", "mask", "unmask")}
    world = World(names, size=8, seed=count)
    with_keys = count - len(lost["keys"])
    at_the_end = stages.count("")
    serving = server()
    if with_keys >= 3 and at_the_end >= least_threshold(with_keys):
        counted = [n for n, s in zip(names, stages) if s in ("unmask", "")]
        assert np.allclose(from_whole(world.run(serving, lost)), world.plain(counted), atol=1e-8)
    else:
        with pytest.raises(FederationError, match=r"secure round 1, attempt 1 ends: \d sites.* are needed"):
            world.run(serving, lost)


@pytest.mark.parametrize("stage, done", [("keys", "sent keys"), ("shares", "sent shares"), ("mask", "sent a vector")])
def test_below_the_threshold_the_round_ends_with_names(stage, done):
    with pytest.raises(
        FederationError, match=rf"attempt 1 ends: 3 sites \(site 0, site 1, site 2\) {done}, 4 are needed"
    ):
        World().run(server(quorum=4), {stage: NAMES[3:]})


def test_below_the_threshold_at_the_end_there_is_no_sum():
    world, serving = World(), server(quorum=5)
    with pytest.raises(FederationError, match=r"ends: 4 sites .* opened their shares, 5 are needed"):
        world.run(serving, {"unmask": NAMES[:3]})


def test_single_updates_are_not_in_what_the_server_keeps_or_was_ever_sent():
    """The server's own objects, and every message of three rounds: no number of a vector, no key of who was there."""
    world = World(size=300)
    kept, private = [], {}
    original = SecureSite.mask

    def spying(self, request, vector):
        private[self.name, request["session"]["round"]] = dict(self.state.private)
        return original(self, request, vector)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureSite, "mask", spying)
        for number in (1, 2, 3):
            serving = server(number)
            total = world.run(serving, {"mask": NAMES[-1:]} if number == 2 else None)
            kept += [serving, total]
    seen = all_text(world.log, [vars(item) if hasattr(item, "__dict__") else item for item in kept])
    for name in NAMES:
        assert world.masked[name].tobytes().hex() in seen, "the search must be able to find a vector"
        for number, whole in zip(world.vectors[name][:20], to_whole(world.vectors[name], len(NAMES))):
            assert whole.tobytes().hex() not in seen
            assert number.tobytes().hex() not in seen
    for (name, number), keys in private.items():
        assert len(keys) == 3
        for kind, secret in keys.items():
            assert secret not in seen, f"{kind} of {name} in round {number}"


def test_what_the_server_can_take_off_leaves_a_uniform_vector():
    """With all that is opened (seeds of those who sent, the key of the one lost), each single vector is still noise."""
    world, serving = World(size=20_000), server()
    streams: list[np.ndarray] = []

    def keeping(key: bytes, length: int) -> np.ndarray:
        streams.append(keystream(key, length))
        return streams[-1]

    requests = serving.take_keys({name: world.call(name, "keys", serving.request) for name in NAMES})
    requests = serving.take_shares({name: world.call(name, "shares", requests[name]) for name in NAMES})
    sending = NAMES[:-1]
    for name in sending:
        world.masked[name] = world.call(name, "mask", requests[name], to_whole(world.vectors[name], 7))
        serving.take_masked(name, world.masked[name], world.size)
    answers = {name: world.call(name, "unmask", request) for name, request in serving.unmask_requests().items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nosology.federated.privacy.secure_server.keystream", keeping)
        patch.setattr(secure, "keystream", keeping)
        assert np.allclose(from_whole(serving.take_unmasked(answers)), world.plain(sending), atol=1e-8)
    own, lost_pairs = streams[: len(sending)], streams[len(sending) :]
    assert len(lost_pairs) == len(sending)
    for name, seed_mask, pair_mask in zip(sending, own, lost_pairs):
        known = to_whole(world.vectors[name], 7)
        rest = world.masked[name] - seed_mask
        rest = rest - pair_mask if name < NAMES[-1] else rest + pair_mask
        for left in (world.masked[name], rest, rest - known):  # even who knows the vector sees only masks
            for byte in (0, 3, 7):
                counts = np.bincount(left.view(np.uint8).reshape(-1, 8)[:, byte], minlength=256)
                assert stats.chisquare(counts).pvalue > 1e-6
        assert abs(np.corrcoef(from_whole(rest), world.vectors[name])[0, 1]) < 0.05
    counts = np.bincount(to_whole(world.vectors[NAMES[0]], 7).view(np.uint8).reshape(-1, 8)[:, 7], minlength=256)
    assert stats.chisquare(counts).pvalue < 1e-6, "the test would see a vector that lies open"


def test_seed_and_key_of_one_site_are_never_both_opened():
    world, serving = World(), server()
    world.run(serving, {"mask": NAMES[:2]})
    answers = [message for message in world.log if isinstance(message, dict) and "seeds" in message]
    assert len(answers) == 5
    for answer in answers:
        assert set(answer["seeds"]) == set(NAMES[2:]) and set(answer["masks"]) == set(NAMES[:2])


def test_a_site_opens_its_shares_once():
    """Two different stories about who was lost would open seed and key of one site."""
    world, serving = World(), server()
    world.run(serving)
    for sent in (NAMES, NAMES[1:], NAMES[:-1]):
        with pytest.raises(FederationError, match="out of turn"):
            world.call(NAMES[2], "unmask", {**serving.request, "sent": sent})


def test_two_stories_cannot_both_find_enough_sites():
    for sites in range(3, 40):
        assert 2 * least_threshold(sites) > sites


@pytest.mark.parametrize("sent", [NAMES[:2], [*NAMES[:6], "a stranger"], NAMES[1:]])
def test_a_site_refuses_to_open_for_too_few_or_for_strangers_or_without_itself(sent):
    world, serving = World(), server(quorum=4)
    requests = serving.take_keys({name: world.call(name, "keys", serving.request) for name in NAMES})
    requests = serving.take_shares({name: world.call(name, "shares", requests[name]) for name in NAMES})
    world.call(NAMES[0], "mask", requests[NAMES[0]], to_whole(world.vectors[NAMES[0]], 7))
    with pytest.raises(FederationError, match="vectors were sent"):
        world.call(NAMES[0], "unmask", {**serving.request, "sent": sent})


def begun(world: World, number: int) -> tuple[SecureServer, dict]:
    serving = server(number)
    return serving, serving.take_keys({name: world.call(name, "keys", serving.request) for name in NAMES})


def test_replays_are_refused():
    world = World(size=5)
    _, old = begun(world, 1)
    first = server(2)
    world.run(first)
    with pytest.raises(FederationError, match="is not newer"):
        world.call(NAMES[0], "keys", server(2).request)
    with pytest.raises(FederationError, match="is over already"):
        world.call(NAMES[0], "keys", server(2, attempt=2).request)
    serving, requests = begun(world, 3)
    with pytest.raises(FederationError, match="is not the one that this site takes part in"):
        world.call(NAMES[0], "shares", old[NAMES[0]])
    replayed = json.loads(json.dumps(requests[NAMES[0]]))
    replayed["keys"][NAMES[1]] = first.keys[NAMES[1]]  # of round 2, whose private half the server may have opened
    with pytest.raises(FederationError, match="a key of an earlier round was sent again"):
        world.call(NAMES[0], "shares", replayed)
    replayed["keys"] = first.keys
    with pytest.raises(FederationError, match="the keys of this site are not those that it sent"):
        world.call(NAMES[0], "shares", replayed)
    with pytest.raises(FederationError, match="out of turn"):
        world.call(NAMES[0], "mask", {**serving.request, "letters": {}}, np.zeros(5, np.uint64))


def test_one_key_for_two_sites_and_low_thresholds_are_refused():
    world = World(size=5)
    _, requests = begun(world, 1)
    doubled = json.loads(json.dumps(requests[NAMES[0]]))
    doubled["keys"][NAMES[1]] = doubled["keys"][NAMES[2]]
    with pytest.raises(FederationError, match="a key occurs twice"):
        world.call(NAMES[0], "shares", doubled)
    with pytest.raises(FederationError, match=r"the threshold must lie in \[4, 7\]; got 3"):
        world.call(NAMES[0], "shares", {**requests[NAMES[0]], "threshold": 3})


def test_a_letter_that_was_changed_is_noticed():
    world = World(size=5)
    serving, requests = begun(world, 1)
    requests = serving.take_shares({name: world.call(name, "shares", requests[name]) for name in NAMES})
    letters = dict(requests[NAMES[0]]["letters"])
    letters[NAMES[1]], letters[NAMES[2]] = letters[NAMES[2]], letters[NAMES[1]]
    with pytest.raises(FederationError, match="was changed on the way"):
        world.call(NAMES[0], "mask", {**serving.request, "letters": letters}, np.zeros(5, np.uint64))


def test_no_keystream_is_used_twice():
    used: list[bytes] = []

    def noting(key: bytes, length: int) -> np.ndarray:
        used.append(key)
        return keystream(key, length)

    world = World(size=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure, "keystream", noting)
        for number in (1, 2, 3):
            world.run(server(number))
    pairs = len(list(combinations(NAMES, 2)))
    assert len(used) == 3 * (len(NAMES) + 2 * pairs)  # both of a pair make the same mask, with opposite signs
    assert len(set(used)) == 3 * (len(NAMES) + pairs)


def test_a_repeated_round_has_other_masks_for_the_same_vectors():
    world = World(size=50)
    with pytest.raises(FederationError):
        world.run(server(1, 1, quorum=5), {"mask": NAMES[:4]})
    before = dict(world.masked)
    total = from_whole(world.run(server(1, 2)))
    assert np.allclose(total, world.plain(NAMES), atol=1e-8)
    assert not any(np.array_equal(before[name], world.masked[name]) for name in before)


def test_answers_that_cannot_be_read_are_refused_and_named():
    world, serving = World(), server()
    answers = {name: world.call(name, "keys", serving.request) for name in NAMES}
    answers[NAMES[0]] = {"mask": "zz", "letter": 3}
    requests = serving.take_keys(answers)
    answers = {name: world.call(name, "shares", request) for name, request in requests.items()}
    answers[NAMES[1]] = {"letters": {}, "commitment": "00" * 32}
    requests = serving.take_shares(answers)
    for name, request in requests.items():
        serving.take_masked(name, world.call(name, "mask", request, to_whole(world.vectors[name], 7)), world.size)
    serving.take_masked(NAMES[2], np.zeros(world.size, np.uint64), world.size)
    answers = {name: world.call(name, "unmask", request) for name, request in serving.unmask_requests().items()}
    answers[NAMES[3]] = {"seeds": None, "masks": {}}
    assert np.allclose(from_whole(serving.take_unmasked(answers)), world.plain(NAMES[2:]), atol=1e-8)
    assert {name: why.split()[1] for name, why in serving.refused.items()} == {
        NAMES[0]: "keys",
        NAMES[1]: "shares",
        NAMES[2]: "vector",
        NAMES[3]: "opened",
    }


def test_wrong_shares_do_not_pass_as_a_sum():
    world, serving = World(), server()
    original = SecureSite.unmask

    def lying(self, request):
        told = original(self, request)
        if self.name == NAMES[0]:
            told["seeds"][NAMES[1]] = "00" * masking.SHARE
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureSite, "unmask", lying)
        with pytest.raises((FederationError, DataError), match="do not fit"):
            world.run(serving)


def signatures(names) -> dict[str, Signatures]:
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}
    pem = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    public = {name: key.public_key().public_bytes(*pem) for name, key in keys.items()}
    return {name: Signatures(key, public) for name, key in keys.items()}


def test_signed_keys_keep_a_server_out():
    """A server that hands out a key of its own for another site is found out by the signature."""
    world = World(size=5, signatures=signatures(NAMES))
    assert np.allclose(from_whole(world.run(server(1))), world.plain(NAMES), atol=1e-8)
    _, requests = begun(world, 2)
    forged = json.loads(json.dumps(requests[NAMES[0]]))
    forged["keys"][NAMES[1]]["mask"] = masking.new_key()[1].hex()
    with pytest.raises(FederationError, match="the keys of site site 1 are not signed by it"):
        world.call(NAMES[0], "shares", forged)
    forged["keys"]["a stranger"] = {"mask": "00" * 32, "letter": "11" * 32}
    del forged["keys"][NAMES[1]]
    with pytest.raises(FederationError, match="no public key of site a stranger"):
        world.call(NAMES[0], "shares", forged)


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 9), st.integers(0, 6), st.randoms())
def test_any_threshold_of_shares_gives_the_secret_and_one_less_does_not(secret, threshold, more, random):
    shares = dict(enumerate(split_secret(secret, threshold, threshold + more), 1))
    chosen = dict(random.sample(sorted(shares.items()), threshold))
    assert join_shares(chosen) == secret
    if threshold > 1:
        fewer = dict(list(chosen.items())[1:])
        with contextlib.suppress(DataError):
            assert join_shares(fewer) != secret


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.integers(1, 1000))
def test_whole_numbers_stand_for_numbers(values, sites):
    values = np.array(values)
    assert np.abs(from_whole(to_whole(values, sites)) - values).max() <= 2**-33 + 1e-10 * 2**-20


def test_what_would_overflow_is_refused():
    with pytest.raises(DataError, match="must stay below"):
        to_whole(np.array([2.0**31 / 20]), 20)
    with pytest.raises(DataError, match="NaN or infinity"):
        to_whole(np.array([np.nan]), 3)
