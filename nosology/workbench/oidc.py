"""Sign-in with OpenID Connect by Authlib: authorization code flow with PKCE, signature and claims checked.

Authlib keeps state, nonce and PKCE verifier in the session of Starlette's SessionMiddleware, a signed cookie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
from fastapi import Request
from fastapi.responses import RedirectResponse
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool

from nosology.core import NosologyError, ReviewError
from nosology.workbench.accounts import oidc_user
from nosology.workbench.services import OidcSettings

if TYPE_CHECKING:
    from authlib.integrations.starlette_client import StarletteOAuth2App

COOKIE = "nosology_oidc"
ALGORITHMS = ("RS256", "ES256", "PS256")  # asymmetric ones only: neither "none" nor a shared secret


class ProviderError(NosologyError):
    """The provider did not respond, or its response is invalid."""


async def _client(settings: OidcSettings) -> StarletteOAuth2App:
    """An OAuth client with the provider's metadata."""
    from authlib.integrations.starlette_client import OAuth

    client = OAuth().register(
        "provider",
        client_id=settings.client_id,
        client_secret=settings.client_secret,
        server_metadata_url=settings.issuer.rstrip("/") + "/.well-known/openid-configuration",
        client_kwargs={
            "scope": "openid profile",
            "code_challenge_method": "S256",
            "token_endpoint_auth_method": "client_secret_post",
            "timeout": 10,
        },
    )
    metadata = await client.load_server_metadata()
    if str(metadata.get("issuer")).rstrip("/") != settings.issuer.rstrip("/"):
        raise ProviderError("the provider names another issuer than the configured one")
    metadata["id_token_signing_alg_values_supported"] = list(ALGORITHMS)  # Authlib accepts what this says
    return client


async def redirect_to_provider(settings: OidcSettings, request: Request, callback: str) -> RedirectResponse:
    """The redirect to the provider's sign-in page."""
    try:
        return await (await _client(settings)).authorize_redirect(request, callback)
    except (httpx.HTTPError, ValueError, RuntimeError) as error:
        raise ProviderError("the sign-in provider does not respond as it must") from error


async def sign_in_user(settings: OidcSettings, engine: Engine, request: Request) -> int:
    """The id of the user whom the provider's response names; ProviderError if any check fails."""
    claims = await _claims(settings, request)
    name = claims.get("preferred_username") or claims.get("name") or claims["sub"]
    subject = f"{settings.issuer} {claims['sub']}"
    try:
        return await run_in_threadpool(oidc_user, engine, subject, str(name), settings.role)
    except ReviewError as error:
        raise ProviderError(f"this person cannot be signed in: {error}") from error


async def _claims(settings: OidcSettings, request: Request) -> dict[str, Any]:
    """The claims of the ID token. Authlib checks state, nonce, signature, issuer, audience and expiry."""
    from authlib.common.errors import AuthlibBaseError
    from joserfc.errors import JoseError

    expected = {"iss": settings.issuer, "aud": settings.client_id}
    options = {name: {"essential": True, "value": value} for name, value in expected.items()}
    try:
        client = await _client(settings)
        token = await client.authorize_access_token(request, claims_options=options)
        return token["userinfo"]
    except (AuthlibBaseError, JoseError, httpx.HTTPError, ValueError, KeyError, RuntimeError) as error:
        raise ProviderError("the sign-in failed or took too long; sign in again") from error
