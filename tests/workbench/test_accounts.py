"""Who gets in: argon2, lock-out, sessions that end, tokens kept as hashes."""

import time

import pytest
from sqlalchemy import select, update

from nosology.core import ReviewError
from nosology.workbench import accounts
from nosology.workbench.database import read_transaction, sessions, tokens, users, write_transaction
from tests.workbench.conftest import PASSWORD


def test_the_first_admin_has_a_one_time_password(engine):
    password = accounts.create_admin(engine)
    assert accounts.create_admin(engine) is None
    user = accounts.check_password(engine, "Admin", password)
    cookie = accounts.create_session(engine, user)
    assert accounts.session_user(engine, cookie).must_change
    accounts.change_password(engine, user, password, PASSWORD)
    assert accounts.session_user(engine, cookie) is None  # the old session has ended
    assert accounts.check_password(engine, "admin", password) is None
    assert not accounts.session_user(engine, accounts.create_session(engine, user)).must_change


def test_an_admin_who_lost_the_password_gets_another_from_whoever_starts_the_server(engine, people):
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


def test_wrong_passwords_lock_the_account_even_for_the_right_one(engine, people):
    for _ in range(accounts.MAX_FAILURES):
        assert accounts.check_password(engine, "ann", "wrong password") is None
    assert accounts.check_password(engine, "ann", PASSWORD) is None
    assert accounts.check_password(engine, "ben", PASSWORD) == people["ben"]
    with write_transaction(engine) as connection:
        connection.execute(update(users).values(locked_until=time.time() - 1))
    assert accounts.check_password(engine, "ann", PASSWORD) == people["ann"]


def test_sessions_end(engine, people):
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


def test_tokens_open_the_door_until_they_are_revoked(engine, people):
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


def test_somebody_shut_out_is_out_at_once(engine, people):
    cookie = accounts.create_session(engine, people["ann"])
    with write_transaction(engine) as connection:
        token = accounts.create_token(connection, people["ann"], "x")
        accounts.update_user(connection, people["ann"], disabled=True)
    assert accounts.session_user(engine, cookie) is None
    assert accounts.token_user(engine, token) is None
    assert accounts.check_password(engine, "ann", PASSWORD) is None


def test_the_last_admin_stays(engine, people):
    for change in ({"disabled": True}, {"role": "coder"}):
        with pytest.raises(ReviewError, match="the last admin"), write_transaction(engine) as connection:
            accounts.update_user(connection, people["adam"], **change)


def test_names_and_passwords_have_rules(engine, people):
    for name, role, password in (
        ("ANN", "coder", PASSWORD),
        ("x", "boss", PASSWORD),
        ("x", "coder", "short"),
        (" ", "coder", None),
    ):
        with pytest.raises(ReviewError), write_transaction(engine) as connection:
            accounts.create_user(connection, name, role, password)


def test_roles_include_those_below():
    user = accounts.User(1, "x", "reviewer", False, None)
    assert user.has_role("coder") and user.has_role("reviewer") and not user.has_role("admin")


def test_a_rate_limit_forgets():
    limit = accounts.RateLimit(2, 10.0)
    assert [limit.allows("a", now) for now in (0.0, 1.0, 2.0)] == [True, True, False]
    assert limit.allows("b", 2.0)
    assert limit.allows("a", 10.5)
