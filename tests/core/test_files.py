"""Atomic output of files and folders."""

import json
import multiprocessing
import os
import socket

import pytest

from nosology.core import OutputError
from nosology.core.files import (
    atomic_file,
    atomic_folder,
    check_output_folder,
    check_results_folder,
    exclusive_output,
    json_sha256,
    read_json,
    sha256,
    text_sha256,
    write_json,
)


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


def test_a_path_through_a_missing_folder_does_not_hide_the_target(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.doc").write_text("years of work")
    target = tmp_path / "missing" / ".." / "precious"
    with pytest.raises(OutputError, match="will not overwrite"), atomic_folder(target, marker="m.json") as temporary:
        (temporary / "m.json").write_text("{}")
    assert (precious / "thesis.doc").read_text() == "years of work"


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    with atomic_folder(tmp_path / "out", marker="m.json", files=["part-*.csv"]) as temporary:
        (temporary / "m.json").write_text("old")
        (temporary / "part-1.csv").write_text("")
    (tmp_path / "out" / ".DS_Store").write_text("")
    with atomic_folder(tmp_path / "out", marker="m.json", files=["part-*.csv"]) as temporary:
        (temporary / "m.json").write_text("new")
    (tmp_path / "out" / "mine").mkdir()
    (tmp_path / "out" / "mine" / "thesis.doc").write_text("")
    with (
        pytest.raises(OutputError, match=r"files that nosology did not write there, such as mine/thesis\.doc"),
        atomic_folder(tmp_path / "out", marker="m.json", files=["part-*.csv"]),
    ):
        pass
    assert (tmp_path / "out" / "m.json").read_text() == "new" and (tmp_path / "out" / "mine" / "thesis.doc").exists()


@pytest.mark.parametrize("existing", [False, True])
def test_a_folder_that_was_filled_in_the_meantime_is_not_replaced(tmp_path, existing):
    if existing:
        with atomic_folder(tmp_path / "out", marker="m.json") as temporary:
            (temporary / "m.json").write_text("old")
    with (
        pytest.raises(OutputError, match=r"cannot write|will not overwrite"),
        atomic_folder(tmp_path / "out", marker="m.json") as temporary,
    ):
        (temporary / "m.json").write_text("new")
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "thesis.doc").write_text("years of work")
    assert (tmp_path / "out" / "thesis.doc").read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="it is a device"):
        write_json(tmp_path / "pipe", {})
    assert (tmp_path / "pipe").is_fifo()


def test_a_symbolic_link_to_a_file_stays(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    write_json(tmp_path / "link.json", 1)
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "real.json").read_text() == "1\n"


def _die_while_writing(folder):
    with atomic_folder(folder / "out", marker="m.json"), atomic_file(folder / "a.json") as temporary:
        temporary.write_text("half")
        os._exit(9)


def test_temporary_files_of_a_killed_process_are_removed_by_the_next(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=_die_while_writing, args=(tmp_path,))
    process.start()
    process.join()
    assert len(list(tmp_path.glob(".*.partial"))) == 2
    running = tmp_path / f".out.{socket.gethostname()}.{os.getpid()}.12345678.partial"
    running.mkdir()
    elsewhere = tmp_path / ".out.another-host.1.12345678.partial"
    elsewhere.mkdir()
    write_json(tmp_path / "a.json", {})
    with atomic_folder(tmp_path / "out", marker="m.json") as temporary:
        (temporary / "m.json").write_text("{}")
    assert sorted(tmp_path.glob(".*")) == sorted([running, elsewhere])
    os.utime(elsewhere, (0, 0))
    with atomic_folder(tmp_path / "out", marker="m.json") as temporary:
        (temporary / "m.json").write_text("{}")
    assert list(tmp_path.glob(".*")) == [running]


def test_a_replaced_folder_is_removed_only_if_its_successor_exists(tmp_path):
    replaced = tmp_path / f".out.{socket.gethostname()}.{2**22 + 1}.12345678.replaced"
    replaced.mkdir()
    (replaced / "m.json").write_text("the only copy")
    with atomic_folder(tmp_path / "out", marker="m.json") as temporary:
        assert replaced.exists()
        (temporary / "m.json").write_text("{}")
    with atomic_folder(tmp_path / "out", marker="m.json") as temporary:
        (temporary / "m.json").write_text("{}")
    assert not replaced.exists()


def _try_to_lock(target, results):
    try:
        with exclusive_output(target):
            results.put("locked")
    except OutputError as error:
        results.put(str(error))


def test_exclusive_output_admits_one_process(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def other_process():
        process = context.Process(target=_try_to_lock, args=(tmp_path / "out", results))
        process.start()
        process.join()
        return results.get()

    with exclusive_output(tmp_path / "x" / ".." / "out"):
        assert "another process is writing" in other_process()
    assert other_process() == "locked"
    assert [path for path in tmp_path.iterdir() if path.name != "x"] == []


def test_a_folder_below_a_file_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file is no folder"):
        check_output_folder(tmp_path / "file" / "below" / "out", marker="m.json")


def test_patterns_do_not_match_files_in_folders(tmp_path):
    with atomic_folder(tmp_path / "out", marker="m.json", files=["*.png"]) as temporary:
        (temporary / "m.json").write_text("{}")
    (tmp_path / "out" / "holidays").mkdir()
    (tmp_path / "out" / "holidays" / "beach.png").write_text("")
    with pytest.raises(OutputError, match="beach"):
        check_output_folder(tmp_path / "out", marker="m.json", files=["*.png"])


def test_results_are_not_written_into_a_corpus_by_another_path(tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "corpus.json").write_text("{}")
    with pytest.raises(OutputError, match="it is a corpus"):
        check_results_folder(tmp_path / "missing" / ".." / "corpus")


def test_the_root_folder_is_refused():
    with pytest.raises(OutputError, match="give a folder by its name"), exclusive_output("/"):
        pass


def test_json_keeps_paths_that_are_not_utf_8(tmp_path):
    write_json(tmp_path / "a.json", {"path": "h\udce9 ñ"})
    assert read_json(tmp_path / "a.json") == {"path": "h\udce9 ñ"}
