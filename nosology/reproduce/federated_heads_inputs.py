"""What the runs of Xu and Dray (2025) start from: corpora, embedders (Table 1, Figure 2) and heads (Table 2).

Nothing is trained here. The counts of the two corpora are in the paper's section 2.1, the table below Figure 2 has the
notes that reach the limit of 8,192 tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nosology.config import load_recipe
from nosology.core import SPLITS, Code
from nosology.core.parallel import batched
from nosology.corpora.corpus import Corpus
from nosology.encoders.embedder_config import KNOWN_EMBEDDERS
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.reproduce.result_tables import ResultFigure, Row, Table, rows_with_paper_numbers
from nosology.reproduce.runner import Results, Run, Task
from nosology.training.recipe_settings import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nosology.encoders.embedder import Embedder

PAPER = "federated_heads"
HEADS = {"mlp": "MLP", "deep": "DeepMLP", "res": "DeepResMLP"}  # as in the paper
_FREQUENT = "frequent codes"
_DIAGNOSES, _PROCEDURES = ("icd9cm", "icd10cm"), ("icd9proc", "icd10pcs")
_COUNTS = {"notes": "notes", "codes": "codes", "codes_per_note": "codes per note", "patients": "patients"}
_SIZES = {"parameters": "parameters (millions)", "dim": "dimensions", "positions": "longest input", "window": "window"}
_TIMES = {
    "notes": "notes",
    "at_limit": "notes at the limit",
    "tokens_mean": "tokens: mean",
    "tokens_median": "median",
    "tokens_max": "maximum",
    "ms_median": "ms per note: median",
    "ms_slope": "ms per 1,000 tokens",
}
_DIMS, _CODES = (768, 1024, 1536), (1085, 1267)  # of Table 2
_TOKENIZED = 256  # notes at a time


def row_name(embedder: str) -> str:
    """The name of an embedder in tables: that of the paper's embedder also for a copy in a folder of its own name."""
    folder = Path(embedder).name
    known = {name: entry.repository for name, entry in KNOWN_EMBEDDERS.items() if entry.repository}
    published = {Path(repository).name.lower(): name for name, repository in known.items()}
    return published.get(folder.lower(), folder)


def corpus_table(corpus: Corpus, name: str, version: str, sites: int, site_notes: int) -> Table:
    """The counts of a corpus before and after the rule that each site can have enough notes of every code."""
    least = sites * site_notes
    run = Run((name, "counts"), f"{__name__}:count_corpus", load_recipe("heads-mlp"), (corpus,), 0, {"least": least})
    kinds = {"all": "all codes", "frequent": _FREQUENT}
    systems = set(corpus.manifest["counts"]["systems"])
    if systems & {*_DIAGNOSES} and systems & {*_PROCEDURES}:
        kinds |= {"diagnoses": "frequent codes: diagnoses", "procedures": "frequent codes: procedures"}
    labelled = {label: [run] for label in kinds.values()}
    rows = rows_with_paper_numbers(PAPER, "corpora", labelled, within=f"{version} / ")
    rows = [replace(row, prefix=f"{kind}.") for kind, row in zip(kinds, rows)]
    columns = _COUNTS | {split: f"{split} notes" for split in SPLITS}
    remarks = partial(_count_remarks, rows[1], least, sites)
    return Table("corpora", "Notes and codes", ("codes",), columns, rows, name, remarks, without_best=[*columns])


def _count_remarks(row: Row, least: int, sites: int, results: Results) -> Iterator[str]:
    yield f"Frequent codes have at least {least:,} notes: {least // sites:,} for each of {sites} sites."
    uncoded = sum(results[run.key]["uncoded"] for run in row.runs if run.key in results)
    if uncoded:
        yield f"{uncoded:,} notes of the corpus have no code at all. They are not counted here, but used in all runs."
    notes, codes = (row.cell(results, name) for name in ("notes", "codes"))
    if notes.difference is not None and codes.difference is not None:
        if notes.difference == codes.difference == 0:
            yield "Notes and codes are as many as in the paper."
        else:
            yield f"Ours minus the paper's: {notes.difference:+,.0f} notes, {codes.difference:+,.0f} codes."


