"""One file each way between server and site, and the words that both read out on the telephone.

The invitation has the address and the root certificate of the server and the name of the site. The reply has the public
key of the site. Neither is secret, but somebody who could change both could stand between server and site. So both
derive four words from both files: if the words are the same, so are the files.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from nosology.core import ConfigError, DataError
from nosology.core.files import write_json
from nosology.federated.deploy.credentials import check_site_name, public_bytes
from nosology.federated.deploy.server_address import check_address

WORDS = 4  # of 12 bits
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"
_SYLLABLES = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]  # 64
_LARGEST = 100_000  # bytes of a file that is read

T = TypeVar("T", "Invitation", "Reply")


@dataclass(frozen=True)
class Invitation:
    """What a server sends to a site."""

    site: str
    server: str  # HOST:PORT
    root: str  # certificate of the authority, PEM

    def check(self) -> None:
        """Raises if a value is invalid."""
        check_site_name(self.site)
        check_address(self.server)
        if not self.root.isascii():
            raise ValueError("the root certificate must be PEM")
        x509.load_pem_x509_certificate(self.root.encode())

    @property
    def digest(self) -> str:
        """A hash of the invitation."""
        return hashlib.sha256(_canonical(self)).hexdigest()


@dataclass(frozen=True)
class Reply:
    """What a site sends back."""

    site: str
    public_key: str  # PEM
    invitation: str  # the digest of the invitation

    def check(self) -> None:
        """Raises if a value is invalid."""
        check_site_name(self.site)
        key = load_pem_public_key(self.public_key.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey) or public_bytes(key) != self.public_key.encode():
            raise ValueError("public_key must be an elliptic curve key")

    def key_line(self) -> bytes:
        """The content of the file NAME.pub."""
        key = load_pem_public_key(self.public_key.encode())
        return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {self.site}\n".encode()


def write_file(content: Invitation | Reply, path: Path) -> None:
    """Writes an invitation or a reply."""
    write_json(path, {"nosology": _kind(type(content)), **asdict(content)})


def read_file(kind: type[T], path: Path) -> T:
    """The invitation or reply in a file; DataError if it is something else."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    try:
        values: Any = json.loads(data) if len(data) <= _LARGEST else None
        if not isinstance(values, dict) or values.pop("nosology", "") != _kind(kind):
            raise ValueError("another file")
        if not all(isinstance(value, str) for value in values.values()):
            raise ValueError("values must be texts")
        content = kind(**values)
        content.check()
    except (ValueError, TypeError, RecursionError, UnsupportedAlgorithm, ConfigError) as error:
        raise DataError(f"{path} is not a {_kind(kind)}, or it is damaged") from error
    return content


def check_words(invitation: Invitation, reply: Reply) -> str:
    """Four pronounceable words, 48 bits, that depend on every byte of both files.

    scrypt makes each attempt of somebody who looks for other files with the same words cost 16 MB and some 50 ms.
    """
    files = _canonical(invitation) + b"\n" + _canonical(reply)
    number = int.from_bytes(hashlib.scrypt(files, salt=b"nosology federation", n=2**14, r=8, p=1, dklen=6))
    parts = [_SYLLABLES[number >> shift & 63] for shift in range(42, -1, -6)]
    return " ".join("".join(parts[i : i + 2]) for i in range(0, 2 * WORDS, 2))


def _canonical(content: Invitation | Reply) -> bytes:
    return json.dumps([_kind(type(content)), asdict(content)], sort_keys=True).encode()


def _kind(kind: type) -> str:
    return f"federation {kind.__name__.lower()}"
