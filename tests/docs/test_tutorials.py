"""Every tutorial runs from top to bottom: its shell and Python blocks, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("*.md")), ids=lambda path: path.stem)
def test_tutorial(page, tmp_path):
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    before = ""
    for language, block in blocks:
        if language == "sh":
            words = ["bash", "-euc", block]
        else:
            before += block  # later blocks may use the names of earlier ones
            words = [sys.executable, "-c", before]
        done = subprocess.run(words, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stderr[-2000:]}"


def test_links_lead_somewhere():
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
