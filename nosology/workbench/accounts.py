"""Who may sign in: passwords (argon2), sessions, API tokens, lock-out."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from nosology.core import ReviewError
from nosology.workbench.review import Missing
from nosology.workbench.settings import ROLES
from nosology.workbench.store.engine import reading, writing
from nosology.workbench.store.schema import sessions, tokens, users

if TYPE_CHECKING:
    from argon2 import PasswordHasher

SHORTEST = 12  # characters of a password
SESSION_HOURS, IDLE_HOURS = 12, 2
FAILURES, LOCK_SECONDS = 5, 15 * 60  # so many wrong passwords in a row lock an account for so long
TOKEN_PREFIX = "nos_"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who is signed in; csrf is None for an API token, which no browser sends by itself."""

    id: int
    name: str
    role: str
    must_change: bool
    csrf: str | None

    def may(self, role: str) -> bool:
        """Whether the user's role includes another: admin > reviewer > coder."""
        return ROLES.index(self.role) >= ROLES.index(role)


@cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


@cache
def _nobody() -> str:
    """A hash that no password fits: an unknown name costs as much time as a wrong password."""
    return _hasher().hash(secrets.token_hex())


def digest(secret: str) -> str:
    """What the store keeps of a cookie or token; these are long and random, so that a fast hash does."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create_user(
    connection: Connection, name: str, role: str, password: str | None, *, must_change: bool = False
) -> int:
    """The number of a new user; ReviewError if the name is taken or something is not as it must be."""
    name = " ".join(name.split())
    if not 1 <= len(name) <= 80 or not name.isprintable():
        raise ReviewError("name must have 1 to 80 printable characters")
    if role not in ROLES:
        raise ReviewError(f"role must be one of {', '.join(ROLES)}")
    if connection.scalar(select(users.c.id).where(func.lower(users.c.name) == name.lower())):
        raise ReviewError("that name is taken")
    row = {
        "name": name,
        "role": role,
        "password": None if password is None else _hashed(password),
        "must_change": must_change,
        "disabled": False,
        "failures": 0,
        "locked_until": 0.0,
        "created": time.time(),
    }
    try:
        return int(connection.execute(insert(users).values(**row)).inserted_primary_key[0])
    except IntegrityError as error:
        raise ReviewError("that name is taken") from error


def _hashed(password: str) -> str:
    if not SHORTEST <= len(password) <= 500:
        raise ReviewError(f"a password must have {SHORTEST} to 500 characters")
    return _hasher().hash(password)


def first_admin(engine: Engine, *, again: bool = False) -> str | None:
    """The one-time password of a new user `admin`, where nobody can sign in yet; else None.

    again: whoever starts the server has the store in hand, and may let a locked-out `admin` in again.
    """
    with writing(engine) as connection:
        if connection.scalar(select(func.count()).select_from(users)) and not again:
            return None
        found = connection.scalar(select(users.c.id).where(users.c.name == "admin"))
        admin = int(found) if found else create_user(connection, "admin", "admin", None)
        set_user(connection, admin, role="admin", disabled=False)
        return reset_password(connection, admin)


def sign_in(engine: Engine, name: str, password: str) -> int | None:
    """The user of a right name and password; None for any other, and for a locked or disabled account.

    The answer takes the same time for an unknown name, and never says which of the two was wrong.
    """
    from argon2.exceptions import InvalidHashError, VerificationError

    with reading(engine) as connection:
        found = connection.execute(select(users).where(func.lower(users.c.name) == " ".join(name.split()).lower()))
        user = found.first()
    stored = user.password if user is not None and user.password else _nobody()
    try:
        right = _hasher().verify(stored, password[:500])
    except (VerificationError, InvalidHashError):
        right = False
    if user is None:
        return None
    now = time.time()
    if user.locked_until > now or user.disabled:
        return None
    with writing(engine) as connection:
        if right:
            connection.execute(update(users).where(users.c.id == user.id).values(failures=0))
            return int(user.id)
        # Counted by the database itself: wrong passwords tried side by side all count.
        connection.execute(update(users).where(users.c.id == user.id).values(failures=users.c.failures + 1))
        connection.execute(
            update(users)
            .where(users.c.id == user.id, users.c.failures >= FAILURES)
            .values(failures=0, locked_until=now + LOCK_SECONDS)
        )
    return None


def change_password(engine: Engine, user: int, old: str, new: str) -> None:
    """Gives a user another password, and ends all sessions of the old one."""
    with reading(engine) as connection:
        name = connection.scalar(select(users.c.name).where(users.c.id == user))
    if name is None or sign_in(engine, name, old) != user:
        raise ReviewError("the present password is not right")
    if old == new:
        raise ReviewError("the new password must be another one")
    with writing(engine) as connection:
        connection.execute(
            update(users).where(users.c.id == user).values(password=_hashed(new), must_change=False, failures=0)
        )
        connection.execute(delete(sessions).where(sessions.c.user_id == user))


def reset_password(connection: Connection, user: int) -> str:
    """A one-time password for a user, who must change it after signing in; all sessions end."""
    password = secrets.token_urlsafe(15)
    values = {"password": _hashed(password), "must_change": True, "failures": 0, "locked_until": 0.0}
    connection.execute(update(users).where(users.c.id == user).values(**values))
    connection.execute(delete(sessions).where(sessions.c.user_id == user))
    return password


def set_user(connection: Connection, user: int, *, role: str | None = None, disabled: bool | None = None) -> None:
    """Changes a user's role, or whether they may sign in; the last admin stays one."""
    row = connection.execute(select(users).where(users.c.id == user)).first()
    if row is None:
        raise Missing("there is no such user")
    if role is not None and role not in ROLES:
        raise ReviewError(f"role must be one of {', '.join(ROLES)}")
    values: dict[str, Any] = {}
    if role is not None:
        values["role"] = role
    if disabled is not None:
        values["disabled"] = disabled
    loses = row.role == "admin" and (values.get("role", "admin") != "admin" or values.get("disabled"))
    others = select(func.count()).where(users.c.role == "admin", users.c.disabled.is_(False), users.c.id != user)
    if loses and not connection.scalar(others):
        raise ReviewError("the last admin must stay one")
    if values:
        connection.execute(update(users).where(users.c.id == user).values(**values))
    if disabled:
        connection.execute(delete(sessions).where(sessions.c.user_id == user))
        connection.execute(update(tokens).where(tokens.c.user_id == user).values(revoked=True))


