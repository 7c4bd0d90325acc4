"""Tests of secure aggregation: the sum is right, and the server learns nothing else."""

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
from nosology.federated.privacy import masking
from nosology.federated.privacy.masking import combine_shares, from_fixed_point, keystream, split_secret, to_fixed_point
from nosology.federated.privacy.secure_aggregation import SecureSession, SecureSite, SiteSignatures, min_threshold
from nosology.federated.privacy.secure_server import SecureServer

NAMES = [f"site {i}" for i in range(7)]


class World:
    """Sites with vectors, and a record of every message that the server sends or gets."""

    def __init__(self, names=NAMES, size: int = 500, seed: int = 0, signatures=None, min_sites: int = 3):
        rng = np.random.default_rng(seed)
        self.vectors = {name: 100 * rng.standard_normal(size) for name in names}
        self.sites = {name: SecureSite(name, None, (signatures or {}).get(name), min_sites) for name in names}
        self.size, self.log, self.masked = size, [], {}

    def call(self, name: str, stage: str, request, *more):
        """A site's answer; site and request pass through JSON, as they do in a federation."""
        site = self.sites[name]
        state = json.loads(json.dumps(site.to_json()))
        site = self.sites[name] = SecureSite(name, state, site.signatures, site.min_sites)
        answer = getattr(site, stage)(json.loads(json.dumps(request)), *more)
        self.log += [request, answer]
        return answer

    def run(self, server: SecureServer, lost: dict[str, Collection[str]] | None = None) -> np.ndarray:
        """The sum; lost: the sites that do not answer a stage, nor any later one."""
        gone: set[str] = set()
        lost = lost or {}
        requests = dict.fromkeys(self.sites, server.request)
        for stage in ("keys", "shares", "mask", "confirm", "unmask"):
            gone |= set(lost.get(stage, ()))
            present = {name: request for name, request in requests.items() if name not in gone}
            if stage == "mask":
                for name, request in present.items():
                    self.masked[name] = self.call(
                        name, stage, request, to_fixed_point(self.vectors[name], len(self.sites))
                    )
                    server.receive_masked(name, self.masked[name], self.size)
                requests = server.confirm_requests()
                continue
            answers = {name: self.call(name, stage, request) for name, request in present.items()}
            if stage == "unmask":
                return server.receive_unmasked(answers)
            requests = getattr(server, f"receive_{'confirmed' if stage == 'confirm' else stage}")(answers)
        raise AssertionError

    def finish(self, server: SecureServer) -> dict:
        """The answers to the last message, after all sites have confirmed the list."""
        requests = server.confirm_requests()
        requests = server.receive_confirmed({name: self.call(name, "confirm", requests[name]) for name in requests})
        return {name: self.call(name, "unmask", request) for name, request in requests.items()}

    def plain(self, names: Collection[str]) -> np.ndarray:
        return sum(self.vectors[name] for name in names)


def server(number: int = 1, attempt: int = 1, quorum: int = 3, run: str = "run") -> SecureServer:
    return SecureServer(SecureSession(run, number, attempt), quorum)


def all_text(*things) -> str:
    """Everything that is in some objects, their arrays as hex."""

    def to_text(value):
        if isinstance(value, np.ndarray):
            return value.tobytes().hex()
        return vars(value) if hasattr(value, "__dict__") else str(value)

    return json.dumps(things, default=to_text)


def test_sum_equals_plain_sum_up_to_rounding():
    world = World()
    total = from_fixed_point(world.run(server()))
    bound = len(NAMES) * 2**-33  # each site rounds to a multiple of 2^-32
    assert np.abs(total - world.plain(NAMES)).max() <= bound + 1e-12


@pytest.mark.parametrize("stage", ["keys", "shares", "mask", "confirm", "unmask"])
@pytest.mark.parametrize("lost", [NAMES[:1], NAMES[2:5:2], NAMES[4:]])
def test_lost_sites_do_not_change_the_sum(stage, lost):
    world = World()
    total = from_fixed_point(world.run(server(), {stage: lost}))
    counted = NAMES if stage in ("confirm", "unmask") else [name for name in NAMES if name not in lost]
    assert np.allclose(total, world.plain(counted), atol=1e-8)


def test_sum_with_lost_sites_at_every_stage():
    world = World([f"site {i}" for i in range(12)], size=40)
    lost = {"keys": ["site 0"], "shares": ["site 3"], "mask": ["site 5", "site 10"], "unmask": ["site 1"]}
    total = from_fixed_point(world.run(server(quorum=6), lost | {"confirm": ["site 8"]}))
    assert np.allclose(total, world.plain({f"site {i}" for i in (1, 2, 4, 6, 7, 8, 9, 11)}), atol=1e-8)


