"""The three corpora of Liu and Nguyen (2026): which of the given ones is which, their statistics, their frequent codes.

Coders are trained with all codes. A code is frequent if 10 notes or more of its corpus have it, otherwise rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nosology.core import SPLITS, ConfigError, DataError
from nosology.core.label_space import ICD10, SYSTEM_VERSION
from nosology.corpora.corpus import Corpus
from nosology.evaluation.measure import CodeSet
from nosology.reproduce.runner import Task, part_with_codes

MIMIC3, MIMIC4_ICD9, MIMIC4_ICD10 = ROLES = ("mimic3-icd9", "mimic4-icd9", "mimic4-icd10")
TITLES = dict(zip(ROLES, ("MIMIC-III ICD-9", "MIMIC-IV ICD-9", "MIMIC-IV ICD-10")))
CODE_SETS = {"frequent": "frequent codes", "full": "all codes", "rare": "rare codes"}  # and their names in Table 5
PER_NOTE = ("median", "lower quartile", "upper quartile", "mean", "standard deviation")


def by_role(corpora: Sequence[Corpus], mimic3: str) -> dict[str, Corpus]:
    """The corpora by their role in the paper, in the order of ROLES.

    The ICD version is that of the codes. An ICD-9 corpus is that of MIMIC-III if it was read from MIMIC-III or if the
    name of its folder starts with `mimic3`.
    """
    found: dict[str, Corpus] = {}
    for corpus in corpora:
        versions = {SYSTEM_VERSION[system] for system in corpus.manifest["counts"]["systems"]}
        if len(versions) != 1:
            raise ConfigError(f"a corpus must be coded in one ICD version; got {corpus.folder} with {len(versions)}")
        is_mimic3 = corpus.manifest["source"].get("kind") == "mimic3" or corpus.folder.resolve().name.startswith(mimic3)
        role = MIMIC4_ICD10 if versions == {ICD10} else MIMIC3 if is_mimic3 else MIMIC4_ICD9
        if role in found:
            raise ConfigError(
                f"one corpus must be given for {TITLES[role]}; got {found[role].folder} and {corpus.folder} "
                "(--set mimic3=NAME names the folder that stands for MIMIC-III)"
            )
        found[role] = corpus
    return {role: found[role] for role in ROLES if role in found}


def with_frequent_codes(corpus: Corpus, out: Path) -> Corpus:
    """The corpus with its frequent codes only, as in Edin et al. (2023); notes without one are left out."""
    codes = CodeSet.of("frequent", (note.codes for note in corpus.notes(text=False))).codes
    return part_with_codes(corpus, codes, out)


def run_statistics(task: Task) -> dict[str, Any]:
    """Counts the notes and codes of the corpora; in its own process."""
    metrics = {}
    for role, path in zip(task.options["roles"], task.corpora):
        metrics |= {f"{name}.{role}": value for name, value in statistics(Corpus.open(path)).items()}
    return {"metrics": metrics}


def statistics(corpus: Corpus) -> dict[str, float]:
    """The numbers of Table 5 by the name of their row. The rare codes per note are of notes with a rare code."""
    counts = corpus.manifest["counts"]
    result: dict[str, float] = {"notes / number": len(corpus)}
    for split in SPLITS:
        result[f"notes / {split}, %"] = 100 * counts["splits"].get(split, 0) / len(corpus)
    gold = [tuple(dict.fromkeys(note.codes)) for note in corpus.notes(text=False)]
    for name, title in CODE_SETS.items():
        try:
            code_set = CodeSet.of(name, gold)
        except DataError:  # a small corpus may have no code of the set
            continue
        per_note = np.array([len(codes) for codes in code_set.narrow(gold)[1]])
        lower, median, upper = np.quantile(per_note, (0.25, 0.5, 0.75))
        values = (median, lower, upper, per_note.mean(), per_note.std())
        result[f"{title} / number"] = len(code_set.codes)
        for what, value in zip(PER_NOTE, map(float, values)):
            result[f"{title} / per note, {what}"] = int(value) if value.is_integer() else value
        if code_set.only_with_code:
            result[f"{title} / notes with one or more"] = len(per_note)
    return result
