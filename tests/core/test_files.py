"""Outputs are whole or absent."""

import json

import pytest

from nosology.core import OutputError
from nosology.core.files import atomic_file, atomic_folder, write_json


def test_a_failure_leaves_neither_target_nor_remains(tmp_path):
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a.txt") as aside:
        aside.write_text("half")
        raise RuntimeError
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "b", marker="m.json") as aside:
        (aside / "m.json").write_text("{}")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_older_output(tmp_path):
    write_json(tmp_path / "a.json", {"version": 1})
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a.json") as aside:
        aside.write_text("{}")
        raise RuntimeError
    assert json.loads((tmp_path / "a.json").read_text()) == {"version": 1}


def test_a_folder_replaces_only_its_own_kind(tmp_path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    for text in ("old", "new"):
        with atomic_folder(mine, marker="m.json") as aside:
            (aside / "m.json").write_text(text)
    assert (mine / "m.json").read_text() == "new"
    other.mkdir()
    (other / "thesis.doc").write_text("years of work")
    with (
        pytest.raises(OutputError, match=r"will not overwrite .* has no m\.json"),
        atomic_folder(other, marker="m.json"),
    ):
        pass
    assert (other / "thesis.doc").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "other"]


def test_an_unwritable_place_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_json(tmp_path / "file" / "below.json", {})


def test_nan_is_refused(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("name", [".", "..", "x" * 300])
def test_a_folder_that_cannot_be_is_one_sentence(tmp_path, monkeypatch, name):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(OutputError, match=r"cannot write|will not overwrite"), atomic_folder(name, marker="m.json"):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_link_to_a_folder_is_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for text in ("old", "new"):
        with atomic_folder(tmp_path / "link", marker="m.json") as aside:
            (aside / "m.json").write_text(text)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "m.json").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_an_input_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*out: No such file or directory \(.*absent\.txt\)"):  # noqa: SIM117
        with atomic_folder(tmp_path / "out", marker="m.json"):
            (tmp_path / "absent.txt").read_text()
