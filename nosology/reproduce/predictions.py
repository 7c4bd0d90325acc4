"""The predictions of a run, beside its result, for tests that compare two runs note by note.

    OUT/runs/<key>.safetensors, OUT/runs/<key>.<name>.safetensors

A file has, for each test note in the order of the corpus, its true and its accepted codes and the ranking metrics; no
text and no ids of notes. A result names its files with their SHA-256 under "predictions". They belong to the run: if it
is repeated, they are deleted first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save
from scipy import sparse

from nosology.core import Code, DataError
from nosology.core.files import atomic_file, sha256
from nosology.core.label_space import LabelSpace
from nosology.evaluation import Evaluation, NotePredictions
from nosology.reproduce.runner import Task

_RANKING = "per_note."  # prefix of the arrays of ranking metrics


def save_predictions(task: Task, evaluation: Evaluation | NotePredictions, name: str = "") -> dict[str, dict[str, str]]:
    """The entry for "predictions" of the result, {name: {"file": ..., "sha256": ...}}; writes the file.

    name: of the set of codes, such as "few": the predictions behind the metrics with the prefix "few.". The entries of
    several sets are joined with `|`.
    """
    notes = NotePredictions.of(evaluation)
    active = np.union1d(notes.gold.indices, notes.predicted.indices)  # codes that some note has
    arrays = {_RANKING + metric: np.ascontiguousarray(values) for metric, values in notes.per_note.items()}
    for kind, matrix in (("gold", notes.gold), ("predicted", notes.predicted)):
        part = sparse.csr_matrix(matrix[:, active])
        arrays |= {f"{kind}.indptr": part.indptr.astype(np.int64), f"{kind}.indices": part.indices.astype(np.int32)}
    codes = json.dumps([list(notes.space.codes[j]) for j in active])
    result = Path(task.result)
    path = result.with_name(f"{result.stem}.{name}.safetensors" if name else f"{result.stem}.safetensors")
    with atomic_file(path) as temporary:
        temporary.write_bytes(save(arrays, {"codes": codes}))
    return {name: {"file": path.name, "sha256": sha256(path)}}


def load_predictions(entry: Mapping[str, Any]) -> NotePredictions:
    """The predictions of an entry of `save_predictions`, with the path of its file; DataError if they are damaged."""
    path = Path(entry["file"])
    if not path.is_file():
        raise DataError(f"{path.name} is missing")
    if sha256(path) != entry["sha256"]:
        raise DataError(f"{path.name} is damaged: its SHA-256 differs from that in the result")
    try:
        with safe_open(path, "np") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            space = LabelSpace(Code(*code) for code in json.loads(file.metadata()["codes"]))
        gold, predicted = (_matrix(arrays, kind, len(space)) for kind in ("gold", "predicted"))
    except Exception as error:  # a damaged file can make the libraries raise nearly anything
        raise DataError(f"{path.name} cannot be read: {type(error).__name__}") from error
    ranking = {key.removeprefix(_RANKING): values for key, values in arrays.items() if key.startswith(_RANKING)}
    return NotePredictions(space, gold, predicted, ranking)


def _matrix(arrays: Mapping[str, np.ndarray], kind: str, width: int) -> sparse.csr_matrix:
    indptr, indices = arrays[f"{kind}.indptr"], arrays[f"{kind}.indices"]
    matrix = sparse.csr_matrix((np.ones(len(indices), np.int8), indices, indptr), shape=(len(indptr) - 1, width))
    matrix.check_format(full_check=True)  # compiled code does not check indices
    return matrix
