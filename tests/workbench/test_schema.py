"""Property tests of the API by its OpenAPI schema: no request gives a server error."""

import os
from collections import Counter

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from nosology.workbench.app import create_app
from nosology.workbench.services import ServerSettings
from tests.workbench.conftest import fill_people

EXAMPLES = int(os.environ.get("NOSOLOGY_SCHEMA_EXAMPLES", "6"))  # an operation


@pytest.fixture(scope="module")
def server(small_bundle, tmp_path_factory):
    """A running server and an admin's token."""
    store = str(tmp_path_factory.mktemp("schema") / "workbench.db")
    tokens = fill_people(store)
    app = create_app(ServerSettings(bundle=small_bundle, store=store, public_url="http://testserver"))
    with TestClient(app):
        yield app, tokens["adam"]


def load_schema(app):
    """The schema, with an application for its requests. schemathesis would start a second server on the store."""

    async def running(scope, receive, send):
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        while (kind := (await receive())["type"]) in ("lifespan.startup", "lifespan.shutdown"):
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    return schemathesis.openapi.from_asgi("/api/openapi.json", running)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_response_is_a_server_error(server, mode):
    app, token = server
    schema = load_schema(app)
    tried = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case):
            for name in {"note_id", "batch"} & (case.path_parameters or {}).keys():
                if mode is GenerationMode.POSITIVE:  # mostly things that are there
                    case.path_parameters[name] = 1 + case.path_parameters[name] % 4
            response = case.call(headers={"authorization": f"Bearer {token}"})
            tried[case.method, case.path, response.status_code] += 1
            assert response.status_code < 500, (case.method, case.path, response.text)

        try:
            ask()
        except Unsatisfiable:  # an operation without anything that could be wrong
            assert mode is GenerationMode.NEGATIVE
    assert len({path for _, path, _ in tried}) >= 8
    if mode is GenerationMode.POSITIVE:
        assert any(status == 202 for _, _, status in tried)  # notes were really taken in
        assert tried["GET", "/api/v1/notes/{note_id}", 200]  # and read


def test_requests_without_sign_in_are_refused(server):
    schema = load_schema(server[0])
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.startswith("/api/"):
            path = operation.path.format(note_id=1, document=1, batch=1, act="cancel", system="icd10cm", code="I10")
            response = TestClient(server[0]).request(operation.method, path, json={})
            assert response.status_code == 401, (operation.path, response.status_code)


def test_every_response_has_a_schema(server):
    bare = []
    paths = server[0].openapi()["paths"]
    for path in (path for path in paths if path.startswith("/api/v1/")):
        for method, operation in paths[path].items():
            response = next(body for status, body in operation["responses"].items() if status.startswith("2"))
            if not response["content"]["application/json"]["schema"].keys() & {"$ref", "items"}:
                bare.append((method, path))
    assert bare == [("get", "/api/v1/notes/{note_id}/export")]  # a file of one of three kinds
