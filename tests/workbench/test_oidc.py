"""Signing in with a real OpenID Connect provider: a small one that runs here and signs with RS256."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import socket
import threading
import time
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi import FastAPI, Form
from fastapi.responses import RedirectResponse
from fastapi.testclient import TestClient

from nosology.workbench.app import create_app
from nosology.workbench.services import OidcSettings, ServerSettings

CLIENT, SECRET = "workbench", "not so secret"


class Provider:
    """An OpenID Connect provider that knows one person; `lies` makes it answer wrongly."""

    def __init__(self, port: int):
        self.issuer = f"http://127.0.0.1:{port}"
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.codes: dict[str, dict] = {}
        self.lies: dict = {}
        self.app = FastAPI()
        self.app.get("/.well-known/openid-configuration")(self.about)
        self.app.get("/keys")(self.keys)
        self.app.get("/authorize")(self.authorize)
        self.app.post("/token")(self.token)

    def about(self) -> dict:
        places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        return {"issuer": self.issuer} | {name: f"{self.issuer}/{path}" for name, path in places.items()}

    def keys(self) -> dict:
        return {
            "keys": [
                json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key())) | {"kid": "k1", "use": "sig"}
            ]
        }

    def authorize(
        self, redirect_uri: str, state: str, nonce: str, code_challenge: str, client_id: str
    ) -> RedirectResponse:
        code = secrets.token_hex(8)
        self.codes[code] = {"nonce": nonce, "challenge": code_challenge, "client": client_id}
        return RedirectResponse(f"{redirect_uri}?code={code}&state={state}")

    def token(
        self,
        code: Annotated[str, Form()],
        code_verifier: Annotated[str, Form()],
        client_id: Annotated[str, Form()],
        client_secret: Annotated[str, Form()],
    ) -> dict:
        kept = self.codes.pop(code)
        digest = base64.urlsafe_b64encode(hashlib.sha256(code_verifier.encode()).digest()).rstrip(b"=").decode()
        assert (digest, client_id, client_secret) == (kept["challenge"], CLIENT, SECRET)
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": "7", "aud": CLIENT, "iat": now, "exp": now + 60, "nonce": kept["nonce"]}
        claims |= {"preferred_username": "olga"} | self.lies.get("claims", {})
        key = self.other if self.lies.get("key") else self.key
        if self.lies.get("none"):
            return {"id_token": jwt.encode(claims, None, algorithm="none")}
        return {"id_token": jwt.encode(claims, key, algorithm="RS256", headers={"kid": "k1"})}


@pytest.fixture(scope="module")
def world(small_bundle, tmp_path_factory):
    """A provider on a port of its own, and a workbench that trusts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    provider = Provider(port)
    server = uvicorn.Server(uvicorn.Config(provider.app, port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    store = str(tmp_path_factory.mktemp("oidc") / "workbench.db")
    oidc = OidcSettings(provider.issuer, CLIENT, SECRET, "reviewer")
    with TestClient(
        create_app(ServerSettings(bundle=small_bundle, store=store, oidc=oidc)), base_url="http://localhost"
    ) as client:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        yield provider, client.app
    server.should_exit = True
    thread.join()


def sign_in(world, *, state: str | None = None, forget: bool = False):
    """What a browser meets that goes to the provider and comes back."""
    provider, app = world
    client = TestClient(app, base_url="http://localhost", follow_redirects=False)
    assert "/oidc/start" in client.get("/login").text
    away = client.get("/oidc/start").headers["location"]
    assert away.startswith(provider.issuer)
    query = {name: values[0] for name, values in parse_qs(urlsplit(away).query).items()}
    assert query["code_challenge_method"] == "S256"
    wanted = ("redirect_uri", "state", "nonce", "code_challenge", "client_id")
    back = provider.authorize(**{name: query[name] for name in wanted}).headers["location"]
    if state is not None:
        back = re.sub(r"state=[^&]*", f"state={state}", back)
    if forget:
        client.cookies.clear()
    parts = urlsplit(back)
    return client, client.get(f"{parts.path}?{parts.query}")


def test_a_person_signs_in_and_is_the_same_one_the_next_time(world):
    for _ in range(2):
        client, answer = sign_in(world)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        page = client.get("/users", follow_redirects=False)
        assert page.status_code == 403  # a reviewer, not an admin
        assert "olga" in client.get("/").text


@pytest.mark.parametrize(
    "lie",
    [
        {"key": True},
        {"none": True},
        {"claims": {"aud": "somebody else"}},
        {"claims": {"iss": "http://elsewhere"}},
        {"claims": {"exp": 1}},
        {"claims": {"nonce": "another"}},
    ],
)
def test_an_answer_that_is_not_the_providers_own_is_refused(world, lie):
    world[0].lies = lie
    try:
        client, answer = sign_in(world)
    finally:
        world[0].lies = {}
    assert answer.status_code == 401 and "nosology_session" not in client.cookies


def test_an_answer_for_another_browser_is_refused(world):
    assert sign_in(world, state="forged")[1].status_code == 401
    assert sign_in(world, forget=True)[1].status_code == 401
