"""User accounts: roles, one-time passwords, sessions that can be locked, API tokens with scopes and expiry."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, RowMapping, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from nosology.core import NosologyError, ReviewError
from nosology.core.files import text_sha256
from nosology.workbench.database import insert_row, read_transaction, write_transaction
from nosology.workbench.passwords import check_password_rules, hash_password, verify_password
from nosology.workbench.review import NotFound
from nosology.workbench.sign_in import account_key
from nosology.workbench.store_settings import SessionLimits
from nosology.workbench.store_tables import sessions, tokens, users

LADDER = ("coder", "reviewer", "admin")  # each includes the roles before it
ROLES = (*LADDER, "physician")  # a physician has none of the rights of the others
RIGHTS = {
    "coder": (
        "read notes, suggestions, history and measures",
        "decide on codes, finish notes, ask for a second review",
        "comment, ask physicians, record answers that they gave by phone",
        "import notes, cancel and resume batches, export encounters",
        "create API tokens of their own",
    ),
    "reviewer": (
        "approve second reviews and pre-accepted notes, send notes back to their coder",
        "choose notes for double coding, adjudicate them, see the agreement of coders",
        "audit final codes",
        "withdraw documents",
        "state which error triage tolerates, calibrate it, acknowledge its alarms",
        "export all finished notes of a filter",
    ),
    "admin": (
        "add and disable users, change roles, reset passwords",
        "set the triage rule, the share of double coding, the length of sessions and the retention of notes",
        "delete notes",
        "read the audit log",
    ),
    "physician": (
        "see the queries to them or to any physician, with the text of their encounters",
        "answer these queries",
        "nothing else: no queue, no codes, no API",
    ),
}
SCOPES = {
    "read": "read notes, the queue, history, batches and measures",
    "import": "import, correct and withdraw documents, change data of encounters, cancel and resume batches",
    "code": "code texts that are not stored, look up codes",
    "decide": "decide on codes, comment, ask physicians, record their answers",
    "export": "export encounters",
}
TOKEN_DAYS, MAX_TOKEN_DAYS = 90, 366
ONE_TIME_HOURS = 72  # that a one-time password is valid
TOKEN_PREFIX = "nos_"
_WRITE_SECONDS = 60  # the time of the last use is written at most once in this time
# Cookies and tokens are long and random, so the fast SHA-256 is safe for them.


class WrongPassword(ReviewError):
    """The present password is wrong."""


class Forbidden(NosologyError):
    """The user's role does not allow the request."""


@dataclass(frozen=True, slots=True)
class User:
    """A user who is signed in. csrf is None for an API token, which a browser never sends by itself.

    scopes: what the request may do; all of SCOPES for a session.
    """

    id: int
    name: str
    role: str
    must_change: bool
    csrf: str | None
    scopes: frozenset[str] = frozenset(SCOPES)

    def has_role(self, role: str) -> bool:
        """Whether the user's role is this one or includes it."""
        if role not in LADDER or self.role not in LADDER:
            return self.role == role
        return LADDER.index(self.role) >= LADDER.index(role)


def _clean_name(name: str, what: str) -> str:
    name = " ".join(name.split())
    if not 1 <= len(name) <= 80 or not name.isprintable():
        raise ReviewError(f"{what} must have 1 to 80 printable characters")
    return name


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise ReviewError(f"role must be one of {', '.join(ROLES)}")


def _find_user(connection: Connection, name: str) -> Row | None:
    """The user with a name, whatever its case. Python compares: a database may know the case of ASCII letters only."""
    rows, key = connection.execute(select(users)), account_key(name)
    return next((row for row in rows if account_key(row.name) == key), None)


