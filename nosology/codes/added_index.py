"""The official Alphabetic Index, added by the user: its lines become terms of the lexicon."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from nosology.codes.index import read_index
from nosology.codes.terms import Term
from nosology.core.files import cache_folder, new_file

_NONESSENTIAL = re.compile(r"\s*\([^()]*\)")  # words in brackets may stand there or not
_LINKS = re.compile(r"^(?:with|without|due to|in|of|by|from|to|and|or|at|on|for|involving|affecting|see)\b")
_DEPTH = 4  # lines below this say more than a note does in one place


def index_folder() -> Path:
    """Where added index files are kept."""
    return cache_folder() / "index"


def index_files() -> list[Path]:
    """The index files that the user has added."""
    return sorted(index_folder().glob("*.xml"))


def add_index(path: Path) -> tuple[Path, int]:
    """Keeps an index file for every lexicon from now on; where it lies, and how many terms it adds."""
    found = sum(1 for _ in index_terms(path))  # a file that is none is refused here
    kept = index_folder() / f"{path.stem}.xml"  # only these are looked for
    with new_file(kept) as aside:
        shutil.copyfile(path, aside)
    return kept, found


def added_terms() -> Iterator[Term]:
    """The terms of all index files that the user has added."""
    for path in index_files():
        yield from index_terms(path)


def index_terms(path: Path) -> Iterator[Term]:
    """The terms of an index file: the words along the path to each line that names a code of diagnoses."""
    for line in read_index(path):
        if not line.codes or len(line.path) > _DEPTH:
            continue
        main, *below = (_NONESSENTIAL.sub("", step).strip(" ,-") for step in line.path)
        rest = " ".join(_LINKS.sub("", step).strip() for step in below)
        for head in main.split(","):  # "Failure, failed": either word opens the line
            if text := f"{head.strip()} {rest}".strip():
                yield Term(text, line.codes[0].code, "index")
