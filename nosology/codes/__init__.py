"""ICD-9-CM, ICD-10-CM and ICD-10-PCS: spelling, descriptions, tree, releases and mappings between systems."""

from nosology.codes.alphabetic_index import external_causes, index_tree
from nosology.codes.history import (
    CodePeriod,
    TableDiff,
    code_history,
    diff,
    exists,
    in_release,
    is_valid,
    predecessors,
    previously_assigned,
    successors,
)
from nosology.codes.index_tree import IndexLine, IndexTree
from nosology.codes.lookup import describe, is_known, table
from nosology.codes.official_tables import DrugCodes, NeoplasmCodes, drug_codes, neoplasm_codes
from nosology.codes.poa import is_poa_exempt
from nosology.codes.related_codes import CodeMapping, map_code
from nosology.codes.releases import release_on, releases
from nosology.codes.search import SearchHit
from nosology.codes.spelling import ParsedCode, normalise, parse
from nosology.codes.table import CodeEntry, CodeTable

__all__ = [
    "CodeEntry",
    "CodeMapping",
    "CodePeriod",
    "CodeTable",
    "DrugCodes",
    "IndexLine",
    "IndexTree",
    "NeoplasmCodes",
    "ParsedCode",
    "SearchHit",
    "TableDiff",
    "code_history",
    "describe",
    "diff",
    "drug_codes",
    "exists",
    "external_causes",
    "in_release",
    "index_tree",
    "is_known",
    "is_poa_exempt",
    "is_valid",
    "map_code",
    "neoplasm_codes",
    "normalise",
    "parse",
    "predecessors",
    "previously_assigned",
    "release_on",
    "releases",
    "successors",
    "table",
]
