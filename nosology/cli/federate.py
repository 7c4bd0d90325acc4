"""nosology federate: several hospitals train one coder. `simulate` runs on one machine, the others between machines."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nosology.cli.coder_commands import Overrides, caution_missing
from nosology.cli.command_group import CommandGroup, recipe_names
from nosology.core import ConfigError, FederationError

if TYPE_CHECKING:
    from nosology.federated.deploy.deploy_site import SiteCredentials
    from nosology.federated.federation_settings import FederatedRecipe
    from nosology.models.bundle import Bundle

app = CommandGroup("Train one coder at several hospitals; no note leaves its hospital.")

_KINDS = (
    "heads",
    "caml",
    "laat",
    "dual_laat",
    "plant",
    "hmhan",
    "linear",
    "lexicon",
)  # FEDERATED_KINDS is slow to import
Recipe = Annotated[
    str, typer.Argument(help=f"A recipe, a TOML file or built in: {', '.join(map(recipe_names, _KINDS))}.")
]
Root = Annotated[Path, typer.Option(help="The certificate of the authority, root.pem of `nosology federate keys`.")]
Server = Annotated[str, typer.Option(metavar="HOST:PORT", help="The address of the server.")]

_SHOWN = ("micro_f1", "micro_precision", "micro_recall", "macro_f1", "exact_match", "map")


@app.command()
def simulate(
    recipe: Recipe,
    corpus: Annotated[list[Path], typer.Option(help="A corpus folder; may be repeated.")],
    out: Annotated[Path, typer.Option(help="The bundle folder to write; an interrupted run is continued.")],
    sites: Annotated[
        int | None, typer.Option(min=1, help="Partition the notes into this many sites; default: their own sites.")
    ] = None,
    skew: Annotated[str | None, typer.Option(help="iid, size, dirichlet or random; default: iid.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="dirichlet: smaller values make sites differ more; default: 0.5.")
    ] = None,
    engine: Annotated[
        Literal["flower", "vectorized"],
        typer.Option(help="flower: site after site. vectorized: all sites at once, faster on a GPU, without privacy."),
    ] = "flower",
    stacked: Annotated[bool, typer.Option("--stacked", hidden=True)] = False,
    settings: Overrides = [],  # noqa: B006 (typer copies it)
) -> None:
    """Simulate a federation in one process on this machine."""
    checked = _load_federated(recipe, settings)
    from nosology.corpora.corpus import Corpus
    from nosology.federated.federation_settings import FederationSettings

    if stacked:
        typer.echo("the option --stacked is now named --engine vectorized", err=True)
        engine = "vectorized"
    if sites is None and (skew is not None or alpha is not None):
        raise ConfigError("--skew and --alpha need --sites")
    if alpha is not None and skew != "dirichlet":
        raise ConfigError(f"--alpha needs --skew dirichlet; got {skew or 'iid'}")
    default_fraction = FederationSettings().fraction_evaluate
    if engine == "vectorized" and checked.federation.fraction_evaluate not in (default_fraction, 1.0):
        raise ConfigError("federation.fraction_evaluate must not be set with --engine vectorized: all sites are used")
    check_installed()
    from nosology.federated.rounds import simulation
    from nosology.models.bundle import check_bundle_folder

    check_bundle_folder(out)  # before all notes are read
    corpora = [Corpus.open(folder) for folder in corpus]
    if sites:
        partition = (sites, skew or "iid", 0.5 if alpha is None else alpha, checked.seed)
        site_of = simulation.partition_sites(corpora, *partition)
    else:
        site_of = simulation.corpus_sites(corpora)
    bundle = simulation.run_simulation(corpora, site_of, checked, out, engine, typer.echo)
    show_bundle(out, bundle)


def show_bundle(out: Path, bundle: Bundle) -> None:
    """Prints a bundle of a federation and its metrics on the test notes of the sites."""
    provenance: dict[str, Any] = bundle.provenance
    report = provenance["found"]
    typer.echo(
        f"{out}: {bundle.model.kind} coder, {len(bundle.model.labels):,} codes, trained on {provenance['n_train']:,}"
        f" notes at {len(provenance['federation']['sites'])} sites, threshold {bundle.decision.threshold:.3f}"
    )
    for site, reason in sorted(provenance["federation"]["refused"].items()):
        typer.echo(f"caution: {site} was excluded: {reason}", err=True)
    if not report["dev_codes"]:
        typer.echo("caution: no coded dev notes: probabilities and threshold are not tuned", err=True)
    caution_missing(bundle)
    for name in _SHOWN if "test" in report else ():
        value = report["test"][name]
        typer.echo(f"{name + ' (test)':<28}{'undefined' if value is None else f'{value:.4f}':>10}")


@app.command()
def keys(
    out: Annotated[Path, typer.Option(help="The folder to write into.")],
    host: Annotated[list[str], typer.Option(help="A name or address of the server; may be repeated.")] = [],  # noqa: B006 (typer copies it)
    site: Annotated[list[str], typer.Option(help="A site that needs a key pair; may be repeated.")] = [],  # noqa: B006
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days that the certificate of the server is valid.")] = 730,
) -> None:
    """Create the certificate of a server (--host) or key pairs of sites (--site); private keys are never replaced."""
    check_installed()
    from nosology.federated.deploy.credentials import (
        certificate_fingerprint,
        check_new_credentials,
        create_server_credentials,
        create_site_key,
        key_fingerprint,
        public_bytes,
        read_site_key,
    )

    if not host and not site:
        raise ConfigError("give --host for the certificate of a server, or --site for the key pair of a site")
    check_new_credentials(out, host, site)
    if host:
        files = create_server_credentials(out, host, days=days)
        typer.echo(f"{files.root}: for every site, fingerprint {certificate_fingerprint(files.root)}")
        typer.echo(f"{files.certificate}, {files.key}: for `nosology federate server`, valid for {', '.join(host)}")
        typer.echo(f"{files.authority_key}: signs the next certificate; store it separately")
    for name in site:
        private, public = create_site_key(out, name)
        fingerprint = key_fingerprint(public_bytes(read_site_key(private).public_key()))
        typer.echo(f"{public}: for the server, fingerprint {fingerprint}; {private} stays at {name}")


@app.command()
def server(
    certificates: Annotated[Path, typer.Option(help="The folder of `nosology federate keys --host`.")],
    sites: Annotated[Path, typer.Option(help="A folder with the public key NAME.pub of each site.")],
    out: Annotated[Path, typer.Option(help="The folder for the state and the log of the server.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8443,
    listen: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
) -> None:
    """Accept sites with a known key until Ctrl-C; start runs with `nosology federate run` on this machine."""
    check_installed()
    from nosology.core.files import check_results_folder
    from nosology.federated.deploy.certificate_expiry import SHORT_VALIDITY, expiry_warning
    from nosology.federated.deploy.credentials import ServerCredentials, certificate_fingerprint, read_public_keys
    from nosology.federated.deploy.flower_process import interrupt_on_signals
    from nosology.federated.deploy.superlink import SuperLinkServer

    credentials, known = ServerCredentials(certificates).check(), read_public_keys(sites)
    check_results_folder(out, own=("superlink.db",))
    with interrupt_on_signals():
        try:
            with SuperLinkServer(credentials, out, port, listen) as started:
                started.register_sites(known, typer.echo)
                root = certificate_fingerprint(credentials.root)
                if warning := expiry_warning(credentials.end, SHORT_VALIDITY, "in less than 30 days"):
                    typer.echo(warning, err=True)
                typer.echo(f"listening on {listen}:{port} for {len(known)} sites; root certificate {root}")
                while not started.ended:
                    started.run_next()
                    time.sleep(0.2)
                raise FederationError(f"the SuperLink has ended; its log is {out / 'superlink.log'}")
        except KeyboardInterrupt:
            typer.echo("the server has ended")


@app.command()
def site(
    name: Annotated[str, typer.Argument(help="The name of the site.")],
    server: Server,
    root: Root,
    key: Annotated[Path, typer.Option(help="The private key of the site, NAME.key of `nosology federate keys`.")],
    corpus: Annotated[list[Path], typer.Option(help="A corpus folder with splits; may be repeated.")],
    cache: Annotated[
        Path | None, typer.Option(help="The folder of vectors of `nosology embed`; needed for recipes of kind heads.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="The recipe of the run: its notes are read now.")] = "heads-mlp",
    settings: Overrides = [],  # noqa: B006
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Allow an embedder with its own code.")
    ] = False,
    secure_only: Annotated[
        bool, typer.Option("--secure-only", help="Send updates only with secure aggregation, whatever the recipe says.")
    ] = False,
    secure_sites: Annotated[
        int, typer.Option(min=2, help="Refuse secure sums over fewer sites (federation.privacy.secure_threshold).")
    ] = 3,
    record_noise: Annotated[
        float, typer.Option(min=0, help="Refuse recipes with less federation.privacy.record_noise.")
    ] = 0.0,
    min_notes: Annotated[int, typer.Option(min=1, help="Refuse recipes with less federation.min_site_notes.")] = 10,
    kind: Annotated[
        list[str], typer.Option(help="A kind of recipe that is permitted; may be repeated; default: that of --recipe.")
    ] = [],  # noqa: B006
    words: Annotated[
        bool, typer.Option("--words", help="Permit that words of notes are reported, with their numbers of patients.")
    ] = False,
    epsilon: Annotated[
        float,
        typer.Option(min=0, help="Refuse rounds that would exceed this epsilon of a note, over all runs; 0: none."),
    ] = 0.0,
    delta: Annotated[float, typer.Option(min=1e-300, max=0.999, help="The delta of --epsilon.")] = 1e-5,
    ledger: Annotated[
        Path | None, typer.Option(help="The file that records all runs of the notes; default: NAME.budget by the key.")
    ] = None,
    codes: Annotated[
        Path | None,
        typer.Option(
            help="A file with the codes that this site uses, as for `nosology code --codes`; default: all codes of the "
            "code systems of its notes."
        ),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(help="A folder with NAME.pub of all sites: refuse keys of secure aggregation without signature."),
    ] = None,
    rehearsal: Annotated[
        bool, typer.Option("--rehearsal", help="The notes are simulated: take part in rehearsals only.")
    ] = False,
) -> None:
    """Take part in the runs of a server until Ctrl-C; notes and vectors stay here. The log is next to the key."""
    check_installed()
    checked = _load_federated(recipe, settings)
    from nosology.federated.deploy.credentials import check_site_name
    from nosology.federated.deploy.deploy_site import SiteCredentials

    check_site_name(name)
    credentials = SiteCredentials(name, server, root, key)  # reads the files before notes are embedded
    if any("," in str(folder.resolve()) for folder in corpus):
        raise ConfigError(f"--corpus must be a folder without a comma in its name; got {', '.join(map(str, corpus))}")
    node_config = {
        "site-name": name,
        "corpus": ",".join(str(folder.resolve()) for folder in corpus),
        "cache": str(cache.resolve()) if cache else "",
        "codes": str(codes.resolve()) if codes else "",
        "trust-remote-code": "yes" if trust_remote_code else "",
        "secure-only": "yes" if secure_only else "",
        "secure-sites": str(secure_sites),
        "record-noise": str(record_noise),
        "min-notes": str(min_notes),
        "kinds": ",".join(kind or [checked.kind]),
        "words": "yes" if words else "no",
        "epsilon": str(epsilon),
        "delta": str(delta),
        "ledger": str((ledger or key.with_suffix(".budget")).resolve()),
        "rehearsal": "yes" if rehearsal else "",
        "secure-key": str(key.resolve()) if peers else "",
        "secure-peers": str(peers.resolve()) if peers else "",
        "personal": str(key.resolve().parent / "personal"),
    }
    _serve_site(credentials, node_config, checked)


def _serve_site(credentials: SiteCredentials, node_config: dict[str, str], recipe: FederatedRecipe) -> None:
    """Opens the notes of a site and takes part in runs until Ctrl-C."""
    from flwr.app import Context, RecordDict

    from nosology.federated.deploy.deploy_site import serve_site
    from nosology.federated.deploy.flower_process import interrupt_on_signals
    from nosology.federated.rounds.client_app import app as client_app
    from nosology.federated.rounds.client_app import open_site, read_signatures
    from nosology.federated.rounds.learner import learner_of
    from nosology.federated.rounds.site_policy import read_kinds, read_policy

    context = Context(0, 0, {**node_config}, RecordDict(), {})
    read_policy(context)
    read_kinds(context)
    read_signatures(context)
    opened = open_site(context, recipe)
    counts = ", ".join(f"{size:,} {split}" for split, size in opened.sizes.items())
    typer.echo(f"{credentials.name}: {counts} notes, {learner_of(recipe).inputs_name}")
    log = credentials.key.with_suffix(".log")
    logging.getLogger("nosology").addHandler(logging.FileHandler(log))
    with interrupt_on_signals():
        try:
            serve_site(credentials, client_app, node_config, log, typer.echo)
        except KeyboardInterrupt:
            typer.echo(f"{credentials.name} has disconnected")


@app.command()
def run(
    recipe: Recipe,
    root: Root,
    out: Annotated[Path, typer.Option(help="The bundle folder to write, on the server's machine.")],
    server: Server = "localhost:8443",
    settings: Overrides = [],  # noqa: B006
) -> None:
    """Train a coder with the sites of a server, on the server's machine; Ctrl-C stops it, a new start continues it."""
    check_installed()
    checked = _load_federated(recipe, settings)
    from nosology.federated.deploy.certificate_expiry import expiry_warning, finished_bundle, server_certificate_end
    from nosology.federated.deploy.flower_process import interrupt_on_signals
    from nosology.federated.deploy.server_address import check_address
    from nosology.federated.deploy.superlink import follow_run
    from nosology.federated.rounds.learner import learner_of
    from nosology.models.bundle import Bundle, check_bundle_folder

    check_address(server)
    check_bundle_folder(out)
    federation, end = checked.federation, server_certificate_end(server, root)
    rounds = learner_of(checked).rounds
    limit = f"and {rounds} rounds of up to {federation.timeout:g} s may take longer"
    if warning := expiry_warning(end, rounds * federation.timeout, limit):
        typer.echo(warning, err=True)
    config = {"recipe": checked.model_dump_json(), "out": str(out.resolve()), "certificate-end": str(end)}
    started = time.time()
    try:
        with interrupt_on_signals():
            follow_run(server, root, config, typer.echo)
        bundle = Bundle.load(out)
    except FederationError:
        finished = finished_bundle(out, started, end, federation.timeout)
        if finished is None:
            raise
        bundle = finished
        typer.echo("caution: the certificate of the server expired in the run; all rounds were completed", err=True)
    sites = bundle.provenance.get("federation", {}).get("sites", {})
    typer.echo(
        f"{out}: {bundle.model.kind} coder, {len(bundle.model.labels):,} codes, {len(sites)} sites,"
        f" threshold {bundle.decision.threshold:.3f}"
    )
    caution_missing(bundle)