@settings(max_examples=12, deadline=None)
@given(st.integers(3, 8), st.data())
def test_any_pattern_of_lost_sites_gives_the_sum_or_an_error(count, data):
    names = [f"h{i}" for i in range(count)]
    stages = data.draw(
        st.lists(st.sampled_from(["keys", "shares", "mask", "confirm", "unmask", ""]), min_size=count, max_size=count)
    )
    lost = {stage: [n for n, s in zip(names, stages) if s == stage] for stage in stages if stage}
    world = World(names, size=8, seed=count)
    with_keys = count - stages.count("keys")
    at_the_end = stages.count("")
    serving = server()
    if with_keys >= 3 and at_the_end >= min_threshold(with_keys):
        counted = [n for n, s in zip(names, stages) if s in ("confirm", "unmask", "")]
        assert np.allclose(from_fixed_point(world.run(serving, lost)), world.plain(counted), atol=1e-8)
    else:
        with pytest.raises(FederationError, match=r"secure round 1, attempt 1 ends: \d sites.* are needed"):
            world.run(serving, lost)


@pytest.mark.parametrize("stage, done", [("keys", "sent keys"), ("shares", "sent shares"), ("mask", "sent a vector")])
def test_round_below_threshold_raises_with_names(stage, done):
    with pytest.raises(
        FederationError, match=rf"attempt 1 ends: 3 sites \(site 0, site 1, site 2\) {done}, 4 are needed"
    ):
        World().run(server(quorum=4), {stage: NAMES[3:]})


def test_unmasking_below_threshold_raises():
    world, serving = World(), server(quorum=5)
    with pytest.raises(FederationError, match=r"ends: 4 sites .* sent unmasking shares, 5 are needed"):
        world.run(serving, {"unmask": NAMES[:3]})


def test_server_never_sees_vectors_or_secrets():
    """The server's objects and all messages of three rounds have no number of a vector and no key of a present site."""
    world = World(size=300)
    stored, private = [], {}
    original = SecureSite.mask

    def spying(self, request, vector):
        private[self.name, request["session"]["round"]] = dict(self.state.private)
        return original(self, request, vector)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureSite, "mask", spying)
        for number in (1, 2, 3):
            serving = server(number)
            total = world.run(serving, {"mask": NAMES[-1:]} if number == 2 else None)
            stored += [serving, total]
    seen = all_text(world.log, [vars(item) if hasattr(item, "__dict__") else item for item in stored])
    for name in NAMES:
        assert world.masked[name].tobytes().hex() in seen, "the search must be able to find a vector"
        for number, fixed in zip(world.vectors[name][:20], to_fixed_point(world.vectors[name], len(NAMES))):
            assert fixed.tobytes().hex() not in seen
            assert number.tobytes().hex() not in seen
    for (name, number), keys in private.items():
        assert len(keys) == 3
        for kind, secret in keys.items():
            assert secret not in seen, f"{kind} of {name} in round {number}"


def test_masked_vectors_are_uniform_for_the_server():
    """With all that is opened (seeds of those who sent, the key of the one lost), each single vector is still noise."""
    world, serving = World(size=20_000), server()
    streams: list[np.ndarray] = []

    def keeping(key: bytes, length: int) -> np.ndarray:
        streams.append(keystream(key, length))
        return streams[-1]

    requests = serving.receive_keys({name: world.call(name, "keys", serving.request) for name in NAMES})
    requests = serving.receive_shares({name: world.call(name, "shares", requests[name]) for name in NAMES})
    sending = NAMES[:-1]
    for name in sending:
        world.masked[name] = world.call(name, "mask", requests[name], to_fixed_point(world.vectors[name], 7))
        serving.receive_masked(name, world.masked[name], world.size)
    answers = world.finish(serving)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "keystream", keeping)
        assert np.allclose(from_fixed_point(serving.receive_unmasked(answers)), world.plain(sending), atol=1e-8)
    seed_masks, lost_pairs = streams[: len(sending)], streams[len(sending) :]
    assert len(lost_pairs) == len(sending)
    for name, seed_mask, pair_mask in zip(sending, seed_masks, lost_pairs):
        label_mask = to_fixed_point(world.vectors[name], 7)
        rest = world.masked[name] - seed_mask
        rest = rest - pair_mask if name < NAMES[-1] else rest + pair_mask
        for left in (world.masked[name], rest, rest - label_mask):  # even who knows the vector sees only masks
            for byte in (0, 3, 7):
                counts = np.bincount(left.view(np.uint8).reshape(-1, 8)[:, byte], minlength=256)
                assert stats.chisquare(counts).pvalue > 1e-6
        assert abs(np.corrcoef(from_fixed_point(rest), world.vectors[name])[0, 1]) < 0.05
    counts = np.bincount(to_fixed_point(world.vectors[NAMES[0]], 7).view(np.uint8).reshape(-1, 8)[:, 7], minlength=256)
    assert stats.chisquare(counts).pvalue < 1e-6, "the test must detect an unmasked vector"


