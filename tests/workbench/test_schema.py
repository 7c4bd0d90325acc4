"""Property tests of the API by its OpenAPI schema: every response is as described, and none is a server error."""

import os
import re
from collections import Counter

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as openapi_checks

from nosology.workbench.accounts import SCOPES, create_token
from nosology.workbench.app import create_app
from nosology.workbench.database import write_transaction
from nosology.workbench.server_settings import ServerSettings
from tests.workbench.conftest import fill_people

EXAMPLES = int(os.environ.get("NOSOLOGY_SCHEMA_EXAMPLES", "6"))  # an operation
CHECKS = [
    not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.response_headers_conformance,
]
IDS = {"note_id": 1, "query_id": 1, "document": 1, "batch": 1, "act": "cancel", "system": "icd10cm", "code": "I10"}


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


def operations(app, prefix="/api/v1/"):
    """(path, method, operation) of the API, those that add something first."""
    paths = app.openapi()["paths"]
    found = [(path, method, paths[path][method]) for path in paths if path.startswith(prefix) for method in paths[path]]
    return sorted(found, key=lambda item: (item[0] not in ("/api/v1/notes", "/api/v1/fhir"), item[1] != "post"))


def examples(app, operation):
    """The examples of an operation's body."""
    if "requestBody" not in operation:
        return []
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    name = schema.get("$ref", "").rpartition("/")[2]
    return (app.openapi()["components"]["schemas"][name] if name else schema)["examples"]


def test_every_example_of_a_body_is_accepted(server):
    app, token = server
    for path, method, operation in operations(app):
        for body in examples(app, operation):
            client = TestClient(app, headers={"authorization": f"Bearer {token}"})
            response = client.request(method, path.format(**IDS), json=body)
            is_refused = response.status_code in (409, 422) and isinstance(
                response.json()["detail"], str
            )  # by the state
            assert response.status_code in (200, 201, 202) or is_refused, (method, path, response.text)


@pytest.mark.filterwarnings("ignore::nosology.codes.releases.ReleaseWarning")  # of dates after the newest release
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_response_is_as_described_and_no_server_error(server, mode):
    app, token = server
    headers = {"authorization": f"Bearer {token}"}
    tried = Counter()
    for result in load_schema(app).get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case):
            if mode is GenerationMode.POSITIVE:  # mostly things that are there
                for name, value in (case.path_parameters or {}).items():
                    case.path_parameters[name] = 1 + value % 4 if isinstance(value, int) else IDS.get(name, value)
            response = case.call(headers=headers)
            tried[case.method, case.path, response.status_code] += 1
            case.validate_response(response, checks=CHECKS, headers=headers)

        try:
            ask()
        except Unsatisfiable:  # an operation without anything that could be wrong
            assert mode is GenerationMode.NEGATIVE and not operation.path.startswith("/api/v1/")
    every = {(method.upper(), path): operation for path, method, operation in operations(app)}
    assert every.keys() <= {(method, path) for method, path, _ in tried}
    if mode is GenerationMode.POSITIVE:
        assert any(status == 202 for _, _, status in tried)  # notes were really taken in
        known = [path for method, path in every if method == "GET" and not _names(path) - IDS.keys()]
        assert [path for path in known if not tried["GET", path, 200]] == []
    else:
        refused = {(method, path) for method, path, status in tried if 400 <= status < 500}
        wrong = {key for key, operation in every.items() if operation.keys() & {"parameters", "requestBody"}}
        assert wrong - refused == set()


def _names(path):
    """The parameters in a path."""
    return set(re.findall(r"{(\w+)}", path))


def test_every_operation_needs_a_token_with_its_scope(server):
    """The security of the description is what the server does: without a user 401, without the scope 403."""
    app, _ = server
    with write_transaction(app.state.services.engine) as connection:
        tokens = {scope: create_token(connection, 4, scope, [scope]) for scope in SCOPES}

    def status(method, path, token=None):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return TestClient(app, headers=headers).request(method, path.format(**IDS), json={}).status_code

    for path, method, operation in operations(app):
        ((needed,),) = [way["token"] for way in operation["security"] if "token" in way]
        assert status(method, path) == status(method, path, "nos_wrong") == 401, path
        other = next(scope for scope in SCOPES if scope != needed)
        assert status(method, path, tokens[other]) == 403, path
        assert status(method, path, tokens[needed]) not in (401, 403), path


def test_every_operation_is_described_in_full(server):
    app, _ = server
    schema = app.openapi()
    assert set(schema["components"]["securitySchemes"]) == {"token", "session", "csrf"}
    for path, method, operation in operations(app):
        responses = operation["responses"]
        content = next(body["content"] for status, body in responses.items() if status.startswith("2"))
        assert all(body["schema"].keys() & {"$ref", "items", "type"} for body in content.values()), path
        session = next(way for way in operation["security"] if "session" in way)
        assert ("csrf" in session) == (method != "get"), path
        for status in ("401", "403", "422"):
            assert responses[status]["content"]["application/json"]["schema"]["$ref"].endswith("Body"), path