def count_corpus(task: Task) -> dict[str, Any]:
    """Counts notes, codes and patients; in its own process."""
    corpus = Corpus.open(task.corpora[0])
    counts = Counter(code for note in corpus.notes(text=False) for code in set(note.codes))
    frequent = {code for code, notes in counts.items() if notes >= task.options["least"]}
    kinds = {"all": set(counts), "frequent": frequent}
    kinds["diagnoses"] = {code for code in frequent if code.system in _DIAGNOSES}
    kinds["procedures"] = {code for code in frequent if code.system in _PROCEDURES}
    metrics: dict[str, Any] = {}
    for kind, codes in kinds.items():
        metrics |= {f"{kind}.{name}": value for name, value in _counts_of(corpus, codes).items()}
    return {"metrics": metrics, "uncoded": len(corpus) - metrics["all.notes"]}


def _counts_of(corpus: Corpus, codes: set[Code]) -> dict[str, Any]:
    """The counts of the notes with at least one of these codes; None if undefined."""
    splits, patients, assigned = Counter[str](), set[str](), 0
    for note in corpus.notes(text=False):
        if kept := codes.intersection(note.codes):
            assigned += len(kept)
            splits[note.split or ""] += 1
            patients |= {note.patient} if note.patient else set()
    notes = splits.total()
    metrics = {"notes": notes, "codes": len(codes), "patients": len(patients) or None}
    return metrics | {"codes_per_note": assigned / notes if notes else None} | {name: splits[name] for name in SPLITS}


def _embedder_recipe(recipe: FederatedHeadsRecipe) -> Recipe:
    """A recipe with the embedder alone, so that a run does not depend on settings of training."""
    return load_recipe("heads-mlp").model_copy(update={"embedder": recipe.embedder})


def embedder_table(recipes: Mapping[str, FederatedHeadsRecipe], files: Mapping[str, str]) -> Table:
    """Table 1: the sizes of the embedders; files: a hash of each that is a folder."""
    runs = {}
    for name, recipe in recipes.items():
        names, function = (Path(name).name, "sizes"), f"{__name__}:measure_embedder"
        runs[row_name(name)] = [Run(names, function, _embedder_recipe(recipe), (), 0, {"files": files[name]})]
    rows = rows_with_paper_numbers(PAPER, "1", runs)
    return Table("1", "Embedders", ("embedder",), _SIZES, rows, without_best=[*_SIZES])


def measure_embedder(task: Task) -> dict[str, Any]:
    """The sizes of an embedder, which is loaded in a process of its own."""
    sizes = _load(task).model_sizes
    return {"metrics": sizes | {"parameters": sizes["parameters"] / 1e6}}


def _load(task: Task) -> Embedder:
    from nosology.encoders.embedder import Embedder

    return Embedder.load(FederatedHeadsRecipe.model_validate(task.recipe).embedder)


def head_table(recipes: Mapping[str, FederatedHeadsRecipe]) -> Table:
    """Table 2: the parameters of the heads over dimensions and numbers of codes; recipes: by head."""
    columns = {f"{dim}.{codes}": f"{dim:,} in, {codes:,} out" for dim in _DIMS for codes in _CODES}
    runs = {}
    for head, recipe in recipes.items():
        plain = load_recipe("heads-mlp").model_copy(update={"model": recipe.model})
        runs[HEADS[head]] = [Run((head, "parameters"), f"{__name__}:measure_head", plain, ())]
    rows = rows_with_paper_numbers(PAPER, "2", runs)

    def remarks(results: Results) -> Iterator[str]:
        cells = [row.cell(results, metric) for row in rows for metric in columns]
        shares = [cell.difference / cell.paper for cell in cells if cell.difference is not None and cell.paper]
        if shares:
            yield f"Ours differ from the paper's by {min(shares):+.1%} to {max(shares):+.1%}."

    title = "Parameters of the heads, in millions"
    return Table("2", title, ("head",), columns, rows, remarks=remarks, without_best=[*columns])


def measure_head(task: Task) -> dict[str, Any]:
    """Builds a head for each width and number of codes and counts its parameters; in its own process."""
    from nosology.models.heads.heads_net import HeadNet

    shape = FederatedHeadsRecipe.model_validate(task.recipe).model
    metrics = {}
    for dim in _DIMS:
        for codes in _CODES:
            count = sum(weight.numel() for weight in HeadNet(shape, dim, codes).parameters())
            metrics[f"{dim}.{codes}"] = count / 1e6
    return {"metrics": metrics}


