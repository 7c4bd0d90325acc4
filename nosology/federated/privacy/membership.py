"""A membership-inference probe: can someone with the coder and a note tell whether the coder was trained on the note?

The attacker has the logits and the true codes of the note, and guesses "seen" if the loss is low. No shadow models are
trained, so a determined attacker can do better: a probe without a finding proves nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm, rankdata

from nosology.core import SPLITS, BundleError, DataError, Note
from nosology.corpora.corpus import Corpus
from nosology.encoders.embedding_cache import EmbeddingCache
from nosology.models.bundle import Bundle
from nosology.models.heads.heads_model import Heads

FALSE_POSITIVE_RATE = 0.01  # at which `MembershipAttack.hits` is measured
_MIN_NOTES = 20  # per group
_FOLDS = 5
_LOSS, _CALIBRATED_LOSS = 0, 3  # columns of `attack_features`

ScoredNotes = tuple[np.ndarray, np.ndarray]  # logits (B, L), true codes (B, L), 0 or 1


@dataclass(frozen=True)
class MembershipAttack:
    """How well one attack separates seen from unseen notes."""

    auc: float  # 0.5: chance
    auc_low: float  # of a 95% interval
    auc_high: float
    hits: float  # true positive rate at `FALSE_POSITIVE_RATE`

    @classmethod
    def of(cls, seen: np.ndarray, unseen: np.ndarray) -> MembershipAttack:
        """The attack with scores (N,) and (M,), higher for seen notes. The interval is DeLong's."""
        n, m = len(seen), len(unseen)
        ranks = rankdata(np.concatenate([seen, unseen]))
        above = (ranks[:n] - rankdata(seen)) / m  # fraction of unseen notes below each seen note
        below = 1 - (ranks[n:] - rankdata(unseen)) / n
        auc = float(above.mean())
        width = norm.ppf(0.975) * np.sqrt(above.var(ddof=1) / n + below.var(ddof=1) / m)
        threshold = np.sort(unseen)[::-1][int(FALSE_POSITIVE_RATE * m)]
        low, high = np.clip([auc - width, auc + width], 0, 1)
        return cls(auc, float(low), float(high), float((seen > threshold).mean()))


@dataclass(frozen=True)
class ProbeReport:
    """The attacks on a coder, and a control: the same attack on two groups of unseen notes."""

    seen: int  # notes
    unseen: int
    attacks: dict[str, MembershipAttack]
    control: MembershipAttack | None
    scores: dict[str, ScoredNotes] = field(default_factory=dict, compare=False, repr=False)  # seen (N,), unseen (M,)

    @property
    def strongest(self) -> str:
        """The attack with the highest AUC."""
        return max(self.attacks, key=lambda name: self.attacks[name].auc)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        best = self.attacks[self.strongest]
        if self.control and self.control.auc_low > 0.5 and best.auc_low <= self.control.auc_high:
            return (
                f"The best attack has an AUC of {best.auc:.3f}, but unseen notes are separated as well (dev against"
                f" test: {self.control.auc:.3f}): this corpus does not show what the coder reveals."
            )
        if best.auc_low <= 0.5:
            return (
                f"These attacks do not separate seen from unseen notes (best AUC {best.auc:.3f}, interval down to"
                f" {best.auc_low:.3f}), which does not prove that no attack can."
            )
        strength = "slightly" if best.auc < 0.6 else "clearly" if best.auc < 0.8 else "for the most part"
        return (
            f"An attacker with the coder and a note can {strength} tell whether the coder was trained on it (AUC"
            f" {best.auc:.3f}, {best.hits:.1%} of the seen notes at {FALSE_POSITIVE_RATE:.0%} false alarms): treat the"
            " weights as personal data."
        )

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        values = {"false_alarms": FALSE_POSITIVE_RATE, "strongest": self.strongest, "sentence": self.sentence}
        attacks = {name: asdict(attack) for name, attack in self.attacks.items()}
        control = asdict(self.control) if self.control else None
        return {"seen": self.seen, "unseen": self.unseen, "attacks": attacks, "control": control} | values


def probe(seen: ScoredNotes, unseen: ScoredNotes, control: ScoredNotes | None = None, seed: int = 0) -> ProbeReport:
    """The report for seen and unseen notes. control: other unseen notes. Attacks are cross-validated."""
    for name, group in (("seen", seen), ("unseen", unseen)):
        if len(group[0]) < _MIN_NOTES:
            raise DataError(f"a probe needs at least {_MIN_NOTES} {name} notes; got {len(group[0])}")
    seen_features, unseen_features = attack_features(seen, unseen)
    scores = {
        name: (-seen_features[:, column], -unseen_features[:, column])
        for name, column in (("loss", _LOSS), ("calibrated loss", _CALIBRATED_LOSS))
    }
    scores["logistic"] = _logistic_scores(seen_features, unseen_features, seed)
    attacks = {name: MembershipAttack.of(*groups) for name, groups in scores.items()}
    control_attack = None
    if control is not None and len(control[0]) >= _MIN_NOTES:
        control_attack = MembershipAttack.of(*_logistic_scores(*attack_features(control, unseen), seed))
    return ProbeReport(len(seen_features), len(unseen_features), attacks, control_attack, scores)


