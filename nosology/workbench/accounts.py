"""User accounts: passwords (argon2), sessions, API tokens, roles, locking after wrong passwords, rate limit."""

from __future__ import annotations

import secrets
import time
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, RowMapping, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from nosology.core import ReviewError
from nosology.core.files import text_sha256
from nosology.workbench.database import insert_row, read_transaction, sessions, tokens, users, write_transaction
from nosology.workbench.review import NotFound

if TYPE_CHECKING:
    from argon2 import PasswordHasher

ROLES = ("coder", "reviewer", "admin")  # each includes the roles before it
MIN_PASSWORD_LENGTH, MAX_PASSWORD_LENGTH = 12, 500
SESSION_HOURS, IDLE_HOURS = 12, 2
MAX_FAILURES, LOCK_SECONDS = 5, 15 * 60  # consecutive wrong passwords that lock an account, and for how long
TOKEN_PREFIX = "nos_"
# Cookies and tokens are long and random, so the fast SHA-256 is safe for them.


@dataclass(frozen=True, slots=True)
class User:
    """A user who is signed in. csrf is None for an API token, which a browser never sends by itself."""

    id: int
    name: str
    role: str
    must_change: bool
    csrf: str | None

    def has_role(self, role: str) -> bool:
        """Whether the user's role is this one or includes it."""
        return ROLES.index(self.role) >= ROLES.index(role)


@cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


@cache
def _dummy_hash() -> str:
    """A hash of a random password: verifying an unknown user takes as long as verifying a wrong password."""
    return _hasher().hash(secrets.token_hex())


def _hash_password(password: str) -> str:
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise ReviewError(f"a password must have {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} characters")
    return _hasher().hash(password)


def _clean_name(name: str, what: str) -> str:
    name = " ".join(name.split())
    if not 1 <= len(name) <= 80 or not name.isprintable():
        raise ReviewError(f"{what} must have 1 to 80 printable characters")
    return name


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise ReviewError(f"role must be one of {', '.join(ROLES)}")


def create_user(
    connection: Connection, name: str, role: str, password: str | None, *, must_change: bool = False
) -> int:
    """The id of a new user; ReviewError if the name is taken or a value is invalid."""
    name = _clean_name(name, "name")
    _check_role(role)
    if connection.scalar(select(users.c.id).where(func.lower(users.c.name) == name.lower())):
        raise ReviewError("that name is taken")
    row = {
        "name": name,
        "role": role,
        "password": None if password is None else _hash_password(password),
        "must_change": must_change,
        "disabled": False,
        "failures": 0,
        "locked_until": 0.0,
        "created": time.time(),
    }
    try:
        return insert_row(connection, users, row)
    except IntegrityError as error:
        raise ReviewError("that name is taken") from error


def create_admin(engine: Engine, *, reset: bool = False) -> str | None:
    """The one-time password of a new user `admin` if the database has no users, else None.

    reset: also gives an existing `admin` a new password. Whoever starts the server has access to the database anyway.
    """
    with write_transaction(engine) as connection:
        if connection.scalar(select(func.count()).select_from(users)) and not reset:
            return None
        admin = connection.scalar(select(users.c.id).where(users.c.name == "admin"))
        admin = admin or create_user(connection, "admin", "admin", None)
        update_user(connection, admin, role="admin", disabled=False)
        return reset_password(connection, admin)


def check_password(engine: Engine, name: str, password: str) -> int | None:
    """The id of the user with this name and password; None if either is wrong, or the account is locked or disabled.

    The response time is the same for an unknown name, so callers cannot learn which names exist.
    """
    from argon2.exceptions import InvalidHashError, VerificationError

    with read_transaction(engine) as connection:
        query = select(users).where(func.lower(users.c.name) == " ".join(name.split()).lower())
        user = connection.execute(query).first()
    expected = user.password if user is not None and user.password else _dummy_hash()
    try:
        is_right = _hasher().verify(expected, password[:MAX_PASSWORD_LENGTH])
    except (VerificationError, InvalidHashError):
        is_right = False
    now = time.time()
    if user is None or user.locked_until > now or user.disabled:
        return None
    with write_transaction(engine) as connection:
        if is_right:
            connection.execute(update(users).where(users.c.id == user.id).values(failures=0))
            return int(user.id)
        # The database counts, so that concurrent wrong passwords all count.
        connection.execute(update(users).where(users.c.id == user.id).values(failures=users.c.failures + 1))
        connection.execute(
            update(users)
            .where(users.c.id == user.id, users.c.failures >= MAX_FAILURES)
            .values(failures=0, locked_until=now + LOCK_SECONDS)
        )
    return None


def change_password(engine: Engine, user: int, old: str, new: str) -> None:
    """Sets a user's password and ends all their sessions."""
    with read_transaction(engine) as connection:
        name = connection.scalar(select(users.c.name).where(users.c.id == user))
    if name is None or check_password(engine, name, old) != user:
        raise ReviewError("the present password is wrong")
    if old == new:
        raise ReviewError("the new password must differ from the present one")
    with write_transaction(engine) as connection:
        _set_password(connection, user, new, must_change=False)


def reset_password(connection: Connection, user: int) -> str:
    """A one-time password, which the user must change after signing in; all their sessions end."""
    password = secrets.token_urlsafe(15)
    _set_password(connection, user, password, must_change=True)
    return password


def _set_password(connection: Connection, user: int, password: str, *, must_change: bool) -> None:
    values = {"password": _hash_password(password), "must_change": must_change, "failures": 0, "locked_until": 0.0}
    connection.execute(update(users).where(users.c.id == user).values(**values))
    connection.execute(delete(sessions).where(sessions.c.user_id == user))


