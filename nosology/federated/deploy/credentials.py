"""The credentials of a federation: a certificate authority, the certificate of the server, a key pair per site.

A private key is written once, readable only by its owner, and never replaced. Certificates are public and renewed.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nosology.core import ConfigError, DataError
from nosology.core.files import atomic_file, check_results_folder

ROOT_DAYS = 3650  # that the certificate of the authority is valid
LOCAL_HOSTS = ("localhost", "127.0.0.1")  # how programs on the server's machine reach it
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass
class ServerCredentials:
    """The files of a server, in one folder."""

    folder: Path

    def __post_init__(self) -> None:
        self.root = self.folder / "root.pem"  # certificate of the authority; every site needs it
        self.authority_key = self.folder / "root.key"  # only `nosology federate keys` needs it
        self.certificate, self.key = self.folder / "server.pem", self.folder / "server.key"

    def check(self) -> ServerCredentials:
        """These credentials; DataError if a file is missing or a certificate has expired."""
        for path in (self.root, self.certificate, self.key):
            if not path.is_file():
                raise DataError(f"no {path.name} in {self.folder}: create it with `nosology federate keys`")
        for path in (self.root, self.certificate):
            if (end := _load_certificate(path).not_valid_after_utc) <= datetime.datetime.now(datetime.UTC):
                raise DataError(f"{path} expired on {end:%Y-%m-%d}: delete it and run `nosology federate keys` again")
        return self

    @property
    def end(self) -> float:
        """When the certificate of the server ends, in seconds since 1970."""
        return _load_certificate(self.certificate).not_valid_after_utc.timestamp()

    def is_valid_for(self, host: str) -> bool:
        """Whether the certificate of the server has this name or address."""
        extensions = _load_certificate(self.certificate).extensions
        return _general_name(host) in list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def check_new_credentials(folder: Path, hosts: list[str], sites: list[str]) -> None:
    """Raises if credentials of these hosts and sites cannot be created in a folder; call it before the first is."""
    check_results_folder(folder)
    for site in sites:
        check_site_name(site)
        if hosts and site in ("root", "server"):
            raise ConfigError(f"with --host, the name of a site must not be root or server; got {site!r}")
        if (folder / f"{site}.key").exists():
            read_site_key(folder / f"{site}.key")
    if not hosts:
        return
    for host in hosts:
        _general_name(host)
    credentials = ServerCredentials(folder)
    keys = [_read_tls_key(path) for path in (credentials.authority_key, credentials.key) if path.exists()]
    if not credentials.root.exists():
        return
    if not credentials.authority_key.exists():
        raise DataError(f"{credentials.authority_key} must be there to sign a new certificate for {credentials.root}")
    root = _load_certificate(credentials.root)
    if root.public_key() != keys[0].public_key():
        raise DataError(f"{credentials.root} is not the certificate of {credentials.authority_key}")
    if (end := root.not_valid_after_utc) <= _after(0):
        raise DataError(f"{credentials.root} expired on {end:%Y-%m-%d}: delete it; every site needs the new one")


def create_server_credentials(folder: Path, hosts: list[str], *, days: float = 730) -> ServerCredentials:
    """The credentials of a server, valid for hosts (names or addresses) and for this machine; keeps existing keys."""
    names = [_general_name(host) for host in dict.fromkeys([*hosts, *LOCAL_HOSTS])]
    check_new_credentials(folder, hosts, [])
    credentials = ServerCredentials(folder)
    folder.mkdir(parents=True, exist_ok=True)
    authority_key = _tls_key(credentials.authority_key)
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Nosology federation authority")])
    if not credentials.root.exists():
        _write_certificate(credentials.root, _authority_certificate(authority, authority_key))
    server_key = _tls_key(credentials.key)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, (hosts or ["localhost"])[0][:64])])
    root_end = _load_certificate(credentials.root).not_valid_after_utc
    end = min(_after(days), root_end)  # a site refuses both certificates when the root certificate has expired
    builder = (
        _builder(subject, authority, server_key.public_key(), end)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    _write_certificate(credentials.certificate, builder.sign(authority_key, hashes.SHA256()))
    return credentials


def check_site_name(site: str) -> None:
    """ConfigError if this cannot be the name of a site."""
    if not SITE_NAME.fullmatch(site):
        raise ConfigError(f"the name of a site must be 1 to 64 letters, digits, '.', '_' or '-'; got {site!r}")


def create_site_key(folder: Path, site: str) -> tuple[Path, Path]:
    """The private and the public key file of a site; keeps an existing key."""
    check_site_name(site)
    folder.mkdir(parents=True, exist_ok=True)
    private, public = folder / f"{site}.key", folder / f"{site}.pub"
    if not private.exists():
        new_key = ec.generate_private_key(ec.SECP384R1())
        write_private(private, new_key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    key = read_site_key(private)
    with atomic_file(public) as path:
        path.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {site}\n".encode())
    return private, public


def read_site_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key of a site."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise DataError(f"cannot read the key of the site {path}: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} is not a private key of `nosology federate keys`") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DataError(f"{path} must be an elliptic curve key of `nosology federate keys`")
    return key


def read_public_keys(folder: Path) -> dict[str, bytes]:
    """The public keys (PEM) in a folder of NAME.pub files, by site."""
    if not folder.is_dir():
        raise DataError(f"no folder with the public keys of sites: {folder}")
    keys: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.pub")):
        try:
            key = load_ssh_public_key(path.read_bytes())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise DataError(f"{path} is not a public key of a site") from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise DataError(f"{path} must be an elliptic curve key of `nosology federate keys`")
        keys[path.stem] = public_bytes(key)
    if len(set(keys.values())) < len(keys):
        raise DataError(f"two sites in {folder} have the same public key")
    if not keys:
        raise DataError(f"no public key (NAME.pub) in {folder}")
    return keys


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as PEM."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def key_fingerprint(pem: bytes) -> str:
    """A short fingerprint of a public key, to compare by telephone."""
    return _grouped(hashlib.sha256(pem).hexdigest())


def certificate_fingerprint(path: Path) -> str:
    """A short fingerprint of a certificate file."""
    return _grouped(_load_certificate(path).fingerprint(hashes.SHA256()).hex())


def read_certificate(path: Path) -> bytes:
    """A certificate as PEM; DataError if it cannot be read."""
    return _load_certificate(path).public_bytes(Encoding.PEM)


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read the certificate {path}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is not a certificate") from error


def _grouped(digest: str) -> str:
    return ":".join(digest[i : i + 4] for i in range(0, 32, 4))


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9*]([A-Za-z0-9.-]{0,252})", host):
        raise ConfigError(f"a host must be a name or an address without port; got {host!r}")
    return x509.DNSName(host)


def _authority_certificate(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    builder = (
        _builder(name, name, key.public_key(), _after(ROOT_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
    )
    return builder.sign(key, hashes.SHA256())


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(_after(-1 / 24), end))  # clocks differ
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _after(days: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _tls_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key in a file, which is created if it is missing."""
    if not path.exists():
        new_key = ec.generate_private_key(ec.SECP256R1())
        write_private(path, new_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return _read_tls_key(path)


def _read_tls_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} is not a private key; it is not replaced") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DataError(f"{path} must be an elliptic curve key; it is not replaced")
    return key


def write_private(path: Path, content: bytes) -> None:
    """Writes a new file that only its owner can read; the file must not exist."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    with atomic_file(path) as temporary:
        temporary.write_bytes(certificate.public_bytes(Encoding.PEM))
