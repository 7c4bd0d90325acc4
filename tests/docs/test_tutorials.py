"""The shell and Python blocks of the README and of every tutorial run in order, in a folder of their own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", DOCS / "evaluation.md", DOCS / "autonomy.md", *sorted((DOCS / "tutorials").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    for language, block in blocks:
        if language == "python":
            exec(compile(block, page.name, "exec"), {})  # readers paste single blocks: each has its imports
            continue
        done = subprocess.run(["bash", "-euc", block], capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stderr[-2000:]}"


def pages() -> list[Path]:
    """All Markdown pages of the repository."""
    return [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]


def test_links_of_the_pages_exist():
    missing = {
        f"{page.name} links to {target}"
        for page in pages()
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
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