def test_seed_and_key_of_a_site_are_never_both_revealed():
    world, serving = World(), server()
    world.run(serving, {"mask": NAMES[:2]})
    answers = [message for message in world.log if isinstance(message, dict) and "seeds" in message]
    assert len(answers) == 5
    for answer in answers:
        assert set(answer["seeds"]) == set(NAMES[2:]) and set(answer["masks"]) == set(NAMES[:2])


def test_site_unmasks_once():
    """Two different lists of lost sites would reveal seed and key of one site."""
    world, serving = World(), server()
    world.run(serving)
    for stage, more in (("unmask", {"codes": {}}), ("confirm", {"sent": NAMES[1:]}), ("confirm", {"sent": NAMES})):
        with pytest.raises(FederationError, match="out of order"):
            world.call(NAMES[2], stage, {**serving.request, **more})


def test_threshold_is_more_than_half_of_the_sites():
    for sites in range(2, 40):
        assert 2 * min_threshold(sites) > sites and 2 * min_threshold(sites, 2) > sites
        assert min_threshold(sites) >= 3 and min_threshold(sites, 1) >= 2


def test_site_refuses_sums_over_fewer_sites_than_its_policy():
    world, serving = World(["a", "b", "c"], size=4), server(quorum=2)
    requests = serving.receive_keys({name: world.call(name, "keys", serving.request) for name in "abc"})
    with pytest.raises(FederationError, match=r"the threshold must be in \[3, 3\]; got 2"):
        world.call("a", "shares", requests["a"])


@pytest.mark.parametrize("sent", [NAMES[:2], [*NAMES[:6], "unknown"], NAMES[1:]])
def test_site_refuses_to_unmask_for_wrong_lists(sent):
    world, serving = World(), server(quorum=4)
    requests = serving.receive_keys({name: world.call(name, "keys", serving.request) for name in NAMES})
    requests = serving.receive_shares({name: world.call(name, "shares", requests[name]) for name in NAMES})
    world.call(NAMES[0], "mask", requests[NAMES[0]], to_fixed_point(world.vectors[NAMES[0]], 7))
    with pytest.raises(FederationError, match="vectors were sent"):
        world.call(NAMES[0], "confirm", {**serving.request, "sent": sent})


def started(world: World, number: int) -> tuple[SecureServer, dict]:
    serving = server(number)
    return serving, serving.receive_keys({name: world.call(name, "keys", serving.request) for name in NAMES})


def test_replays_are_refused():
    world = World(size=5)
    _, old = started(world, 1)
    first = server(2)
    world.run(first)
    with pytest.raises(FederationError, match="is not newer"):
        world.call(NAMES[0], "keys", server(2).request)
    with pytest.raises(FederationError, match="is over"):
        world.call(NAMES[0], "keys", server(2, attempt=2).request)
    serving, requests = started(world, 3)
    with pytest.raises(FederationError, match="is not the current one of this site"):
        world.call(NAMES[0], "shares", old[NAMES[0]])
    replayed = json.loads(json.dumps(requests[NAMES[0]]))
    replayed["keys"][NAMES[1]] = first.keys[NAMES[1]]  # of round 2, whose private half the server may have opened
    with pytest.raises(FederationError, match="a key of an earlier round was sent again"):
        world.call(NAMES[0], "shares", replayed)
    replayed["keys"] = first.keys
    with pytest.raises(FederationError, match="the keys of this site are not those that it sent"):
        world.call(NAMES[0], "shares", replayed)
    with pytest.raises(FederationError, match="out of order"):
        world.call(NAMES[0], "mask", {**serving.request, "encrypted_shares": {}}, np.zeros(5, np.uint64))


def test_duplicate_keys_and_low_thresholds_are_refused():
    world = World(size=5)
    _, requests = started(world, 1)
    doubled = json.loads(json.dumps(requests[NAMES[0]]))
    doubled["keys"][NAMES[1]] = doubled["keys"][NAMES[2]]
    with pytest.raises(FederationError, match="a key occurs twice"):
        world.call(NAMES[0], "shares", doubled)
    with pytest.raises(FederationError, match=r"the threshold must be in \[4, 7\]; got 3"):
        world.call(NAMES[0], "shares", {**requests[NAMES[0]], "threshold": 3})


