"""nosology federate init, join, admit, start, rehearse, budget, status: a federation from two files per site."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nosology.cli import federate
from nosology.cli.coder_commands import Overrides
from nosology.cli.command_group import refuse_unused
from nosology.cli.federate import app, check_installed
from nosology.core import ConfigError, DataError

if TYPE_CHECKING:
    from nosology.federated.deploy.federation_folder import SiteSettings

Folder = Annotated[Path, typer.Argument(help="The folder of `nosology federate init` or `join`.")]


@app.command()
def init(
    out: Annotated[Path, typer.Option(help="The folder of the server to create, or to add sites to.")],
    host: Annotated[list[str], typer.Option(help="A name or address of the server; the first is for the sites.")] = [],  # noqa: B006 (typer copies it)
    site: Annotated[list[str], typer.Option(help="The name of an expected site; may be repeated.")] = [],  # noqa: B006
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="The port of the server; default: 8443.")] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days that the certificate is valid.")] = 730,
) -> None:
    """Set up a server: credentials, settings, and an invitation file for each site."""
    check_installed()
    from nosology.federated.deploy.federation_folder import SERVER, create_server_folder

    if (out / SERVER).exists():
        refuse_unused(("days",), "here: the server has a certificate; renew it with `nosology federate keys`")
    files = create_server_folder(out, host, port or 0, site, days=days)
    for name, file in files.items():
        typer.echo(f"{file}: send it to {name}")
    typer.echo(f"{out / 'credentials' / 'root.key'}: signs the next certificate; store it separately")
    typer.echo("Each site runs `nosology federate join NAME.invitation --out FOLDER` and sends NAME.reply back. Then:")
    typer.echo(f"    nosology federate admit {out} NAME.reply     # on the telephone with the site")
    typer.echo(f"    nosology federate start {out}")


@app.command()
def join(
    invitation: Annotated[Path, typer.Argument(help="The invitation file from the server.")],
    out: Annotated[Path, typer.Option(help="The folder of the site to create.")],
    confirmed: Annotated[
        bool, typer.Option("--confirmed", help="The operator of the server has confirmed the words on the telephone.")
    ] = False,
) -> None:
    """Set up a site from an invitation; writes its key pair, its settings and the reply file."""
    check_installed()
    from nosology.federated.deploy.federation_folder import SITE, confirm_words, join_federation

    if confirmed:
        confirm_words(invitation, out)
        typer.echo(f"{out / SITE}: confirmed; connect with `nosology federate start {out}`")
        return
    reply, words = join_federation(invitation, out)
    typer.echo(f"{reply}: send it to the operator of the server; the private key stays here")
    typer.echo(f"Read these words to the operator on the telephone: {words}")
    typer.echo("Only if the operator confirms them, run:")
    typer.echo(f"    nosology federate join {invitation} --out {out} --confirmed")
    typer.echo(f"Then check corpus and cache in {out / SITE} and run `nosology federate start {out}`.")


@app.command()
def admit(
    folder: Annotated[Path, typer.Argument(help="The folder of `nosology federate init`.")],
    reply: Annotated[Path, typer.Argument(help="The reply file of a site.")],
    words: Annotated[str, typer.Option(help="The words that the site reads out; default: you are asked.")] = "",
) -> None:
    """Accept a site whose words are right; restart a running server afterwards."""
    check_installed()
    from nosology.federated.deploy.federation_folder import admit_site, read_reply

    content, expected = read_reply(folder, reply)
    heard = words or typer.prompt(f"words that {content.site} reads out")
    if heard.lower().replace("-", " ").split() != expected.split():
        raise DataError(
            f"the words of {content.site} are not those of {reply}: a file was changed on its way, or a word was"
            " misheard; nothing was accepted"
        )
    path = admit_site(folder, content)
    typer.echo(f"{path}: {content.site} is accepted; tell the site that the words are right")


@app.command()
def start(folder: Folder) -> None:
    """Start the server or the site of a folder, with the settings in it, until Ctrl-C."""
    check_installed()
    from nosology.federated.deploy.federation_folder import SERVER, SITE

    if (folder / SERVER).exists():
        _start_server(folder)
    elif (folder / SITE).exists():
        start_site(folder)
    else:
        raise DataError(f"{folder} has no {SERVER} and no {SITE}: create it with `nosology federate init` or `join`")


def _start_server(folder: Path) -> None:
    from nosology.federated.deploy.federation_folder import FederationServerSettings, read_settings

    settings = read_settings(FederationServerSettings, folder)
    missing = [site for site in settings.sites if not (folder / "sites" / f"{site}.pub").exists()]
    if missing:
        typer.echo(f"not yet accepted: {', '.join(missing)}", err=True)
    federate.server(folder / "credentials", folder / "sites", folder / "state", settings.port, settings.listen)


def ledger_path(folder: Path, settings: SiteSettings) -> Path:
    """The privacy ledger of a site."""
    return folder / (settings.ledger or f"{settings.name}.budget")


def start_site(folder: Path, rehearsal: Path | None = None) -> None:
    """Runs the site of a folder. rehearsal: a folder with a corpus of simulated notes and its cache, used instead."""
    from nosology.federated.deploy.federation_folder import SiteSettings, read_settings

    settings = read_settings(SiteSettings, folder)
    if not settings.confirmed:
        raise ConfigError(
            f"the operator of the server has not confirmed the words of {settings.name}: run `nosology federate join`"
            " with --confirmed after the telephone call"
        )
    corpus = [folder / name for name in settings.corpus] if rehearsal is None else [rehearsal / "corpus"]
    federate.site(
        settings.name,
        settings.server,
        folder / "root.pem",
        folder / f"{settings.name}.key",
        corpus,
        folder / settings.cache if rehearsal is None else rehearsal / "vectors",
        recipe=settings.recipe,
        settings=settings.settings,
        trust_remote_code=settings.trust_remote_code,
        secure_only=settings.secure_only,
        secure_sites=settings.secure_sites,
        record_noise=settings.record_noise,
        min_notes=settings.min_notes,
        kind=settings.kinds,
        words=settings.words,
        epsilon=settings.epsilon,
        delta=settings.delta,
        ledger=ledger_path(folder, settings) if rehearsal is None else rehearsal / "rehearsal.budget",
        codes=folder / settings.codes if settings.codes and rehearsal is None else None,
        peers=folder / settings.peers if settings.peers else None,
        rehearsal=rehearsal is not None,
    )


@app.command()
def rehearse(
    folder: Folder,
    patients: Annotated[int, typer.Option(min=20, max=100_000, help="Simulated patients of a site.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the rehearsal; for the server.")] = 3,
    settings: Overrides = [],  # noqa: B006 (typer copies it)
) -> None:
    """Rehearse on simulated notes, over the real connection: first at every site, then on the server's machine."""
    check_installed()
    from nosology.federated.deploy.federation_folder import SITE, FederationServerSettings, SiteSettings, read_settings
    from nosology.federated.deploy.rehearsal import rehearsal_settings, write_rehearsal_corpus
    from nosology.federated.deploy.server_address import local_address

    out = folder / "rehearsal"
    if (folder / SITE).exists():
        refuse_unused(("rounds", "settings"), "at a site")
        name = read_settings(SiteSettings, folder).name
        typer.echo(f"{name}: rehearsal with {patients} simulated patients; your own notes are not read")
        write_rehearsal_corpus(name, patients, out / "corpus")
        (out / "rehearsal.budget").unlink(missing_ok=True)  # simulated notes need no memory
        start_site(folder, out)
        return
    refuse_unused(("patients",), "on the server")
    server = read_settings(FederationServerSettings, folder)
    admitted = len(list((folder / "sites").glob("*.pub")))
    if not admitted:
        raise ConfigError(f"no site is accepted yet: run `nosology federate admit {folder} NAME.reply`")
    overrides = [*server.settings, *rehearsal_settings(admitted, rounds, settings)]
    address = local_address(server.listen, server.port)
    federate.run(server.recipe, folder / "credentials" / "root.pem", out / "bundle", address, overrides)
    typer.echo(f"the rehearsal is complete: {admitted} sites were connected and trained; the coder is of no use")


