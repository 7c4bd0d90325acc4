"""Accounts: argon2 hashes, locking, expiry of sessions, API tokens."""

import time

import pytest
from sqlalchemy import select, update

from nosology.core import ReviewError
from nosology.workbench import accounts
from nosology.workbench.database import read_transaction, sessions, tokens, users, write_transaction
from tests.workbench.conftest import PASSWORD


def test_create_admin_returns_a_one_time_password_once(engine):
    password = accounts.create_admin(engine)
    assert accounts.create_admin(engine) is None
    user = accounts.check_password(engine, "Admin", password)
    cookie = accounts.create_session(engine, user)
    assert accounts.session_user(engine, cookie).must_change
    accounts.change_password(engine, user, password, PASSWORD)
    assert accounts.session_user(engine, cookie) is None  # the old session has ended
    assert accounts.check_password(engine, "admin", password) is None
    assert not accounts.session_user(engine, accounts.create_session(engine, user)).must_change


def test_create_admin_with_reset_gives_admin_a_new_password(engine, people):
    password = accounts.create_admin(engine, reset=True)  # there were people, but no admin of that name
    admin = accounts.check_password(engine, "admin", password)
    with write_transaction(engine) as connection:
        accounts.update_user(connection, admin, role="coder", disabled=True)
    user = accounts.check_password(engine, "admin", accounts.create_admin(engine, reset=True))
    assert user == admin and accounts.session_user(engine, accounts.create_session(engine, user)).role == "admin"


def test_passwords_are_argon2_hashes(engine, people):
    with read_transaction(engine) as connection:
        stored = connection.scalar(select(users.c.password).where(users.c.id == people["ann"]))
    assert stored.startswith("$argon2id$") and PASSWORD not in stored
    assert accounts.check_password(engine, "ann", PASSWORD) == people["ann"]
    assert accounts.check_password(engine, "ann", PASSWORD + "x") is None
    assert accounts.check_password(engine, "nobody", PASSWORD) is None


def test_wrong_passwords_lock_the_account(engine, people):
    for _ in range(accounts.MAX_FAILURES):
        assert accounts.check_password(engine, "ann", "wrong password") is None
    assert accounts.check_password(engine, "ann", PASSWORD) is None
    assert accounts.check_password(engine, "ben", PASSWORD) == people["ben"]
    with write_transaction(engine) as connection:
        connection.execute(update(users).values(locked_until=time.time() - 1))
    assert accounts.check_password(engine, "ann", PASSWORD) == people["ann"]


def test_sessions_expire(engine, people):
    cookie = accounts.create_session(engine, people["ann"])
    assert accounts.session_user(engine, cookie).name == "ann"
    assert accounts.session_user(engine, cookie + "x") is None
    with read_transaction(engine) as connection:
        assert cookie not in str(connection.execute(select(sessions)).all())
    for column, hours in ((sessions.c.seen, accounts.IDLE_HOURS), (sessions.c.created, accounts.SESSION_HOURS)):
        with write_transaction(engine) as connection:
            connection.execute(update(sessions).values({column: time.time() - hours * 3600 - 1}))
        assert accounts.session_user(engine, cookie) is None
        with write_transaction(engine) as connection:
            connection.execute(update(sessions).values(seen=time.time(), created=time.time()))
    accounts.delete_session(engine, cookie)
    assert accounts.session_user(engine, cookie) is None


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
    assert accounts.check_password(engine, "ann", PASSWORD) is None


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


def test_rate_limit_allows_events_after_the_window():
    limit = accounts.RateLimit(2, 10.0)
    assert [limit.allows("a", now) for now in (0.0, 1.0, 2.0)] == [True, True, False]
    assert limit.allows("b", 2.0)
    assert limit.allows("a", 10.5)