def test_changed_encrypted_share_is_detected():
    world = World(size=5)
    serving, requests = started(world, 1)
    requests = serving.receive_shares({name: world.call(name, "shares", requests[name]) for name in NAMES})
    encrypted_shares = dict(requests[NAMES[0]]["encrypted_shares"])
    encrypted_shares[NAMES[1]], encrypted_shares[NAMES[2]] = encrypted_shares[NAMES[2]], encrypted_shares[NAMES[1]]
    with pytest.raises(FederationError, match="was changed"):
        world.call(NAMES[0], "mask", {**serving.request, "encrypted_shares": encrypted_shares}, np.zeros(5, np.uint64))


def test_no_keystream_is_used_twice():
    used: list[bytes] = []

    def noting(key: bytes, length: int) -> np.ndarray:
        used.append(key)
        return keystream(key, length)

    world = World(size=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "keystream", noting)
        for number in (1, 2, 3):
            world.run(server(number))
    pairs = len(list(combinations(NAMES, 2)))
    # both sites of a pair make the same mask, with opposite signs; the server makes the mask of each seed again
    assert len(used) == 3 * (2 * len(NAMES) + 2 * pairs)
    assert len(set(used)) == 3 * (len(NAMES) + pairs)


def test_repeated_round_has_new_masks():
    world = World(size=50)
    with pytest.raises(FederationError):
        world.run(server(1, 1, quorum=5), {"mask": NAMES[:4]})
    before = dict(world.masked)
    total = from_fixed_point(world.run(server(1, 2)))
    assert np.allclose(total, world.plain(NAMES), atol=1e-8)
    assert not any(np.array_equal(before[name], world.masked[name]) for name in before)


def test_unreadable_replies_are_refused_with_names():
    world, serving = World(), server()
    answers = {name: world.call(name, "keys", serving.request) for name in NAMES}
    answers[NAMES[0]] = {"mask": "zz", "encryption": 3}
    requests = serving.receive_keys(answers)
    answers = {name: world.call(name, "shares", request) for name, request in requests.items()}
    answers[NAMES[1]] = {"encrypted_shares": {}, "commitment": "00" * 32}
    requests = serving.receive_shares(answers)
    for name, request in requests.items():
        serving.receive_masked(
            name, world.call(name, "mask", request, to_fixed_point(world.vectors[name], 7)), world.size
        )
    serving.receive_masked(NAMES[2], np.zeros(world.size, np.uint64), world.size)
    answers = world.finish(serving)
    answers[NAMES[3]] = {"seeds": None, "masks": {}}
    assert np.allclose(from_fixed_point(serving.receive_unmasked(answers)), world.plain(NAMES[2:]), atol=1e-8)
    assert {name: why.split()[1] for name, why in serving.refused.items()} == {
        NAMES[0]: "keys",
        NAMES[1]: "shares",
        NAMES[2]: "vector",
        NAMES[3]: "unmasking",
    }


def test_wrong_shares_raise():
    world, serving = World(), server()
    original = SecureSite.unmask

    def lying(self, request):
        shares = original(self, request)
        if self.name == NAMES[0]:
            shares["seeds"][NAMES[1]] = "00" * masking.SHARE_BYTES
        return shares

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureSite, "unmask", lying)
        with pytest.raises((FederationError, DataError), match=r"are (wrong|inconsistent)"):
            world.run(serving)


def signatures(names) -> dict[str, SiteSignatures]:
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}
    pem = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    public = {name: key.public_key().public_bytes(*pem) for name, key in keys.items()}
    return {name: SiteSignatures(key, public) for name, key in keys.items()}


def test_unsigned_keys_are_refused():
    """The signature reveals a server that replaces the key of a site by another key."""
    world = World(size=5, signatures=signatures(NAMES))
    assert np.allclose(from_fixed_point(world.run(server(1))), world.plain(NAMES), atol=1e-8)
    _, requests = started(world, 2)
    forged = json.loads(json.dumps(requests[NAMES[0]]))
    forged["keys"][NAMES[1]]["mask"] = masking.generate_key_pair()[1].hex()
    with pytest.raises(FederationError, match="the keys of site site 1 are not signed by it"):
        world.call(NAMES[0], "shares", forged)
    forged["keys"]["unknown"] = {"mask": "00" * 32, "encryption": "11" * 32}
    del forged["keys"][NAMES[1]]
    with pytest.raises(FederationError, match="no public key of site unknown"):
        world.call(NAMES[0], "shares", forged)


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 9), st.integers(0, 6), st.randoms())
def test_threshold_shares_recover_the_secret_and_fewer_do_not(secret, threshold, more, random):
    shares = dict(enumerate(split_secret(secret, threshold, threshold + more), 1))
    chosen = dict(random.sample(sorted(shares.items()), threshold))
    assert combine_shares(chosen) == secret
    if threshold > 1:
        fewer = dict(list(chosen.items())[1:])
        with contextlib.suppress(DataError):
            assert combine_shares(fewer) != secret
