"""Damaged and edited contents of our own files, and what a reader must do with them."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from nosology.core import NosologyError
from nosology.core.files import json_sha256

SECRET = "xyzzyplugh"  # in every note, and in no message
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part, max_size=3),
    max_leaves=5,
) | st.sampled_from([json.loads("[" * depth + "]" * depth) for depth in (90, 120, 300)])
PIECES = st.sampled_from([b"\x00", b"\xff\xfe", b"\n", b'"', b"[" * 5000, b"{", b"NaN", b"1e999", b"9" * 5000])
few = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def edited(draw, value):
    """A JSON value in which one part is another value."""
    parts = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not parts or not draw(st.integers(0, 5)):
        return draw(JSON)
    key = draw(st.sampled_from(parts))
    changed = draw(edited(value[key]))
    if isinstance(value, dict):
        return value | {key: changed}
    return [*value[:key], changed, *value[key + 1 :]]


@st.composite
def damaged(draw, content):
    """Bytes with a part replaced, removed or added, or cut off."""
    start = draw(st.integers(0, len(content)))
    end = draw(st.integers(start, min(len(content), start + 40)) | st.just(len(content)))
    return content[:start] + draw(st.binary(max_size=8) | PIECES) + content[end:]


def outcome(read, *arguments):
    """What a reader returns; None after an error for users."""
    try:
        return read(*arguments)
    except NosologyError as error:
        assert SECRET not in str(error)
        return None


def sign(path, manifest):
    """Writes a manifest with the digest of its content."""
    if isinstance(manifest, dict):
        content = {name: value for name, value in manifest.items() if name != "digest"}
        manifest = content | {"digest": json_sha256(content)}
    path.write_text(json.dumps(manifest))


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def restore(original):
    for path, content in original.items():
        path.write_bytes(content)


def changed(content: bytes) -> st.SearchStrategy[bytes]:
    """The bytes of a file after damage or, if it is JSON, after an edit too."""
    try:
        value = json.loads(content)
    except ValueError:
        return damaged(content)
    return damaged(content) | edited(value).map(lambda new: json.dumps(new).encode())
