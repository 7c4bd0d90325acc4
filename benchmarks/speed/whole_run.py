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

With --folder the files stay, and so does the cost of each finished stage (stage_NAME.json): the same command later goes
on where it was stopped, by Ctrl-C, SIGTERM or kill -9. A training that goes on is not a whole stage: the table says so,
and there is no projection. The projection takes the cost per note from the next smaller size in the result file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from nosology.core import __version__
from nosology.core.files import write_json
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
GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL to a command


@dataclass(frozen=True)
class Stage:
    """The cost of one command."""

    name: str
    seconds: float
    cpu_seconds: float
    peak_gb: float
    gpu_percent: float | None
    is_whole: bool = True  # False: the command continued an earlier one


class Sampler:
    """Peak memory of a process with its children, and mean use of the GPU, while it runs."""

    def __init__(self, pid: int):
        self.peak, self.used = 0.0, []
        self._pid, self._ended = pid, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
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


class Stages:
    """Measures commands one by one, and remembers in a folder which are finished. Several threads may measure."""

    def __init__(self, folder: Path):
        self.folder, self.measured = folder, set[str]()  # by this process, and not earlier
        self._running: set[int] = set()
        self._lock, self._is_stopped = threading.Lock(), False

    def measure(self, name: str, *arguments: str, out: Path | None = None, after: Sequence[str] = ()) -> Stage:
        """The cost of a nosology command, measured now, or earlier if it was the same command.

        out: its output, which must still exist then. after: the stages whose output it reads. An audit may find
        near-duplicates (exit code 3).
        """
        file, known = self._file(name), self._read(name)
        key = {
            "command": list(arguments),
            "nosology": __version__,
            "cores": os.cpu_count(),
            "after": self.ends(after),
        }
        is_same = {field: known.get(field) for field in key} == key
        if is_same and known.get("stage") and (out is None or out.exists()):
            return self._print(Stage(**known["stage"]), "measured earlier")
        is_cut = is_same and not known.get("stage")
        if name == "train" and not is_cut:
            _forget_training(arguments)
        write_json(file, key)
        stage = replace(self._run(name, arguments), is_whole=name != "train" or not is_cut)
        write_json(file, key | {"ended": datetime.now().isoformat(), "stage": asdict(stage)})
        self.measured.add(name)
        return self._print(stage, "")

    def ends(self, names: Iterable[str]) -> dict[str, str | None]:
        """When the stages ended."""
        return {name: self._read(name).get("ended") for name in names}

    def _file(self, name: str) -> Path:
        return self.folder / f"stage_{name.replace(' ', '_')}.json"

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads(self._file(name).read_text()))
        except FileNotFoundError:
            return {}

    def _print(self, stage: Stage, note: str) -> Stage:
        print(json.dumps(asdict(stage)), note, flush=True)
        return stage

    def _run(self, name: str, arguments: Sequence[str]) -> Stage:
        with self._lock:
            if self._is_stopped:
                raise SystemExit(f"{name} was not started")
            started = time.monotonic()
            process = subprocess.Popen([sys.executable, "-m", "nosology", *arguments], stdout=subprocess.DEVNULL)
            self._running.add(process.pid)
        sampler = Sampler(process.pid)
        try:
            _, status, usage = os.wait4(process.pid, 0)  # of it and its children, without those of the sampler
        except BaseException:  # Ctrl-C or SIGTERM
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            process.kill()
            process.wait()
            raise
        finally:
            self._running.discard(process.pid)
            sampler.close()
        process.returncode = code = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        if code not in ((0, 3) if "audit" in arguments else (0,)):
            raise SystemExit(f"nosology {' '.join(arguments)} ended with exit code {code}")
        used = round(sum(sampler.used) / len(sampler.used), 1) if sampler.used else None
        return Stage(name, round(seconds, 1), round(usage.ru_utime + usage.ru_stime, 1), round(sampler.peak, 2), used)

    def stop(self) -> None:
        """Ends the commands of all threads; none starts any more."""
        with self._lock:
            self._is_stopped = True
        end = time.monotonic() + GRACE_SECONDS
        number = signal.SIGTERM
        while self._running:  # a thread that waits for its command removes it
            for pid in list(self._running):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.1)
            number = signal.SIGKILL if time.monotonic() > end else signal.SIGTERM


