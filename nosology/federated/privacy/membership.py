"""A membership-inference probe: can someone who has the coder and a note tell whether it was trained on that note?

The attacker has the note's logits and its true codes, and guesses "seen" where the coder is surer than it should be. No
shadow models are trained, so a determined attacker can do better: a probe that finds nothing proves nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm, rankdata

from nosology.core import DataError

FALSE_ALARMS = 0.01  # share of unseen notes that an attacker may take for seen ones
_FEWEST = 20  # notes a side
_FOLDS = 5
_FEATURES = (
    "loss",
    "loss of true codes",
    "loss of other codes",
    "calibrated loss",
    "highest",
    "confident",
    "true codes",
)


@dataclass(frozen=True)
class Attack:
    """How well one attack tells seen from unseen notes."""

    auc: float  # 0.5: by chance
    auc_low: float  # of a 95% interval
    auc_high: float
    hits: float  # share of seen notes found where `FALSE_ALARMS` of the unseen ones are taken for seen

    @classmethod
    def of(cls, seen: np.ndarray, unseen: np.ndarray) -> Attack:
        """The attack that guesses by a score, higher for seen notes: scores (N,) and (M,); interval after DeLong."""
        n, m = len(seen), len(unseen)
        both = rankdata(np.concatenate([seen, unseen]))
        beats = (both[:n] - rankdata(seen)) / m  # share of the unseen below each seen note
        beaten = 1 - (both[n:] - rankdata(unseen)) / n
        auc = float(beats.mean())
        width = norm.ppf(0.975) * np.sqrt(beats.var(ddof=1) / n + beaten.var(ddof=1) / m)
        allowed = np.sort(unseen)[::-1][int(FALSE_ALARMS * m)]
        low, high = np.clip([auc - width, auc + width], 0, 1)
        return cls(auc, float(low), float(high), float((seen > allowed).mean()))


@dataclass(frozen=True)
class Probe:
    """The attacks on a coder, and a control: the same attack on two groups of notes neither of which was trained on."""

    seen: int  # notes
    unseen: int
    attacks: dict[str, Attack]
    control: Attack | None

    @property
    def strongest(self) -> str:
        """The attack with the highest AUC."""
        return max(self.attacks, key=lambda name: self.attacks[name].auc)

    @property
    def sentence(self) -> str:
        """What it means, in one sentence."""
        best = self.attacks[self.strongest]
        if self.control and self.control.auc_low > 0.5 and best.auc_low <= self.control.auc_high:
            return (
                f"The best attack has an AUC of {best.auc:.3f}, but notes that were never trained on are told apart as"
                f" well (dev against test: {self.control.auc:.3f}): this corpus cannot say what the coder gives away."
            )
        if best.auc_low <= 0.5:
            return (
                f"These attacks do not tell seen from unseen notes (best AUC {best.auc:.3f}, interval down to"
                f" {best.auc_low:.3f}), which does not prove that no attack can."
            )
        strength = "slightly" if best.auc < 0.6 else "clearly" if best.auc < 0.8 else "for the most part"
        return (
            f"An attacker who has the coder and a note can {strength} tell whether the note was trained on (AUC"
            f" {best.auc:.3f}, {best.hits:.1%} of the seen notes at {FALSE_ALARMS:.0%} false alarms): treat the weights"
            " as personal data."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"false_alarms": FALSE_ALARMS, "strongest": self.strongest, "sentence": self.sentence}


def probe(
    seen: tuple[np.ndarray, np.ndarray],
    unseen: tuple[np.ndarray, np.ndarray],
    control: tuple[np.ndarray, np.ndarray] | None = None,
    seed: int = 0,
) -> Probe:
    """The probe of notes that were trained on and others, each as logits (B, L) and true codes (B, L), 0 or 1.

    control: other notes that were not trained on. Every attack is scored on notes that it was not fitted to.
    """
    for name, side in (("seen", seen), ("unseen", unseen)):
        if len(side[0]) < _FEWEST:
            raise DataError(f"a probe needs {_FEWEST} {name} notes at least; got {len(side[0])}")
    of_seen, of_unseen = features(seen, unseen)
    attacks = {
        "loss": Attack.of(-of_seen[:, 0], -of_unseen[:, 0]),
        "calibrated loss": Attack.of(-of_seen[:, 3], -of_unseen[:, 3]),
        "logistic": Attack.of(*_logistic(of_seen, of_unseen, seed)),
    }
    held = None
    if control is not None and len(control[0]) >= _FEWEST:
        held = Attack.of(*_logistic(*features(control, unseen), seed))
    return Probe(len(of_seen), len(of_unseen), attacks, held)


def features(
    seen: tuple[np.ndarray, np.ndarray], unseen: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """What the attacker looks at: (N, 7) and (M, 7), columns as `_FEATURES` names them.

    The calibrated loss is the loss less what the code costs on average, present or absent, over both groups: a rare
    code is hard for everybody and says nothing about having been seen.
    """
    logits = np.concatenate([seen[0], unseen[0]]).astype(np.float64).clip(-50, 50)
    true = np.concatenate([seen[1], unseen[1]]).astype(bool)
    cost = np.logaddexp(0, np.where(true, -logits, logits))  # (B, L) binary cross entropy
    present = true.sum(0)
    usual_true = np.where(true, cost, 0).sum(0) / np.maximum(present, 1)
    usual_false = np.where(true, 0, cost).sum(0) / np.maximum(len(true) - present, 1)
    count = true.sum(1)
    columns = [
        cost.mean(1),
        np.where(true, cost, 0).sum(1) / np.maximum(count, 1),
        np.where(true, 0, cost).sum(1) / np.maximum(true.shape[1] - count, 1),
        (cost - np.where(true, usual_true, usual_false)).mean(1),
        expit(logits).max(1),
        np.log1p((logits > 0).sum(1)),
        np.log1p(count),
    ]
    made = np.stack(columns, axis=1)
    return made[: len(seen[0])], made[len(seen[0]) :]


def _logistic(seen: np.ndarray, unseen: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores (N,) and (M,) of a logistic regression, each from the fit without the note's own fold."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = np.concatenate([seen, unseen]), np.repeat([1, 0], [len(seen), len(unseen)])
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    machine = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
    scores = cross_val_predict(machine, x, y, cv=folds, method="decision_function")
    return scores[: len(seen)], scores[len(seen) :]
