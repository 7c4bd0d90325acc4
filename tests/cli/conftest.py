"""The command line as a test calls it."""

import sys

import pytest

from nosology.cli import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `nosology WORDS` and gives exit code, standard output and standard error."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["nosology", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call
