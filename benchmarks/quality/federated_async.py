"""Synchronous against asynchronous rounds: python benchmarks/quality/federated_async.py --patients N

A simulated hospital of 2016 to 2019, divided by patient (70/10/20), at five iid sites; the third is four times slower.
A head learns from hashed words (hashed_sites.py). On a virtual clock a site needs one unit of time for an update, the
slow one four. After each round the weights are evaluated on the dev notes of all sites (micro F1 at the best
threshold), which takes no time. The rows are synchronous rounds, which wait for all sites, as many asynchronous rounds
with a buffer of four, and twice as many. Columns: the score of the last round, its time, and the time at which a run
first has the last score of the synchronous run. The table has means over seeds.

With --deployed, server and sites are processes of their own that talk over TLS, and the clock is real. A site sleeps
--seconds per update, the slow one four times as long; the training itself takes far less. One seed; the score is that
of the last round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from federated import add_rows
from federated_nets import build_corpus
from hashed_sites import hash_notes, hashed_sites

from nosology.config import load_recipe
from nosology.core.note import Note
from nosology.corpora.corpus import Corpus
from nosology.federated.deploy.credentials import create_server_credentials, create_site_key
from nosology.federated.deploy.deploy_site import SiteCredentials, serve_site
from nosology.federated.deploy.flower_process import free_port, wait_until
from nosology.federated.deploy.superlink import follow_run
from nosology.federated.federation_settings import FederatedRecipe
from nosology.federated.rounds.client_app import make_app
from nosology.federated.rounds.federation_modes import make_federation
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.federated.rounds.learner import LocalSite
from nosology.federated.rounds.simulation import partition_sites, simulation_grid
from nosology.federated.rounds.virtual_clock import VirtualClockGrid

RESULT = Path(__file__).parents[1] / "results" / "quality_federated_async.json"
SITES, SLOWNESS = 5, 4.0
MODES = {  # settings, and rounds as a multiple of --rounds
    "synchronous": ([], 1),
    "asynchronous": (["federation.mode=async", "federation.buffer_size=4"], 1),
    "asynchronous, twice the rounds": (["federation.mode=async", "federation.buffer_size=4"], 2),
}
START = 180  # seconds for processes to start


def federated_recipe(options: argparse.Namespace, mode: str, seed: int) -> FederatedRecipe:
    """The recipe of a row."""
    changed, multiple = MODES[mode]
    common = [f"seed={seed}", f"federation.rounds={multiple * options.rounds}", *options.settings, *changed]
    common += [f"federation.{name}=1" for name in ("min_site_notes", "min_notes")]
    return load_recipe(options.recipe, [*common, *(f"federation.{name}={SITES}" for name in ("min_sites", "quorum"))])


def run_virtual(sites: Sequence[LocalSite], recipe: FederatedRecipe, out: Path) -> list[tuple[float, float]]:
    """(virtual time, dev micro F1) of each round."""
    names = sorted(site.name for site in sites)
    times = dict.fromkeys(names, 1.0) | {names[2]: SLOWNESS}
    grid = VirtualClockGrid(simulation_grid(sites).app, names, times.__getitem__)
    curve: list[tuple[float, float]] = []

    class Curve(type(make_federation(grid, recipe))):
        """The federation of the mode, which measures the weights of each round."""

        def train(self, number):
            weights, row = super().train(number)
            counts = [site.evaluate(weights, recipe, "dev") for site in sites]
            curve.append((grid.now(), sum(counts[1:], counts[0]).best_f1 or 0.0))
            return weights, row

    Curve(grid, recipe).run(out)
    return curve


def virtual_rows(corpus: Corpus, options: argparse.Namespace, folder: Path) -> dict[str, dict]:
    """The rows on the virtual clock, means over seeds."""
    notes = list(corpus.notes())
    vectors = hash_notes(notes)
    runs: dict[str, list[dict]] = {mode: [] for mode in options.modes}
    for seed in range(options.seeds):
        names = partition_sites([corpus], SITES, "iid", 1.0, seed)
        goal = None
        for mode in sorted(options.modes, key=list(MODES).index):  # the synchronous rounds first
            recipe = federated_recipe(options, mode, seed)
            sites = hashed_sites(notes, vectors, names)
            curve = run_virtual(sites, recipe, folder / f"{seed} {mode}")
            goal = curve[-1][1] if mode == "synchronous" else goal
            reached = next((moment for moment, score in curve if goal is not None and score >= goal), None)
            runs[mode].append({"score": curve[-1][1], "end": curve[-1][0], "reached": reached, "curve": curve})
            shown = {name: value for name, value in runs[mode][-1].items() if name != "curve"}
            print(f"seed {seed}  {mode:30}", json.dumps(shown), flush=True)
    return {mode: summarize(rows) for mode, rows in runs.items()}


def summarize(rows: list[dict]) -> dict:
    """The means of the rows of a mode; `reached` is None if a run has not reached the score."""
    reached = [row["reached"] for row in rows]
    mean = None if None in reached else float(np.mean(reached))
    means = {name: float(np.mean([row[name] for row in rows])) for name in ("score", "end")}
    return means | {"reached": mean, "by_seed": rows}


def make_sites(corpus: Corpus, seed: int) -> list[HeadsSite]:
    """The five iid sites of a corpus."""
    notes: list[Note] = list(corpus.notes())
    return hashed_sites(notes, hash_notes(notes), partition_sites([corpus], SITES, "iid", 1.0, seed))


def serve_slowly(options: argparse.Namespace) -> None:
    """A site in this process that sleeps when it trains; ends with its parent, which kills it."""

    torch.set_num_threads(1)
    folder = Path(options.serve)
    name, corpus = folder.name, Corpus.open(folder.parent / "corpus")
    site = next(site for site in make_sites(corpus, seed=0) if site.name == name)
    quick = make_app(lambda context, recipe: site)

    def app(message, context):
        reply = quick(message, context)
        if message.metadata.message_type == "train":
            time.sleep(options.seconds)
        return reply

    credentials = SiteCredentials(name, options.server, folder.parent / "root.pem", folder / f"{name}.key")
    serve_site(credentials, app, {"site-name": name}, folder / "site.log", lambda line: print(line, flush=True))


def deployed_rows(corpus: Corpus, options: argparse.Namespace, folder: Path) -> dict[str, dict]:
    """Seconds per round and the dev score of real processes."""
    port, names = free_port(), sorted(set(partition_sites([corpus], SITES, "iid", 1.0, 0).values()))
    credentials = create_server_credentials(folder / "credentials", ["localhost"])
    (folder / "root.pem").write_bytes(credentials.root.read_bytes())
    (folder / "keys").mkdir()
    programs: list[subprocess.Popen] = []
    for name in names:
        create_site_key(folder / name, name)
        (folder / name / f"{name}.pub").rename(folder / "keys" / f"{name}.pub")
    command = [sys.executable, "-m", "nosology", "federate", "server", "--certificates", str(credentials.folder)]
    command += ["--sites", str(folder / "keys"), "--out", str(folder / "state"), "--port", str(port)]
    try:
        programs.append(start([*command, "--listen", "127.0.0.1"], folder / "server.out", "listening on"))
        for index, name in enumerate(names):
            seconds = options.seconds * (SLOWNESS if index == 2 else 1.0)
            command = [sys.executable, __file__, "--serve", str(folder / name), "--server", f"localhost:{port}"]
            command += ["--seconds", str(seconds), "--patients", "0"]
            programs.append(start(command, folder / f"{name}.out", "connected to"))
        rows = {}
        for mode in options.modes:
            rows[mode] = deployed_row(federated_recipe(options, mode, 0), port, credentials.root, folder / mode)
            print(f"deployed  {mode:30}", json.dumps(rows[mode]), flush=True)
        return rows
    finally:
        for program in reversed(programs):
            program.terminate()
        for program in programs:
            program.wait()


def start(command: list[str], log: Path, ready: str) -> subprocess.Popen:
    """A process, once its output has a text."""
    with log.open("w") as file:
        program = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    if not wait_until(lambda: ready in log.read_text() or program.poll() is not None, START) or program.poll():
        program.kill()
        raise SystemExit(f"{command[1:4]} did not start: {log.read_text()[-500:]}")
    return program


def deployed_row(recipe: FederatedRecipe, port: int, root: Path, out: Path) -> dict:
    """A run of the deployed federation: seconds to the last round, and its dev score."""
    config = {"recipe": recipe.model_dump_json(), "out": str(out)}
    follow_run(f"localhost:{port}", root, config, lambda line: None)
    history = (out / "history.csv").read_text().splitlines()
    column = history[0].split(",").index("seconds")
    seconds = [float(row.split(",")[column]) for row in history[1:]]
    score = json.loads((out / "bundle.json").read_text())["provenance"]["found"]["dev_micro_f1"]
    return {"score": score, "rounds": len(seconds), "end": sum(seconds), "per_round": float(np.median(seconds))}


def main() -> None:
    """Prints the table and adds it to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patients", type=int, required=True)
    parser.add_argument("--most", type=int, default=50, help="codes, those of most train notes; 0: all")
    parser.add_argument("--recipe", default="heads-mlp", help="of kind heads")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--deployed", action="store_true", help="real processes and a real clock")
    parser.add_argument("--seconds", type=float, default=2.0, help="with --deployed: that an update takes")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # the folder of a site, in a process of its own
    parser.add_argument("--server", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve_slowly(options)
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        corpus = build_corpus(options.patients, options.most, Path(name) / "corpus")
        rows = (deployed_rows if options.deployed else virtual_rows)(corpus, options, Path(name))
        notes = len(corpus)
    about = {"recipe": options.recipe, "settings": options.settings, "notes": notes, "codes": options.most}
    about |= {"sites": SITES, "slowness": SLOWNESS, "rounds": options.rounds}
    about |= {"seconds": options.seconds} if options.deployed else {"seeds": options.seeds}
    key = f"{options.recipe}, {options.patients} patients, {'real processes' if options.deployed else 'virtual clock'}"
    add_rows(options.out, key, about, rows)


if __name__ == "__main__":
    main()
