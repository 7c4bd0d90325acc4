"""What privacy costs a federation: python benchmarks/quality/privacy.py --cache FOLDER [--patients 5000]

A simulated hospital of 2016 to 2019, divided by patient (70/10/20) and partitioned into iid sites. The vectors are
latent semantic ones (TF-IDF, SVD with 256 dimensions) fitted on other patients, so that one core is enough. Rows of the
large head and of private notes use the Flower engine of `nosology federate simulate`. Rows of many sites use
`VectorizedSites`; their updates are clipped and noised by the function of the server. Micro F1 is on test notes, with
the threshold of dev notes.

`noise / update`: the norm of the noise on the mean, divided by the largest possible norm of the mean. Above 1 most of
the update is noise.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from nosology.config import load_recipe
from nosology.core import Code
from nosology.core.files import write_json
from nosology.core.label_space import LabelSpace
from nosology.corpora.simulate import simulate_notes
from nosology.federated.privacy.dp_sgd import PrivacyAccountant, noise_for_epsilon
from nosology.federated.privacy.site_noise import noisy_mean, secure_normal
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.federation_setup import embedder_key
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.federated.rounds.local_training import loop_settings, round_epochs
from nosology.federated.rounds.messages import Arrays
from nosology.federated.rounds.simulation import simulation_grid
from nosology.federated.rounds.vectorized import VectorizedSites
from nosology.models.heads.feature_statistics import FeatureStatistics
from nosology.models.heads.heads_net import CodedVectors, HeadNet, VectorNotes, build_head, make_vector_notes

RESULT = Path(__file__).parents[1] / "results" / "quality_privacy.json"
DIM, SPLITS = 256, {"train": 0.7, "dev": 0.1, "test": 0.2}
SITE_DELTA, NOTE_DELTA = 1e-3, 1e-5


@dataclass(frozen=True)
class Notes:
    """Vectors (N, D), codes and split of each note; no patient is in two splits."""

    vectors: np.ndarray
    codes: list[tuple[Code, ...]]
    split: np.ndarray  # (N,) of names

    def with_frequent_codes(self, limit: int) -> Notes:
        """The same notes with only the most frequent codes of train."""
        counts: dict[Code, int] = {}
        for codes, split in zip(self.codes, self.split):
            for code in codes if split == "train" else ():
                counts[code] = counts.get(code, 0) + 1
        frequent = set(sorted(counts, key=lambda code: (-counts[code], code))[:limit])
        return Notes(self.vectors, [tuple(c for c in codes if c in frequent) for codes in self.codes], self.split)

    def partition(self, sites: int) -> list[HeadsSite]:
        """The notes at a number of iid sites."""
        place = np.random.default_rng(0).permutation(len(self.codes)) % sites
        hospitals = []
        for number in range(sites):
            parts = {}
            for split in SPLITS:
                rows = np.flatnonzero((place == number) & (self.split == split))
                parts[split] = CodedVectors(self.vectors[rows], [self.codes[row] for row in rows])
            identity = {"model": "lsa", "dim": self.vectors.shape[1]}
            hospitals.append(
                HeadsSite(f"site-{number:04}", identity, embedder_key(identity), parts, device=torch.device("cpu"))
            )
        return [site for site in hospitals if len(site.notes["train"].codes)]


def load_notes(patients: int, cache: Path) -> Notes:
    """The notes of a simulated hospital, with vectors, cached in a file."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    place = cache / f"privacy_{patients}.npz"
    if not place.exists():
        notes = [note for note in simulate_notes(patients, 2, years=(2016, 2019)) if note.codes]
        others = [note.text for note in simulate_notes(1000, 3, years=(2016, 2019))]
        vectorizer = make_pipeline(
            TfidfVectorizer(sublinear_tf=True, min_df=3, max_features=20_000), TruncatedSVD(DIM, random_state=0)
        ).fit(others)
        vectors = vectorizer.transform([note.text for note in notes]).astype(np.float32)
        order = np.random.default_rng(2).permutation(sorted({note.patient for note in notes})).tolist()
        rank = {patient: i / len(order) for i, patient in enumerate(order)}
        split = ["train" if (r := rank[note.patient]) < 0.7 else "dev" if r < 0.8 else "test" for note in notes]
        codes = [" ".join(c.code for c in note.codes if c.system == "icd10cm") for note in notes]
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(place, vectors=vectors, split=np.array(split), codes=np.array(codes))
    saved = np.load(place)
    codes = [tuple(Code("icd10cm", code) for code in line.split()) for line in saved["codes"].tolist()]
    return Notes(saved["vectors"], codes, saved["split"])


