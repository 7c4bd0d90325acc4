"""Tests of `nosology federate init`, `join` and `admit`: two files per site, and words to compare."""

from __future__ import annotations

import json
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from nosology.cli import app
from nosology.core import ConfigError, DataError
from nosology.federated.deploy import invitation as invitations
from nosology.federated.deploy.credentials import SITE_NAME, ServerCredentials, read_public_keys
from nosology.federated.deploy.federation_folder import FederationServerSettings, SiteSettings, read_settings
from nosology.federated.deploy.invitation import Invitation, Reply, check_words, read_file


def call(*arguments: object, answer: str | None = None):
    return CliRunner().invoke(app, ["federate", *map(str, arguments)], input=answer)


def words_of(output: str) -> str:
    return output.split("on the telephone: ")[1].splitlines()[0]


@pytest.fixture
def invited(tmp_path):
    """The folder of a server that has invited anna and berta."""
    folder = tmp_path / "server"
    result = call("init", "--out", folder, "--host", "fed.example.org", "--host", "10.1.2.3", "--site", "anna")
    assert result.exit_code == 0, result.output
    assert "anna.invitation: send it to anna" in result.output and f"federate start {folder}" in result.output
    edited = (folder / "federation.toml").read_text().replace("0.0.0.0", "127.0.0.1")
    (folder / "federation.toml").write_text(edited)
    assert call("init", "--out", folder, "--site", "berta").exit_code == 0  # adds a site
    assert read_settings(FederationServerSettings, folder).listen == "127.0.0.1"
    return folder


def join(folder, out, name="anna"):
    return call("join", folder / "invitations" / f"{name}.invitation", "--out", out)


def test_two_files_and_four_words_set_up_a_site(invited, tmp_path):
    result = join(invited, tmp_path / "anna")
    assert result.exit_code == 0 and len(words_of(result.output).split()) == 4
    assert read_settings(SiteSettings, tmp_path / "anna").server == "fed.example.org:8443"
    assert (tmp_path / "anna" / "root.pem").read_bytes() == ServerCredentials(invited / "credentials").root.read_bytes()
    key = tmp_path / "anna" / "anna.key"
    assert key.stat().st_mode & 0o777 == 0o600 and key.read_text() not in (tmp_path / "anna" / "anna.reply").read_text()
    heard = words_of(result.output).upper().replace(" ", "-")
    admitted = call("admit", invited, tmp_path / "anna" / "anna.reply", answer=heard + "\n")
    assert admitted.exit_code == 0 and "anna is accepted" in admitted.output
    assert set(read_public_keys(invited / "sites")) == {"anna"}
    assert read_settings(FederationServerSettings, invited).sites == ["anna", "berta"]
    again = join(invited, tmp_path / "anna")  # keeps key and words
    assert words_of(again.output) == words_of(result.output)


def test_site_connects_only_after_the_telephone_call(invited, tmp_path):
    join(invited, tmp_path / "anna")
    refused = call("start", tmp_path / "anna")
    assert isinstance(refused.exception, ConfigError) and "has not confirmed the words of anna" in str(
        refused.exception
    )
    site_file = tmp_path / "anna" / "site.toml"
    site_file.write_text(site_file.read_text().replace('cache = "vectors"', 'cache = "other"'))
    call("join", invited / "invitations" / "anna.invitation", "--out", tmp_path / "anna", "--confirmed")
    known = read_settings(SiteSettings, tmp_path / "anna")
    assert known.confirmed and known.cache == "other"  # what was edited stays
    started = call("start", tmp_path / "anna")  # goes on to the notes, which are missing
    assert started.exit_code != 0 and "confirmed" not in str(started.exception)


def test_another_invitation_neither_replaces_nor_confirms_a_server(invited, tmp_path):
    join(invited, tmp_path / "anna")
    call("init", "--out", tmp_path / "false", "--host", "fed.example.org", "--site", "anna")
    other = tmp_path / "false" / "invitations" / "anna.invitation"
    root = (tmp_path / "anna" / "root.pem").read_bytes()
    for options in ([], ["--confirmed"]):
        refused = call("join", other, "--out", tmp_path / "anna", *options)
        assert isinstance(refused.exception, DataError) and "another" in str(refused.exception)
    assert (tmp_path / "anna" / "root.pem").read_bytes() == root
    assert not read_settings(SiteSettings, tmp_path / "anna").confirmed


def test_another_address_of_the_server_replaces_the_old_one_after_another_call(invited, tmp_path):
    invitation = invited / "invitations" / "anna.invitation"
    join(invited, tmp_path / "anna")
    call("join", invitation, "--out", tmp_path / "anna", "--confirmed")
    assert call("init", "--out", invited, "--port", "9443").exit_code == 0
    for options, confirmed in ([], False), (["--confirmed"], True):
        assert call("join", invitation, "--out", tmp_path / "anna", *options).exit_code == 0
        known = read_settings(SiteSettings, tmp_path / "anna")
        assert known.server == "fed.example.org:9443" and known.confirmed == confirmed


def test_invitations_need_the_name_of_one_server(tmp_path):
    refused = call("init", "--out", tmp_path / "server", "--host", "*.example.org", "--site", "anna")
    assert isinstance(refused.exception, ConfigError) and "HOST:PORT; got '*.example.org:8443'" in str(
        refused.exception
    )
    assert not (tmp_path / "server").exists()


def test_folders_with_messages_and_logs_are_private(invited, tmp_path):
    join(invited, tmp_path / "anna")
    assert [path.stat().st_mode & 0o777 for path in (invited / "state", tmp_path / "anna")] == [0o700, 0o700]


