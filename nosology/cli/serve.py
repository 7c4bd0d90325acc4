"""nosology serve: the workbench."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from nosology.cli.command_group import refuse_unused, workbench_packages
from nosology.core import ConfigError


def serve(
    bundle: Annotated[Path | None, typer.Argument(help="The bundle folder of the coder, or day-one.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Fictional encounters and three users, to try it.")] = False,
    store: Annotated[
        str | None, typer.Option(help="A file for SQLite, or postgresql://user@host/name.  [default: workbench.db]")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen at.")] = 8400,
    release: Annotated[str | None, typer.Option(help="Suggest only codes of the code set of this year.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that code notes.")] = 1,
    tls_cert: Annotated[Path | None, typer.Option(help="The TLS certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate (PEM).")] = None,
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="A reverse proxy terminates TLS.")] = False,
    public_url: Annotated[
        str | None,
        typer.Option(help="The address at which browsers reach the server, such as https://coding.example.org."),
    ] = None,
    drg_weights: Annotated[
        list[Path], typer.Option(metavar="FILE", help="CMS Table 5 of a fiscal year (DRG weights); may be repeated.")
    ] = [],  # noqa: B006 (typer copies it)
    new_admin_password: Annotated[
        bool, typer.Option("--new-admin-password", help="Give the user admin a new one-time password.")
    ] = False,
    oidc_issuer: Annotated[str | None, typer.Option(help="OpenID Connect: the provider's address.")] = None,
    oidc_client: Annotated[str | None, typer.Option(help="OpenID Connect: the client id.")] = None,
    oidc_role: Annotated[str, typer.Option(help="OpenID Connect: the role of new users.")] = "coder",
    oidc_host: Annotated[
        list[str],
        typer.Option(help="OpenID Connect: another host of the provider's endpoints; may be repeated."),
    ] = [],  # noqa: B006 (typer copies it)
) -> None:
    """Serve the workbench, where people review suggestions. $NOSOLOGY_OIDC_SECRET is OpenID Connect's secret."""
    with workbench_packages():
        from nosology.workbench.app import serve as run_server
        from nosology.workbench.server_settings import OidcSettings, ServerSettings

    oidc = None
    if oidc_issuer is None and oidc_client is None:
        refuse_unused(("oidc_role", "oidc_host"), "without --oidc-issuer and --oidc-client")
    else:
        if not (oidc_issuer and oidc_client):
            raise ConfigError("--oidc-issuer and --oidc-client must be given together")
        secret = os.environ.get("NOSOLOGY_OIDC_SECRET", "")
        oidc = OidcSettings(oidc_issuer, oidc_client, secret, oidc_role, tuple(oidc_host))
    if demo == (bundle is not None):
        raise ConfigError("give either a bundle folder or --demo")
    if bundle is None:
        from nosology.workbench.demo import BUNDLE, demo_store

        refuse_unused(("new_admin_password",), "with --demo, whose password is fixed")
        bundle, default_store = BUNDLE, demo_store()
    else:
        default_store = "workbench.db"
    settings = ServerSettings(
        bundle=bundle,
        store=default_store if store is None else store,
        host=host,
        port=port,
        release=release,
        workers=workers,
        tls_cert=tls_cert,
        tls_key=tls_key,
        behind_proxy=behind_proxy,
        oidc=oidc,
        demo=demo,
        public_url=public_url,
        drg_weights=tuple(drg_weights),
    )
    run_server(settings, reset_admin=new_admin_password)
