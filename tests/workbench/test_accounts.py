"""Who gets in: argon2, lock-out, sessions that end, tokens kept as hashes."""

import time

import pytest
from sqlalchemy import select, update

from nosology.core import ReviewError
from nosology.workbench import accounts
from nosology.workbench.rate_limit import RateLimit
from nosology.workbench.store.engine import reading, writing
from nosology.workbench.store.schema import sessions, tokens, users
from tests.workbench.conftest import PASSWORD


def test_the_first_admin_has_a_one_time_password(engine):
    password = accounts.first_admin(engine)
    assert accounts.first_admin(engine) is None
    user = accounts.sign_in(engine, "Admin", password)
    cookie = accounts.open_session(engine, user)
    assert accounts.user_of_cookie(engine, cookie).must_change
    accounts.change_password(engine, user, password, PASSWORD)
    assert accounts.user_of_cookie(engine, cookie) is None  # the old session has ended
    assert accounts.sign_in(engine, "admin", password) is None
    assert not accounts.user_of_cookie(engine, accounts.open_session(engine, user)).must_change


def test_an_admin_who_lost_the_password_gets_another_from_whoever_starts_the_server(engine, people):
    password = accounts.first_admin(engine, again=True)  # there were people, but no admin of that name
    admin = accounts.sign_in(engine, "admin", password)
    with writing(engine) as connection:
        accounts.set_user(connection, admin, role="coder", disabled=True)
    user = accounts.sign_in(engine, "admin", accounts.first_admin(engine, again=True))
    assert user == admin and accounts.user_of_cookie(engine, accounts.open_session(engine, user)).role == "admin"


def test_passwords_are_argon2_hashes(engine, people):
    with reading(engine) as connection:
        stored = connection.scalar(select(users.c.password).where(users.c.id == people["ann"]))
    assert stored.startswith("$argon2id$") and PASSWORD not in stored
    assert accounts.sign_in(engine, "ann", PASSWORD) == people["ann"]
    assert accounts.sign_in(engine, "ann", PASSWORD + "x") is None
    assert accounts.sign_in(engine, "nobody", PASSWORD) is None


def test_wrong_passwords_lock_the_account_even_for_the_right_one(engine, people):
    for _ in range(accounts.FAILURES):
        assert accounts.sign_in(engine, "ann", "wrong password") is None
    assert accounts.sign_in(engine, "ann", PASSWORD) is None
    assert accounts.sign_in(engine, "ben", PASSWORD) == people["ben"]
    with writing(engine) as connection:
        connection.execute(update(users).values(locked_until=time.time() - 1))
    assert accounts.sign_in(engine, "ann", PASSWORD) == people["ann"]


def test_sessions_end(engine, people):
    cookie = accounts.open_session(engine, people["ann"])
    assert accounts.user_of_cookie(engine, cookie).name == "ann"
    assert accounts.user_of_cookie(engine, cookie + "x") is None
    with reading(engine) as connection:
        assert cookie not in str(connection.execute(select(sessions)).all())
    for column, hours in ((sessions.c.seen, accounts.IDLE_HOURS), (sessions.c.created, accounts.SESSION_HOURS)):
        with writing(engine) as connection:
            connection.execute(update(sessions).values({column: time.time() - hours * 3600 - 1}))
        assert accounts.user_of_cookie(engine, cookie) is None
        with writing(engine) as connection:
            connection.execute(update(sessions).values(seen=time.time(), created=time.time()))
    accounts.close_session(engine, cookie)
    assert accounts.user_of_cookie(engine, cookie) is None


def test_tokens_open_the_door_until_they_are_revoked(engine, people):
    with writing(engine) as connection:
        token = accounts.create_token(connection, people["ann"], "my script")
    user = accounts.user_of_token(engine, token)
    assert (user.name, user.csrf) == ("ann", None)
    with reading(engine) as connection:
        assert token not in str(connection.execute(select(tokens)).all())
        number = accounts.tokens_of(connection, people["ann"])[0]["id"]
    with pytest.raises(ReviewError, match="no such token of yours"), writing(engine) as connection:
        accounts.revoke_token(connection, people["ben"], number)
    with writing(engine) as connection:
        accounts.revoke_token(connection, people["ann"], number)
    assert accounts.user_of_token(engine, token) is None


def test_somebody_shut_out_is_out_at_once(engine, people):
    cookie = accounts.open_session(engine, people["ann"])
    with writing(engine) as connection:
        token = accounts.create_token(connection, people["ann"], "x")
        accounts.set_user(connection, people["ann"], disabled=True)
    assert accounts.user_of_cookie(engine, cookie) is None
    assert accounts.user_of_token(engine, token) is None
    assert accounts.sign_in(engine, "ann", PASSWORD) is None


def test_the_last_admin_stays(engine, people):
    for change in ({"disabled": True}, {"role": "coder"}):
        with pytest.raises(ReviewError, match="the last admin"), writing(engine) as connection:
            accounts.set_user(connection, people["adam"], **change)


def test_names_and_passwords_have_rules(engine, people):
    for name, role, password in (
        ("ANN", "coder", PASSWORD),
        ("x", "boss", PASSWORD),
        ("x", "coder", "short"),
        (" ", "coder", None),
    ):
        with pytest.raises(ReviewError), writing(engine) as connection:
            accounts.create_user(connection, name, role, password)


def test_roles_include_those_below():
    user = accounts.User(1, "x", "reviewer", False, None)
    assert user.may("coder") and user.may("reviewer") and not user.may("admin")


def test_a_rate_limit_forgets():
    limit = RateLimit(2, 10.0)
    assert [limit.allows("a", now) for now in (0.0, 1.0, 2.0)] == [True, True, False]
    assert limit.allows("b", 2.0)
    assert limit.allows("a", 10.5)