def test_confirmation_does_not_depend_on_the_line_in_the_settings(invited, tmp_path):
    join(invited, tmp_path / "anna")
    site_file = tmp_path / "anna" / "site.toml"
    lines = site_file.read_text().splitlines()
    site_file.write_text("\n".join(line for line in lines if not line.startswith("confirmed")))
    call("join", invited / "invitations" / "anna.invitation", "--out", tmp_path / "anna", "--confirmed")
    assert read_settings(SiteSettings, tmp_path / "anna").confirmed


def test_server_folder_keeps_its_hosts_and_its_certificate(invited):
    refused = call("init", "--out", invited, "--days", "5")
    assert isinstance(refused.exception, ConfigError) and "--days has no effect here" in str(refused.exception)
    refused = call("init", "--out", invited, "--host", "other.example.org")
    assert isinstance(refused.exception, ConfigError) and "10.1.2.3" in str(refused.exception)


def test_changed_files_give_other_words(invited, tmp_path):
    """Somebody on the way sends a site another root certificate, and the server another key."""
    call("init", "--out", tmp_path / "false", "--host", "fed.example.org", "--site", "anna")
    to_site = join(tmp_path / "false", tmp_path / "anna")
    to_server = join(invited, tmp_path / "attacker")
    admitted = call("admit", invited, tmp_path / "attacker" / "anna.reply", "--words", words_of(to_site.output))
    assert isinstance(admitted.exception, DataError) and "nothing was accepted" in str(admitted.exception)
    assert not list((invited / "sites").iterdir()) and words_of(to_server.output) != words_of(to_site.output)
    passed_on = call("admit", invited, tmp_path / "anna" / "anna.reply", "--words", words_of(to_site.output))
    assert isinstance(passed_on.exception, DataError) and "answers another invitation" in str(passed_on.exception)


def test_unexpected_site_and_second_key_are_refused(invited, tmp_path):
    call("init", "--out", tmp_path / "other", "--host", "fed.example.org", "--site", "dora")
    join(tmp_path / "other", tmp_path / "dora", "dora")
    result = call("admit", invited, tmp_path / "dora" / "dora.reply", "--words", "a b c d")
    assert "dora is not one of the expected sites, anna, berta" in str(result.exception)
    for name in ("first", "second"):
        result = call(
            "admit", invited, tmp_path / name / "anna.reply", "--words", words_of(join_as(invited, tmp_path, name))
        )
    assert isinstance(result.exception, DataError) and "is another key of anna" in str(result.exception)


def join_as(invited, tmp_path, name) -> str:
    return join(invited, tmp_path / name).output


def test_folder_of_another_site_is_kept(invited, tmp_path):
    join(invited, tmp_path / "anna")
    result = join(invited, tmp_path / "anna", "berta")
    assert "is the folder of anna; the invitation is for berta" in str(result.exception)


def test_every_bit_of_the_words_varies():
    assert len(set(invitations._SYLLABLES)) == 64
    seen = [check_words(Invitation("a", "h:1", str(i)), Reply("a", "k", "d")) for i in range(12)]
    assert len(set(seen)) == 12 and all(len(word) == 4 for text in seen for word in text.split())
    base = (Invitation("a", "h:1", "r"), Reply("a", "k", "d"))
    others = [(Invitation("b", "h:1", "r"), base[1]), (Invitation("a", "h:2", "r"), base[1])]
    others += [(base[0], Reply("a", "l", "d")), (base[0], Reply("a", "k", "e"))]
    assert check_words(*base) not in {check_words(*pair) for pair in others}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_files_raise_data_errors(tmp_path, data):
    folder = tmp_path / "server"
    if not folder.exists():
        call("init", "--out", folder, "--host", "h", "--site", "anna")
    content = json.loads((folder / "invitations" / "anna.invitation").read_text())
    key = data.draw(st.sampled_from([*content, "new"]))
    content[key] = data.draw(st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.text(max_size=2))))
    path = tmp_path / "damaged"
    path.write_text(json.dumps(content))
    if key == "site" and isinstance(content[key], str) and SITE_NAME.fullmatch(content[key]):
        return
    if key == "server" and isinstance(content[key], str) and re.fullmatch(r"[\w.-]+:[0-9]+", content[key]):
        return
    with pytest.raises(DataError, match="is not a federation invitation, or it is damaged"):
        read_file(Invitation, path)


def test_reading_other_files_raises(tmp_path):
    for name, data in {"a": b"", "b": os.urandom(50), "c": b"[" * 50_000, "d": b"{}" + b" " * 200_000}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match="is not a federation reply"):
            read_file(Reply, tmp_path / name)
    with pytest.raises(DataError, match="cannot read"):
        read_file(Reply, tmp_path / "missing")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('recipe = "heads-mlp"', 'recipe = "no-such-recipe"', "no-such-recipe"),
        ("settings = []", 'settings = ["federation.roundz=3"]', "roundz"),
    ],
)
def test_server_rehearses_the_recipe_of_its_settings(invited, old, new, message):
    path = invited / "federation.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    result = call("rehearse", invited)
    assert isinstance(result.exception, ConfigError) and "no site is accepted yet" in str(result.exception)
    (invited / "sites" / "anna.pub").write_text("the key of anna")
    result = call("rehearse", invited)
    assert isinstance(result.exception, ConfigError) and message in str(result.exception)
    assert call("init", "--out", invited, "--site", "clara").exit_code == 0  # keeps the settings
    assert new in path.read_text()
