"""Accounts: argon2 hashes, password rules, expiry and lock of sessions, API tokens."""

import time

import pytest
from sqlalchemy import select, update

from nosology.core import ReviewError
from nosology.workbench import accounts, passwords
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.passwords import _hasher as real_hasher
from nosology.workbench.store_settings import SessionLimits
from nosology.workbench.store_tables import sessions, tokens, users
from tests.workbench.conftest import PASSWORD


def test_create_admin_returns_a_one_time_password_once(engine):
    password = accounts.create_admin(engine)
    assert accounts.create_admin(engine) is None
    user = accounts.check_password(engine, "Admin", password).user
    cookie = accounts.create_session(engine, user)
    assert accounts.session_user(engine, cookie).must_change
    accounts.change_password(engine, user, password, PASSWORD)
    assert accounts.session_user(engine, cookie) is None  # the old session has ended
    assert accounts.check_password(engine, "admin", password).user is None
    assert not accounts.session_user(engine, accounts.create_session(engine, user)).must_change


def test_create_admin_with_reset_gives_admin_a_new_password(engine, people):
    password = accounts.create_admin(engine, reset=True)  # there were people, but no admin of that name
    admin = accounts.check_password(engine, "admin", password).user
    with write_transaction(engine) as connection:
        accounts.update_user(connection, admin, role="coder", disabled=True)
    user = accounts.check_password(engine, "admin", accounts.create_admin(engine, reset=True)).user
    assert user == admin and accounts.session_user(engine, accounts.create_session(engine, user)).role == "admin"


def test_a_hash_costs_at_least_what_owasp_recommends():
    """19 MiB and two passes, also in the hash: the other tests of the workbench use a cheap one."""
    assert "$m=19456,t=2,p=1$" in real_hasher().hash(PASSWORD)
    assert "$m=19456," not in passwords.hash_password(PASSWORD)


def test_passwords_are_argon2_hashes(engine, people):
    with read_transaction(engine) as connection:
        stored = connection.scalar(select(users.c.password).where(users.c.id == people["ann"]))
    assert stored.startswith("$argon2id$") and PASSWORD not in stored
    assert accounts.check_password(engine, "ann", PASSWORD).user == people["ann"]
    assert accounts.check_password(engine, "ann", PASSWORD + "x").user is None
    assert accounts.check_password(engine, "nobody", PASSWORD).user is None


def test_names_are_compared_without_case_in_every_alphabet(engine):
    with write_transaction(engine) as connection:
        user = accounts.create_user(connection, "Özlem Ünal", "coder", PASSWORD)
        with pytest.raises(ReviewError, match="taken"):
            accounts.create_user(connection, "ÖZLEM ünal", "coder", PASSWORD)
    for name in ("Özlem Ünal", " özlem  ÜNAL "):
        assert accounts.check_password(engine, name, PASSWORD).user == user


def test_every_name_costs_one_verification(engine, people, monkeypatch):
    """Known, unknown, disabled and OpenID Connect names, and expired passwords: the response time tells nothing."""
    with write_transaction(engine) as connection:
        accounts.create_user(connection, "only oidc", "coder", None)
        expired = accounts.reset_password(connection, people["ben"])
        connection.execute(update(users).where(users.c.id == people["ben"]).values(password_expires=1.0))
        accounts.update_user(connection, people["rita"], disabled=True)
    hasher, verified = passwords._hasher(), []

    class Counting:
        hash = staticmethod(hasher.hash)

        @staticmethod
        def verify(hashed, password):
            verified.append(hashed)
            return hasher.verify(hashed, password)

    monkeypatch.setattr(passwords, "_hasher", Counting)
    passwords._dummy_hash()
    for name, password, reason in (
        ("ann", PASSWORD, ""),
        ("ann", "wrong", "wrong password"),
        ("nobody", PASSWORD, "unknown name"),
        ("rita", PASSWORD, "disabled"),
        ("ben", expired, "one-time password expired"),
        ("only oidc", PASSWORD, "has no password"),
    ):
        verified.clear()
        check = accounts.check_password(engine, name, password)
        assert (check.reason, check.user) == (reason, people["ann"] if not reason else None)
        assert len(verified) == 1


