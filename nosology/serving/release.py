"""A coder's codes as one release of the code set has them."""

from __future__ import annotations

from collections.abc import Callable

from nosology.codes import describe, in_release, releases
from nosology.core import SYSTEMS, Code, CodeError


def release_translator(release: str) -> Callable[[Code], Code | None]:
    """A function that gives a code's counterpart in a release, None where it has none.

    Of several counterparts (M54.5 was divided into three) the unspecified one is taken: the coder has said no more.
    Codes of systems without such a release stay as they are.
    """
    having = [system for system in SYSTEMS if release in releases(system)]
    if not having:
        allowed = sorted({name for system in SYSTEMS for name in releases(system)})
        raise CodeError(f"release must be one of {', '.join(allowed)}; got {release!r}")

    def translate(code: Code) -> Code | None:
        if code.system not in having:
            return code
        heirs = in_release(code, release)
        vague = (heir for heir in heirs if "unspecified" in describe(heir, release).lower())
        return next(vague, heirs[0] if heirs else None)

    return translate