@dataclass
class Table:
    """The rows of the result."""

    folder: Path
    rows: dict[str, dict] = field(default_factory=dict)

    def run(
        self, name: str, notes: Notes, sites: int, settings: list[str], epsilon: float = 0, level: str = ""
    ) -> dict:
        """One federation; level: what epsilon protects, note or site."""
        quorum = max(3, sites // 2)
        common = [f"federation.min_sites={quorum}", f"federation.quorum={quorum}", "federation.min_site_notes=1"]
        common += ["federation.min_notes=1", "federation.evaluate_every=1000", "model.norm='layer'"]
        recipe = load_recipe("heads-mlp", [*common, *settings])
        hospitals = notes.partition(sites)
        rounds, privacy = recipe.federation.rounds, recipe.federation.privacy
        row = {"sites": len(hospitals), "rounds": rounds}
        if level == "note":
            smallest = min(len(site.notes["train"].codes) for site in hospitals)
            steps = math.ceil(smallest / recipe.training.batch)
            noise = noise_for_epsilon(epsilon, NOTE_DELTA, 1 / steps, steps * rounds * recipe.federation.local_epochs)
            update = {"record_noise": noise, "delta": NOTE_DELTA}
        elif level == "site":
            update = {"site_noise": noise_for_epsilon(epsilon, SITE_DELTA, 1.0, rounds), "delta": SITE_DELTA}
        else:
            update = {}
        privacy = privacy.model_copy(update=update)
        federation = recipe.federation.model_copy(update={"privacy": privacy})
        recipe = recipe.model_copy(update={"federation": federation})
        started = time.process_time()
        result = FlowerFederation(simulation_grid(hospitals), recipe).run(self.folder / str(len(self.rows)))
        row["CPU seconds"] = round(time.process_time() - started, 1)
        net = result.bundle.model.net
        row["parameters"] = sum(p.numel() for p in net.parameters())
        row["codes"] = len(result.bundle.model.labels)
        row["micro F1"] = result.bundle.provenance["found"]["test"]["micro_f1"]
        row["epsilon of a site"], row["epsilon of a note"] = (
            result.history[-1][key] for key in ("epsilon", "record_epsilon")
        )
        row["noise"] = update.get("site_noise") or update.get("record_noise")
        if level == "site":
            row["noise / update"] = row["noise"] * math.sqrt(row["parameters"]) / len(hospitals)
        self.add(name, row)
        return row

    def add(self, name: str, row: dict) -> None:
        """Adds a row and prints it."""
        self.rows[name] = row
        print(f"{name:60}" + "".join(f"  {k} {_short(v)}" for k, v in row.items()), flush=True)


def _short(value: float | int | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Prints the rows and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cache", type=Path, required=True, help="a folder for the notes' vectors; reused by later runs"
    )
    parser.add_argument("--patients", type=int, default=5000)
    parser.add_argument("--parts", nargs="+", default=["small", "large"], choices=["small", "large"])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    notes = load_notes(options.patients, options.cache)
    parts = {"small": (small, notes.with_frequent_codes(20)), "large": (large, notes.with_frequent_codes(1000))}
    about = {"patients": options.patients, "notes": len(notes.codes), "delta": {"note": NOTE_DELTA, "site": SITE_DELTA}}
    with tempfile.TemporaryDirectory() as folder:
        table = Table(Path(folder))
        for part, part_notes in (parts[name] for name in options.parts):
            part(table, part_notes)
            before = json.loads(options.out.read_text())["rows"] if options.out.exists() else {}
            write_json(options.out, about | {"rows": before | table.rows})


def large(table: Table, notes: Notes) -> None:
    """A head of the size of Xu and Dray (2025) at 20 sites."""
    row = ["model.widths=[1152]", "federation.rounds=5", "federation.local_epochs=2", "training.learning_rate=0.002"]
    table.run("large head, no privacy", notes, 20, row)
    table.run("large head, secure sums", notes, 20, [*row, "federation.privacy.secure=true"])
    clip = [*row, "federation.privacy.site_clip=10.0"]  # about half of the norm of updates
    table.run("large head, clipped sites", notes, 20, clip)
    table.run("large head, private sites, epsilon 8", notes, 20, clip, 8, "site")
    clip = [*row, "federation.privacy.record_clip=0.02"]  # median gradient norm of notes after the first round
    for epsilon in (8, 3, 1):
        table.run(f"large head, private notes, epsilon {epsilon}", notes, 20, clip, epsilon, "note")


SMALL = ["model.widths=[8]", "model.dropout=0.0", "training.schedule='constant'", "training.learning_rate=0.05"]
SMALL_ROUNDS, SMALL_EPOCHS, SMALL_CLIP = 40, 2, 1.0


def small(table: Table, notes: Notes) -> None:
    """A head of a few thousand weights over the 20 most frequent codes."""
    for sites in (20, 200, 1000):
        vectorized = VectorizedSmall(notes, sites)
        for name, clip, epsilon in (
            ("no privacy", 0.0, 0),
            ("clipped sites", SMALL_CLIP, 0),
            ("private sites, epsilon 8", SMALL_CLIP, 8),
            ("private sites, epsilon 3", SMALL_CLIP, 3),
            ("private sites, epsilon 1", SMALL_CLIP, 1),
        ):
            table.add(f"small head, {sites} sites, {name}", vectorized.run(clip, epsilon))
    row = [*SMALL, f"federation.rounds={SMALL_ROUNDS}", f"federation.local_epochs={SMALL_EPOCHS}"]
    clip = [*row, "federation.privacy.record_clip=0.2"]
    for epsilon in (8, 3, 1):
        table.run(f"small head, 20 sites, private notes, epsilon {epsilon}", notes, 20, clip, epsilon, "note")


class VectorizedSmall:
    """Many sites trained with `VectorizedSites`; updates are clipped and noised as by the server."""

    def __init__(self, notes: Notes, sites: int):
        rounds = [f"federation.rounds={SMALL_ROUNDS}", f"federation.local_epochs={SMALL_EPOCHS}"]
        self.recipe = load_recipe("heads-mlp", [*SMALL, *rounds])
        self.settings = loop_settings(self.recipe)
        train = notes.split == "train"
        self.labels = LabelSpace(sorted({code for codes in notes.codes for code in codes}))
        self.notes = {
            split: make_vector_notes(
                notes.vectors[notes.split == split],
                [codes for codes, note_split in zip(notes.codes, notes.split) if note_split == split],
                FeatureStatistics.of(notes.vectors[train]).scaler(),
                self.labels,
            )
            for split in SPLITS
        }
        place = np.random.default_rng(0).permutation(int(train.sum())) % sites
        train_notes = self.notes["train"]
        site_rows = [np.flatnonzero(place == number) for number in range(sites)]
        groups: dict[int, list[VectorNotes]] = {}
        for rows in site_rows:
            steps = math.ceil(len(rows) / self.settings.batch)
            groups.setdefault(steps, []).append(VectorNotes(train_notes.vectors[rows], train_notes.targets[rows]))
        self.groups = [VectorizedSites(group, self.settings, 0) for group in groups.values()]
        self.sites = sites

    def run(self, clip: float, epsilon: float) -> dict:
        """A row; epsilon of a site, 0 for no noise."""
        noise = noise_for_epsilon(epsilon, SITE_DELTA, 1.0, SMALL_ROUNDS) if epsilon else 0.0
        net = build_head(self.recipe.model, DIM, len(self.labels), 0)
        weights = {name: value.numpy().copy() for name, value in net.state_dict().items()}
        started, accountant, draw = time.process_time(), PrivacyAccountant(), secure_normal()
        for number in range(1, SMALL_ROUNDS + 1):
            updates = [update for group in self.groups for update in self._updates(net, weights, group, number)]
            mean = noisy_mean(updates, clip or math.inf, noise, draw)
            weights = {name: (first + mean[name]).astype(np.float32) for name, first in weights.items()}
            if noise:
                accountant.add(noise, 1.0)
        net.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        size = sum(value.size for value in weights.values())
        return {
            "sites": self.sites,
            "rounds": SMALL_ROUNDS,
            "CPU seconds": round(time.process_time() - started, 1),
            "parameters": size,
            "codes": len(self.labels),
            "micro F1": self._micro_f1(net),
            "epsilon of a site": accountant.epsilon(SITE_DELTA) if noise else None,
            "epsilon of a note": None,
            "noise": noise or None,
            "noise / update": noise * math.sqrt(size) / self.sites if noise else None,
        }

    def _updates(self, net: HeadNet, weights: Arrays, group: VectorizedSites, number: int) -> list[Arrays]:
        count = len(group.plans)
        stack = {name: torch.from_numpy(value).expand(count, *value.shape).clone() for name, value in weights.items()}
        group.train(net, stack, round_epochs(self.recipe.federation, number))
        added = {name: value.detach().numpy().astype(np.float64) - weights[name] for name, value in stack.items()}
        return [{name: value[site] for name, value in added.items()} for site in range(count)]

    def _micro_f1(self, net: HeadNet) -> float:
        """Micro F1 on test, at the best threshold of dev."""
        net.eval()
        with torch.no_grad():
            dev, test = (net.logits(self.notes[split].vectors).numpy() for split in ("dev", "test"))
        true = {split: self.notes[split].targets.numpy().astype(bool) for split in ("dev", "test")}
        thresholds = np.unique(np.quantile(dev, np.linspace(0, 1, 400)))
        best = max(thresholds, key=lambda threshold: _f1(dev >= threshold, true["dev"]))
        return _f1(test >= best, true["test"])


def _f1(named: np.ndarray, true: np.ndarray) -> float:
    return float(2 * (named & true).sum() / max(1, named.sum() + true.sum()))


if __name__ == "__main__":
    main()