def test_a_one_time_password_expires(engine, people):
    with write_transaction(engine) as connection:
        password = accounts.reset_password(connection, people["ann"])
        expires = connection.scalar(select(users.c.password_expires).where(users.c.id == people["ann"]))
    assert abs(expires - time.time() - accounts.ONE_TIME_HOURS * 3600) < 60
    assert accounts.check_password(engine, "ann", password).user == people["ann"]
    with write_transaction(engine) as connection:
        connection.execute(update(users).values(password_expires=time.time() - 1))
    assert accounts.check_password(engine, "ann", password).user is None


@pytest.mark.parametrize(
    "password",
    [
        "a" * 12,
        "abababababab",
        "tr0ub4 tr0ub4",
        "Password1234!",
        "Welcome-2026!!",
        "qwertyuiop12",
        "123456789012",
        "Hospital Admin 1",
        "my name is anna-maria",
        "short one",
    ],
)
def test_simple_passwords_are_refused(password):
    with pytest.raises(ReviewError, match="a password must"):
        passwords.check_password_rules(password, "Anna-Maria")


def test_good_passwords_are_allowed():
    for password in (PASSWORD, "kaffee im blauen Haus", "vX9$kTq2#mLp", "пароль из шести слов"):
        passwords.check_password_rules(password, "ann")


def test_sessions_expire(engine, people):
    cookie = accounts.create_session(engine, people["ann"])
    assert accounts.session_user(engine, cookie).name == "ann"
    assert accounts.session_user(engine, cookie + "x") is None
    with read_transaction(engine) as connection:
        assert cookie not in str(connection.execute(select(sessions)).all())
    for values in ({"seen": time.time() - 120 * 60 - 1}, {"expires": time.time() - 1}, {"locked": True}):
        with write_transaction(engine) as connection:
            connection.execute(update(sessions).values(**values))
        assert accounts.session_user(engine, cookie) is None
        with write_transaction(engine) as connection:
            connection.execute(update(sessions).values(seen=time.time(), expires=time.time() + 60, locked=False))
        assert accounts.session_user(engine, cookie)
    accounts.delete_session(engine, cookie)
    assert accounts.session_user(engine, cookie) is None


def test_who_signs_in_again_goes_on_with_the_locked_session(engine, people):
    cookie = accounts.create_session(engine, people["ann"])
    csrf = accounts.session_user(engine, cookie).csrf
    accounts.lock_session(engine, cookie)
    assert accounts.session_user(engine, cookie) is None
    other = accounts.create_session(engine, people["ben"], resume=cookie)
    assert other != cookie and accounts.session_user(engine, cookie) is None
    assert accounts.create_session(engine, people["ann"], resume=cookie) == cookie
    assert accounts.session_user(engine, cookie).csrf == csrf  # forms in open tabs are still valid


def test_a_session_that_goes_on_lasts_as_long_as_a_new_one(engine, people):
    cookie = accounts.create_session(engine, people["ann"], SessionLimits(12, 120), "10.0.0.1")
    with write_transaction(engine) as connection:
        connection.execute(update(sessions).values(created=time.time() - 43_000, expires=time.time() + 60, locked=True))
    accounts.create_session(engine, people["ann"], SessionLimits(12, 60), "10.0.0.2", resume=cookie)
    with read_transaction(engine) as connection:
        (row,) = accounts.list_sessions(connection, people["ann"])
    assert row["expires"] > time.time() + 11 * 3600 and (row["idle"], row["address"]) == (3600, "10.0.0.2")


