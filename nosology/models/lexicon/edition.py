"""Which edition of ICD-10-CM coded notes were coded in: its release, and whether injuries have a seventh character."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nosology.codes.history import is_valid
from nosology.codes.lookup import table
from nosology.codes.releases import releases
from nosology.core import Code, Note
from nosology.models.lexicon.lexicon_settings import CORPUS, CodeSetSettings


def edition(settings: CodeSetSettings, notes: Sequence[Note]) -> CodeSetSettings:
    """The settings with what they leave to the corpus decided by the codes of its notes."""
    often = Counter(code for note in notes for code in note.codes if code.system == "icd10cm")
    release = _release(often) if settings.release == CORPUS else settings.release
    seventh = _seventh(often, release) if settings.seventh == CORPUS else settings.seventh
    return settings.model_copy(update={"release": release, "seventh": seventh})


def _release(often: Counter[Code]) -> str:
    """The release in which most of the codes may be billed; of several the newest."""
    known = releases("icd10cm")
    fitting = {release: sum(n for code, n in often.items() if is_valid(code, release)) for release in known}
    return max(known, key=lambda release: (fitting[release], release))


def _seventh(often: Counter[Code], release: str | None) -> bool:
    """Whether most codes that ask for a seventh character have one; so too where there are none."""
    whole = cut = 0
    lines = table("icd10cm", release)
    for code, n in often.items():
        if len(code.code) == len("S72.001A") and code.code in lines:
            whole += n
        elif code.code[0] in "STVWXY" and not lines.billable(code.code):
            cut += n
    return whole >= cut
