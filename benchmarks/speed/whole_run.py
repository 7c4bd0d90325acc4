"""A whole run of the DualLAAT paper on a simulated MIMIC-IV, stage by stage: python benchmarks/speed/whole_run.py

    python benchmarks/speed/whole_run.py --notes 2500 10000 40000 --steps 300

Simulates about as many discharge summaries as MIMIC-IV has, 281,000 (45% with ICD-10, 55% with ICD-9 codes), or fewer,
as given, writes a corpus of each version, splits and audits both, the two versions side by side, trains
`dual_laat-paper` on both for some steps and evaluates it on the ICD-10 test notes, each stage by its `nosology`
command. Prints for each stage seconds by the clock, CPU seconds, the peak of memory that is not a mapped file, the mean
use of the GPU, and milliseconds per note; the peak of all stages that prepare both versions together; and the time that
all ten epochs of the paper would take. Sizes ascend: the projection uses the cost per note between two sizes. A step
costs more the more codes it scores, and a small corpus has fewer of them than MIMIC-IV: compare the printed number with
`labels` of the recipe. word2vec uses all cores at every size (--set vectors.workers=N for another number). --prepare
stops before training, which needs a GPU, and has a result file of its own. A result file keeps the sizes that are not
measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from nosology.core.parallel import cores
from nosology.corpora.corpus import Corpus

RESULT = Path(__file__).parents[1] / "results" / "speed_whole_run.json"
PREPARED = RESULT.with_name("speed_whole_run_prepare.json")
NOTES_PER_PATIENT = 1.8
YEARS = "2010-2019"  # ICD-10 since October 2015
VERSIONS = {"ten": "icd10cm,icd10pcs", "nine": "icd9cm,icd9proc"}
EPOCHS = 10
MIMIC_NOTES = 281_000
SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class Stage:
    """The cost of one command."""

    name: str
    seconds: float
    cpu_seconds: float
    peak_gb: float
    gpu_percent: float | None


class Sampler:
    """Peak memory of a process with its children, and mean use of the GPU, while it runs."""

    def __init__(self, pid: int):
        self.peak, self.used = 0.0, []
        self._pid, self._ended = pid, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, sum(map(_memory, _family(self._pid))))
            if (use := _gpu_use()) is not None:
                self.used.append(use)

    def close(self) -> None:
        """Ends the sampling."""
        self._ended.set()
        self._thread.join()


def _family(pid: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):  # it has ended
                continue
            children.setdefault(parent, []).append(int(entry.name))
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return family


def _memory(pid: int) -> float:
    """Gigabytes of a process that are no mapped file; shared pages are divided among their processes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return (kilobytes.get("Pss_Anon", 0) + kilobytes.get("Pss_Shmem", 0)) / 1e6


def _gpu_use() -> float | None:
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True)
    return float(done.stdout.split()[0]) if done.returncode == 0 and done.stdout.split() else None