def attack_features(seen: ScoredNotes, unseen: ScoredNotes) -> tuple[np.ndarray, np.ndarray]:
    """The features of the attacks, (N, 7) and (M, 7).

    They are: loss, loss of true codes, loss of other codes, calibrated loss, highest probability, log number of
    predicted codes, log number of true codes. The calibrated loss is the loss minus the mean loss of the code, present
    or absent, over both groups, because a rare code is hard whether or not the note was seen.
    """
    logits = np.concatenate([seen[0], unseen[0]]).astype(np.float64).clip(-50, 50)
    true = np.concatenate([seen[1], unseen[1]]).astype(bool)
    loss = np.logaddexp(0, np.where(true, -logits, logits))  # (B, L) binary cross-entropy
    present = true.sum(0)
    mean_true = np.where(true, loss, 0).sum(0) / np.maximum(present, 1)
    mean_false = np.where(true, 0, loss).sum(0) / np.maximum(len(true) - present, 1)
    count = true.sum(1)
    columns = [
        loss.mean(1),
        np.where(true, loss, 0).sum(1) / np.maximum(count, 1),
        np.where(true, 0, loss).sum(1) / np.maximum(true.shape[1] - count, 1),
        (loss - np.where(true, mean_true, mean_false)).mean(1),
        expit(logits).max(1),
        np.log1p((logits > 0).sum(1)),
        np.log1p(count),
    ]
    features = np.stack(columns, axis=1)
    return features[: len(seen[0])], features[len(seen[0]) :]


def _logistic_scores(seen: np.ndarray, unseen: np.ndarray, seed: int) -> ScoredNotes:
    """Cross-validated scores (N,) and (M,) of a logistic regression."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x: Any = np.concatenate([seen, unseen])  # sklearn has no type that fits both scipy and numpy arrays
    y: Any = np.repeat([1, 0], [len(seen), len(unseen)])
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
    scores: Any = cross_val_predict(classifier, x, y, cv=folds, method="decision_function")
    return scores[: len(seen)], scores[len(seen) :]


def probe_bundle(
    bundle: Bundle, corpus: Corpus, cache: Path | None = None, notes: int = 2000, seed: int = 0
) -> tuple[ProbeReport, list[str]]:
    """The report for a bundle and its corpus, and cautions for its reader.

    cache: of embeddings; None: they are computed. notes: most notes per group, chosen at random.
    """
    model = bundle.model
    if not isinstance(model, Heads):
        raise BundleError(f"a probe needs a bundle of kind heads; got {model.kind}")
    trained_on = bundle.provenance.get("trained_on")
    if not trained_on or not set(trained_on) <= set(SPLITS):
        raise BundleError("a probe needs a bundle whose provenance has the splits it was trained on")
    if "test" in trained_on:
        raise BundleError("the coder was trained on all notes of its corpus: there are no unseen notes")
    seen = [note for split in trained_on for note in corpus.notes(split)]
    groups = {"seen": seen, "unseen": list(corpus.notes("test"))}
    if "dev" not in trained_on:
        groups["control"] = list(corpus.notes("dev"))
    cautions = _cautions(bundle, corpus, min(notes, len(groups["unseen"])))
    scored = {name: _score(model, _sample(group, notes, seed), cache) for name, group in groups.items()}
    return probe(scored["seen"], scored["unseen"], scored.get("control"), seed), cautions


def _score(model: Heads, notes: list[Note], cache: Path | None) -> ScoredNotes:
    texts = [note.text for note in notes]
    if cache is None:
        logits = model.logits(texts)
    else:
        logits = model.logits_of(
            EmbeddingCache.for_embedder(cache, model.embedder).vectors(texts, lambda: model.embedder)
        )
    return logits, model.labels.encode([note.codes for note in notes]).toarray()


def _sample(notes: list[Note], limit: int, seed: int) -> list[Note]:
    """At most `limit` notes, chosen at random, in their order."""
    if len(notes) <= limit:
        return notes
    chosen = np.random.default_rng(seed).choice(len(notes), limit, replace=False)
    return [notes[i] for i in np.sort(chosen)]


def _cautions(bundle: Bundle, corpus: Corpus, unseen: int) -> list[str]:
    cautions = []
    hashes = [item.get("hash") for item in bundle.provenance.get("corpora", [])]
    if not hashes:
        cautions.append("the bundle does not name its corpus: the train notes of this corpus are assumed to be seen")
    elif corpus.hash not in hashes:
        cautions.append("the coder was not trained on this corpus, so its train notes are unseen too")
    if unseen < 500:
        cautions.append(f"1% of {unseen} unseen notes is a handful: the last column is rough")
    return cautions
