"""Notes that pass unseen, and drift: python benchmarks/quality/autonomy.py [--codiesp FOLDER] [--patients 30000]

Held-out notes are split 100 times. One part calibrates, the other one is measured: the mean loss of its notes that
pass, and their share. "held" is the share of splits whose realised loss is at most the tolerated one (no note passes:
0). The measured notes are a sample themselves, so that a "held" of 0.95 is not quite implied. It is for "held exactly":
calibration notes are drawn with replacement, and the loss is that of all notes they were drawn from.

The simulated hospital: the linear coder learns the 50 most frequent codes from one site, with one held-out note per
patient; its thresholds and monitors are then used at the other sites. CodiEsp (FOLDER/codiesp_en_train.jsonl and
codiesp_en_dev.jsonl): the linear coder, all diagnoses, dev notes held out; and as another hospital, the dev notes coded
by the coder of the simulated one.

Losses: errors (wrong and missing codes), not_exact, and drg (the MS-DRG v40 of the accepted codes, the most probable
one first, is not that of the true ones; extra `groupers`). Monitored: the confidence alone; what the workbench monitors
(confidence, accepted codes, four numbers of the text), each at its share of the rate; the share of words that no train
note has; and, for notes that people review, the errors beyond those that the coder expected.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nosology.claims.checks import AssignedCode, AssignedCodes
from nosology.claims.group_effects import drg_changed
from nosology.config import load_recipe
from nosology.core import Code, Note
from nosology.core.files import write_json
from nosology.corpora.corpus import write_corpus
from nosology.corpora.notes_file import read_notes
from nosology.corpora.simulate import simulate_notes
from nosology.corpora.simulate.clinic import Clinic
from nosology.corpora.simulate.hospital import subject_id
from nosology.evaluation.drift import DriftMonitor
from nosology.evaluation.risk_control import control_risk, expected_errors, note_losses
from nosology.models.bundle import Bundle
from nosology.models.train import train
from nosology.workbench.measures import DRIFT_FEATURES
from nosology.workbench.note_coding import note_profile

RESULT = Path(__file__).parents[1] / "results" / "quality_autonomy.json"
SPLITS = 100
DELTA, RATE = 0.05, 0.01
SITE, FREQUENT, TRAIN = "harbor", 50, 1_500
YEARS = (2016, 2019)
CALIBRATION = 1_000  # notes of the simulated hospital; half of the notes where there are fewer than twice as many
BOUND = 10  # of errors a note, where they are monitored
STREAM = 1_000  # notes that a monitor sees
TEXT_FEATURES = ("words", "digits", "capitals", "letters")
Loss = Literal["errors", "not_exact", "drg"]
# (loss, bound, tolerated)
SIMULATED: tuple[tuple[Loss, float, float], ...] = (
    ("errors", 10, 1.0),
    ("errors", 10, 2.0),
    ("errors", 10, 2.5),
    ("errors", 10, 3.0),
    ("not_exact", 1, 0.7),
    ("not_exact", 1, 0.8),
    ("not_exact", 1, 0.9),
    ("drg", 1, 0.6),
    ("drg", 1, 0.65),
    ("drg", 1, 0.7),
)
CODIESP: tuple[tuple[Loss, float, float], ...] = (("errors", 20, 6.0), ("errors", 20, 8.0), ("errors", 20, 10.0))


@dataclass(frozen=True)
class Coded:
    """Notes with the coder's confidence (B,), its accepted codes, the most probable first, and the true ones.

    profiles: what the workbench monitors of a text. unknown: the share of unknown words (B,). stays: what the grouper
    reads of each note; empty if it is not known.
    """

    confidence: np.ndarray
    profiles: list[dict[str, float]]
    unknown: np.ndarray
    accepted: list[list[Code]]
    final: list[tuple[Code, ...]]
    stays: list[dict[str, Any]] = field(default_factory=list)

    def monitored(self) -> dict[str, np.ndarray]:
        """The numbers that are monitored, one per row (F, B) where several are monitored together."""
        surplus = note_losses(self.accepted, self.final, "errors", BOUND) + self.confidence
        features = [self.confidence, [len(codes) for codes in self.accepted]]
        features += [[profile[name] for profile in self.profiles] for name in TEXT_FEATURES]
        return {
            "confidence": self.confidence[None],
            "workbench": np.array(features, dtype=float),
            "unknown words": self.unknown[None],
            "errors (reviewed)": surplus[None],
        }

    def losses(self, loss: Loss, bound: float) -> np.ndarray:
        """The loss of each note (B,)."""
        if loss != "drg":
            return note_losses(self.accepted, self.final, loss, bound)
        rows = zip(self.accepted, self.final, self.stays, strict=True)
        return np.array([float(drg_changed(assigned(a), assigned(b), stay)) for a, b, stay in rows])


def assigned(codes: Iterable[Code]) -> AssignedCodes:
    """The codes in the form that the grouper reads."""
    return AssignedCodes(tuple(AssignedCode(item, "added") for item in codes))


def stays(patients: int) -> dict[tuple[str, str], dict[str, Any]]:
    """What the grouper reads of each note of the simulated hospital, by patient and number of the stay."""
    clinic, found = Clinic(YEARS), {}
    for index in range(patients):
        patient = clinic.patient(0, index)
        for stay in patient.admissions:
            known = {"kind": "inpatient", "sex": patient.sex, "age": patient.age(stay.day), "died": stay.died}
            found[str(subject_id(patient)), str(stay.number + 1)] = known | {"date": "2022-10-01"}  # MS-DRG v40
    return found


def words_of(text: str) -> set[str]:
    """The distinct words of a note."""
    return set(re.findall(r"[a-z]+", text.lower()))


def code(
    bundle: Bundle,
    notes: Sequence[Note],
    known: set[str],
    stays: Mapping[tuple[str, str], dict[str, Any]] | None = None,
) -> Coded:
    """The notes, coded. Confidence is minus the expected wrong and missing codes."""
    labels, probabilities = bundle.model.labels, bundle.model.probabilities(notes)
    accepted = np.array([bundle.decision.accepted(labels, row) for row in probabilities])
    codes = [
        [labels.codes[j] for j in np.argsort(-row, kind="stable") if taken[j]]
        for row, taken in zip(probabilities, accepted, strict=True)
    ]
    words = [words_of(note.text) for note in notes]
    return Coded(
        confidence=-expected_errors(probabilities, accepted),
        profiles=[note_profile(note.text, ()) for note in notes],
        unknown=np.array([len(found - known) / max(1, len(found)) for found in words]),
        accepted=codes,
        final=[note.codes for note in notes],
        stays=[stays[note.patient or "", note.id.rpartition("-")[2]] for note in notes] if stays else [],
    )


def halves(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The calibration notes and the measured notes of a split."""
    order, first = np.random.default_rng([seed, 1]).permutation(n), min(CALIBRATION, n // 2)
    return order[:first], order[first:]


def fit(notes: Iterable[Note], settings: Sequence[str] = ()) -> Bundle:
    """The linear coder."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(notes, Path(folder) / "corpus", source={}, filters=[], counts={})
        return train(load_recipe("linear", settings), [corpus], Path(folder) / "bundle")


def passing_loss(coded: Coded, losses: np.ndarray, threshold: float | None, chosen: np.ndarray) -> tuple[float, float]:
    """The mean loss of the chosen notes that pass, and their share."""
    if threshold is None:
        return 0.0, 0.0
    passes = coded.confidence[chosen] >= threshold
    return float(losses[chosen][passes].mean()) if passes.any() else 0.0, float(passes.mean())


def resplit(home: Coded, loss: Loss, bound: float, tolerated: float, away: dict[str, Coded]) -> dict[str, Any]:
    """The table of one tolerated loss over all splits, at home and with the same thresholds at other sites."""
    if loss == "drg":
        away = {name: coded for name, coded in away.items() if coded.stays}
    losses = home.losses(loss, bound)
    there = {name: coded.losses(loss, bound) for name, coded in away.items()}
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in ("home", *away)}
    settings = {"bound": bound, "binary": loss != "errors", "delta": DELTA}
    exact = 0
    for seed in range(SPLITS):
        first, second = halves(len(losses), seed)
        drawn = np.random.default_rng([seed, 2]).integers(len(losses), size=len(first))
        found = control_risk(home.confidence[drawn], losses[drawn], tolerated, **settings, seed=seed)
        exact += passing_loss(home, losses, found.threshold, np.arange(len(losses)))[0] <= tolerated
        found = control_risk(home.confidence[first], losses[first], tolerated, **settings, seed=seed)
        rows["home"].append(passing_loss(home, losses, found.threshold, second))
        for name, coded in away.items():
            everything = np.arange(len(coded.final))
            rows[name].append(passing_loss(coded, there[name], found.threshold, everything))
    table: dict[str, Any] = {"loss": loss, "bound": bound, "tolerated": tolerated, "all_notes": float(losses.mean())}
    table["held_exactly"] = exact / SPLITS
    for name, pairs in rows.items():
        realised, share = np.array(pairs).T
        some = share > 0
        table[name] = {
            "held": float((realised <= tolerated).mean()),
            "realised": float(realised[some].mean()) if some.any() else None,
            "share": float(share.mean()),
            "splits_where_some_pass": float(some.mean()),
        }
    return table


def first_alarm(reference: np.ndarray, stream: np.ndarray, rate: float, seed: int) -> int | None:
    """The number of the note that raises the alarm; None if none does."""
    monitor = DriftMonitor(reference, rate=rate, seed=seed)
    next((value for value in stream[:STREAM] if monitor.add(value)), None)
    return monitor.alarm_at


def alarms(home: Coded, away: dict[str, Coded]) -> list[dict[str, Any]]:
    """The share of splits with an alarm and the median notes until it, by monitored number, at home and elsewhere."""
    found: dict[tuple[str, str], list[int | None]] = {}
    ours, theirs = home.monitored(), {name: coded.monitored() for name, coded in away.items()}
    for seed in range(SPLITS):
        first, second = halves(len(home.final), seed)
        for what, values in ours.items():
            rate = RATE / len(DRIFT_FEATURES) if what == "workbench" else RATE
            streams = {"home": values[:, second]}
            for name, other in theirs.items():
                streams[name] = np.random.default_rng([seed, 3]).permutation(other[what], axis=1)
            for name, stream in streams.items():
                at = [first_alarm(*rows, rate, seed) for rows in zip(values[:, first], stream, strict=True)]
                found.setdefault((what, name), []).append(min((it for it in at if it is not None), default=None))
    return [
        {
            "monitored": what,
            "site": name,
            "alarm": float(np.mean([at is not None for at in delays])),
            "median_notes": float(np.median([at for at in delays if at is not None])) if any(delays) else None,
        }
        for (what, name), delays in found.items()
    ]


def hospital(patients: int, elsewhere: Sequence[Note]) -> dict[str, Any]:
    """The tables of the simulated hospital; elsewhere: notes of another corpus that its coder codes as well."""
    notes = [note for note in simulate_notes(patients, 0, years=YEARS) if note.codes]
    ours = [note for note in notes if note.site == SITE]
    learned = ours[:TRAIN]
    counts = Counter(code for note in learned for code in note.codes)
    wanted = {code for code, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:FREQUENT]}
    patients_seen = {note.patient for note in learned}
    known = {word for note in learned for word in words_of(note.text)}
    bundle = fit(replace(_only(note, wanted), split="train") for note in learned)
    held: dict[str, Note] = {}
    for note in notes:  # one note of a patient: notes of the same patient are not independent
        if note.patient not in patients_seen:
            held.setdefault(note.patient, _only(note, wanted))
    by_site: dict[str, list[Note]] = {}
    for note in held.values():
        by_site.setdefault(note.site or "", []).append(note)
    if elsewhere:
        by_site["codiesp"] = [_only(note, wanted) for note in elsewhere]
    known_stays = stays(patients)
    coded = {
        site: code(bundle, part, known, None if site == "codiesp" else known_stays)
        for site, part in sorted(by_site.items())
    }
    home = coded.pop(SITE)
    return {
        "train_notes": len(learned),
        "held_out": {SITE: len(home.final)} | {name: len(other.final) for name, other in coded.items()},
        "risk": [resplit(home, *row, coded) for row in SIMULATED],
        "alarms": alarms(home, coded),
    }


def codiesp(learned: Sequence[Note], held: Sequence[Note]) -> dict[str, Any]:
    """The tables of CodiEsp English dev."""
    bundle = fit(learned, ["labels.systems=['icd10cm']"])
    held = [_only(note, {c for c in note.codes if c.system == "icd10cm"}) for note in held]
    home = code(bundle, held, {word for note in learned for word in words_of(note.text)})
    return {
        "train_notes": len(learned),
        "held_out": {"dev": len(held)},
        "risk": [resplit(home, *row, {}) for row in CODIESP],
        "alarms": alarms(home, {}),
    }


def _only(note: Note, codes: set[Code]) -> Note:
    return replace(note, codes=tuple(code for code in note.codes if code in codes), evidence=())


def show(title: str, table: dict[str, Any]) -> None:
    """Prints the tables of one corpus."""
    print(f"{title}: {table['train_notes']} train notes, held out {table['held_out']}")
    for row in table["risk"]:
        print(
            f"  {row['loss']} at most {row['tolerated']:g} (bound {row['bound']:g}; all notes {row['all_notes']:.2f})"
        )
        print(f"    held exactly {row['held_exactly']:.2f}")
        for name, part in row.items():
            if isinstance(part, dict):
                loss = "-" if part["realised"] is None else f"{part['realised']:.2f}"
                print(f"    {name:14} held {part['held']:.2f}  realised {loss}  share {part['share']:.2f}", end="")
                print(f"  some pass in {part['splits_where_some_pass']:.2f}")
    for row in table["alarms"]:
        print(f"  {row['monitored']:18} {row['site']:14} alarm {row['alarm']:.2f}  median note {row['median_notes']}")


def main() -> None:
    """Prints the tables and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codiesp", type=Path, help="a folder with CodiEsp; left out by default")
    parser.add_argument("--patients", type=int, default=30_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    learned, dev = [], []
    if arguments.codiesp:
        learned, dev = (list(read_notes(arguments.codiesp / f"codiesp_en_{s}.jsonl")) for s in ("train", "dev"))
    tables = {"simulated": hospital(arguments.patients, dev)}
    show("simulated hospital", tables["simulated"])
    write_json(arguments.out, tables)
    if dev:
        tables["codiesp"] = codiesp(learned, dev)
        show("CodiEsp English", tables["codiesp"])
        write_json(arguments.out, tables)
    print(f"CPU seconds {time.process_time():.0f}")


if __name__ == "__main__":
    main()