def measure(name: str, *arguments: str) -> Stage:
    """The cost of a nosology command; an audit may find near-duplicates (exit code 3)."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "nosology", *arguments], stdout=subprocess.DEVNULL)
    sampler = Sampler(process.pid)
    _, status, usage = os.wait4(process.pid, 0)  # of this process and its children, without those of the sampler
    process.returncode = code = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    sampler.close()
    if code not in ((0, 3) if "audit" in arguments else (0,)):
        raise SystemExit(f"nosology {' '.join(arguments)} ended with exit code {code}")
    used = round(sum(sampler.used) / len(sampler.used), 1) if sampler.used else None
    stage = Stage(name, round(seconds, 1), round(usage.ru_utime + usage.ru_stime, 1), round(sampler.peak, 2), used)
    print(json.dumps(asdict(stage)), flush=True)
    return stage


def run(notes: int, steps: int, settings: list[str], folder: Path) -> dict[str, Any]:
    """All stages at one size; steps: of training, 0: none."""
    hospital, bundle, report = folder / "hospital", folder / "bundle", folder / "report"
    patients = str(round(notes / NOTES_PER_PATIENT))
    stages = [measure("simulate", "simulate", "--out", str(hospital), "--patients", patients, "--years", YEARS)]
    started, sampler = time.monotonic(), Sampler(os.getpid())  # of both versions together
    try:
        with ThreadPoolExecutor(len(VERSIONS)) as pool:
            for version_stages in pool.map(lambda version: prepare(version, hospital, folder), VERSIONS):
                stages += version_stages
    finally:
        sampler.close()
    seconds = round(time.monotonic() - started, 1)
    written = {version: _split_sizes(folder / version) for version in VERSIONS}
    result = {"notes": sum(sum(sizes.values()) for sizes in written.values()), "written": written, "steps": steps}
    result |= {"prepare_seconds": seconds, "prepare_peak_gb": round(sampler.peak, 2)}
    result["train_codes"] = {version: _train_codes(folder / version) for version in VERSIONS}
    if not steps:
        return result | {"stages": [asdict(stage) for stage in stages]}
    corpora = [argument for version in VERSIONS for argument in ("--corpus", str(folder / version))]
    changed = [f"training.stop_step={steps}", f"vectors.workers={cores()}", *settings]
    options = [argument for setting in changed for argument in ("--set", setting)]
    stages.append(measure("train", "train", "dual_laat-paper", *corpora, "--out", str(bundle), *options))
    corpus = ("--corpus", str(folder / "ten"))
    stages.append(measure("evaluate", "evaluate", str(bundle), *corpus, "--out", str(report)))
    provenance = json.loads((bundle / "bundle.json").read_text())["provenance"]
    return result | {"stages": [asdict(stage) for stage in stages], "training": provenance["found"]}


def prepare(version: str, hospital: Path, folder: Path) -> list[Stage]:
    """The stages that write, split and audit the corpus of a version."""
    whole, split = folder / f"all_{version}", folder / version
    options = ("--systems", VERSIONS[version], "--drop-uncoded", "--out", str(whole))
    return [
        measure(f"prepare {version}", "corpus", "prepare", "mimic4", str(hospital), *options),
        measure(f"split {version}", "corpus", "split", str(whole), "--out", str(split)),
        measure(f"audit {version}", "corpus", "audit", str(split)),
    ]


def _split_sizes(corpus: Path) -> dict[str, int]:
    return dict(Counter(note.split for note in Corpus.open(corpus).notes(text=False)))


def _train_codes(corpus: Path) -> int:
    """The number of distinct codes of the train notes."""
    return len({code for note in Corpus.open(corpus).notes("train", text=False) for code in note.codes})


def codes_per_step(result: dict[str, Any]) -> dict[str, int]:
    """The number of codes that a step scores, by version: a sample of those of the train notes, or all of them."""
    sampled = result["training"]["shape"]["labels"]
    return {version: min(sampled or codes, codes) for version, codes in result["train_codes"].items()}


def projection(result: dict[str, Any], smaller: dict[str, Any] | None) -> dict[str, Any]:
    """Hours of the paper's run with ten epochs of training, at this size and at that of MIMIC-IV.

    Preparation, the time before the first step and evaluation grow by the cost per note between a smaller run and this
    one; without a smaller run, in proportion to the notes. Validation always reads the same number of notes. Steps cost
    what they cost in this run: too little if it has fewer codes per step than MIMIC-IV.
    """
    training = result["training"]
    train_notes = sum(sizes["train"] for sizes in result["written"].values())
    around = seconds_around_training(result)
    fewer, less = (smaller["notes"], seconds_around_training(smaller)) if smaller else (0, 0.0)
    per_note = (around - less) / (result["notes"] - fewer)
    steps = EPOCHS * train_notes / training["notes_per_second"]
    validation = EPOCHS * training["validation_seconds"] / training["epochs"]
    at_mimic = around + per_note * (MIMIC_NOTES - result["notes"]) + steps * MIMIC_NOTES / result["notes"]
    return {
        "hours": round((around + steps + validation) / 3600, 2),
        "hours_mimic": round((at_mimic + validation) / 3600, 2),
        "seconds_around_training": round(around, 1),
        "ms_per_note_around_training": round(1000 * per_note, 2),
        "notes_per_second": training["notes_per_second"],
        "codes_per_step": codes_per_step(result),
    }


def seconds_around_training(result: dict[str, Any]) -> float:
    """Seconds of all stages but simulation, without the steps of training and validation."""
    training = result["training"]
    steps = training["notes"] / training["notes_per_second"] + training["validation_seconds"]
    later = [stage["seconds"] for stage in result["stages"] if stage["name"] in ("train", "evaluate")]
    return result["prepare_seconds"] + sum(later) - steps


def write_merged(path: Path, result: dict[str, Any]) -> None:
    """Writes a result beside those of other sizes in the file, by number of notes."""
    known = json.loads(path.read_text()) if path.exists() else []
    others = [other for other in known if other["notes"] != result["notes"]]
    path.write_text(json.dumps(sorted([*others, result], key=itemgetter("notes")), indent=1) + "\n")


def main() -> None:
    """Prints and writes the stages at each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notes", type=int, nargs="+", default=[MIMIC_NOTES], help="at each size")
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--prepare", action="store_true", help="stop before training")
    parser.add_argument("--set", action="append", default=[], help="a setting of the recipe: KEY=VALUE")
    parser.add_argument("--folder", type=Path, help="for the files (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help=f"default: {RESULT.name}, with --prepare {PREPARED.name}")
    arguments = parser.parse_args()
    if not (arguments.prepare or arguments.steps):
        parser.error("--steps must be positive; --prepare stops before training")
    out = arguments.out or (PREPARED if arguments.prepare else RESULT)
    results = []
    for notes in arguments.notes:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
            steps = 0 if arguments.prepare else arguments.steps
            results.append(run(notes, steps, arguments.set, Path(temporary)))
        result = results[-1]
        if not arguments.prepare:
            result["projection"] = projection(result, results[-2] if len(results) > 1 else None)
        codes = ", ".join(f"{codes:,} codes in {version}" for version, codes in result["train_codes"].items())
        size = f"{result['notes']:,} notes, {codes}, {os.cpu_count()} cores"
        cost = f"{result['prepare_seconds']} s, {result['prepare_peak_gb']} GB with this program"
        print(f"\n{size}; both versions written, split and audited in {cost}")
        for stage in result["stages"]:
            cost = 1000 * stage["seconds"] / result["notes"]
            share = "" if stage["gpu_percent"] is None else f"  GPU {stage['gpu_percent']:.0f}%"
            times = f"{stage['name']:14}{stage['seconds']:9.1f} s{stage['cpu_seconds']:10.1f} CPU s"
            print(f"{times}{stage['peak_gb']:8.2f} GB{cost:9.2f} ms per note{share}")
        if "projection" in result:
            print(json.dumps(result["projection"]), flush=True)
        write_merged(out, result)


if __name__ == "__main__":
    main()
