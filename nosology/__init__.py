"""ICD codes for clinical notes, with the evidence for each code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nosology.core import __version__

if TYPE_CHECKING:
    from nosology.claims.claim import Claim
    from nosology.serving.coder import Coder


def load(bundle: str | Path) -> Coder:
    """The coder stored in a bundle folder, ready for `coder.code(text)`."""
    from nosology.serving.coder import Coder

    return Coder.load(bundle)


def claim(text: str, coder: Coder | str | Path = "day-one", *, system: str = "icd10cm", **encounter: Any) -> Claim:
    """The code set of a note in billing order; encounter: setting, date, sex, age, admitted, discharged, role.

    system: icd10cm, icd9cm for codes that are mapped back, or icd10pcs for the procedures.
    """
    from nosology.claims.claim import build_claim
    from nosology.serving.coder import Coder

    if system == "icd10pcs":  # read from the text; no coder is needed
        return build_claim("", text, (), encounter, system=system)
    loaded = Coder.for_claims(coder) if isinstance(coder, str | Path) else coder
    chooser = getattr(loaded.model, "siblings", None)  # a lexicon has one
    return build_claim("", text, loaded.code(text), encounter, system=system, chooser=chooser)


__all__ = ["__version__", "claim", "load"]
