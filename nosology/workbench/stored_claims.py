"""Proposed claims as they are stored: made by the processes of the coder with its suggestions, read by the pages.

A stored claim is used only for what it was made of: the same text and fields of the encounter, and the same program.
After any change the claim is built again when a page shows it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import nosology
from nosology.claims.claim import Claim, build_claim
from nosology.claims.encounter import Encounter
from nosology.codes import releases
from nosology.codes.installed import installed_files
from nosology.core import SYSTEMS, Span, Suggestion, __version__
from nosology.core.files import text_sha256
from nosology.workbench.cases import UncertainSuggestion
from nosology.workbench.report_evidence import with_left_out, without_reports

_PACKAGES = ("claims", "codes", "core", "text")  # of which a claim is made


@dataclass(frozen=True)
class ClaimInput:
    """What a claim is made of; made_by: the suggestions as the database stores them, which stand for them in a cache.

    fields: (name, value) of the encounter. reports: the characters of reports, see report_evidence.
    """

    text: str = field(repr=False)
    fields: tuple[tuple[str, Any], ...]
    reports: tuple[Span, ...]
    suggestions: Sequence[Suggestion] = field(compare=False, repr=False)
    made_by: str = field(default="", repr=False)

    @property
    def key(self) -> str:
        """A hash of everything but the suggestions."""
        return text_sha256(json.dumps([_program(), self.text, self.fields, self.reports]))

    def build(self) -> Claim:
        """The claim; ConfigError if its date has no ICD-10-CM code set."""
        usable, stated = for_claim(self.suggestions), dict(self.fields)
        if not self.reports or not Encounter.of(self.text, stated).is_inpatient:
            return build_claim("", self.text, usable, stated)
        kept, left_out = without_reports(usable, self.reports)
        return with_left_out(build_claim("", self.text, kept, stated), left_out)

    def to_json(self) -> str:
        """The claim with its key for the database; the text is not repeated."""
        return json.dumps(
            {"key": self.key, "claim": _claims().dump_python(replace(self.build(), text=""), mode="json")}
        )

    def from_json(self, stored: str) -> Claim | None:
        """The stored claim; None if it was made of something else."""
        value = json.loads(stored)
        if value["key"] != self.key:
            return None
        return replace(_claims().validate_python(value["claim"]), text=self.text)


def for_claim(suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """The suggestions as a claim needs them: it decides itself which uncertain diagnoses count."""
    return [replace(it, accepted=True) if isinstance(it, UncertainSuggestion) else it for it in suggestions]


@cache
def _claims() -> TypeAdapter[Claim]:
    return TypeAdapter(Claim)


@cache
def _program() -> str:
    """A hash of the version, and of sizes and times of the files and installed code sets on which claims depend."""
    root = Path(nosology.__file__).parent
    found = (path for name in _PACKAGES for path in sorted((root / name).rglob("*")))
    # Other processes write to __pycache__ at the same time.
    paths = [path for path in found if "__pycache__" not in path.parts and path.is_file()]
    names = [str(path.relative_to(root)) for path in paths]
    stats = [path.stat() for path in (*paths, *(file.path for file in installed_files()))]
    files = [(status.st_size, status.st_mtime_ns) for status in stats]
    return text_sha256(repr((__version__, names, files, [tuple(releases(system)) for system in SYSTEMS])))
