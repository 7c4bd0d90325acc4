"""ICD-9-CM, ICD-10-CM and ICD-10-PCS: one spelling, meaning, tree, releases, and the way from one to another."""

from nosology.codes.gems import Mapping, map_code
from nosology.codes.history import (
    Difference,
    Stage,
    diff,
    exists,
    follow,
    in_release,
    predecessors,
    successors,
    valid,
)
from nosology.codes.lookup import describe, known, table
from nosology.codes.releases import release_on, releases
from nosology.codes.search import Hit
from nosology.codes.spelling import Parsed, normalise, parse
from nosology.codes.table import CodeTable, Entry

__all__ = [
    "CodeTable",
    "Difference",
    "Entry",
    "Hit",
    "Mapping",
    "Parsed",
    "Stage",
    "describe",
    "diff",
    "exists",
    "follow",
    "in_release",
    "known",
    "map_code",
    "normalise",
    "parse",
    "predecessors",
    "release_on",
    "releases",
    "successors",
    "table",
    "valid",
]