def create_user(
    connection: Connection, name: str, role: str, password: str | None, *, must_change: bool = False
) -> int:
    """The id of a new user; ReviewError if the name is taken or a value is invalid."""
    name = _clean_name(name, "name")
    _check_role(role)
    if _find_user(connection, name) is not None:
        raise ReviewError("that name is taken")
    if password is not None:
        check_password_rules(password, name)
    row = {
        "name": name,
        "role": role,
        "password": None if password is None else hash_password(password),
        "must_change": must_change,
        "disabled": False,
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
        found = _find_user(connection, "admin")
        admin = found.id if found is not None else create_user(connection, "admin", "admin", None)
        update_user(connection, admin, role="admin", disabled=False)
        return reset_password(connection, admin)


@dataclass(frozen=True, slots=True)
class PasswordCheck:
    """The result of a password: user is the id if it was right; account is the name of the account, if there is one."""

    user: int | None
    account: str | None
    reason: str  # for the audit log


def check_password(engine: Engine, name: str, password: str) -> PasswordCheck:
    """Whether a user has this name and password, may sign in, and the password has not expired.

    One hash is verified in every case, so the response time does not tell which names exist.
    """
    with read_transaction(engine) as connection:
        user = _find_user(connection, name)
    is_right = verify_password(user.password if user is not None else None, password)
    if user is None:
        return PasswordCheck(None, None, "unknown name")
    reason = ""
    if user.disabled:
        reason = "disabled"
    elif user.password is None:
        reason = "has no password"
    elif not is_right:
        reason = "wrong password"
    elif user.password_expires is not None and user.password_expires < time.time():
        reason = "one-time password expired"
    return PasswordCheck(None if reason else int(user.id), user.name, reason)


def change_password(engine: Engine, user: int, old: str, new: str) -> None:
    """Sets a user's password and ends all their sessions."""
    with read_transaction(engine) as connection:
        name = connection.scalar(select(users.c.name).where(users.c.id == user))
    if name is None or check_password(engine, name, old).user != user:
        raise WrongPassword("the present password is wrong")
    if old == new:
        raise ReviewError("the new password must differ from the present one")
    check_password_rules(new, name)
    with write_transaction(engine) as connection:
        _set_password(connection, user, new, must_change=False)


def reset_password(connection: Connection, user: int) -> str:
    """A one-time password, which the user must change after signing in; all their sessions and tokens end."""
    password = secrets.token_urlsafe(15)
    _set_password(connection, user, password, must_change=True)
    _revoke_tokens(connection, user)
    return password


def _set_password(connection: Connection, user: int, password: str, *, must_change: bool) -> None:
    expires = time.time() + ONE_TIME_HOURS * 3600 if must_change else None
    values = {"password": hash_password(password), "must_change": must_change, "password_expires": expires}
    connection.execute(update(users).where(users.c.id == user).values(**values))
    connection.execute(delete(sessions).where(sessions.c.user_id == user))


def _revoke_tokens(connection: Connection, user: int) -> None:
    connection.execute(update(tokens).where(tokens.c.user_id == user).values(revoked=True))


def update_user(connection: Connection, user: int, *, role: str | None = None, disabled: bool | None = None) -> str:
    """The name and what has changed, for the audit log. The last admin must stay one."""
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
        _revoke_tokens(connection, user)
    return f"{row.name}: {row.role} -> {role}" if role not in (None, row.role) else row.name


def create_session(
    engine: Engine, user: int, limits: SessionLimits | None = None, address: str = "", *, resume: str = ""
) -> str:
    """The cookie of a new session; or `resume`, if it is the cookie of a session of the same user that can go on.

    A resumed session keeps its CSRF token, so that forms in open tabs stay valid, and lasts as long as a new one.
    """
    limits, now = limits or SessionLimits(), time.time()
    values = {"created": now, "seen": now, "expires": now + limits.hours * 3600, "idle": limits.idle_minutes * 60.0}
    values |= {"locked": False, "address": address[:60]}
    with write_transaction(engine) as connection:
        connection.execute(delete(sessions).where(sessions.c.expires < now))
        own = (sessions.c.id == text_sha256(resume), sessions.c.user_id == user)
        if resume and connection.execute(update(sessions).where(*own).values(**values)).rowcount:
            return resume
        cookie = secrets.token_urlsafe(32)
        row = {"id": text_sha256(cookie), "user_id": user, "csrf": secrets.token_urlsafe(32)}
        connection.execute(insert(sessions).values(**row, **values))
    return cookie


def apply_session_limits(connection: Connection, limits: SessionLimits) -> None:
    """Shortens sessions that are open to new limits."""
    latest = sessions.c.created + limits.hours * 3600
    connection.execute(update(sessions).values(idle=limits.idle_minutes * 60.0))
    connection.execute(update(sessions).where(sessions.c.expires > latest).values(expires=latest))


def delete_session(engine: Engine, cookie: str) -> None:
    """Ends a session."""
    with write_transaction(engine) as connection:
        connection.execute(delete(sessions).where(sessions.c.id == text_sha256(cookie)))


def lock_session(engine: Engine, cookie: str) -> None:
    """Locks a session until its user signs in again."""
    with write_transaction(engine) as connection:
        connection.execute(update(sessions).where(sessions.c.id == text_sha256(cookie)).values(locked=True))


def list_sessions(connection: Connection, user: int) -> list[RowMapping]:
    """The sessions of a user, the newest first."""
    query = select(sessions).where(sessions.c.user_id == user, sessions.c.expires > time.time())
    return list(connection.execute(query.order_by(sessions.c.created.desc())).mappings())


def end_session(connection: Connection, user: int, session_id: str) -> None:
    """Ends a session of a user by its id."""
    where = (sessions.c.user_id == user, sessions.c.id == session_id)
    if not connection.execute(delete(sessions).where(*where)).rowcount:
        raise NotFound("there is no such session of yours")


_SESSION = (  # of every request, built once
    select(sessions.c.csrf, sessions.c.seen, sessions.c.expires, sessions.c.idle, sessions.c.locked, users)
    .join(users, users.c.id == sessions.c.user_id)
    .where(sessions.c.id == bindparam("session"))
)


def session_user(engine: Engine, cookie: str, *, is_poll: bool = False) -> User | None:
    """The user of a session cookie; None if the session is unknown, too old, locked, or was idle too long.

    is_poll: the request does not count as use of the session.
    """
    now, session_id = time.time(), text_sha256(cookie)
    with read_transaction(engine) as connection:
        row = connection.execute(_SESSION, {"session": session_id}).mappings().first()
    if row is None or row["disabled"] or row["locked"] or now > row["expires"] or now - row["seen"] > row["idle"]:
        return None
    if now - row["seen"] > _WRITE_SECONDS and not is_poll:
        with write_transaction(engine) as connection:
            connection.execute(update(sessions).where(sessions.c.id == session_id).values(seen=now))
    return User(row["id"], row["name"], row["role"], row["must_change"], row["csrf"])


def create_token(
    connection: Connection, user: int, name: str, scopes: Sequence[str] = tuple(SCOPES), days: int = TOKEN_DAYS
) -> str:
    """A new API token. Only its hash is stored."""
    if not scopes or not set(scopes) <= SCOPES.keys():
        raise ReviewError(f"scopes must be some of {', '.join(SCOPES)}")
    if not 1 <= days <= MAX_TOKEN_DAYS:
        raise ReviewError(f"a token must expire after 1 to {MAX_TOKEN_DAYS} days")
    token, now = TOKEN_PREFIX + secrets.token_urlsafe(32), time.time()
    row = {"user_id": user, "name": _clean_name(name, "the name of a token"), "hash": text_sha256(token)}
    row |= {"scopes": [scope for scope in SCOPES if scope in scopes], "expires": now + days * 86_400}
    connection.execute(insert(tokens).values(**row, created=now, revoked=False))
    return token


def revoke_token(connection: Connection, user: int, token_id: int) -> str:
    """The name of a token of a user, which is revoked."""
    where = (tokens.c.id == token_id, tokens.c.user_id == user)
    name = connection.scalar(select(tokens.c.name).where(*where))
    if name is None:
        raise NotFound("there is no such token of yours")
    connection.execute(update(tokens).where(*where).values(revoked=True))
    return name


def list_tokens(connection: Connection, user: int) -> list[RowMapping]:
    """The tokens of a user that are not revoked: id, name, scopes, created, expires, used."""
    columns = ("id", "name", "scopes", "created", "expires", "used")
    query = select(*(tokens.c[name] for name in columns))
    query = query.where(tokens.c.user_id == user, tokens.c.revoked.is_(False)).order_by(tokens.c.id)
    return list(connection.execute(query).mappings())


def token_user(engine: Engine, token: str) -> User | None:
    """The user of an API token; None if the token is unknown, revoked or expired."""
    now = time.time()
    query = select(users, tokens.c.id.label("token"), tokens.c.scopes, tokens.c.used)
    query = query.join(tokens, tokens.c.user_id == users.c.id).where(users.c.disabled.is_(False))
    query = query.where(tokens.c.hash == text_sha256(token), tokens.c.revoked.is_(False), tokens.c.expires > now)
    with read_transaction(engine) as connection:
        row = connection.execute(query).mappings().first()
    if row is None or row["must_change"]:
        return None
    if now - (row["used"] or 0) > _WRITE_SECONDS:
        with write_transaction(engine) as connection:
            connection.execute(update(tokens).where(tokens.c.id == row["token"]).values(used=now))
    return User(row["id"], row["name"], row["role"], False, None, frozenset(row["scopes"]))


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
