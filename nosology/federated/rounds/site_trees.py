"""Decision trees that sites send to the server: packed as arrays, checked, and averaged over sites.

A tree has features, thresholds and values of leaves. It has no word, code or text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nosology.models.lexicon.tree_leaves import largest_tree
from nosology.models.lexicon.trees import Trees

_MAX_DEPTH = 256  # forests of skewed features have been seen to be 50 deep
_MAX_VALUE = 1e3  # of a leaf
_INTEGERS, _NUMBERS = ("feature", "left", "right", "roots"), ("threshold", "value")

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class TreeLimits:
    """What trees that a recipe can give are at most."""

    features: int  # of a row
    trees: int
    leaves: int  # of a tree
    boosted: bool = True


def read_trees(arrays: Mapping[str, np.ndarray], name: str, limits: TreeLimits) -> Trees | str:
    """The trees that a site has sent, or why they are invalid."""
    try:
        trees = Trees.from_arrays(arrays, name)
    except (KeyError, TypeError, ValueError, OverflowError):
        return f"its trees {name} cannot be read"
    kinds = [(part, np.int32) for part in _INTEGERS] + [(part, np.float64) for part in _NUMBERS]
    if any(getattr(trees, part).dtype != kind or getattr(trees, part).ndim != 1 for part, kind in kinds):
        return f"its trees {name} have another dtype or shape"
    if len({len(getattr(trees, part)) for part, _ in kinds if part != "roots"}) > 1:
        return f"its trees {name} have arrays of different length"
    if len(trees.roots) > limits.trees:
        return f"its trees {name} must be {limits.trees} at most; got {len(trees.roots)}"
    if not (_are_trees(trees) and _are_valid(trees, limits)):
        return f"its trees {name} are no trees of {limits.leaves} leaves over {limits.features} features"
    depth = _depth(trees)
    return replace(trees, depth=depth) if depth <= _MAX_DEPTH else f"its trees {name} are deeper than {_MAX_DEPTH}"


def _are_trees(trees: Trees) -> bool:
    """Whether each node is in one tree: roots have no parent, other nodes have one parent, before them."""
    node, nodes, roots = np.arange(len(trees.feature)), len(trees.feature), trees.roots
    if not len(roots) or not nodes:
        return len(roots) == nodes
    is_leaf = (trees.left == node) & (trees.right == node)
    parent, children = np.tile(node[~is_leaf], 2), np.concatenate([trees.left[~is_leaf], trees.right[~is_leaf]])
    if roots[0] != 0 or (np.diff(roots) <= 0).any() or roots[-1] >= nodes:
        return False
    if (children <= parent).any() or (children >= nodes).any():
        return False
    parents = np.bincount(children, minlength=nodes)
    tree = np.searchsorted(roots, node, "right")
    return bool((parents == ~np.isin(node, roots)).all() and (tree[children] == tree[parent]).all())


def _are_valid(trees: Trees, limits: TreeLimits) -> bool:
    """Whether features, leaves, thresholds and values are possible. Of a forest the total is a probability."""
    is_leaf, count = trees.left == np.arange(len(trees.left)), len(trees.roots)
    lowest, largest = (-_MAX_VALUE, _MAX_VALUE) if trees.boosted else (0.0, (1 + 1e-6) / max(1, count))
    return bool(
        trees.boosted == (limits.boosted or not count)
        and abs(trees.start) <= (_MAX_VALUE if trees.boosted else 0.0)
        and ((trees.feature >= 0) & (trees.feature < limits.features)).all()
        and largest_tree(trees) <= limits.leaves
        and np.isfinite(trees.threshold[~is_leaf]).all()
        and ((trees.value >= lowest) & (trees.value <= largest)).all()
    )


def _depth(trees: Trees) -> int:
    """The number of steps from a root to the deepest leaf, `_MAX_DEPTH` + 1 if it is more."""
    level = trees.roots
    for depth in range(_MAX_DEPTH + 1):
        inner = level[trees.left[level] != level]
        if not len(inner):
            return depth
        level = np.concatenate([trees.left[inner], trees.right[inner]])
    return _MAX_DEPTH + 1


@dataclass(frozen=True)
class SiteTrees:
    """The trees of several sites, by site, and their weights."""

    sites: Mapping[str, Trees]
    weights: Mapping[str, float]

    def average(self, without: str = "") -> Trees:
        """The weighted mean over the sites, or over all but one."""
        names = [name for name in sorted(self.sites) if name != without] or sorted(self.sites)
        return Trees.average([self.sites[name] for name in names], [self.weights[name] for name in names])

    def arrays(self, name: str) -> Arrays:
        """The trees as arrays, numbered in the order of site names."""
        packed: Arrays = {}
        for number, site in enumerate(sorted(self.sites)):
            packed |= self.sites[site].arrays(f"{name}.{number}")
        return packed

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray], name: str, sites: Sequence[str], weights: Sequence[float]
    ) -> SiteTrees:
        """The trees of `arrays`; sites: sorted names."""
        trees = {site: Trees.from_arrays(arrays, f"{name}.{number}") for number, site in enumerate(sites)}
        return cls(trees, dict(zip(sites, weights)))
