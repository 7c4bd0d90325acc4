"""Passwords: argon2id hashes, and rules that keep out passwords that are guessed first."""

from __future__ import annotations

import re
import secrets
from functools import cache
from typing import TYPE_CHECKING

from nosology.core import ReviewError

if TYPE_CHECKING:
    from argon2 import PasswordHasher

MIN_PASSWORD_LENGTH, MAX_PASSWORD_LENGTH = 12, 500
MIN_DISTINCT = 6  # different characters
# Words that people take for passwords. What is left of a password without them, without digits and without signs must
# have a few letters, or a list of guesses has it.
_COMMON = (
    *(
        "password",
        "passwort",
        "passwd",
        "pass",
        "kennwort",
        "secret",
        "geheim",
        "login",
        "signin",
        "welcome",
        "willkommen",
    ),
    *("letmein", "changeme", "default", "admin", "administrator", "root", "user", "guest", "test", "demo", "temp"),
    *("qwertyuiop", "qwertzuiop", "qwerty", "qwertz", "azerty", "asdfghjkl", "asdfgh", "asdf", "zxcvbnm", "yxcvbnm"),
    *("abcdefghijklmnopqrstuvwxyz", "abcdefghijkl", "abcdef", "abcd", "abc", "iloveyou", "loveyou", "love", "monkey"),
    *("dragon", "football", "baseball", "superman", "batman", "princess", "sunshine", "shadow", "master", "hello"),
    *("hospital", "clinic", "medical", "doctor", "nurse", "patient", "health", "coding", "coder", "reviewer", "icd"),
    *("nosology", "workbench", "summer", "winter", "spring", "autumn", "january", "monday", "company", "computer"),
)
_COMMON_WORDS = re.compile("|".join(sorted(_COMMON, key=len, reverse=True)))
MIN_OTHER_LETTERS = 4


@cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


@cache
def _dummy_hash() -> str:
    return _hasher().hash(secrets.token_hex())


def hash_password(password: str) -> str:
    """The argon2id hash of a password."""
    return _hasher().hash(password)


def verify_password(hashed: str | None, password: str) -> bool:
    """Whether the password has this hash. Without a hash the work is the same, so that nobody learns who has one."""
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        is_right = _hasher().verify(hashed or _dummy_hash(), password[:MAX_PASSWORD_LENGTH])
    except (VerificationError, InvalidHashError):
        return False
    return is_right and hashed is not None


def check_password_rules(password: str, name: str) -> None:
    """Raises ReviewError if a password of the user with this name is too short, too simple or a common one."""
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise ReviewError(f"a password must have {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} characters")
    if len(set(password)) < MIN_DISTINCT:
        raise ReviewError(f"a password must have {MIN_DISTINCT} different characters")
    lower, own = password.lower(), name.strip().lower()
    if any(password[period:] == password[:-period] for period in range(1, (len(password) + 1) // 2 + 1)):
        raise ReviewError("a password must not be a repeated pattern")
    if len(own) >= 3 and own in lower:
        raise ReviewError("a password must not contain the user name")
    if len(re.sub(r"[\W\d_]", "", _COMMON_WORDS.sub("", lower))) < MIN_OTHER_LETTERS:
        raise ReviewError(f"a password must have {MIN_OTHER_LETTERS} letters besides common words, digits and signs")
