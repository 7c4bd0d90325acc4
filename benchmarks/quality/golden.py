"""Check that a change to the code does not change scores.

    python benchmarks/quality/golden.py train BEFORE      # before the change
    python benchmarks/quality/golden.py train AFTER       # after it
    python benchmarks/quality/golden.py compare BEFORE AFTER

`train` trains one coder of every kind on a small simulated hospital, evaluates it on test and codes the example notes.
It takes about half an hour on one core; `--only linear caml` trains some coders. Coders that OUT already has are not
trained again. `compare` compares metrics, coded notes and evidence. It prints one line per coder and exits with 1 if a
number differs by more than 1e-6, if anything else differs, or if a coder is missing in the second folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TOLERANCE = 1e-6
EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "notes").glob("*.txt"))

TWO_EPOCHS = ["labels.top_k=40", "training.epochs=2"]
WORD_VECTORS = [*TWO_EPOCHS, "vectors.epochs=1"]
REPORTS = ["labels.top_k=10", "training.epochs=1"]
CODERS: dict[str, tuple[str, str, list[str]]] = {  # name -> recipe, corpus, settings
    "linear": ("linear", "notes", []),
    "lexicon": ("lexicon", "notes", []),
    "caml": ("caml", "notes", WORD_VECTORS),
    "laat": ("laat", "notes", WORD_VECTORS),
    "dual_laat": ("dual_laat", "notes", [*WORD_VECTORS, "two_stage.candidates=10"]),
    "plm_icd": ("plm_icd", "notes", ["labels.top_k=40", "training.epochs=1", "model.max_tokens=256"]),
    "plant": ("plant", "notes", [*TWO_EPOCHS, "language.training.epochs=1", "ranker.epochs=2"]),
    "heads": ("heads-mlp", "notes", ["labels.top_k=40", "training.epochs=3"]),
    "short_reports": ("reports", "reports", [*REPORTS, "model.ensemble_size=2"]),
    "hmhan": ("hmhan", "reports", [*REPORTS, "model.ensemble_size=2"]),
    "hmhan_paper": ("hmhan-paper", "reports", [*REPORTS, "model.encoder=minilm", "report.max_tokens=64"]),
    "federated": ("heads-mlp", "notes", [f"federation.{s}" for s in ("rounds=3", "min_notes=2", "min_site_notes=2")]),
}


def nosology(log: Path, *arguments: str | Path) -> str:
    """The standard output of a `nosology` command, on one thread; its messages are added to the log."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "nosology", *map(str, arguments)]
    with log.open("a") as file:
        return subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True, check=True
        ).stdout


def make_corpora(out: Path) -> None:
    """Writes OUT/notes (discharge notes) and OUT/reports (radiology reports) of a simulated hospital, with splits."""
    log, hospital = out / "corpora.log", out / "hospital"
    if not hospital.exists():
        options = ["--patients", "120", "--seed", "3", "--years", "2016-2019", "--layout", "mimic4"]
        nosology(log, "simulate", *options, "--out", hospital)
    for name, reader in (("notes", "mimic4"), ("reports", "mimic4-radiology")):
        whole = out / f"{name}-whole"
        if not (out / name).exists():
            nosology(
                log, "corpus", "prepare", reader, hospital, "--systems", "icd10cm", "--drop-uncoded", "--out", whole
            )
            nosology(log, "corpus", "split", whole, "--out", out / name)


def train(out: Path, names: Sequence[str]) -> None:
    """Writes metrics.json (test notes) and codes.jsonl (example notes) of each coder to OUT/NAME."""
    out.mkdir(parents=True, exist_ok=True)
    make_corpora(out)
    for name in names:
        recipe, corpus, settings = CODERS[name]
        folder, notes = out / name, ["--corpus", out / corpus]
        log, bundle = folder / "log.txt", folder / "bundle"
        if (folder / "codes.jsonl").exists():
            continue
        folder.mkdir(exist_ok=True)
        command = ["federate", "simulate", recipe, "--sites", "3"] if name == "federated" else ["train", recipe]
        nosology(log, *command, *notes, "--out", bundle, *(f"--set={setting}" for setting in settings))
        nosology(log, "evaluate", bundle, *notes, "--split", "test", "--out", folder / "report")
        (folder / "codes.jsonl").write_text(nosology(log, "code", bundle, *EXAMPLES, "--json"), encoding="utf-8")
        print(f"{name}: {folder}", flush=True)


def read_results(folder: Path) -> dict[str, Any]:
    """The metrics, and the codes of each example note by code, with probability and evidence."""
    lines = (folder / "codes.jsonl").read_text(encoding="utf-8").splitlines()
    notes = {note["id"]: {code["code"]: code for code in note["codes"]} for note in map(json.loads, lines)}
    return {"metrics": json.loads((folder / "report" / "metrics.json").read_text(encoding="utf-8")), "notes": notes}


def differences(first: Any, second: Any, path: str = "") -> Iterator[str]:
    """Every value that differs, in words. Numbers may differ by TOLERANCE."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in first.keys() | second.keys():
            yield from differences(first.get(key), second.get(key), f"{path}/{key}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, pair in enumerate(zip(first, second)):
            yield from differences(*pair, f"{path}/{number}")
    elif isinstance(first, float) and isinstance(second, float):
        if not abs(first - second) <= TOLERANCE:
            yield f"{path}: {first:.8g} and {second:.8g}"
    elif first != second:
        yield f"{path}: {str(first)[:40]} and {str(second)[:40]}"


def compare(first: Path, second: Path) -> bool:
    """Whether all coders of the first folder have the same results in the second one."""
    same = True
    for name in (name for name in CODERS if (first / name / "codes.jsonl").exists()):
        if (second / name / "codes.jsonl").exists():
            changes = sorted(differences(read_results(first / name), read_results(second / name)))
        else:
            changes = ["missing in the second folder"]
        same = same and not changes
        print(f"{name}: {f'{len(changes)} differences, first: {changes[0]}' if changes else 'equal'}")
    return same


def main() -> None:
    """Runs a subcommand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train, evaluate and code")
    training.add_argument("out", type=Path)
    training.add_argument("--only", nargs="+", choices=CODERS, default=list(CODERS), help="some coders")
    comparison = commands.add_parser("compare", help="compare two folders of `train`")
    comparison.add_argument("folders", type=Path, nargs=2)
    options = parser.parse_args()
    if options.command == "train":
        train(options.out, options.only)
    elif not compare(*options.folders):
        sys.exit(1)


if __name__ == "__main__":
    main()
