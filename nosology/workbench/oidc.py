"""Signing in with OpenID Connect: authorization code flow with PKCE, the provider's signature checked."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from typing import Any
from urllib.parse import urlencode

import httpx
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool

from nosology.core import NosologyError, ReviewError
from nosology.workbench.accounts import user_of_subject
from nosology.workbench.settings import OidcSettings

COOKIE = "nosology_oidc"
_ALGORITHMS = ("RS256", "ES256", "PS256")  # never "none", never one with a shared secret
_SECONDS = 10


class ProviderError(NosologyError):
    """The provider did not answer, or not as it must."""


async def begin(settings: OidcSettings, back: str) -> tuple[str, str]:
    """Where the browser must go, and the value of a cookie that ties the answer to this browser."""
    place = (await _discover(settings))["authorization_endpoint"]
    kept = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
    challenge = base64.urlsafe_b64encode(hashlib.sha256(kept["verifier"].encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code",
        "client_id": settings.client_id,
        "redirect_uri": back,
        "scope": "openid profile",
        "state": kept["state"],
        "nonce": kept["nonce"],
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    return f"{place}?{urlencode(query)}", base64.urlsafe_b64encode(json.dumps(kept).encode()).decode()


async def finish(settings: OidcSettings, engine: Engine, *, code: str, state: str, cookie: str, back: str) -> int:
    """The user whom the provider's answer names; ProviderError if anything about it is not as it must be."""
    kept = _kept(cookie)
    if not state or not secrets.compare_digest(state.encode(), kept["state"].encode()):
        raise ProviderError("the answer does not belong to this browser's request; sign in again")
    about = await _discover(settings)
    answer = await _send(
        "POST",
        about["token_endpoint"],
        data={
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": back,
            "client_id": settings.client_id,
            "client_secret": settings.client_secret,
            "code_verifier": kept["verifier"],
        },
    )
    claims = _claims(settings, answer.get("id_token"), await _send("GET", about["jwks_uri"]), kept["nonce"])
    name = claims.get("preferred_username") or claims.get("name") or claims["sub"]
    subject = f"{settings.issuer} {claims['sub']}"
    try:
        return await run_in_threadpool(user_of_subject, engine, subject, str(name), settings.role)
    except ReviewError as error:
        raise ProviderError(f"this person cannot be signed in: {error}") from error


def _kept(cookie: str) -> dict[str, str]:
    try:
        kept = json.loads(base64.urlsafe_b64decode(cookie))
        return {name: str(kept[name]) for name in ("state", "nonce", "verifier")}
    except (ValueError, KeyError, TypeError) as error:
        raise ProviderError("the sign-in took too long or began in another browser; sign in again") from error


async def _discover(settings: OidcSettings) -> dict[str, Any]:
    about = await _send("GET", settings.issuer.rstrip("/") + "/.well-known/openid-configuration")
    if about.get("issuer", "").rstrip("/") != settings.issuer.rstrip("/"):
        raise ProviderError("the provider names another issuer than the one configured")
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        if not isinstance(about.get(name), str):
            raise ProviderError(f"the provider does not say its {name}")
    return about


async def _send(method: str, url: str, data: dict[str, str] | None = None) -> dict[str, Any]:
    try:
        async with httpx.AsyncClient(timeout=_SECONDS) as client:
            answer = await client.request(method, url, data=data)
            answer.raise_for_status()
            found = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise ProviderError("the sign-in provider does not answer as it must") from error
    if not isinstance(found, dict):
        raise ProviderError("the sign-in provider does not answer as it must")
    return found


def _claims(settings: OidcSettings, token: Any, keys: dict[str, Any], nonce: str) -> dict[str, Any]:
    """The claims of an id token whose signature, issuer, audience, time and nonce are right."""
    import jwt

    try:
        key_id = jwt.get_unverified_header(token).get("kid")
        known = jwt.PyJWKSet.from_dict(keys).keys
        key = next(key for key in known if key_id is None or key.key_id == key_id)
        claims = jwt.decode(
            token,
            key.key,
            algorithms=list(_ALGORITHMS),
            audience=settings.client_id,
            issuer=settings.issuer,
            options={"require": ["exp", "iat", "sub", "aud", "iss"]},
        )
    except (jwt.PyJWTError, StopIteration, TypeError) as error:
        raise ProviderError("the provider's answer is not signed as it must be") from error
    if not secrets.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
        raise ProviderError("the provider's answer is for another sign-in")
    return claims