def _forget_training(arguments: Sequence[str]) -> None:
    """Removes what an earlier training left, which a new one would not have to do again."""
    given = list(pairwise(arguments))
    left = [Path(f"{value}.run") for option, value in given if option == "--out"]
    for folder in left + [Path(value) / "words" for option, value in given if option == "--corpus"]:
        shutil.rmtree(folder, ignore_errors=True)


def run(notes: int, steps: int, settings: list[str], folder: Path) -> dict[str, Any]:
    """All stages at one size; steps: of training, 0: none."""
    hospital, bundle, report = folder / "hospital", folder / "bundle", folder / "report"
    patients = str(round(notes / NOTES_PER_PATIENT))
    commands = Stages(folder)
    simulate = ("simulate", "--out", str(hospital), "--patients", patients, "--years", YEARS)
    stages = [commands.measure("simulate", *simulate, out=hospital)]
    prepared, together = prepare_versions(commands, hospital)
    stages += prepared
    written = {version: _split_sizes(folder / version) for version in VERSIONS}
    result = {"notes": sum(sum(sizes.values()) for sizes in written.values()), "written": written, "steps": steps}
    result |= {"settings": settings, "cores": os.cpu_count()} | together
    result["train_codes"] = {version: _train_codes(folder / version) for version in VERSIONS}
    if not steps:
        return result | {"stages": [asdict(stage) for stage in stages]}
    corpora = [argument for version in VERSIONS for argument in ("--corpus", str(folder / version))]
    changed = [f"training.stop_step={steps}", f"vectors.workers={cores()}", *settings]
    options = [argument for setting in changed for argument in ("--set", setting)]
    train = ("train", "dual_laat-paper", *corpora, "--out", str(bundle), *options)
    split = [f"split {version}" for version in VERSIONS]
    stages.append(commands.measure("train", *train, out=bundle, after=split))
    evaluate = ("evaluate", str(bundle), "--corpus", str(folder / "ten"), "--out", str(report))
    stages.append(commands.measure("evaluate", *evaluate, out=report, after=["train", "split ten"]))
    provenance = json.loads((bundle / "bundle.json").read_text())["provenance"]
    return result | {"stages": [asdict(stage) for stage in stages], "training": provenance["found"]}


def prepare_versions(commands: Stages, hospital: Path) -> tuple[list[Stage], dict[str, Any]]:
    """The stages that prepare both versions side by side, and seconds and peak of memory of both together.

    If some of them were measured earlier, the versions did not run side by side from start to end: seconds are then
    those of the slower version, and there is no peak.
    """
    started, sampler = time.monotonic(), Sampler(os.getpid())
    pool = ThreadPoolExecutor(len(VERSIONS))
    try:
        by_version = list(pool.map(lambda version: prepare(commands, version, hospital), VERSIONS))
    except BaseException:
        commands.stop()
        raise
    finally:
        pool.shutdown()
        sampler.close()
    stages = [stage for of_version in by_version for stage in of_version]
    file, ends = commands.folder / "prepared.json", commands.ends(stage.name for stage in stages)
    if {stage.name for stage in stages} <= commands.measured:
        seconds = round(time.monotonic() - started, 1)
        write_json(file, {"ends": ends, "prepare_seconds": seconds, "prepare_peak_gb": round(sampler.peak, 2)})
    measured = json.loads(file.read_text()) if file.exists() else {}
    if measured.pop("ends", {}) != ends:
        measured = {"prepare_seconds": slower_version([asdict(stage) for stage in stages]), "prepare_peak_gb": None}
    return stages, measured


def slower_version(stages: list[dict[str, Any]]) -> float:
    """The sum of the seconds of the stages that prepare a version, of the slower version."""
    sums = Counter[str]()
    for stage in stages:
        sums[stage["name"].partition(" ")[2]] += stage["seconds"]
    return round(max(sums[version] for version in VERSIONS), 1)


