"""The blocks of the README, of every tutorial and of the other pages run in order, in a folder of their own.

Blocks are marked `sh`, `python` (also as doctests) or `console`: commands after "$ " and lines that they print. The
lines of a block without a language, in the README or a tutorial, are printed by the shell blocks before it. "..."
stands for other lines. The folder of a page below docs/ has the corpus and the bundle of the README.
"""

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
README = ROOT / "README.md"
PAGES = [
    page
    for page in [README, *sorted(DOCS.rglob("*.md"))]
    if {"sh", "python", "console"} & {language for language, _ in BLOCK.findall(page.read_text(encoding="utf-8"))}
]


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> Iterator[Path]:
    """A folder with the command `nosology`, whose processes have the libraries already."""
    folder = tmp_path_factory.mktemp("commands")
    program, address = Path(__file__).with_name("command_server.py"), folder / "socket"
    words = shlex.join([sys.executable, "-IS", str(program), str(address)])
    (folder / "nosology").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (folder / "nosology").chmod(0o755)
    command = [sys.executable, str(program), str(address)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"ready\n"
        yield folder
        server.stdin.close()


def test_commands_of_the_server_are_processes_of_their_own(commands, tmp_path):
    (tmp_path / "note.txt").write_text("x")
    for words, code, text in (
        (["--version"], 0, "nosology "),
        (["codes", "show", "none"], 1, "nosology: "),
        (["no-such-command"], 2, "no-such-command"),
        (["corpus", "stats", "note.txt"], 1, "note.txt"),  # in the folder of the caller
    ):
        done = subprocess.run([str(commands / "nosology"), *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code and text in (done.stderr if code else done.stdout), done


@pytest.fixture(scope="module")
def trained(commands, tmp_path_factory) -> Path:
    """A folder with the corpus and the bundle that the README makes."""
    folder = tmp_path_factory.mktemp("trained")
    (block,) = [block for _, block in BLOCK.findall(README.read_text(encoding="utf-8")) if "nosology train" in block]
    path = os.pathsep.join([str(commands), os.environ["PATH"]])
    subprocess.run(
        ["bash", "-euc", block], cwd=folder, env=os.environ | {"PATH": path}, check=True, capture_output=True
    )
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_blocks_of_a_page_run(page, commands, tmp_path, monkeypatch, request):
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    if page.parent == DOCS:
        shutil.copytree(request.getfixturevalue("trained"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{Path(sys.executable).parent}", prepend=os.pathsep)
    printed: set[str] = set()
    session: dict = {}  # the names of the page's doctests
    for language, block in blocks:
        if not language and (page.name == "README.md" or page.parent.name == "tutorials"):
            assert not set(block.splitlines()) - printed - {"..."}
        elif language == "console":
            for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
                done = subprocess.run(["bash", "-uc", command], capture_output=True, text=True)
                lines = {line.rstrip() for line in (done.stdout + done.stderr).splitlines()}
                missing = {line for line in map(str.rstrip, expected.splitlines()) if line} - lines
                assert {line.strip() for line in missing} <= {"..."}, command
        elif language == "python" and ">>>" in block:
            examples = doctest.DocTestParser().get_doctest(block, session, page.name, page.name, 0)
            assert examples.examples and not doctest.DocTestRunner().run(examples, clear_globs=False).failed
            session.update(examples.globs)
        elif language == "python" and not block.startswith("# nosology/"):  # a file of docs/adding_a_model.md
            exec(compile(block, page.name, "exec"), {})  # readers paste single blocks: each has its imports
        elif language == "sh":
            done = subprocess.run(["bash", "-euc", block], capture_output=True, text=True)
            assert done.returncode == 0, f"{block}\n{done.stderr[-2000:]}"
            printed.update(done.stdout.splitlines())


def pages() -> list[Path]:
    """All Markdown pages of the repository."""
    return [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]


def anchors(page: Path) -> set[str]:
    """The anchors of a page: those that GitHub gives to headings, and ids in HTML."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    names = [
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    ]
    numbered = {f"{name}-{names[:at].count(name)}" if name in names[:at] else name for at, name in enumerate(names)}
    return numbered | set(re.findall(r'<a id="([^"]+)"', text))


def test_links_of_the_pages_exist():
    """A link names a file of this repository, and a heading of the page where it has an anchor."""
    missing = {
        f"{page.name} links to {target}#{anchor}"
        for page in pages()
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8"))
        if "://" not in target
        for linked in [page.parent / target if target else page]
        if not linked.exists() or (anchor and anchor not in anchors(linked))
    }
    assert not missing


def test_paths_named_by_the_pages_exist():
    """A page that names a module or a benchmark of this repository names one that is there."""
    name = re.compile(
        r"`(?:python )?((?:nosology|benchmarks|tests|tools|examples|docs)/[\w./-]+\.(?:py|md|json|toml|tsv))"
    )
    missing = {
        f"{page.name} names {target}"
        for page in pages()
        if page.name != "CHANGELOG.md"  # it names what went
        for target in name.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / target).exists() and not target.startswith("nosology/models/toy/")  # of docs/adding_a_model.md
    }
    assert not missing
