"""Files of a federation: a damaged or edited file gives valid values or an error for users, never another one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.corpora.corpus import write_corpus
from nosology.federated.deploy.credentials import (
    ServerCredentials,
    certificate_fingerprint,
    check_new_credentials,
    read_public_keys,
    read_site_key,
)
from nosology.federated.deploy.deploy_site import read_node
from nosology.federated.deploy.federation_folder import (
    SERVER,
    SITE,
    FederationServerSettings,
    SiteSettings,
    admit_site,
    create_server_folder,
    join_federation,
    read_reply,
    read_settings,
)
from nosology.federated.deploy.federation_status import (
    STATUS,
    Traffic,
    make_status,
    read_status,
    status_page,
    write_status,
)
from nosology.federated.deploy.invitation import Invitation, Reply, check_words, read_file
from nosology.federated.privacy.budget_ledger import BudgetLedger, Charge, NoteTexts
from nosology.federated.rounds.federation_setup import ROUND_FILE, SETUP_FILE, FederationSetup, RoundCheckpoint
from nosology.federated.rounds.personal_layers import load_personal, save_personal
from nosology.federated.rounds.word_learner import read_words
from tests.conftest import small_notes
from tests.contracts.damaged_files import changed, contents, few, outcome, restore
from tests.federated.rounds.test_federation_setup import setup


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of a server, and of its site anna, which is accepted."""
    server, site = tmp_path_factory.mktemp("server") / "server", tmp_path_factory.mktemp("site") / "anna"
    invitation = create_server_folder(server, ["fed.example.org"], 0, ["anna"])["anna"]
    reply, _ = join_federation(invitation, site)
    admit_site(server, read_reply(server, reply)[0])
    return server, site


def read_server(folder, reply):
    credentials = ServerCredentials(folder / "credentials").check()
    check_new_credentials(folder / "credentials", ["fed.example.org"], [])
    read_public_keys(folder / "sites")
    settings = read_settings(FederationServerSettings, folder)
    read_file(Invitation, folder / "invitations" / "anna.invitation")
    certificate_fingerprint(credentials.certificate)
    read_reply(folder, reply)
    return settings


@few
@given(data=st.data())
def test_folder_of_a_server(folders, data):
    server, site = folders
    original = contents(server)
    path = data.draw(st.sampled_from(sorted(original)))
    path.write_bytes(data.draw(changed(original[path])))
    settings = outcome(read_server, server, site / "anna.reply")
    assert settings is None or (settings.sites and 1 <= settings.port < 65536)
    outcome(create_server_folder, server, [], 0, ["berta"])
    for added in contents(server).keys() - original.keys():
        added.unlink()
    restore(original)


def read_site(folder):
    read_site_key(folder / "anna.key")
    certificate_fingerprint(folder / "root.pem")
    return read_settings(SiteSettings, folder), read_file(Reply, folder / "anna.reply")


@few
@given(data=st.data())
def test_folder_of_a_site(folders, data):
    server, site = folders
    invitation = server / "invitations" / "anna.invitation"
    original = contents(site)
    path = data.draw(st.sampled_from(sorted(original)))
    path.write_bytes(data.draw(changed(original[path])))
    if (found := outcome(read_site, site)) is not None:
        check_words(read_file(Invitation, invitation), found[1])
    outcome(join_federation, invitation, site)
    restore(original)


@few
@given(data=st.data())
def test_settings(folders, data):
    kind, folder, name = data.draw(
        st.sampled_from([(FederationServerSettings, folders[0], SERVER), (SiteSettings, folders[1], SITE)])
    )
    original = contents(folder)
    lines = original[folder / name].decode().splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    value = data.draw(
        st.sampled_from(["9" * 5000, "1e999", "nan", "-1", '""', '"\\u0000"', '"../x"', "[[]]", "[" * 999])
    )
    lines[place] = f"{lines[place].partition(' = ')[0]} = {value}"
    (folder / name).write_text("\n".join(lines))
    outcome(read_settings, kind, folder)
    restore(original)


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """The state folder of a server, after a round."""
    folder, traffic = tmp_path_factory.mktemp("state"), Traffic()
    traffic.record("anna", received=5)
    row = {"round": 1, "loss": 0.5, "sites": 1, "refused": 0, "micro_f1": None, "seconds": 1.0, "cut": {"anna": 0.1}}
    write_status(make_status("round 1", 3, [row], ["anna"], ["anna"], {}, {"anna": "late"}, traffic), folder)
    return folder


@few
@given(data=st.data())
def test_status(state, data):
    original = contents(state)
    (state / STATUS).write_bytes(data.draw(changed(original[state / STATUS])))
    if (status := outcome(read_status, state)) is not None:
        assert status_page(status).count("<html") == 1
    restore(original)


@few
@given(data=st.data())
def test_node_of_a_site(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "anna.node"
    path.write_bytes(data.draw(changed(b'{"node": 12}')))
    assert 0 <= read_node(path) < 2**64


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """A ledger with rounds of two sets of notes, and one of the sets."""
    folder = tmp_path_factory.mktemp("ledger")
    notes = small_notes(12)
    for name, part in (("all", notes), ("half", notes[:6])):
        write_corpus(part, folder / name, source={}, filters=[], counts={})
        for number in (1, 2):
            BudgetLedger(folder / "a.budget").charge(NoteTexts([folder / name]), Charge(2.0, 0.25, 4), "7", number)
    return folder / "a.budget", NoteTexts([folder / "half"])


@few
@given(data=st.data())
def test_ledger(ledger, data):
    """A damaged ledger is refused, or it gives a number: the site goes on or stops, it does not fail."""
    path, texts = ledger
    original = path.read_bytes()
    path.write_bytes(data.draw(changed(original)))
    outcome(BudgetLedger(path, 8.0).spent)
    outcome(BudgetLedger(path, 8.0).charge, texts, Charge(2.0, 0.25, 4), "8", 1)
    for made in path.parent.glob("a.budget*"):
        made.unlink()
    path.write_bytes(original)


@few
@given(data=st.data())
def test_checkpoints_and_personal_layers(tmp_path_factory, data):
    folder, weights = tmp_path_factory.mktemp("run"), {"a": np.zeros(3, np.float32)}
    saved = setup()
    saved.save(folder)
    RoundCheckpoint(saved.hash, 3, weights).save(folder)
    save_personal(folder, "personal", 2, weights)
    readers = {
        SETUP_FILE: lambda: FederationSetup.resume(folder, saved.recipe, saved.notes),
        ROUND_FILE: lambda: RoundCheckpoint.load(folder, saved.hash),
        "personal.safetensors": lambda: load_personal(folder, "personal", 5),
    }
    name = data.draw(st.sampled_from(sorted(readers)))
    (folder / name).write_bytes(data.draw(changed((folder / name).read_bytes())))
    outcome(readers[name])


@few
@given(data=st.data())
def test_public_list_of_words(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "words.txt"
    path.write_bytes(data.draw(changed("fever\nBlutdruck 120/80\nnaïve\n".encode())))
    words = outcome(lambda: list(read_words(path)))
    assert words is None or all(isinstance(word, str) and word for word in words)