@app.command()
def complete(
    bundle: Annotated[Path, typer.Argument(help="The bundle of the server, of a run with federation.personal.")],
    personal: Annotated[Path, typer.Option(help="The folder of the site's personal layers, next to its key.")],
    out: Annotated[Path, typer.Option(help="The bundle folder to write.")],
) -> None:
    """Add the personal layers of this site to the bundle of the server."""
    from nosology.federated.rounds.personal_layers import complete_bundle
    from nosology.models.bundle import Bundle, check_bundle_folder

    check_bundle_folder(out)
    completed = complete_bundle(Bundle.load(bundle), personal)
    completed.save(out)
    typer.echo(f"{out}: {completed.model.kind} coder with the personal layers of {personal}")


def _load_federated(recipe: str, settings: list[str]) -> FederatedRecipe:
    from nosology.config import load_federated_recipe
    from nosology.federated.federation_settings import FEDERATED_KINDS, FederatedRecipe

    checked = load_federated_recipe(recipe, settings)
    if not isinstance(checked, FederatedRecipe):
        raise ConfigError(f"recipe must be of kind {', '.join(FEDERATED_KINDS)}; got {checked.kind}")
    return checked


def check_installed() -> None:
    """Raises ConfigError with the packages to install; switches Flower's telemetry off."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    try:
        import cryptography  # noqa: F401
        import flwr  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"a federation needs {error.name}: pip install 'nosology[federated,embed]'") from error
