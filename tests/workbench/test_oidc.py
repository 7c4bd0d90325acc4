"""Sign-in with a small OpenID Connect provider that signs with RS256."""

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
from nosology.workbench.security import ProviderError, _check_endpoint
from nosology.workbench.server_settings import OidcSettings, ServerSettings

CLIENT, SECRET = "workbench", "not so secret"


class Provider:
    """An OpenID Connect provider with one user; `faults` makes its responses invalid."""

    def __init__(self, port: int):
        self.issuer = f"http://127.0.0.1:{port}"
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.codes: dict[str, dict] = {}
        self.faults: dict = {}
        self.app = FastAPI()
        self.app.get("/.well-known/openid-configuration")(self.about)
        self.app.get("/keys")(self.keys)
        self.app.get("/authorize")(self.authorize)
        self.app.post("/token")(self.token)

    def about(self) -> dict:
        places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        about = {"issuer": self.issuer} | {name: f"{self.issuer}/{path}" for name, path in places.items()}
        return about | self.faults.get("about", {})

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
        authorization = self.codes.pop(code)
        digest = base64.urlsafe_b64encode(hashlib.sha256(code_verifier.encode()).digest()).rstrip(b"=").decode()
        assert (digest, client_id, client_secret) == (authorization["challenge"], CLIENT, SECRET)
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": "7",
            "aud": CLIENT,
            "iat": now,
            "exp": now + 60,
            "nonce": authorization["nonce"],
        }
        claims |= {"preferred_username": "olga"} | self.faults.get("claims", {})
        key = self.other if self.faults.get("key") else self.key
        if self.faults.get("none"):
            return {"id_token": jwt.encode(claims, None, algorithm="none")}
        return {"id_token": jwt.encode(claims, key, algorithm="RS256", headers={"kid": "k1"})}


@pytest.fixture(scope="module")
def server(small_bundle, tmp_path_factory):
    """A provider, and a workbench that uses it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    provider = Provider(port)
    uvicorn_server = uvicorn.Server(uvicorn.Config(provider.app, port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=uvicorn_server.run)
    thread.start()
    store = str(tmp_path_factory.mktemp("oidc") / "workbench.db")
    oidc = OidcSettings(provider.issuer, CLIENT, SECRET, "reviewer")
    with TestClient(
        create_app(ServerSettings(bundle=small_bundle, store=store, oidc=oidc)), base_url="http://localhost"
    ) as client:
        while not uvicorn_server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        yield provider, client.app
    uvicorn_server.should_exit = True
    thread.join()


def sign_in(server, *, state: str | None = None, forget: bool = False):
    """The client and the last response of a sign-in by way of the provider."""
    provider, app = server
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


def test_a_subject_is_the_same_user_at_every_sign_in(server):
    for _ in range(2):
        client, response = sign_in(server)
        assert (response.status_code, response.headers["location"]) == (303, "/")
        page = client.get("/users", follow_redirects=False)
        assert page.status_code == 403  # a reviewer, not an admin
        assert "olga" in client.get("/").text


@pytest.mark.parametrize(
    "fault",
    [
        {"key": True},
        {"none": True},
        {"claims": {"aud": "somebody else"}},
        {"claims": {"iss": "http://elsewhere"}},
        {"claims": {"exp": 1}},
        {"claims": {"nonce": "another"}},
    ],
)
def test_invalid_id_tokens_are_refused(server, fault):
    server[0].faults = fault
    try:
        client, response = sign_in(server)
    finally:
        server[0].faults = {}
    assert response.status_code == 401 and "nosology_session" not in client.cookies


def test_a_response_with_a_foreign_state_is_refused(server):
    assert sign_in(server, state="forged")[1].status_code == 401
    assert sign_in(server, forget=True)[1].status_code == 401


def test_the_redirect_address_is_the_configured_one(server):
    client = TestClient(server[1], base_url="http://127.0.0.1", follow_redirects=False)
    query = parse_qs(urlsplit(client.get("/oidc/start", headers={"host": "localhost:9"}).headers["location"]).query)
    assert query["redirect_uri"] == ["http://127.0.0.1:8400/oidc/back"]
    assert client.get("/oidc/start", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize("name", ["token_endpoint", "jwks_uri", "authorization_endpoint"])
def test_the_secret_goes_to_no_other_host(server, name):
    """The other host is a real one that would get the secret."""
    got = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.5)
        server[0].faults = {"about": {name: f"http://127.0.0.1:{other.getsockname()[1]}/x"}}
        client = TestClient(server[1], base_url="http://localhost", follow_redirects=False)
        try:
            response = client.get("/oidc/start")
            got.append(other.accept())
        except TimeoutError:
            pass
        finally:
            server[0].faults = {}
    assert response.status_code == 502 and f"{name} is at a host that is neither" in response.text and got == []


def test_other_hosts_of_a_provider_can_be_allowed():
    settings = OidcSettings("https://accounts.example.org", "us", "secret", hosts=("tokens.example.org",))
    _check_endpoint(settings, "token_endpoint", "https://tokens.example.org/t")
    for address in ("http://tokens.example.org/t", "https://evil.example/t", "https://tokens.example.org:9/t", ""):
        with pytest.raises(ProviderError, match="token_endpoint is at a host"):
            _check_endpoint(settings, "token_endpoint", address)


def test_the_place_is_kept(server):
    provider, app = server
    client = TestClient(app, base_url="http://localhost", follow_redirects=False)
    away = client.get("/oidc/start?next=/notes/7").headers["location"]
    query = {key: values[0] for key, values in parse_qs(urlsplit(away).query).items()}
    wanted = ("redirect_uri", "state", "nonce", "code_challenge", "client_id")
    parts = urlsplit(provider.authorize(**{key: query[key] for key in wanted}).headers["location"])
    assert client.get(f"{parts.path}?{parts.query}").headers["location"] == "/notes/7"