def test_new_session_limits_apply_to_open_sessions(engine, people):
    cookie = accounts.create_session(engine, people["ann"], SessionLimits(12, 120))
    with write_transaction(engine) as connection:
        connection.execute(update(sessions).values(created=time.time() - 7200))
    for hours, idle_minutes, is_open in ((12, 30, True), (12, 15, False), (1, 120, False)):
        with write_transaction(engine) as connection:
            connection.execute(update(sessions).values(seen=time.time() - 1200))
            accounts.apply_session_limits(connection, SessionLimits(hours, idle_minutes))
        assert (accounts.session_user(engine, cookie) is not None) == is_open


def test_tokens_expire_and_are_revoked_with_a_new_password(engine, people):
    with write_transaction(engine) as connection:
        token = accounts.create_token(connection, people["ann"], "x", ["read"], days=1)
        (row,) = accounts.list_tokens(connection, people["ann"])
    assert abs(row["expires"] - time.time() - 86_400) < 60 and row["used"] is None
    assert accounts.token_user(engine, token).scopes == {"read"}
    with write_transaction(engine) as connection:
        assert accounts.list_tokens(connection, people["ann"])[0]["used"] is not None
        connection.execute(update(tokens).values(expires=time.time() - 1))
    assert accounts.token_user(engine, token) is None
    with write_transaction(engine) as connection:
        connection.execute(update(tokens).values(expires=time.time() + 60))
    assert accounts.token_user(engine, token)
    with write_transaction(engine) as connection:
        password = accounts.reset_password(connection, people["ann"])
    accounts.change_password(engine, people["ann"], password, PASSWORD)
    assert accounts.token_user(engine, token) is None
    for scopes, days in ((["root"], 1), ([], 1), (["read"], 0), (["read"], 9999)):
        with pytest.raises(ReviewError), write_transaction(engine) as connection:
            accounts.create_token(connection, people["ann"], "x", scopes, days)


def test_tokens_are_valid_until_they_are_revoked(engine, people):
    with write_transaction(engine) as connection:
        token = accounts.create_token(connection, people["ann"], "my script")
    user = accounts.token_user(engine, token)
    assert (user.name, user.csrf) == ("ann", None)
    with read_transaction(engine) as connection:
        assert token not in str(connection.execute(select(tokens)).all())
        number = accounts.list_tokens(connection, people["ann"])[0]["id"]
    with pytest.raises(ReviewError, match="no such token of yours"), write_transaction(engine) as connection:
        accounts.revoke_token(connection, people["ben"], number)
    with write_transaction(engine) as connection:
        accounts.revoke_token(connection, people["ann"], number)
    assert accounts.token_user(engine, token) is None


def test_a_disabled_user_is_signed_out_at_once(engine, people):
    cookie = accounts.create_session(engine, people["ann"])
    with write_transaction(engine) as connection:
        token = accounts.create_token(connection, people["ann"], "x")
        accounts.update_user(connection, people["ann"], disabled=True)
    assert accounts.session_user(engine, cookie) is None
    assert accounts.token_user(engine, token) is None
    assert accounts.check_password(engine, "ann", PASSWORD).user is None


def test_the_last_admin_cannot_be_removed(engine, people):
    for change in ({"disabled": True}, {"role": "coder"}):
        with pytest.raises(ReviewError, match="the last admin"), write_transaction(engine) as connection:
            accounts.update_user(connection, people["adam"], **change)


def test_invalid_names_roles_and_passwords_are_refused(engine, people):
    for name, role, password in (
        ("ANN", "coder", PASSWORD),
        ("x", "boss", PASSWORD),
        ("x", "coder", "short"),
        (" ", "coder", None),
    ):
        with pytest.raises(ReviewError), write_transaction(engine) as connection:
            accounts.create_user(connection, name, role, password)


def test_roles_include_lower_roles():
    user = accounts.User(1, "x", "reviewer", False, None)
    assert user.has_role("coder") and user.has_role("reviewer") and not user.has_role("admin")
