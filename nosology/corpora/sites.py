"""Sites: the notes of one corpus dealt to several hospitals, alike or skewed, with no patient at two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nosology.core import SYSTEMS, Code, ConfigError
from nosology.corpora.corpus import Corpus
from nosology.corpora.duplicates import THRESHOLD, check_threshold
from nosology.corpora.filters import frequent_codes, keep_codes
from nosology.corpora.roster import Row, group_counts, groups, read_roster
from nosology.corpora.splits import reading, rewrite
from nosology.corpora.stratify import stratify

SKEWS = ("equal", "size", "dirichlet")
_FEW_FAMILIES = 8


def assign_sites(
    roster: list[Row],
    sites: int,
    *,
    skew: str = "equal",
    alpha: float = 0.5,
    exponent: float = 1.0,
    seed: int = 0,
    threshold: float = THRESHOLD,
) -> dict[str, str]:
    """The site of every note id: site-00, site-01, ...

    equal: sites of one size and one mix of codes. size: one mix of codes, but the size of site i is proportional to
    (i + 1) ** -exponent. dirichlet: sites of one size, but each family of codes is shared out in proportions drawn from
    a symmetric Dirichlet(alpha), as far as notes with codes of several families allow: the smaller alpha, the fewer
    sites see a family. Splits that notes already have keep their shares within each site.
    """
    _check(skew, alpha, exponent)
    group = groups(roster, threshold=threshold)
    counts, sizes, labels = group_counts(roster, group, within="split")
    if not 1 <= sites <= len(sizes):
        raise ConfigError(f"sites must lie between 1 and the {len(sizes)} patients (or notes without one); got {sites}")
    rng = np.random.default_rng([seed, sites])
    shares = np.arange(1.0, sites + 1) ** -exponent if skew == "size" else np.ones(sites)
    shares = shares / shares.sum()
    wanted = None
    if skew == "dirichlet":
        wanted = _dirichlet(labels, np.asarray(counts.sum(axis=0)).ravel(), sites, alpha, rng)
    part = stratify(counts, sizes, shares, rng, wanted=wanted)
    width = max(2, len(str(sites - 1)))
    return {row.id: f"site-{site:0{width}d}" for row, site in zip(roster, part[group])}


def _check(skew: str, alpha: float, exponent: float) -> None:
    if skew not in SKEWS:
        raise ConfigError(f"skew must be one of {', '.join(SKEWS)}; got {skew!r}")
    for name, value in (("alpha", alpha), ("exponent", exponent)):
        if not 0 < value < np.inf:
            raise ConfigError(f"{name} must be positive; got {value:g}")


def _dirichlet(
    labels: list[tuple[str, str]], totals: np.ndarray, sites: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """How many notes with each label every site should get (P sites, L labels); what is no code is shared equally.

    Sites get about as many codes in all (iterative proportional fitting), so that label skew is not size skew too.
    """
    family = np.array(_families(labels))
    shares = np.maximum(rng.dirichlet(np.full(sites, alpha), size=int(family.max(initial=0)) + 1).T, 1e-9)
    wanted = np.where(family < 0, 1 / sites, shares[:, family]) * totals
    for _ in range(50):
        wanted *= wanted.sum() / sites / wanted.sum(axis=1, keepdims=True)
        wanted *= totals / wanted.sum(axis=0)
    return wanted


def _families(labels: list[tuple[str, str]]) -> list[int]:
    """The family of each label, -1 for what is no code: codes with one first character, about a chapter.

    A note has many codes; were each code drawn alone, their wishes would cancel. Where that makes too few families to
    tell sites apart, codes with the first three characters are a family, or each code is.
    """
    for length in (1, 3, None):
        names = [(system, code[:length]) if system in SYSTEMS else None for system, code in labels]
        number = {name: position for position, name in enumerate(dict.fromkeys(filter(None, names)))}
        if len(number) >= _FEW_FAMILIES:
            break
    return [-1 if name is None else number[name] for name in names]


def site_corpus(
    folder: str | Path,
    out: str | Path,
    sites: int,
    *,
    skew: str = "equal",
    alpha: float = 0.5,
    exponent: float = 1.0,
    seed: int = 0,
    min_notes: int = 0,
    keep_duplicates_together: bool = True,
    threshold: float = THRESHOLD,
) -> Corpus:
    """The corpus with each note at a site, written to `out`.

    With `min_notes` a code stays only if every site can get so many notes of it, that is, if sites * min_notes have it.
    """
    corpus = Corpus.open(folder)
    _check(skew, alpha, exponent)
    check_threshold(threshold)
    steps: list[dict[str, Any]] = []
    keep: Callable[[Code], bool] = lambda code: True  # noqa: E731
    if min_notes > 0:
        keep = frequent_codes(corpus.notes(text=False), sites * min_notes).__contains__
        steps.append({"filter": "min_count", "min_count": sites * min_notes, "sites": sites, "min_notes": min_notes})
    notes = keep_codes(reading(corpus, text=keep_duplicates_together), keep, {})
    roster = read_roster(notes, texts=keep_duplicates_together)
    if not roster:
        raise ConfigError(f"no note is left for {sites} sites: no code has {sites * min_notes} notes")
    site = assign_sites(roster, sites, skew=skew, alpha=alpha, exponent=exponent, seed=seed, threshold=threshold)
    steps.append({"filter": "sites", "sites": sites, "skew": skew, "seed": seed})
    steps[-1] |= {"size": {"exponent": exponent}, "dirichlet": {"alpha": alpha}}.get(skew, {})
    steps[-1] |= {"duplicates_together": threshold if keep_duplicates_together else None}
    kept = keep_codes(reading(corpus), keep, steps[0] if min_notes > 0 else {})
    return rewrite(corpus, (replace(note, site=site[note.id]) for note in kept), out, steps)
