"""A federation between machines: keys, the server, a site, a run. `cli/federate.py` takes these verbs in."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nosology.cli.coder_commands import Overrides
from nosology.core import ConfigError, FederationError

if TYPE_CHECKING:
    from nosology.federated.federation_settings import FederatedHeadsRecipe

Root = Annotated[Path, typer.Option(help="The authority's certificate, root.pem of `nosology federate keys`.")]
Server = Annotated[str, typer.Option(metavar="HOST:PORT", help="The server's address.")]


def add_to(app: typer.Typer) -> None:
    """Adds the verbs to `nosology federate`."""
    for verb in (keys, server, site, run):
        app.command()(verb)


def keys(
    out: Annotated[Path, typer.Option(help="The folder to write into.")],
    host: Annotated[
        list[str], typer.Option(help="The server's name or address, as sites will call it; may be given several times.")
    ] = [],  # noqa: B006 (typer copies it)
    site: Annotated[list[str], typer.Option(help="A site that needs a key pair; may be given several times.")] = [],  # noqa: B006
    days: Annotated[int, typer.Option(min=1, help="How long the server's certificate is valid.")] = 730,
) -> None:
    """Make a server's certificate (--host), or key pairs of sites (--site); private keys are never replaced."""
    _flower()
    from nosology.federated.deploy.credentials import (
        certificate_fingerprint,
        key_fingerprint,
        make_server_papers,
        make_site_key,
        public_bytes,
        read_site_key,
    )

    if not host and not site:
        raise ConfigError("say for whom: --host for a server's certificate, --site for a site's key pair")
    if host:
        papers = make_server_papers(out, host, days=days)
        typer.echo(f"{papers.root}: for every site, fingerprint {certificate_fingerprint(papers.root)}")
        typer.echo(f"{papers.certificate}, {papers.key}: for `nosology federate server`, valid for {', '.join(host)}")
        typer.echo(f"{papers.authority_key}: makes the next certificate; keep it apart")
    for name in site:
        private, public = make_site_key(out, name)
        print_of = key_fingerprint(public_bytes(read_site_key(private).public_key()))
        typer.echo(f"{public}: for the server, fingerprint {print_of}; {private} stays at {name}")


