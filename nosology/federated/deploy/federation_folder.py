"""The folder of a server and the folder of a site, each with a settings file in TOML. Paths are relative to the folder.

A server has federation.toml, credentials/, invitations/, sites/ (public keys) and state/. A site has site.toml,
root.pem and its key pair.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from nosology.core import ConfigError, DataError
from nosology.core.files import atomic_file, check_results_folder
from nosology.core.settings import Settings
from nosology.federated.deploy.credentials import (
    SITE_NAME,
    ServerCredentials,
    check_site_name,
    create_server_credentials,
    create_site_key,
    public_bytes,
    read_certificate,
    read_site_key,
)
from nosology.federated.deploy.invitation import Invitation, Reply, check_words, read_file, write_file
from nosology.federated.deploy.server_address import check_address

SERVER, SITE = "federation.toml", "site.toml"


def _site_name(name: str) -> str:
    if not SITE_NAME.fullmatch(name):
        raise ValueError("must be the name of a site")
    return name


def _path(path: str) -> str:
    if "\0" in path:
        raise ValueError("must be a path")
    return path


SiteName, FolderPath = Annotated[str, AfterValidator(_site_name)], Annotated[str, AfterValidator(_path)]


class FederationServerSettings(Settings):
    """federation.toml"""

    hosts: list[str] = Field(min_length=1)  # names and addresses; the first is in the invitations
    port: int = Field(8443, ge=1, le=65535)
    listen: str = "0.0.0.0"
    sites: list[SiteName] = Field(min_length=1)  # that are expected
    recipe: str = "heads-mlp"  # that the hospitals have agreed on, for rehearsals
    settings: list[str] = Field(default_factory=list)  # of the recipe, NAME=VALUE


class SiteSettings(Settings):
    """site.toml"""

    name: SiteName
    server: str  # HOST:PORT
    confirmed: bool = False  # whether the operator of the server has confirmed the words
    corpus: list[FolderPath] = Field(["corpus"], min_length=1)  # corpus folders
    cache: FolderPath = "vectors"
    recipe: str = "heads-mlp"
    settings: list[str] = Field(default_factory=list)  # of the recipe, NAME=VALUE
    codes: FolderPath = ""  # a file
    peers: FolderPath = ""  # a folder
    trust_remote_code: bool = False
    secure_only: bool = False
    secure_sites: int = Field(3, ge=2)
    record_noise: float = Field(0.0, ge=0)
    min_notes: int = Field(10, ge=1)
    kinds: list[str] = Field(default_factory=list)  # of recipes that are permitted; empty: that of `recipe`
    words: bool = False  # whether words of notes may be reported
    epsilon: float = Field(0.0, ge=0)  # the largest of a note over all runs; 0: no limit
    delta: float = Field(1e-5, gt=0, lt=1)
    ledger: FolderPath = ""  # a file; empty: NAME.budget. A hospital in several federations uses one file for all


T = TypeVar("T", FederationServerSettings, SiteSettings)


def create_server_folder(
    folder: Path, hosts: list[str], port: int, sites: list[str], *, days: float = 730
) -> dict[str, Path]:
    """The invitation file of each site; creates what is missing and keeps keys.

    Called again with other sites, it adds them.
    """
    path, kept = folder / SERVER, {}
    if path.exists():
        known = read_settings(FederationServerSettings, folder)
        if hosts and hosts != known.hosts:
            raise ConfigError(f"the certificate of {folder} is for {', '.join(known.hosts)}: use a new folder")
        hosts, port, sites = hosts or known.hosts, port or known.port, list(dict.fromkeys([*known.sites, *sites]))
        kept = known.model_dump(include={"listen", "recipe", "settings"})
    if not hosts or not sites:
        raise ConfigError(f"give --host and --site to create {path}")
    for site in sites:
        check_site_name(site)
    host = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
    address = check_address(f"{host}:{port or 8443}")
    check_results_folder(folder, own=(SERVER,))
    credentials = ServerCredentials(folder / "credentials")
    if not credentials.certificate.exists():
        create_server_credentials(credentials.folder, hosts, days=days)
    settings = FederationServerSettings(hosts=hosts, port=port or 8443, sites=sites, **kept)
    _write_settings(path, settings.model_dump(), "Settings of the server of a federation.")
    for name in ("sites", "invitations"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "state").mkdir(mode=0o700, exist_ok=True)
    files = {site: folder / "invitations" / f"{site}.invitation" for site in sites}
    for site, file in files.items():
        root = read_certificate(credentials.root).decode()
        write_file(Invitation(site, address, root), file)
    return files


def join_federation(invitation_file: Path, folder: Path) -> tuple[Path, str]:
    """The reply file of a site, and the words; creates the folder of the site and keeps an existing key.

    An invitation with another address of the same server replaces the address; it must be confirmed again.
    """
    invitation = read_file(Invitation, invitation_file)
    path, root = folder / SITE, folder / "root.pem"
    known = read_settings(SiteSettings, folder) if path.exists() else None
    if known and known.name != invitation.site:
        raise DataError(f"{folder} is the folder of {known.name}; the invitation is for {invitation.site}")
    if root.exists() and root.read_bytes() != invitation.root.encode():
        raise DataError(f"{folder} has joined another server than that of {invitation_file}: use a new folder")
    check_results_folder(folder, own=(SITE,))
    private, _ = create_site_key(folder, invitation.site)
    folder.chmod(0o700)  # logs, and caches of the words of notes
    with atomic_file(root) as temporary:
        temporary.write_text(invitation.root, encoding="ascii")
    if known and known.server != invitation.server:
        _change_settings(path, confirmed=False, server=invitation.server)
    elif not known:
        values = SiteSettings(name=invitation.site, server=invitation.server).model_dump()
        _write_settings(path, values, "Settings of a site; paths are relative to this folder (docs/federation.md).")
    public = public_bytes(read_site_key(private).public_key()).decode()
    reply, reply_file = Reply(invitation.site, public, invitation.digest), folder / f"{invitation.site}.reply"
    write_file(reply, reply_file)
    return reply_file, check_words(invitation, reply)


def confirm_words(invitation_file: Path, folder: Path) -> None:
    """Records in the settings of a site that the operator of the server has confirmed the words of an invitation."""
    invitation, settings = read_file(Invitation, invitation_file), read_settings(SiteSettings, folder)
    reply = read_file(Reply, folder / f"{settings.name}.reply")
    if reply.invitation != invitation.digest:
        raise DataError(f"the words of {folder} are of another invitation than {invitation_file}")
    _change_settings(folder / SITE, confirmed=True)


def read_reply(folder: Path, reply_file: Path) -> tuple[Reply, str]:
    """A reply for the server of a folder, and the words; DataError if it was not invited from there."""
    reply, settings = read_file(Reply, reply_file), read_settings(FederationServerSettings, folder)
    if reply.site not in settings.sites:
        raise DataError(f"{reply.site} is not one of the expected sites, {', '.join(settings.sites)}")
    invitation = read_file(Invitation, folder / "invitations" / f"{reply.site}.invitation")
    if reply.invitation != invitation.digest:
        raise DataError(
            f"{reply_file} answers another invitation than {folder / 'invitations'}/{reply.site}.invitation"
        )
    return reply, check_words(invitation, reply)


def admit_site(folder: Path, reply: Reply) -> Path:
    """The public key file of a site, whose words were compared."""
    path = folder / "sites" / f"{reply.site}.pub"
    if path.exists() and path.read_bytes() != reply.key_line():
        raise DataError(f"{path} is another key of {reply.site}: remove it first if the site has a new one")
    with atomic_file(path) as temporary:
        temporary.write_bytes(reply.key_line())
    return path


def read_settings(kind: type[T], folder: Path) -> T:
    """The settings in a folder; DataError or ConfigError if there are none or they are wrong."""
    path = folder / (SERVER if kind is FederationServerSettings else SITE)
    try:
        return kind(**tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:  # ValueError: also a number with thousands of digits
        raise ConfigError(f"{path} is not TOML") from error


def _write_settings(path: Path, values: dict, comment: str) -> None:
    """Writes settings; JSON texts, numbers, booleans and lists are TOML too."""
    _write_lines(path, [f"# {comment}", *_toml_lines(values)])


def _change_settings(path: Path, **values: Any) -> None:
    """Replaces settings in a file, and keeps what somebody has edited."""
    lines = path.read_text(encoding="utf-8").splitlines()
    replaced = re.compile(rf"\s*({'|'.join(values)})\s*=")
    _write_lines(path, [*_toml_lines(values), *(line for line in lines if not replaced.match(line))])


def _toml_lines(values: dict[str, Any]) -> list[str]:
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]


def _write_lines(path: Path, lines: list[str]) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