def prepare(commands: Stages, version: str, hospital: Path) -> list[Stage]:
    """The stages that write, split and audit the corpus of a version."""
    whole, split = commands.folder / f"all_{version}", commands.folder / version
    prepare = ("corpus", "prepare", "mimic4", str(hospital), "--systems", VERSIONS[version], "--drop-uncoded")
    divide = ("corpus", "split", str(whole), "--out", str(split))
    return [
        commands.measure(f"prepare {version}", *prepare, "--out", str(whole), out=whole, after=["simulate"]),
        commands.measure(f"split {version}", *divide, out=split, after=[f"prepare {version}"]),
        commands.measure(f"audit {version}", "corpus", "audit", str(split), after=[f"split {version}"]),
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
        "smaller_notes": fewer,
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
    together = result.get("prepare_seconds") or slower_version(result["stages"])  # older results have the stages only
    return together + sum(later) - steps


def is_whole(result: dict[str, Any]) -> bool:
    """Whether a result has a training, and no stage of it continued an earlier one."""
    return "training" in result and all(stage.get("is_whole", True) for stage in result["stages"])


def next_smaller(known: list[dict[str, Any]], result: dict[str, Any]) -> dict[str, Any] | None:
    """The largest of the known results with fewer notes, the same settings and as many cores, None without one."""
    fewer = [other for other in known if other["notes"] < result["notes"] and is_whole(other)]
    for field, older in (("settings", []), ("cores", result["cores"])):  # older results have none of them
        fewer = [other for other in fewer if other.get(field, older) == result[field]]
    return max(fewer, key=itemgetter("notes"), default=None)


def read_results(path: Path) -> list[dict[str, Any]]:
    """The results in a file; none without a file."""
    return json.loads(path.read_text()) if path.exists() else []


def write_merged(path: Path, result: dict[str, Any]) -> None:
    """Writes a result beside those of other sizes in the file, by number of notes."""
    others = [other for other in read_results(path) if other["notes"] != result["notes"]]
    path.write_text(json.dumps(sorted([*others, result], key=itemgetter("notes")), indent=1) + "\n")


def print_table(result: dict[str, Any]) -> None:
    """Prints the stages of a result."""
    codes = ", ".join(f"{codes:,} codes in {version}" for version, codes in result["train_codes"].items())
    size = f"{result['notes']:,} notes, {codes}, {result['cores']} cores"
    cost = f"{result['prepare_seconds']} s, {result['prepare_peak_gb']} GB with this program"
    if result["prepare_peak_gb"] is None:
        cost = f"{result['prepare_seconds']} s, the stages of the slower version, which were not all measured in one go"
    print(f"\n{size}; both versions written, split and audited in {cost}")
    for stage in result["stages"]:
        cost = 1000 * stage["seconds"] / result["notes"]
        share = "" if stage["gpu_percent"] is None else f"  GPU {stage['gpu_percent']:.0f}%"
        if not stage["is_whole"]:
            share += "  not the whole stage: it continued a stopped one"
        times = f"{stage['name']:14}{stage['seconds']:9.1f} s{stage['cpu_seconds']:10.1f} CPU s"
        print(f"{times}{stage['peak_gb']:8.2f} GB{cost:9.2f} ms per note{share}")
    if "training" in result:
        print(json.dumps(result.get("projection", "no projection: the training continued a stopped one")), flush=True)


def main() -> None:
    """Prints and writes the stages at each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notes", type=int, nargs="+", default=[MIMIC_NOTES], help="at each size")
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--prepare", action="store_true", help="stop before training")
    parser.add_argument("--set", action="append", default=[], help="a setting of the recipe: KEY=VALUE")
    parser.add_argument("--folder", type=Path, help="for the files, which stay (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help=f"default: {RESULT.name}, with --prepare {PREPARED.name}")
    arguments = parser.parse_args()
    if not (arguments.prepare or arguments.steps):
        parser.error("--steps must be positive; --prepare stops before training")
    out = arguments.out or (PREPARED if arguments.prepare else RESULT)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    steps = 0 if arguments.prepare else arguments.steps
    for notes in arguments.notes:
        with nullcontext(arguments.folder) if arguments.folder else tempfile.TemporaryDirectory() as base:
            folder = Path(base) / str(notes)
            folder.mkdir(parents=True, exist_ok=True)
            result = run(notes, steps, arguments.set, folder)
        if is_whole(result):
            result["projection"] = projection(result, next_smaller(read_results(out), result))
        print_table(result)
        write_merged(out, result)


if __name__ == "__main__":
    main()