@app.command()
def budget(
    folder: Annotated[Path, typer.Argument(help="The folder of a site, or its ledger file NAME.budget.")],
    delta: Annotated[float | None, typer.Option(min=1e-300, max=0.999, help="Default: that of site.toml.")] = None,
) -> None:
    """Show how much privacy budget the train notes of a site have spent, over all runs; run it at the site."""
    check_installed()
    from nosology.federated.deploy.federation_folder import SITE, SiteSettings, read_settings
    from nosology.federated.privacy.budget_ledger import BudgetLedger

    if delta is not None and math.isnan(delta):
        raise ConfigError("--delta must be a number below 1; got nan")
    limit, path = 0.0, folder
    if (folder / SITE).exists():
        settings = read_settings(SiteSettings, folder)
        limit, delta, path = settings.epsilon, delta or settings.delta, ledger_path(folder, settings)
    if not path.is_file():
        raise DataError(f"{path} does not exist: the site has trained in no run")
    ledger = BudgetLedger(path, limit, delta or 1e-5)
    typer.echo(f"{'notes':>10}{'rounds':>10}  epsilon at delta {ledger.delta:g}")
    for notes, rounds, spent in ledger.spent():
        typer.echo(
            f"{notes:>10,}{rounds:>10,}  {'none: trained without noise' if spent == math.inf else f'{spent:.3f}'}"
        )
    typer.echo(f"limit of the site: {f'{limit:g}' if limit else 'none'}")


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="The folder of `nosology federate init`, or --out of `server`.")],
    html: Annotated[Path | None, typer.Option(help="Also write the status as a page to this file.")] = None,
) -> None:
    """Show sites, rounds, loss, bytes and last replies of the last run; the server also writes state/status.html."""
    from nosology.core.files import atomic_file
    from nosology.federated.deploy.federation_status import read_status, status_page, status_text

    last = read_status(folder)
    typer.echo(status_text(last))
    if html is not None:
        with atomic_file(html) as temporary:
            temporary.write_text(status_page(last), encoding="utf-8")
