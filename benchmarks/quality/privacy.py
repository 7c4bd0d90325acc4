"""What privacy costs a federation: python benchmarks/quality/privacy.py --cache FOLDER [--patients 5000]

A simulated hospital of 2016 to 2019, divided by patient (70/10/20) and dealt out to sites that are alike. So that the
table can be had on one core, the vectors are not an embedder's but latent semantic ones (TF-IDF, 256 dimensions),
fitted on other patients: a frozen embedder all the same. Rows of the large head and of private notes are federations
through the same program as `nosology federate simulate`; those of many sites are trained as one program
(`training/stacked.py`), and their updates clipped and noised by the server's own function. Micro F1 is on test notes,
the threshold from dev notes.

`noise / update`: the norm of the noise on the mean, divided by the largest norm that the mean itself can have: above 1
the noise is the greater part of what is added to the weights.
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
from nosology.federated.privacy.dp_sgd import Ledger, noise_for
from nosology.federated.privacy.site_noise import fresh_normal, noisy_mean
from nosology.federated.rounds.agreement import key_of
from nosology.federated.rounds.federation_server import run_federation
from nosology.federated.rounds.hospital_site import Site, epochs_of, loop_settings
from nosology.federated.rounds.records import Arrays
from nosology.federated.rounds.simulation import grid_of
from nosology.federated.rounds.stacked_training import StackedSites
from nosology.models.heads.coded_vectors import CodedVectors, new_head, vector_notes
from nosology.models.heads.feature_statistics import Moments
from nosology.models.heads.heads_net import HeadNet
from nosology.models.heads.vector_loop import VectorNotes

RESULT = Path(__file__).parents[1] / "results" / "quality_privacy.json"
DIM, SPLITS = 256, {"train": 0.7, "dev": 0.1, "test": 0.2}
SITE_DELTA, NOTE_DELTA = 1e-3, 1e-5


@dataclass(frozen=True)
class Notes:
    """Vectors (N, D), codes and split of each note; no patient is in two splits."""

    vectors: np.ndarray
    codes: list[tuple[Code, ...]]
    split: np.ndarray  # (N,) of names

    def of_codes(self, most: int) -> Notes:
        """The same notes with only the most frequent codes of train."""
        counts: dict[Code, int] = {}
        for codes, split in zip(self.codes, self.split):
            for code in codes if split == "train" else ():
                counts[code] = counts.get(code, 0) + 1
        kept = set(sorted(counts, key=lambda code: (-counts[code], code))[:most])
        return Notes(self.vectors, [tuple(c for c in codes if c in kept) for codes in self.codes], self.split)

    def dealt(self, sites: int) -> list[Site]:
        """The notes at so many sites that are alike."""
        place = np.random.default_rng(0).permutation(len(self.codes)) % sites
        found = []
        for number in range(sites):
            parts = {}
            for split in SPLITS:
                rows = np.flatnonzero((place == number) & (self.split == split))
                parts[split] = CodedVectors(self.vectors[rows], [self.codes[row] for row in rows])
            identity = {"model": "lsa", "dim": self.vectors.shape[1]}
            found.append(Site(f"site-{number:04}", identity, key_of(identity), parts, device=torch.device("cpu")))
        return [site for site in found if len(site.notes["train"].codes)]


def made(patients: int, cache: Path) -> Notes:
    """The notes of a simulated hospital, with vectors; kept in the cache."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    place = cache / f"privacy_{patients}.npz"
    if not place.exists():
        notes = [note for note in simulate_notes(patients, 2, years=(2016, 2019)) if note.codes]
        others = [note.text for note in simulate_notes(1000, 3, years=(2016, 2019))]
        reader = make_pipeline(
            TfidfVectorizer(sublinear_tf=True, min_df=3, max_features=20_000), TruncatedSVD(DIM, random_state=0)
        ).fit(others)
        vectors = reader.transform([note.text for note in notes]).astype(np.float32)
        order = np.random.default_rng(2).permutation(sorted({note.patient for note in notes})).tolist()
        rank = {patient: i / len(order) for i, patient in enumerate(order)}
        split = ["train" if (r := rank[note.patient]) < 0.7 else "dev" if r < 0.8 else "test" for note in notes]
        codes = [" ".join(c.code for c in note.codes if c.system == "icd10cm") for note in notes]
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(place, vectors=vectors, split=np.array(split), codes=np.array(codes))
    kept = np.load(place)  # arrays of numbers and text alone: allow_pickle is off
    codes = [tuple(Code("icd10cm", code) for code in line.split()) for line in kept["codes"].tolist()]
    return Notes(kept["vectors"], codes, kept["split"])


