"""Which code systems a coder of several ICD versions suggests codes of."""

from __future__ import annotations

from collections.abc import Collection

from nosology.core import SYSTEMS, ConfigError
from nosology.core.model import Model

NEWEST = ("icd10cm", "icd10pcs")  # the code systems of the newest ICD version


def suggested_systems(model: Model, systems: Collection[str] = (), *, given: bool = False) -> set[str]:
    """The systems named; without any, those of the newest version where the model has learned to choose within one.

    given: the user has named the codes themselves, and then means all of them.
    """
    known = set(model.labels.systems)
    if unknown := sorted(set(systems) - set(SYSTEMS)):
        raise ConfigError(f"system must be one of {', '.join(SYSTEMS)}; got {', '.join(unknown)}")
    if systems:
        if not known & set(systems):
            named = ", ".join(sorted(known))
            raise ConfigError(f"system must be one that the coder knows: {named}; got {', '.join(systems)}")
        return set(systems)
    newest = known & set(NEWEST)
    return newest if newest and not given and model.within_versions else known
