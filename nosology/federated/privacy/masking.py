"""The arithmetic under secure aggregation: whole numbers modulo 2^64, keystreams, shares of secrets, sealed letters.

Flower's own parts are not used: its generator of masks is seeded with 32 bits (a xor of the key's words), which a
server can try one by one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from nosology.core import DataError

SCALE = 2.0**32  # a site's number is rounded to a multiple of 2^-32, so it is off by 2^-33 at most
_RANGE = 2.0**31  # the sum over all sites must stay below this, or it wraps around
_PRIME = 2**256 + 297  # shares are numbers modulo this; the secrets have 256 bits
SHARE = 33  # bytes of a share


def to_whole(values: np.ndarray, sites: int) -> np.ndarray:
    """Numbers (N,) as whole numbers modulo 2^64 (N,), uint64; DataError if a sum over so many sites could overflow."""
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).all():
        raise DataError("the site's update holds NaN or infinity")
    if len(values) and np.abs(values).max() >= _RANGE / sites:
        raise DataError(f"the numbers of the site's update, times its notes, must stay below {_RANGE / sites:.3g}")
    return np.rint(values * SCALE).astype(np.int64).view(np.uint64)


def from_whole(total: np.ndarray) -> np.ndarray:
    """The numbers (N,), float64, that whole numbers modulo 2^64 stand for."""
    return total.view(np.int64) / SCALE


def derived(secret: bytes, *context: str) -> bytes:
    """A key of 32 bytes for one purpose, which the context names."""
    info = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in context)
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"nosology secure sum" + info).derive(secret)


def keystream(key: bytes, length: int) -> np.ndarray:
    """Numbers (length,), uint64, that look random without the key (AES-256 in counter mode).

    The counter begins at 0, so a key must not be used twice.
    """
    stream = bytearray(8 * length + 15)
    Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update_into(bytes(8 * length), stream)
    return np.frombuffer(stream, dtype="<u8", count=length)


def agreed_secret(private: bytes, public: bytes) -> bytes:
    """What two sites alone know: of one's private and the other's public X25519 key. DataError for a bad key."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise DataError("a site's public key is not one") from error


def new_key() -> tuple[bytes, bytes]:
    """A private and a public X25519 key."""
    private = X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


def public_of(private: bytes) -> bytes:
    """The public X25519 key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def split_secret(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of a secret of 32 bytes, for places 1 to count: `threshold` give it back, fewer say nothing (Shamir)."""
    if not 1 <= threshold <= count or len(secret) != 32:
        raise ValueError(
            f"threshold must lie in [1, {count}] and the secret have 32 bytes; got {threshold}, {len(secret)}"
        )
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(_PRIME) for _ in range(threshold - 1))]
    shares = []
    for place in range(1, count + 1):
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * place + coefficient) % _PRIME
        shares.append(value.to_bytes(SHARE, "big"))
    return shares


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret of shares by place, of which there must be enough; DataError if they do not fit together."""
    places = tuple(sorted(shares))
    terms = (int.from_bytes(shares[place], "big") * factor for place, factor in zip(places, _at_zero(places)))
    secret = sum(terms) % _PRIME
    if secret >> 256:
        raise DataError("the shares of a secret do not fit together")
    return secret.to_bytes(32, "big")


@lru_cache(16)  # the same sites answer for every secret of a round
def _at_zero(places: tuple[int, ...]) -> tuple[int, ...]:
    """What each place's value counts for the polynomial's value at 0 (Lagrange)."""
    factors = []
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above, below = above * other % _PRIME, below * (other - place) % _PRIME
        factors.append(above * pow(below, -1, _PRIME) % _PRIME)
    return tuple(factors)


def seal(key: bytes, text: bytes) -> bytes:
    """A letter that only who has the key can read or write; a key seals one letter."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def unseal(key: bytes, letter: bytes) -> bytes:
    """The text of a letter; raises `cryptography.exceptions.InvalidTag` if another key or another hand sealed it."""
    return ChaCha20Poly1305(key).decrypt(bytes(12), letter, None)
