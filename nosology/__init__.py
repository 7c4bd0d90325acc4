"""ICD codes for clinical notes, with the words each code rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nosology.core import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from nosology.serving.coder import Coder


def load(bundle: str | Path) -> Coder:
    """The coder stored in a bundle folder, ready for `coder.code(text)`."""
    from nosology.serving.coder import Coder

    return Coder.load(bundle)


__all__ = ["__version__", "load"]