def time_table(
    recipes: Mapping[str, FederatedHeadsRecipe],
    files: Mapping[str, str],
    corpus: Corpus,
    name: str,
    version: str,
    timed_notes: int,
    limit: int,
    letter: str,
) -> Table:
    """Figure 2: the time of an embedder against the tokens of a note, and the notes that reach the limit in tokens.

    letter: of the figure, if there are several.
    """
    runs, labels = {}, {}
    for embedder, recipe in recipes.items():
        names, options = (name, Path(embedder).name, "time"), {"files": files[embedder], "timed_notes": timed_notes}
        limited = recipe.embedder.model_copy(update={"max_tokens": limit})
        plain = _embedder_recipe(recipe.model_copy(update={"embedder": limited}))
        run = Run(names, f"{__name__}:time_embedder", plain, (corpus,), 0, options)
        runs[row_name(embedder)], labels[run.key] = [run], row_name(embedder)
    rows = rows_with_paper_numbers(PAPER, "figure-2", runs, within=f"{version} / ")

    def remarks(results: Results) -> Iterator[str]:
        yield f"A note longer than {limit:,} tokens is cut there."
        devices = {results[key]["device"] for key in labels if key in results}
        if devices:
            machines = ", ".join(sorted(devices))
            yield f"Times are of single notes, without tokenization, the faster of two, on {machines}."

    title = "Time to embed a note against its tokens"
    figure = ResultFigure(f"figure-2{letter}", title, partial(_draw_times, labels))
    header = ("embedder",)
    return Table("figure-2", title, header, _TIMES, rows, name, remarks, [figure], without_best=[*_TIMES])


def time_embedder(task: Task) -> dict[str, Any]:
    """Counts the tokens of all notes and times some of them one by one; in its own process."""
    embedder, corpus = _load(task), Corpus.open(task.corpora[0])
    texts = (note.text for note in corpus.notes())
    tokens = np.concatenate([embedder.count_tokens(batch) for batch in batched(texts, _TOKENIZED)])
    limit = embedder.settings.max_tokens
    typical, spread = sample_lengths(np.minimum(tokens, limit), task.options["timed_notes"])
    chosen = {*typical.tolist(), *spread.tolist()}
    points = {
        row: _time_note(embedder, note.text) for row, note in enumerate(corpus.notes()) if row in chosen and tokens[row]
    }
    milliseconds = [points[row][1] for row in typical.tolist() if row in points]
    metrics = {
        "notes": len(tokens),
        "at_limit": int((tokens >= limit).sum()),
        "tokens_mean": float(tokens.mean()),
        "tokens_median": float(np.median(tokens)),
        "tokens_max": int(tokens.max()),
        "ms_median": float(np.median(milliseconds)) if milliseconds else None,
        "ms_slope": _slope([*points.values()]),
    }
    return {"metrics": metrics, "points": sorted(points.values()), "device": _device_name(embedder)}


def sample_lengths(tokens: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of notes: `count` or fewer that are spread evenly over the notes, and over the range of tokens (N,)."""
    order = np.argsort(tokens, kind="stable")
    ranks = np.linspace(0, len(order) - 1, count).round().astype(np.int64)
    lengths = np.linspace(tokens.min(), tokens.max(), count)
    nearest = np.searchsorted(tokens[order], lengths).clip(max=len(order) - 1)
    return order[np.unique(ranks)], order[np.unique(nearest)]


def _slope(points: Sequence[tuple[int, float]]) -> float | None:
    """Milliseconds per 1,000 tokens by least squares; None if all notes are equally long."""
    tokens, milliseconds = (np.array([point[i] for point in points], dtype=np.float64) for i in (0, 1))
    if len(set(tokens.tolist())) < 2:
        return None
    return 1000 * float(np.polyfit(tokens, milliseconds, 1)[0])


def _time_note(embedder: Embedder, text: str) -> tuple[int, float]:
    """The tokens that the model reads, and its milliseconds: a GPU prepares kernels in the first of two runs."""
    runs = [batch for _ in range(2) for batch in embedder.embed_batches([text])]
    return int(runs[0].read[0]), 1000 * min(batch.seconds for batch in runs)


def _device_name(embedder: Embedder) -> str:
    import torch

    if embedder.device.type == "cuda":
        return torch.cuda.get_device_name(embedder.device)
    return f"{embedder.device.type} ({torch.get_num_threads()} threads)"


def _draw_times(labels: Mapping[str, str], results: Results, figure: Figure) -> None:
    """Draws milliseconds against tokens, a color for each embedder; labels: by key of the run."""
    axes = figure.add_subplot()
    shown: Sequence[str] = [key for key in labels if key in results]
    for key in shown:
        tokens, milliseconds = zip(*results[key]["points"]) if results[key]["points"] else ((), ())
        axes.plot(tokens, milliseconds, ".", label=labels[key], alpha=0.6)
    axes.set(xlabel="tokens read", ylabel="milliseconds", xlim=(0, None), ylim=(0, None))
    if shown:
        axes.legend()
