"""Atomic output of files and folders."""

import json

import pytest

from nosology.core import OutputError
from nosology.core.files import atomic_file, atomic_folder, json_sha256, sha256, text_sha256, write_json


def test_a_failure_leaves_no_files(tmp_path):
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "b", marker="m.json") as temporary:
        (temporary / "m.json").write_text("{}")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_older_file(tmp_path):
    write_json(tmp_path / "a.json", {"version": 1})
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a.json") as temporary:
        temporary.write_text("{}")
        raise RuntimeError
    assert json.loads((tmp_path / "a.json").read_text()) == {"version": 1}


def test_atomic_folder_replaces_only_folders_with_the_marker(tmp_path):
    output, other = tmp_path / "output", tmp_path / "other"
    for text in ("old", "new"):
        with atomic_folder(output, marker="m.json") as temporary:
            (temporary / "m.json").write_text(text)
    assert (output / "m.json").read_text() == "new"
    other.mkdir()
    (other / "thesis.doc").write_text("years of work")
    with (
        pytest.raises(OutputError, match=r"will not overwrite .* has no m\.json"),
        atomic_folder(other, marker="m.json"),
    ):
        pass
    assert (other / "thesis.doc").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "output"]


def test_an_unwritable_path_raises_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_json(tmp_path / "file" / "below.json", {})


def test_write_json_rejects_nan(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("name", [".", "..", "x" * 300])
def test_an_impossible_folder_raises_output_error(tmp_path, monkeypatch, name):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(OutputError, match=r"cannot write|will not overwrite"), atomic_folder(name, marker="m.json"):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_link_to_a_folder_stays(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for text in ("old", "new"):
        with atomic_folder(tmp_path / "link", marker="m.json") as temporary:
            (temporary / "m.json").write_text(text)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "m.json").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_an_unreadable_input_is_in_the_message(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*out: No such file or directory \(.*absent\.txt\)"):  # noqa: SIM117
        with atomic_folder(tmp_path / "out", marker="m.json"):
            (tmp_path / "absent.txt").read_text()


def test_hashes(tmp_path):
    (tmp_path / "a.txt").write_text("abc")
    assert sha256(tmp_path / "a.txt") == text_sha256("abc")
    assert text_sha256("abc").startswith("ba7816bf")
    assert json_sha256({"a": 1, "b": [2]}) == json_sha256({"b": [2], "a": 1}) != json_sha256({"a": 1, "b": [3]})
