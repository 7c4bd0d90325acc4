"""The federated lexicon: counts of phrases and codes are sums over sites, decision trees are averaged.

After the agreement on phrases, hashed sums show which pairs of a phrase and a code may be associated, and exact sums
are made for these. Then each site fits trees to the mentions in its own notes. The server combines them: the forest of
all sites is the union of their trees; the score of the boosted trees is the mean over sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nosology.core import DataError
from nosology.federated.federation_settings import FederatedLexiconRecipe
from nosology.federated.rounds.federation_setup import Arrays, FederationSetup
from nosology.federated.rounds.hashed_counts import ROWS, estimates, hash_pairs, pack_names, unpack_names
from nosology.federated.rounds.lexicon_site import (
    BOOSTED,
    BOTH,
    CODE_TREES,
    CODES,
    FOREST,
    HELD_OUT,
    MENTION_TREES,
    PAIR_BUCKETS,
    PAIRS,
    SCORE_BINS,
    LexiconSite,
    build_lexicon,
)
from nosology.federated.rounds.site_trees import SiteTrees, TreeLimits, read_trees
from nosology.federated.rounds.statistics_learner import (
    COUNTS,
    FIND,
    NAMES,
    ItemCounts,
    Limits,
    StatisticsLearner,
)
from nosology.models.lexicon.lexicon_model import Lexicon
from nosology.models.lexicon.lexicon_trainer import check_lexicon, resolve_counts
from nosology.models.lexicon.mention_features import CODE_FEATURES, FEATURES
from nosology.models.lexicon.phrase_associations import associated
from nosology.models.siblings.sibling_chooser import SiblingChooser
from nosology.models.siblings.sibling_verifier import SiblingVerifier
from nosology.text.context import CATEGORIES
from nosology.training.calibration import PlattScaling

_MIN_BOTH = 2  # notes with phrase and code, as in central training
_MIN_THRESHOLD = 0.05
_TREES = {MENTION_TREES: (BOOSTED, FOREST), CODE_TREES: (CODES,)}


class LexiconLearner(StatisticsLearner[LexiconSite, FederatedLexiconRecipe]):
    """Phrases that are associated with codes, and trees that score their mentions."""

    preprocessing, site_class = "phrases of content words", LexiconSite

    @property
    def inputs_name(self) -> str:
        """Phrases."""
        return "read as phrases"

    def check(self) -> None:
        """Raises ConfigError for settings that a federated lexicon does not support."""
        super().check()
        check_lexicon(self.recipe)

    def stages(self) -> list[str]:
        """Agreement on phrases, counts of phrases with codes, trees, threshold."""
        return [FIND, NAMES, COUNTS, PAIRS, BOTH, MENTION_TREES, CODE_TREES, HELD_OUT]

    def initial_weights(self, setup: FederationSetup) -> Arrays:
        """The edition of the classification: that of most reported codes."""
        counts = dict(zip(setup.labels.codes, setup.label_counts.tolist()))
        codes = resolve_counts(self.recipe.codes, counts)
        edition = pack_names([codes.release or "", "seventh" if codes.has_seventh else "short"])
        return {"edition": edition, "sites": np.array([len(setup.metadata)])}

    def add(self, stage: str, state: Arrays, total: np.ndarray, setup: FederationSetup) -> Arrays:
        """The state after a stage with this sum."""
        return self._kept(state) | super().add(stage, state, total, setup)

    @staticmethod
    def _kept(state: Arrays) -> Arrays:
        return {name: state[name] for name in ("edition", "sites")}

    def vector_size(self, stage: str, state: Arrays, setup: FederationSetup) -> int:
        """The length of the vector of a stage."""
        return {
            PAIRS: ROWS * PAIR_BUCKETS * self.recipe.statistics.buckets,
            BOTH: 2 * len(state.get("pair_phrase", ())),
            HELD_OUT: 2 * SCORE_BINS + 1 + len(CATEGORIES),
        }[stage]

    def limits(self, stage: str, state: Arrays, total: np.ndarray, notes: int, sites: int) -> Limits:
        """The smallest and the largest possible sums."""
        if stage == BOTH:
            return 0.0, float(notes)
        if stage == HELD_OUT:  # true codes are some of all codes with a probability
            others = np.full(len(total) - 2 * SCORE_BINS, np.inf)
            return 0.0, np.concatenate([np.full(SCORE_BINS, np.inf), total[:SCORE_BINS], others])
        return super().limits(stage, state, total, notes, sites)

    def merge_counts(self, state: Arrays, items: list[str], counts: ItemCounts, setup: FederationSetup) -> Arrays:
        """The phrases of at least two notes, and their counts."""
        kept = np.flatnonzero(counts.notes >= _MIN_BOTH)
        return {
            "items": pack_names(items[i] for i in kept),
            "seen": counts.notes[kept],
            "coded": counts.coded,
            "notes": np.array([counts.total]),
        }

    def merge_sum(self, stage: str, state: Arrays, total: np.ndarray, setup: FederationSetup) -> Arrays:
        """The state after a stage."""
        if stage == PAIRS:
            return state | self._candidates(total, state)
        if stage == BOTH:
            return self._exact(total, state)
        return state | self._tuned(total)

    def _candidates(self, total: np.ndarray, state: Arrays) -> Arrays:
        """The pairs that are associated if hashed counts, which are too large at most, were right."""
        seen, notes = state["seen"].astype(np.float64), float(state["notes"][0])
        buckets, numbers = PAIR_BUCKETS * self.recipe.statistics.buckets, np.arange(len(seen))
        phrases, codes = [], []
        for label in np.flatnonzero(state["coded"] >= _MIN_BOTH).tolist():
            coded = float(state["coded"][label])
            both = np.rint(estimates(total, hash_pairs(numbers, np.full(len(seen), label)), buckets))
            both = np.minimum(both, np.minimum(seen, coded))
            rows, _ = associated(both, seen, np.full(len(seen), coded), notes)
            phrases.append(rows)
            codes.append(np.full(len(rows), label))
        none = np.zeros(0, np.int64)
        phrase, code = np.concatenate([none, *phrases]), np.concatenate([none, *codes])
        order = np.lexsort((code, phrase))
        return {"pair_phrase": phrase[order].astype(np.int32), "pair_code": code[order].astype(np.int32)}

    def _exact(self, total: np.ndarray, state: Arrays) -> Arrays:
        """The counts of pairs with enough patients, and of the phrases in them."""
        notes, patients = np.maximum(np.rint(total), 0).astype(np.int64).reshape(2, -1)
        phrase, code = state["pair_phrase"], state["pair_code"]
        notes = np.minimum(notes, np.minimum(state["seen"][phrase], state["coded"][code]))  # noise, or a lost site
        kept = np.flatnonzero((notes >= _MIN_BOTH) & (patients >= self.recipe.statistics.min_patients))
        used, renumbered = np.unique(phrase[kept], return_inverse=True)
        items = unpack_names(state["items"])
        return {
            "items": pack_names(items[i] for i in used.tolist()),
            "seen": state["seen"][used],
            "coded": state["coded"],
            "notes": state["notes"],
            "pair_phrase": renumbered.astype(np.int32),
            "pair_code": code[kept],
            "both": notes[kept],
        }

    def _tuned(self, total: np.ndarray) -> Arrays:
        """The threshold of the highest micro F1 on held-out train notes, and the mentions in each context."""
        cells, true = (np.cumsum(part[::-1])[::-1] for part in total[: 2 * SCORE_BINS].reshape(2, -1))
        gold = total[2 * SCORE_BINS]
        best = int(np.argmax(2 * true / np.maximum(cells + gold, 1)))
        return {
            "threshold": np.array([max(_MIN_THRESHOLD, best / SCORE_BINS)]),
            "marked": np.rint(total[2 * SCORE_BINS + 1 :]),
        }

    def read_collected(self, stage: str, arrays: Arrays, state: Arrays) -> Any:
        """Names or trees that a site has sent; a text says why they are invalid."""
        if stage == NAMES:
            return super().read_collected(stage, arrays, state)
        limits = self._tree_limits(state)
        trees = {name: read_trees(arrays, name, limits[name]) for name in _TREES[stage]}
        return next((reason for reason in trees.values() if isinstance(reason, str)), trees)

    def _tree_limits(self, state: Arrays) -> dict[str, TreeLimits]:
        """What trees of a site are at most, by their name, as the site fits them."""
        learn, forest = self.recipe.learn, -(-self.recipe.learn.forest // int(state["sites"][0]))
        return {
            BOOSTED: TreeLimits(len(FEATURES), learn.rounds, learn.leaves),
            FOREST: TreeLimits(len(FEATURES), forest, learn.forest_leaves, boosted=False),
            CODES: TreeLimits(len(CODE_FEATURES), max(1, learn.rounds // 2), max(2, learn.leaves // 2)),
        }

    def merge_collected(self, stage: str, state: Arrays, replies: Mapping[str, Any], setup: FederationSetup) -> Arrays:
        """The state with the phrases or the trees of the sites."""
        if stage == NAMES:
            return self._kept(state) | super().merge_collected(stage, state, replies, setup)
        if len(replies) < 2:
            raise DataError("a federated lexicon needs two sites: trees are tested on notes of other sites")
        sites, new = sorted(replies), dict(state)
        for name in _TREES[stage]:
            weights = {site: float(setup.metadata[site].notes) if site in setup.metadata else 1.0 for site in sites}
            new |= SiteTrees({site: replies[site][name] for site in sites}, weights).arrays(name)
            new |= {f"{name}.sites": pack_names(sites), f"{name}.weights": np.array(list(weights.values()))}
        return new

    def build_model(
        self, setup: FederationSetup, weights: Mapping[str, np.ndarray], calibration: PlattScaling
    ) -> Lexicon:
        """The lexicon of the last stage; between sibling codes the verifier of the package chooses."""
        lexicon = build_lexicon(self.recipe, weights, setup.labels)
        assert lexicon.scorer is not None
        counts = dict(zip(lexicon.scorer.learned.codes, lexicon.scorer.learned.notes.tolist()))
        return replace(lexicon, siblings=SiblingChooser(SiblingVerifier.shipped(), counts))