def update_user(connection: Connection, user: int, *, role: str | None = None, disabled: bool | None = None) -> None:
    """Changes a user's role, or enables or disables the account. The last admin must stay one."""
    row = connection.execute(select(users).where(users.c.id == user)).first()
    if row is None:
        raise NotFound("there is no such user")
    values: dict[str, Any] = {}
    if role is not None:
        _check_role(role)
        values["role"] = role
    if disabled is not None:
        values["disabled"] = disabled
    removes_admin = row.role == "admin" and (values.get("role", "admin") != "admin" or values.get("disabled"))
    admins = select(func.count()).where(users.c.role == "admin", users.c.disabled.is_(False), users.c.id != user)
    if removes_admin and not connection.scalar(admins):
        raise ReviewError("the last admin must stay one")
    if values:
        connection.execute(update(users).where(users.c.id == user).values(**values))
    if disabled:
        connection.execute(delete(sessions).where(sessions.c.user_id == user))
        connection.execute(update(tokens).where(tokens.c.user_id == user).values(revoked=True))


def create_session(engine: Engine, user: int) -> str:
    """The cookie of a new session."""
    cookie, now = secrets.token_urlsafe(32), time.time()
    row = {"id": text_sha256(cookie), "user_id": user, "csrf": secrets.token_urlsafe(32), "created": now, "seen": now}
    with write_transaction(engine) as connection:
        connection.execute(delete(sessions).where(sessions.c.created < now - SESSION_HOURS * 3600))
        connection.execute(insert(sessions).values(**row))
    return cookie


def delete_session(engine: Engine, cookie: str) -> None:
    """Ends a session."""
    with write_transaction(engine) as connection:
        connection.execute(delete(sessions).where(sessions.c.id == text_sha256(cookie)))


def session_user(engine: Engine, cookie: str) -> User | None:
    """The user of a session cookie; None if the session is unknown, too old or was idle too long."""
    now, session_id = time.time(), text_sha256(cookie)
    query = select(sessions.c.csrf, sessions.c.created, sessions.c.seen, users)
    query = query.join(users, users.c.id == sessions.c.user_id).where(sessions.c.id == session_id)
    with read_transaction(engine) as connection:
        row = connection.execute(query).mappings().first()
    if row is None or row["disabled"] or now - row["seen"] > IDLE_HOURS * 3600:
        return None
    if now - row[sessions.c.created] > SESSION_HOURS * 3600:
        return None
    if now - row["seen"] > 60:  # at most one write per minute
        with write_transaction(engine) as connection:
            connection.execute(update(sessions).where(sessions.c.id == session_id).values(seen=now))
    return _user(row, row["csrf"])


def create_token(connection: Connection, user: int, name: str) -> str:
    """A new API token. Only its hash is stored."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    row = {"user_id": user, "name": _clean_name(name, "the name of a token"), "hash": text_sha256(token)}
    connection.execute(insert(tokens).values(**row, created=time.time(), revoked=False))
    return token


def revoke_token(connection: Connection, user: int, token_id: int) -> None:
    """Revokes a token of a user."""
    where = (tokens.c.id == token_id, tokens.c.user_id == user)
    if not connection.execute(update(tokens).where(*where).values(revoked=True)).rowcount:
        raise NotFound("there is no such token of yours")


def list_tokens(connection: Connection, user: int) -> list[RowMapping]:
    """The valid tokens of a user: id, name, created."""
    query = select(tokens.c.id, tokens.c.name, tokens.c.created)
    query = query.where(tokens.c.user_id == user, tokens.c.revoked.is_(False)).order_by(tokens.c.id)
    return list(connection.execute(query).mappings())


def token_user(engine: Engine, token: str) -> User | None:
    """The user of an API token; None if the token is unknown or revoked."""
    query = select(users).join(tokens, tokens.c.user_id == users.c.id)
    query = query.where(tokens.c.hash == text_sha256(token), tokens.c.revoked.is_(False), users.c.disabled.is_(False))
    with read_transaction(engine) as connection:
        row = connection.execute(query).mappings().first()
    return _user(row, None) if row is not None and not row["must_change"] else None


def _user(row: RowMapping, csrf: str | None) -> User:
    return User(row["id"], row["name"], row["role"], row["must_change"], csrf)


def oidc_user(engine: Engine, subject: str, name: str, role: str) -> int:
    """The user of an OpenID Connect subject, created at the first visit; ReviewError if a local user has the name."""
    with write_transaction(engine) as connection:
        row = connection.execute(select(users).where(users.c.subject == subject)).first()
        if row is not None:
            if row.disabled:
                raise ReviewError("this account is disabled")
            return int(row.id)
        user = create_user(connection, name, role, None)
        connection.execute(update(users).where(users.c.id == user).values(subject=subject))
        return user


class RateLimit:
    """At most `limit` events per key within `seconds`; in memory, for one process."""

    def __init__(self, limit: int, seconds: float):
        self.limit, self.seconds = limit, seconds
        self._events: dict[str, deque[float]] = {}

    def allows(self, key: str, now: float | None = None) -> bool:
        """Whether one more event of this key is allowed now; if so it is counted."""
        now = time.monotonic() if now is None else now
        if len(self._events) > 10_000:  # old keys must not fill the memory
            self._events = {k: q for k, q in self._events.items() if q and now - q[-1] < self.seconds}
        events = self._events.setdefault(key, deque())
        while events and now - events[0] >= self.seconds:
            events.popleft()
        if len(events) >= self.limit:
            return False
        events.append(now)
        return True
