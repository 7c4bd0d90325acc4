"""Arithmetic and cryptography of secure aggregation: fixed-point numbers, keystreams, secret sharing, encryption.

The parts of Flower are not used: its masks are seeded with 32 bits, which a server can try one by one.
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

SCALE = 2.0**32  # numbers are rounded to multiples of 2^-32; the error is at most 2^-33
_RANGE = 2.0**31  # limit of the sum over all sites; beyond it the sum wraps around
_PRIME = 2**256 + 297  # modulus of secret sharing; secrets have 256 bits
SHARE_BYTES = 33


def to_fixed_point(values: np.ndarray, sites: int) -> np.ndarray:
    """Numbers (N,) as integers modulo 2^64, uint64; DataError if a sum over this many sites could overflow."""
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).all():
        raise DataError("the update of the site contains NaN or infinity")
    if len(values) and np.abs(values).max() >= _RANGE / sites:
        raise DataError(f"the update of the site times its notes must be below {_RANGE / sites:.3g}")
    return np.rint(values * SCALE).astype(np.int64).view(np.uint64)


def from_fixed_point(total: np.ndarray) -> np.ndarray:
    """The numbers (N,), float64, of integers modulo 2^64."""
    return total.view(np.int64) / SCALE


def derive_key(secret: bytes, *context: str) -> bytes:
    """A key of 32 bytes that is bound to a context (HKDF)."""
    info = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in context)
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"nosology secure sum" + info).derive(secret)


def keystream(key: bytes, length: int) -> np.ndarray:
    """Pseudorandom numbers (length,), uint64 (AES-256 in counter mode). Never use a key twice."""
    stream = bytearray(8 * length + 15)
    Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update_into(bytes(8 * length), stream)
    return np.frombuffer(stream, dtype="<u8", count=length)


def shared_secret(private: bytes, public: bytes) -> bytes:
    """The X25519 secret of a private key and the public key of another site; DataError for an invalid key."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise DataError("the public key of a site is invalid") from error


def generate_key_pair() -> tuple[bytes, bytes]:
    """A private and a public X25519 key."""
    private = X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public X25519 key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def split_secret(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shamir shares of a secret of 32 bytes, for positions 1 to count; `threshold` shares recover it."""
    if not 1 <= threshold <= count or len(secret) != 32:
        raise ValueError(
            f"threshold must be in [1, {count}] and the secret must have 32 bytes; got {threshold}, {len(secret)}"
        )
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(_PRIME) for _ in range(threshold - 1))]
    shares = []
    for position in range(1, count + 1):
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * position + coefficient) % _PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "big"))
    return shares


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret of enough shares by position; DataError if they are inconsistent."""
    positions = tuple(sorted(shares))
    weighted = zip(positions, _lagrange_coefficients(positions))
    secret = sum(int.from_bytes(shares[position], "big") * factor for position, factor in weighted) % _PRIME
    if secret >> 256:
        raise DataError("the shares of a secret are inconsistent")
    return secret.to_bytes(32, "big")


@lru_cache(16)  # all secrets of a round are recovered from the same positions
def _lagrange_coefficients(positions: tuple[int, ...]) -> tuple[int, ...]:
    """The weight of each position in the value of the polynomial at 0."""
    factors = []
    for position in positions:
        above, below = 1, 1
        for other in positions:
            if other != position:
                above, below = above * other % _PRIME, below * (other - position) % _PRIME
        factors.append(above * pow(below, -1, _PRIME) % _PRIME)
    return tuple(factors)


def encrypt(key: bytes, data: bytes) -> bytes:
    """Encrypted and authenticated data. The nonce is constant: use a key once."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), data, None)


def decrypt(key: bytes, data: bytes) -> bytes:
    """Decrypted data; `cryptography.exceptions.InvalidTag` for another key or changed data."""
    return ChaCha20Poly1305(key).decrypt(bytes(12), data, None)
