"""One program at a time in a folder."""

import pytest

from nosology.core import OutputError
from nosology.federated.rounds.folder_lock import held, locked


def test_two_do_not_work_in_one_folder(tmp_path):
    folder = tmp_path / "new"
    with locked(folder, "grid"), pytest.raises(OutputError, match="another grid is at work"), locked(folder, "grid"):
        pass
    with locked(folder, "grid"):
        pass


def test_two_do_not_hold_one_file(tmp_path):
    first, other = held(tmp_path / "a.lock", "taken"), held(tmp_path / "b.lock", "taken")
    with first, other, pytest.raises(OutputError, match="taken"), held(tmp_path / "a.lock", "taken"):
        pass


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"), locked(tmp_path / "file" / "sub", "grid"):
        pass
