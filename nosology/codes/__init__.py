"""ICD-9-CM, ICD-10-CM and ICD-10-PCS: spelling, descriptions, tree, releases and mappings between systems."""

from nosology.codes.gems import CodeMapping, map_code
from nosology.codes.history import (
    CodePeriod,
    TableDiff,
    code_history,
    diff,
    exists,
    in_release,
    is_valid,
    predecessors,
    successors,
)
from nosology.codes.lookup import describe, is_known, table
from nosology.codes.releases import release_on, releases
from nosology.codes.search import SearchHit
from nosology.codes.spelling import ParsedCode, normalise, parse
from nosology.codes.table import CodeEntry, CodeTable

__all__ = [
    "CodeEntry",
    "CodeMapping",
    "CodePeriod",
    "CodeTable",
    "ParsedCode",
    "SearchHit",
    "TableDiff",
    "code_history",
    "describe",
    "diff",
    "exists",
    "in_release",
    "is_known",
    "is_valid",
    "map_code",
    "normalise",
    "parse",
    "predecessors",
    "release_on",
    "releases",
    "successors",
    "table",
]
