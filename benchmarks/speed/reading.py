"""Time between `nosology train` and the first step: tokenizing, counting words, word vectors, notes as ids.

python benchmarks/speed/reading.py --notes 11000 --workers 2

The corpus has notes of 1,500 words from a Zipf distribution over 60,000 words. A child process runs the command on it
and stops at the first step, twice: without a word cache and with it. Times are seconds of the whole process tree;
memory is its anonymous memory, without the pages of memory-mapped files. The last lines compare reading without the
arithmetic of word2vec: tokenizing once and passes over ids, or tokenizing in each of the eight passes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nosology.codes import table
from nosology.core import Code, Note
from nosology.core.files import read_json, write_json
from nosology.core.parallel import cores
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.encoders.tokenizers import Vocabulary, WordTokenizer
from nosology.encoders.word_vectors import Sentences
from nosology.training.examples import Examples

RESULT = Path(__file__).parents[1] / "results" / "speed_reading.json"
WORDS, DISTINCT, CODES = 1500, 60_000, 15
PASSES = 8  # over the notes: counting words, the vocabulary and five epochs of word2vec, reading


def notes(count: int, words: int) -> Iterator[Note]:
    """Notes of random words, one of ten a number, with 15 codes each; the last twentieth is dev."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    vocabulary = ["".join(rng.choice(letters, size)) for size in rng.integers(2, 11, DISTINCT)]
    for word in range(0, DISTINCT, 10):
        vocabulary[word] = str(word)
    spelled = np.array([word.capitalize() if i % 7 == 0 else word for i, word in enumerate(vocabulary)])
    ends = np.array([" ", " ", " ", ", ", "\n", ". "])
    frequency = 1 / np.arange(1, DISTINCT + 1)
    drawn = rng.choice(DISTINCT, 4_000_000, p=frequency / frequency.sum())
    codes = [Code("icd10cm", code) for code in list(table("icd10cm").codes())[:14_000]]
    for number in range(count):
        size = int(rng.integers(words // 2, words * 3 // 2))
        start = int(rng.integers(len(drawn) - size))
        text = "".join(np.char.add(spelled[drawn[start : start + size]], ends[drawn[start + 1 : start + size + 1] % 6]))
        chosen = sorted({codes[int(i) % len(codes)] for i in rng.zipf(1.2, CODES)})
        split = "dev" if number >= count * 0.95 else "train"
        yield Note(f"n{number}", text, patient=f"p{number}", split=split, codes=tuple(chosen))


def tree(process: int) -> Iterator[Path]:
    """The folders in /proc of a process and of all that it started."""
    yield Path(f"/proc/{process}")
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from tree(int(child))


def cpu_seconds() -> float:
    """Processor seconds of this process and of all that it started."""
    ticks = 0
    for folder in tree(os.getpid()):
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def anonymous_memory() -> int:
    """Bytes of memory of this process and of all that it started, without mapped files."""
    total = 0
    for folder in tree(os.getpid()):
        try:
            total += int(re.findall(r"Pss_Anon: +(\d+)", (folder / "smaps_rollup").read_text())[0]) << 10
        except (OSError, IndexError):  # it has just ended
            continue
    return total


class Stages:
    """Wall-clock and processor seconds of functions, each called once or more."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.peak = 0
        self.started = time.perf_counter()

    def measure(self, name: str, owner: Any, attribute: str) -> None:
        function = getattr(owner, attribute)

        def timed(*given: Any, **named: Any) -> Any:
            wall, cpu = time.perf_counter(), cpu_seconds()
            result = function(*given, **named)
            row = self.seconds.setdefault(name, [0.0, 0.0])
            row[0] += time.perf_counter() - wall
            row[1] += cpu_seconds() - cpu
            return result

        setattr(owner, attribute, staticmethod(timed) if isinstance(owner, type) and attribute == "of" else timed)

    def watch_memory(self) -> None:
        while True:
            self.peak = max(self.peak, anonymous_memory())
            time.sleep(0.5)


def run_child(corpus: str, recipe: str, out: str, workers: str) -> None:
    """Runs the command until the first step and writes the times as JSON beside the bundle."""
    from nosology import cli
    from nosology.corpora import word_cache
    from nosology.encoders.cached_words import CachedWords
    from nosology.models import neural_trainer, word_tokenizer

    stages = Stages()
    threading.Thread(target=stages.watch_memory, daemon=True).start()
    stages.measure("tokenizing", word_cache, "_build")
    stages.measure("counting words", CachedWords, "note_counts")
    stages.measure("word vectors", word_tokenizer, "train_word_vectors")
    stages.measure("notes as ids", neural_trainer.TokenizedNotes, "of")

    def first_step(run: Any) -> None:
        rows = np.arange(32)
        run.make_batch(rows, run.prepare_step(rows, np.random.default_rng(0)))
        stages.peak = max(stages.peak, anonymous_memory())
        stages.seconds["all"] = [time.perf_counter() - stages.started, cpu_seconds()]
        write_json(Path(out).with_suffix(".json"), {"seconds": stages.seconds, "peak": stages.peak})
        raise SystemExit

    neural_trainer.fit = first_step
    sys.argv = ["nosology", "train", recipe, "--corpus", corpus, "--out", out, "--set", f"vectors.workers={workers}"]
    cli.main()


def tokenizing_passes(texts: list[str], passes: int) -> float:
    """Processor seconds per note if every pass tokenizes the notes."""
    started = time.process_time()
    known: dict[str, int] = {}
    for _ in range(passes):
        for text in texts:
            words = [word[0] for word in re.finditer("[a-z0-9]+", text.lower()) if not word[0].isdigit()]
            for word in words:
                known.setdefault(word, len(known))
    return (time.process_time() - started) / len(texts)


def id_passes(corpus: Corpus, notes: int, passes: int) -> float:
    """Processor seconds per note of passes over the word ids, as word2vec gets them; the cache exists."""
    words = Examples([corpus], lambda note: True).words("benchmark")
    vocabulary = Vocabulary.build(words.note_counts(), 3)
    encoded = words.encoded(WordTokenizer(vocabulary, 4000, benchmark=True))[:notes]
    started = time.process_time()
    for _ in range(passes):
        deque(Sentences(encoded, len(vocabulary)), maxlen=0)
    return (time.process_time() - started) / notes


def measure(corpus: Path, recipe: str, workers: int) -> dict[str, Any]:
    """The times and the memory of a child."""
    out = corpus.with_name("bundle")
    command = [sys.executable, __file__, "--child", str(corpus), recipe, str(out), str(workers)]
    subprocess.run(command, check=True, env=os.environ | {"LOKY_MAX_CPU_COUNT": str(workers)})
    return read_json(out.with_suffix(".json"))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        run_child(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notes", type=int, default=2000)
    parser.add_argument("--words", type=int, default=WORDS, help="per note")
    parser.add_argument("--workers", type=int, default=cores(), help="processes")
    parser.add_argument("--recipe", default="dual_laat-paper")
    parser.add_argument("--compared", type=int, default=300, help="notes of the comparison")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "corpus"
        corpus = write_corpus(notes(options.notes, options.words), folder, source={}, filters=[], counts={})
        runs = {"without a cache": measure(folder, options.recipe, options.workers)}
        shutil.rmtree(folder.with_name("bundle.run"))  # it has the word vectors
        runs["with a cache"] = measure(folder, options.recipe, options.workers)
        size = sum(path.stat().st_size for path in folder.glob("words/*/*"))
        texts = [note.text for note, _ in zip(corpus.notes(), range(options.compared))]
        each_time = tokenizing_passes(texts, PASSES)
        by_id = id_passes(corpus, len(texts), PASSES - 2)  # without counting and reading, which are stages
    stages = runs["without a cache"]["seconds"]
    once = by_id + sum(stages[stage][1] for stage in ("tokenizing", "counting words", "notes as ids")) / options.notes
    print(f"{options.notes:,} notes of {options.words:,} words, {options.workers} processes, {options.recipe}")
    print(f"cache: {size / 1e6:,.0f} MB")
    for run, values in runs.items():
        print(f"\n{run:22}{'wall s':>10}{'CPU s':>10}")
        for stage, (wall, cpu) in values["seconds"].items():
            print(f"  {stage:20}{wall:>10.1f}{cpu:>10.1f}")
        print(f"  anonymous memory, at most {values['peak'] / 1e9:.2f} GB")
    print(f"\nreading, CPU ms per note: tokenized in each pass {each_time * 1e3:.2f}")
    print(f"tokenized once {once * 1e3:.2f}, ratio {each_time / once:.1f}")
    result = {"notes": options.notes, "words": options.words, "workers": options.workers, "recipe": options.recipe}
    result |= {"cpus": os.cpu_count(), "cache_bytes": size, "runs": runs}
    result |= {"reading_each_time_seconds": each_time, "reading_once_seconds": once}
    write_json(options.out, result)


if __name__ == "__main__":
    main()