def server(
    certificates: Annotated[Path, typer.Option(help="The folder of `nosology federate keys --host`.")],
    sites: Annotated[
        Path, typer.Option(help="A folder with the public key of each site that may take part, NAME.pub.")
    ],
    out: Annotated[Path, typer.Option(help="The folder for the server's state and log.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8443,
    listen: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
) -> None:
    """Let sites in that have a known key, until Ctrl-C; `nosology federate run` on this machine starts runs."""
    _flower()
    from nosology.federated.deploy.credentials import ServerPapers, certificate_fingerprint, read_public_keys
    from nosology.federated.deploy.deploy_server import Server
    from nosology.federated.deploy.processes import ending_on_signals

    papers, known = ServerPapers(certificates).check(), read_public_keys(sites)
    with ending_on_signals():
        try:
            with Server(papers, out, port, listen) as started:
                started.admit(known, typer.echo)
                root = certificate_fingerprint(papers.root)
                typer.echo(f"listening on {listen}:{port} for {len(known)} sites; root certificate {root}")
                while not started.ended:
                    time.sleep(0.2)
                raise FederationError(f"the SuperLink has ended; its log is {out / 'superlink.log'}")
        except KeyboardInterrupt:
            typer.echo("the server has ended")


def site(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    server: Server,
    root: Root,
    key: Annotated[Path, typer.Option(help="The site's private key, NAME.key of `nosology federate keys`.")],
    corpus: Annotated[list[Path], typer.Option(help="A corpus folder with splits; may be given several times.")],
    cache: Annotated[Path, typer.Option(help="The folder for the notes' vectors, as `nosology embed` fills it.")],
    recipe: Annotated[str, typer.Option(help="The recipe that will be run: its embedder is tried now.")] = "heads-mlp",
    settings: Overrides = [],  # noqa: B006
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Allow an embedder that brings programs of its own.")
    ] = False,
    secure_only: Annotated[
        bool, typer.Option("--secure-only", help="Send weights only into secure sums, whatever the run's recipe says.")
    ] = False,
    record_noise: Annotated[
        float, typer.Option(min=0, help="Train only with this much federation.privacy.record_noise, or more.")
    ] = 0.0,
    min_notes: Annotated[
        int, typer.Option(min=1, help="Tell nothing where federation.min_site_notes is less than this.")
    ] = 10,
    codes: Annotated[
        Path | None,
        typer.Option(
            help="The codes that this site codes with, as for `nosology code --codes`: of others it says nothing. "
            "Without it, all codes of the systems that its notes have."
        ),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(
            help="A folder with all sites' NAME.pub: in secure rounds, keys that they did not sign are refused."
        ),
    ] = None,
) -> None:
    """Take part in the runs of a server until Ctrl-C; notes and vectors stay here, the log is beside the key."""
    _flower()
    checked = _heads(recipe, settings)
    from flwr.app import Context, RecordDict

    from nosology.federated.deploy.deploy_site import Entrance, SitePapers, serve_site
    from nosology.federated.deploy.processes import ending_on_signals
    from nosology.federated.rounds.client_app import app, open_site

    papers = SitePapers(name, server, root, key)
    Entrance(papers)  # unreadable papers are found before notes are embedded
    if any("," in str(folder.resolve()) for folder in corpus):
        raise ConfigError(f"--corpus must be a folder without a comma in its name; got {', '.join(map(str, corpus))}")
    node = {
        "site-name": name,
        "corpus": ",".join(str(folder.resolve()) for folder in corpus),
        "cache": str(cache.resolve()),
        "codes": str(codes.resolve()) if codes else "",
        "trust-remote-code": "yes" if trust_remote_code else "",
        "secure-only": "yes" if secure_only else "",
        "record-noise": str(record_noise),
        "min-notes": str(min_notes),
        "secure-key": str(key.resolve()) if peers else "",
        "secure-peers": str(peers.resolve()) if peers else "",
    }
    opened = open_site(Context(0, 0, dict(node), RecordDict(), {}), checked)
    counts = ", ".join(f"{len(part.codes):,} {split}" for split, part in opened.notes.items())
    typer.echo(f"{name}: {counts} notes, vectors of {checked.embedder.model}")
    log = key.with_suffix(".log")
    logging.getLogger("nosology").addHandler(logging.FileHandler(log))
    with ending_on_signals():
        try:
            serve_site(papers, app, node, log, typer.echo)
        except KeyboardInterrupt:
            typer.echo(f"{name} has left")


def run(
    recipe: Annotated[str, typer.Argument(help="A built-in recipe of heads, or a TOML file.")],
    root: Root,
    out: Annotated[Path, typer.Option(help="The bundle folder to write, on the server's machine.")],
    server: Server = "localhost:8443",
    settings: Overrides = [],  # noqa: B006
) -> None:
    """Train a coder with the sites of a server, on the server's machine; Ctrl-C stops it, started again it goes on."""
    _flower()
    checked = _heads(recipe, settings)
    from nosology.core.files import check_output_folder
    from nosology.federated.deploy.deploy_server import follow
    from nosology.federated.deploy.processes import ending_on_signals
    from nosology.models.bundle import MANIFEST, Bundle

    check_output_folder(out, marker=MANIFEST)
    with ending_on_signals():
        follow(server, root, {"recipe": checked.model_dump_json(), "out": str(out.resolve())}, typer.echo)
    bundle = Bundle.load(out)
    sites = bundle.provenance.get("federation", {}).get("sites", {})
    typer.echo(
        f"{out}: {bundle.model.kind} coder, {len(bundle.model.labels):,} codes, {len(sites)} sites,"
        f" threshold {bundle.decision.threshold:.3f}"
    )


def _heads(recipe: str, settings: list[str]) -> FederatedHeadsRecipe:
    from nosology.config import load_recipe

    checked = load_recipe(recipe, settings)
    if checked.kind != "heads":
        raise ConfigError(f"a federation trains heads; got a recipe of kind {checked.kind}")
    return checked


def _flower() -> None:
    """Says what to install where Flower is missing, and keeps Flower quiet where it is not."""
    import os

    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    try:
        import cryptography  # noqa: F401
        import flwr  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"federations need {error.name}: pip install 'nosology[federated]'") from error