@dataclass
class Table:
    """The rows as they come."""

    folder: Path
    rows: dict[str, dict] = field(default_factory=dict)

    def run(
        self, name: str, notes: Notes, sites: int, settings: list[str], epsilon: float = 0, level: str = ""
    ) -> dict:
        """One federation; level: whose privacy epsilon is of, note or site."""
        quorum = max(3, sites // 2)
        common = [f"federation.min_sites={quorum}", f"federation.quorum={quorum}", "federation.min_site_notes=1"]
        common += ["federation.min_notes=1", "federation.evaluate_every=1000", "model.norm='layer'"]
        recipe = load_recipe("heads-mlp", [*common, *settings])
        hospitals = notes.dealt(sites)
        rounds, privacy = recipe.federation.rounds, recipe.federation.privacy
        told = {"sites": len(hospitals), "rounds": rounds}
        if level == "note":
            least = min(len(site.notes["train"].codes) for site in hospitals)
            steps = math.ceil(least / recipe.training.batch)
            noise = noise_for(epsilon, NOTE_DELTA, 1 / steps, steps * rounds * recipe.federation.local_epochs)
            update = {"record_noise": noise, "delta": NOTE_DELTA}
        elif level == "site":
            update = {"site_noise": noise_for(epsilon, SITE_DELTA, 1.0, rounds), "delta": SITE_DELTA}
        else:
            update = {}
        privacy = privacy.model_copy(update=update)
        federation = recipe.federation.model_copy(update={"privacy": privacy})
        recipe = recipe.model_copy(update={"federation": federation})
        started = time.process_time()
        found = run_federation(grid_of(hospitals), recipe, self.folder / str(len(self.rows)))
        told["CPU seconds"] = round(time.process_time() - started, 1)
        net = found.bundle.model.net
        told["parameters"] = sum(p.numel() for p in net.parameters())
        told["codes"] = len(found.bundle.model.labels)
        told["micro F1"] = found.bundle.provenance["found"]["test"]["micro_f1"]
        told["epsilon of a site"], told["epsilon of a note"] = (
            found.history[-1][key] for key in ("epsilon", "record_epsilon")
        )
        told["noise"] = update.get("site_noise") or update.get("record_noise")
        if level == "site":
            told["noise / update"] = told["noise"] * math.sqrt(told["parameters"]) / len(hospitals)
        self.add(name, told)
        return told

    def add(self, name: str, told: dict) -> None:
        """Takes a row and prints it."""
        self.rows[name] = told
        print(f"{name:60}" + "".join(f"  {k} {_short(v)}" for k, v in told.items()), flush=True)


def _short(value: float | int | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Prints the rows and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="a folder for the notes' vectors; kept")
    parser.add_argument("--patients", type=int, default=5000)
    parser.add_argument("--parts", nargs="+", default=["small", "large"], choices=["small", "large"])
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    notes = made(asked.patients, asked.cache)
    parts = {"small": (small, notes.of_codes(20)), "large": (large, notes.of_codes(1000))}
    about = {"patients": asked.patients, "notes": len(notes.codes), "delta": {"note": NOTE_DELTA, "site": SITE_DELTA}}
    with tempfile.TemporaryDirectory() as folder:
        table = Table(Path(folder))
        for part, own in (parts[name] for name in asked.parts):
            part(table, own)
            before = json.loads(asked.out.read_text())["rows"] if asked.out.exists() else {}
            write_json(asked.out, about | {"rows": before | table.rows})


def large(table: Table, notes: Notes) -> None:
    """A head of the paper's size at 20 sites."""
    told = ["model.widths=[1152]", "federation.rounds=5", "federation.local_epochs=2", "training.learning_rate=0.002"]
    table.run("large head, no privacy", notes, 20, told)
    table.run("large head, secure sums", notes, 20, [*told, "federation.privacy.secure=true"])
    clip = [*told, "federation.privacy.site_clip=10.0"]  # about half of the updates' norms
    table.run("large head, clipped sites", notes, 20, clip)
    table.run("large head, private sites, epsilon 8", notes, 20, clip, 8, "site")
    clip = [*told, "federation.privacy.record_clip=0.02"]  # the median of notes' gradients after the first round
    for epsilon in (8, 3, 1):
        table.run(f"large head, private notes, epsilon {epsilon}", notes, 20, clip, epsilon, "note")


SMALL = ["model.widths=[8]", "model.dropout=0.0", "training.schedule='constant'", "training.learning_rate=0.05"]
SMALL_ROUNDS, SMALL_EPOCHS, SMALL_CLIP = 40, 2, 1.0


def small(table: Table, notes: Notes) -> None:
    """A head of a few thousand weights over the 20 most frequent codes."""
    for sites in (20, 200, 1000):
        stacked = StackedSmall(notes, sites)
        for name, clip, epsilon in (
            ("no privacy", 0.0, 0),
            ("clipped sites", SMALL_CLIP, 0),
            ("private sites, epsilon 8", SMALL_CLIP, 8),
            ("private sites, epsilon 3", SMALL_CLIP, 3),
            ("private sites, epsilon 1", SMALL_CLIP, 1),
        ):
            table.add(f"small head, {sites} sites, {name}", stacked.run(clip, epsilon))
    told = [*SMALL, f"federation.rounds={SMALL_ROUNDS}", f"federation.local_epochs={SMALL_EPOCHS}"]
    clip = [*told, "federation.privacy.record_clip=0.2"]
    for epsilon in (8, 3, 1):
        table.run(f"small head, 20 sites, private notes, epsilon {epsilon}", notes, 20, clip, epsilon, "note")


class StackedSmall:
    """Many sites trained as one program (`training/stacked.py`), updates clipped and noised as the server does it."""

    def __init__(self, notes: Notes, sites: int):
        rounds = [f"federation.rounds={SMALL_ROUNDS}", f"federation.local_epochs={SMALL_EPOCHS}"]
        self.recipe = load_recipe("heads-mlp", [*SMALL, *rounds])
        self.settings = loop_settings(self.recipe)
        train = notes.split == "train"
        self.labels = LabelSpace(sorted({code for codes in notes.codes for code in codes}))
        self.notes = {
            split: vector_notes(
                notes.vectors[notes.split == split],
                [codes for codes, own in zip(notes.codes, notes.split) if own == split],
                Moments.of(notes.vectors[train]).scaler(),
                self.labels,
            )
            for split in SPLITS
        }
        place = np.random.default_rng(0).permutation(int(train.sum())) % sites
        every = self.notes["train"]
        own = [np.flatnonzero(place == number) for number in range(sites)]
        groups: dict[int, list[VectorNotes]] = {}
        for rows in own:
            steps = math.ceil(len(rows) / self.settings.batch)
            groups.setdefault(steps, []).append(VectorNotes(every.vectors[rows], every.targets[rows]))
        self.groups = [StackedSites(group, self.settings, 0) for group in groups.values()]
        self.sites = sites

    def run(self, clip: float, epsilon: float) -> dict:
        """A row; epsilon of a site, 0 for no noise."""
        noise = noise_for(epsilon, SITE_DELTA, 1.0, SMALL_ROUNDS) if epsilon else 0.0
        net = new_head(self.recipe.model, DIM, len(self.labels), 0)
        weights = {name: value.numpy().copy() for name, value in net.state_dict().items()}
        started, ledger, draw = time.process_time(), Ledger(), fresh_normal()
        for number in range(1, SMALL_ROUNDS + 1):
            updates = [update for group in self.groups for update in self._updates(net, weights, group, number)]
            mean = noisy_mean(updates, clip or math.inf, noise, draw)
            weights = {name: (first + mean[name]).astype(np.float32) for name, first in weights.items()}
            if noise:
                ledger.add(noise, 1.0)
        net.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        size = sum(value.size for value in weights.values())
        return {
            "sites": self.sites,
            "rounds": SMALL_ROUNDS,
            "CPU seconds": round(time.process_time() - started, 1),
            "parameters": size,
            "codes": len(self.labels),
            "micro F1": self._micro_f1(net),
            "epsilon of a site": ledger.epsilon(SITE_DELTA) if noise else None,
            "epsilon of a note": None,
            "noise": noise or None,
            "noise / update": noise * math.sqrt(size) / self.sites if noise else None,
        }

    def _updates(self, net: HeadNet, weights: Arrays, group: StackedSites, number: int) -> list[Arrays]:
        count = len(group.plans)
        stack = {name: torch.from_numpy(value).expand(count, *value.shape).clone() for name, value in weights.items()}
        group.train(net, stack, epochs_of(self.recipe.federation, number))
        added = {name: value.detach().numpy().astype(np.float64) - weights[name] for name, value in stack.items()}
        return [{name: value[site] for name, value in added.items()} for site in range(count)]

    def _micro_f1(self, net: HeadNet) -> float:
        """On test, at the logit that is best on dev."""
        net.eval()
        with torch.no_grad():
            dev, test = (net.logits(self.notes[split].vectors).numpy() for split in ("dev", "test"))
        true = {split: self.notes[split].targets.numpy().astype(bool) for split in ("dev", "test")}
        tried = np.unique(np.quantile(dev, np.linspace(0, 1, 400)))
        best = max(tried, key=lambda threshold: _f1(dev >= threshold, true["dev"]))
        return _f1(test >= best, true["test"])


def _f1(named: np.ndarray, true: np.ndarray) -> float:
    return float(2 * (named & true).sum() / max(1, named.sum() + true.sum()))


if __name__ == "__main__":
    main()