def open_session(engine: Engine, user: int) -> str:
    """The cookie of a new session."""
    cookie, now = secrets.token_urlsafe(32), time.time()
    with writing(engine) as connection:
        connection.execute(delete(sessions).where(sessions.c.created < now - SESSION_HOURS * 3600))
        row = {"id": digest(cookie), "user_id": user, "csrf": secrets.token_urlsafe(32), "created": now, "seen": now}
        connection.execute(insert(sessions).values(**row))
    return cookie


def close_session(engine: Engine, cookie: str) -> None:
    """Ends a session."""
    with writing(engine) as connection:
        connection.execute(delete(sessions).where(sessions.c.id == digest(cookie)))


def user_of_cookie(engine: Engine, cookie: str) -> User | None:
    """Who is signed in with a cookie; None where the session is unknown, too old or was idle too long."""
    now = time.time()
    with reading(engine) as connection:
        row = (
            connection.execute(
                select(sessions.c.csrf, sessions.c.created, sessions.c.seen, users)
                .join(users, users.c.id == sessions.c.user_id)
                .where(sessions.c.id == digest(cookie))
            )
            .mappings()
            .first()
        )
    if row is None or row["disabled"] or now - row["seen"] > IDLE_HOURS * 3600:
        return None
    if now - row[sessions.c.created] > SESSION_HOURS * 3600:
        return None
    if now - row["seen"] > 60:  # not at every request: each would be a write
        with writing(engine) as connection:
            connection.execute(update(sessions).where(sessions.c.id == digest(cookie)).values(seen=now))
    return _user(row, row["csrf"])


def create_token(connection: Connection, user: int, name: str) -> str:
    """A new API token; it is shown once and kept as a hash."""
    name = " ".join(name.split())
    if not 1 <= len(name) <= 80 or not name.isprintable():
        raise ReviewError("the name of a token must have 1 to 80 printable characters")
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    row = {"user_id": user, "name": name, "hash": digest(token), "created": time.time(), "revoked": False}
    connection.execute(insert(tokens).values(**row))
    return token


def revoke_token(connection: Connection, user: int, token_id: int) -> None:
    """Ends a token of a user."""
    where = (tokens.c.id == token_id, tokens.c.user_id == user)
    if not connection.execute(update(tokens).where(*where).values(revoked=True)).rowcount:
        raise Missing("there is no such token of yours")


def tokens_of(connection: Connection, user: int) -> list[Mapping[str, Any]]:
    """The tokens of a user that still open the door."""
    wanted = select(tokens.c.id, tokens.c.name, tokens.c.created)
    wanted = wanted.where(tokens.c.user_id == user, tokens.c.revoked.is_(False)).order_by(tokens.c.id)
    return list(connection.execute(wanted).mappings())


def user_of_token(engine: Engine, token: str) -> User | None:
    """Whose API token this is; None if nobody's."""
    with reading(engine) as connection:
        row = (
            connection.execute(
                select(users)
                .join(tokens, tokens.c.user_id == users.c.id)
                .where(tokens.c.hash == digest(token), tokens.c.revoked.is_(False), users.c.disabled.is_(False))
            )
            .mappings()
            .first()
        )
    return _user(row, None) if row is not None and not row["must_change"] else None


def _user(row: Mapping[str, Any], csrf: str | None) -> User:
    return User(row["id"], row["name"], row["role"], row["must_change"], csrf)


def user_of_subject(engine: Engine, subject: str, name: str, role: str) -> int:
    """The user of an OpenID Connect subject, made at the first visit; ReviewError if a local user has that name."""
    with writing(engine) as connection:
        row = connection.execute(select(users).where(users.c.subject == subject)).first()
        if row is not None:
            if row.disabled:
                raise ReviewError("this account may not sign in")
            return int(row.id)
        user = create_user(connection, name, role, None)
        connection.execute(update(users).where(users.c.id == user).values(subject=subject))
        return user
