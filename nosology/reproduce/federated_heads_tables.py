"""The tables of Xu and Dray (2025): light heads on frozen embeddings, trained centrally and by a federation.

Tables 3 to 7 are trained here; `federated_heads_inputs.py` has the corpora, Tables 1 and 2 and Figure 2. The other
figures of the paper are diagrams.

A corpus needs 6 embedders x 3 heads x (1 central + 1 federated + 10 splits) = 216 runs, the two of the paper 432. The
paper counts 252 and writes 6 x 3 x 2 + 6 x 3 x 10, which is 216. 252 would be the central and federated runs of both
corpora (72) and the splits of one (180).

Tables 5 and 6 are means over codes. In the paper they cannot be micro averages: its F1 is not the harmonic mean of its
precision and recall.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from nosology.core import Code, ConfigError, DataError
from nosology.core.settings import Settings
from nosology.corpora.corpus import Corpus
from nosology.corpora.splits import site_corpus, split_corpus
from nosology.encoders.embedder_config import folder_fingerprint
from nosology.evaluation import Evaluation, paired_t_test
from nosology.evaluation.counts import Counts
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.models.bundle import Bundle
from nosology.reproduce import runner
from nosology.reproduce.federated_heads_inputs import (
    HEADS,
    PAPER,
    corpus_table,
    embedder_table,
    head_table,
    row_name,
    time_table,
)
from nosology.reproduce.result_tables import Row, SignificanceLine, Table, paired_tests, rows_with_paper_numbers
from nosology.reproduce.runner import Results, Run, Task, check_splits, digest, slug

TITLE = "Xu and Dray (2025), Federated Learning for ICD Classification with Lightweight Models"
TABLES = {
    "corpora": "Notes and codes",
    "1": "Embedders",
    "2": "Parameters of the heads",
    "figure-2": "Time to embed a note against its tokens",
    "3": "Central training",
    "4": "Federated training",
    "5": "Central training, the most frequent codes of train",
    "6": "Federated training, the most frequent codes of train",
    "7": "Central training on random splits",
}
METRICS = ("macro_precision", "macro_recall", "macro_f1", "micro_precision", "micro_recall", "micro_f1")
TOP = (10, 50)  # codes of Tables 5 and 6
COLUMNS = {name: name.replace("_", " ").replace("f1", "F1") for name in METRICS}
TOP_COLUMNS = {f"top{k}.{name}": f"top {k} {COLUMNS[name].removeprefix('macro ')}" for k in TOP for name in METRICS[:3]}
SETTING = {"3": "central", "4": "federated", "5": "central", "6": "federated", "7": "splits"}
_TESTED = ("micro_f1", "macro_f1")
_CLIENT_MEAN = "clients."  # prefix of metrics that are means over sites
SMALL: dict[str, Any] = {
    "embedders": ["minilm"],  # it comes with the package
    "sites": {"count": 3, "notes": 2},
    "seeds": 2,
    "timed_notes": 5,
    "timed_tokens": 2048,
    "recipe": {
        "heads": {
            "embedder": {"max_tokens": 256},  # the start of a note: one window of the embedder
            "training": {"epochs": 10, "batch": 32},
            # few rounds, so more work in each
            "federation": {"rounds": 3, "local_epochs": 3, "min_sites": 2, "quorum": 2, "evaluate_every": 3},
        }
    },
}


class PartitionSettings(Settings):
    """The simulated hospitals of the federated runs, and the codes that all runs learn."""

    count: int = Field(20, ge=1)
    skew: Literal["random", "iid", "size", "dirichlet"] = "random"  # section 2.5: notes are partitioned at random
    alpha: float = Field(0.5, gt=0)  # dirichlet: sites differ more with a smaller one
    exponent: float = Field(1.0, gt=0)  # size: site i has a share of (i + 1) ** -exponent
    notes: int = Field(10, ge=0)  # codes of at least count x notes notes are learned; 0: all codes
    engine: Literal["flower", "vectorized"] = "flower"  # vectorized: faster on a GPU, equal up to rounding
    # Of Tables 4 and 6. client_mean: the metrics of each site, averaged by its notes, as in section 2.5; pooled: of all
    # test notes together. A mean of F1 scores is not the F1 of all notes.
    metrics: Literal["client_mean", "pooled"] = "client_mean"


class FederatedHeadsStudy(runner.StudySettings):
    """The paper's settings; its section 2.5."""

    seeds: int = Field(10, ge=1)  # random splits of Table 7
    seed: int = Field(0, ge=0)  # of splits, sites and training
    embedders: list[str] = Field(
        ["qwen3-embedding-0.6b", "gte-qwen2-1.5b", "gte-multilingual-base", "arctic-l-v2", "arctic-m-v2", "nomic-v1.5"],
        min_length=1,
    )
    heads: list[Literal["mlp", "deep", "res"]] = Field(["mlp", "deep", "res"], min_length=1)
    ratios: tuple[float, float, float] = (0.7, 0.15, 0.15)  # of the random splits
    sites: PartitionSettings = PartitionSettings()
    timed_notes: int = Field(300, ge=1)  # of Figure 2: so many typical ones, and as many spread over the lengths
    timed_tokens: int = Field(8192, ge=100)  # of Figure 2: longer notes are cut

    @field_validator("embedders", "heads")
    @classmethod
    def _are_distinct(cls, values: list) -> list:
        if len(set(map(row_name, values))) < len(values):  # rows of two folders of one name would be one row
            raise ValueError("must name each once")
        return values

    def recipes(self) -> dict[str, tuple[str, str]]:
        """The recipe of each head."""
        return {f"heads.{head}": (f"heads-{head}", "heads") for head in self.heads}

    def run_settings(self, tables: Collection[str]) -> Iterator[tuple[str, list[str]]]:
        """The settings of each model. The rule of `sites.notes` is applied to the corpus: federations drop no code."""
        for embedder, head in product(self.embedders, self.heads):
            settings = [f"seed={self.seed}", f"embedder.model={embedder!r}", f"model.head={head}"]
            yield f"heads-{head}", [*settings, "federation.min_site_notes=1", "federation.min_notes=1"]


STUDY = FederatedHeadsStudy


def simulate(study: FederatedHeadsStudy, folder: Path) -> list[Corpus]:
    """The discharge notes of a simulated hospital with their ICD-10 diagnoses."""
    return [runner.simulated_corpus(folder / "icd10", study.patients, seed=2, years=(2016, 2019), systems={"icd10cm"})]


def tables(study: FederatedHeadsStudy, corpora: Sequence[Corpus], folder: Path, wanted: Sequence[str]) -> list[Table]:
    """The wanted tables; those about notes once per corpus."""
    settings = list(dict.fromkeys(SETTING[name] for name in wanted if name in SETTING))
    models: list[tuple[str, str]] = [(embedder, head) for embedder in study.embedders for head in study.heads]
    loaded = (study.load(name, *settings) for name, settings in study.run_settings(wanted))
    recipes = {model: recipe for model, recipe in zip(models, loaded) if isinstance(recipe, FederatedHeadsRecipe)}
    if "federated" in settings and (least := max(r.federation.min_sites for r in recipes.values())) > study.sites.count:
        raise ConfigError(f"federation.min_sites must be at most sites.count, {study.sites.count}; got {least}")
    by_embedder = {embedder: recipes[embedder, study.heads[0]] for embedder in study.embedders}
    files = {embedder: _files(recipe) for embedder, recipe in by_embedder.items()}
    tables = []
    if "corpora" in wanted:
        rule = study.sites.count, study.sites.notes
        tables += [corpus_table(each, name, _version(each), *rule) for name, each in _by_name(corpora).items()]
    if "1" in wanted:
        tables.append(embedder_table(by_embedder, files))
    if "2" in wanted:
        tables.append(head_table({head: recipes[study.embedders[0], head] for head in study.heads}))
    if not settings and "figure-2" not in wanted:
        return tables
    for number, (name, corpus) in enumerate(prepared(study, corpora, folder, settings).items()):
        version = _version(corpus)
        if "figure-2" in wanted:
            letter = chr(ord("a") + number) if len(corpora) > 1 else ""
            timed = study.timed_notes, study.timed_tokens
            tables.append(time_table(by_embedder, files, corpus, name, version, *timed, letter))
        runs = _training_runs(study, recipes, files, name, corpus, settings, folder)
        tables += [_table(table, study, name, version, runs) for table in wanted if table in SETTING]
    return tables


def _training_runs(
    study: FederatedHeadsStudy,
    recipes: Mapping[tuple[str, str], FederatedHeadsRecipe],
    files: Mapping[str, str],
    name: str,
    corpus: Corpus,
    settings: Sequence[str],
    folder: Path,
) -> dict[tuple[str, str, str], list[Run]]:
    """The runs on a corpus by embedder, head and setting."""
    splits = split_corpora(study, corpus, folder, name) if "splits" in settings else []
    runs: dict[tuple[str, str, str], list[Run]] = {}
    for (embedder, head), recipe in recipes.items():
        for setting in settings:
            for repeat, notes in enumerate(splits if setting == "splits" else [corpus]):
                options = {"setting": setting, "files": files[embedder]}
                options |= {"engine": study.sites.engine} if setting == "federated" else {}
                names = (name, Path(embedder).name, head, setting)
                run = Run(names, f"{__name__}:run", recipe, (notes,), repeat, options, f"{name} {embedder}")
                runs.setdefault((embedder, head, setting), []).append(run)
    return runs


def _files(recipe: FederatedHeadsRecipe) -> str:
    """A hash of the files of an embedder that is a folder; empty for a name."""
    try:
        return folder_fingerprint(recipe.embedder)
    except Exception:  # damaged files raise various exceptions
        return ""  # the runs report what is wrong


def prepared(
    study: FederatedHeadsStudy, corpora: Sequence[Corpus], folder: Path, settings: Sequence[str]
) -> dict[str, Corpus]:
    """Each corpus by name with its notes at sites. All settings learn the same codes: those that each site can have."""
    result = {}
    for name, corpus in _by_name(corpora).items():
        if set(settings) - {"splits"}:
            check_splits(corpus)
        options = study.sites.model_dump(exclude={"engine", "count", "notes", "metrics"}) | {"seed": study.seed}
        sizes = study.sites.model_dump(include={"count", "notes"})
        stem = slug(corpus.folder.resolve().name)
        out = folder / "corpora" / f"{stem}-sites-{digest(corpus.hash, sizes, options)}"
        if not out.exists():
            site_corpus(corpus.folder, out, study.sites.count, min_notes=study.sites.notes, **options)
        result[name] = Corpus.open(out)
    return result


def _by_name(corpora: Sequence[Corpus]) -> dict[str, Corpus]:
    """The corpora by the names of their folders, with a hash where two are equal."""
    names = [slug(corpus.folder.resolve().name) for corpus in corpora]
    unique = (name if names.count(name) == 1 else f"{name}-{c.hash[:6]}" for name, c in zip(names, corpora))
    return dict(zip(unique, corpora))


def split_corpora(study: FederatedHeadsStudy, corpus: Corpus, folder: Path, name: str) -> list[Corpus]:
    """The corpus with each of the random splits, by patient and stratified."""
    out = folder / "corpora" / f"{name}-splits-{digest(corpus.hash, study.seed, study.seeds, study.ratios)}"
    parts = [out / f"split-{number:02d}" for number in range(study.seeds)]
    if not all(part.exists() for part in parts):
        shutil.rmtree(out, ignore_errors=True)
        split_corpus(corpus.folder, out, ratios=study.ratios, seed=study.seed, k=study.seeds)
    return [Corpus.open(part) for part in parts]


def _version(corpus: Corpus) -> str:
    """icd9 or icd10; empty where the corpus has codes of both."""
    versions = {
        system.removesuffix("cm").removesuffix("proc").removesuffix("pcs")
        for system in corpus.manifest["counts"]["systems"]
    }
    return versions.pop() if len(versions) == 1 else ""


def _table(
    number: str, study: FederatedHeadsStudy, corpus: str, version: str, runs: dict[tuple[str, str, str], list[Run]]
) -> Table:
    columns = TOP_COLUMNS if number in "56" else COLUMNS
    pairs = [(embedder, head) for embedder in study.embedders for head in study.heads]
    by_row = {
        f"{row_name(embedder)} / {HEADS[head]}": runs[embedder, head, SETTING[number]] for embedder, head in pairs
    }
    is_client_mean = SETTING[number] == "federated" and study.sites.metrics == "client_mean"
    prefix = _CLIENT_MEAN if is_client_mean else ""
    rows = rows_with_paper_numbers(PAPER, number, by_row, prefix=prefix, within=f"{version} / ")
    others = sorted(rows[len(by_row) :], key=lambda row: -row.paper[list(columns)[-1]])
    rows = rows[: len(by_row)] + others[:1]  # and the paper's best row without a run of ours

    def remarks(results: Results) -> Iterator[str]:
        if number == "4":
            yield from _federated_minus_central(runs, pairs, results)
            yield from _federated_minus_central_in_the_paper(version)
        if number == "7":
            for first in range(0, len(by_row), len(study.heads)):  # the rows of an embedder
                yield from paired_tests(rows[first : first + len(study.heads)], "micro_f1", results, "splits")

    return Table(number, TABLES[number], ("embedder", "head"), columns, rows, corpus, remarks)


def _federated_minus_central(
    runs: Mapping[tuple[str, str, str], Sequence[Run]], pairs: Sequence[tuple[str, str]], results: Results
) -> Iterator[str]:
    """Federated minus central training, both measured on all test notes together, with a t-test over the pairs.

    Nothing if the central runs are not wanted.
    """
    both = [[runs[*pair, name][0].key for name in ("federated", "central") if (*pair, name) in runs] for pair in pairs]
    done = [[results[key]["metrics"] for key in keys] for keys in both if len(keys) == 2 and set(keys) <= set(results)]
    for metric in _TESTED:
        values = [[metrics[metric] for metrics in pair] for pair in done]
        values = [pair for pair in values if None not in pair]
        gaps = [federated - central for federated, central in values]
        if gaps and metric == "micro_f1":
            mean = f"mean {fmean(gaps):+.4f} of {len(gaps)} pairs, from {min(gaps):+.4f} to {max(gaps):+.4f}"
            yield f"Federated minus central training, micro F1 of all test notes: {mean}."
        if len(gaps) > 1:
            yield _paired_over_models("", metric, *zip(*values))


def _federated_minus_central_in_the_paper(version: str) -> Iterator[SignificanceLine]:
    """The same test on the numbers of the paper's Tables 4 and 3."""
    federated, central = (rows_with_paper_numbers(PAPER, table, {}, within=f"{version} / ") for table in "43")
    for metric in _TESTED if federated else ():
        values = [{row.names: row.paper[metric] for row in rows} for rows in (federated, central)]
        pairs = [(values[0][names], values[1][names]) for names in values[0]]
        yield _paired_over_models(" (paper)", metric, *zip(*pairs))


def _paired_over_models(of: str, metric: str, federated: Sequence[float], central: Sequence[float]) -> SignificanceLine:
    rows = Row((f"federated{of}",)), Row((f"central{of}",))
    test = paired_t_test(federated, central)
    return SignificanceLine(rows, metric, test, "paired t-test", f"{len(federated)} pairs of embedder and head")


def run(task: Task) -> dict[str, Any]:
    """Trains a coder and measures it on the test notes; in its own process."""
    from nosology.evaluation.measure import measure
    from nosology.federated.rounds.simulation import corpus_sites, run_simulation
    from nosology.models.train import train

    recipe, [corpus] = FederatedHeadsRecipe.model_validate(task.recipe), [Corpus.open(path) for path in task.corpora]
    recipe = recipe.model_copy(update={"vectors": recipe.vectors.model_copy(update={"cache": task.cache})})
    folder = Path(task.folder)
    bundle_folder = folder / "bundle"
    if task.options["setting"] == "federated":
        engine, report = task.options["engine"], partial(print, file=sys.stderr)
        bundle = run_simulation([corpus], corpus_sites([corpus]), recipe, bundle_folder, engine, report)
    else:
        bundle = train(recipe, [corpus], bundle_folder)
    _embed_from_cache(bundle, task.cache)
    evaluation = measure(bundle, corpus, "test", folder / "report").evaluation
    notes = Counter(code for note in corpus.notes("train", text=False) for code in set(note.codes))
    metrics = table_metrics(evaluation.counts, notes)
    if task.options["setting"] == "federated":
        sites = [note.site or "" for note in corpus.notes("test", text=False)]
        metrics |= {_CLIENT_MEAN + name: value for name, value in client_means(evaluation, sites, notes).items()}
    return {
        "metrics": metrics,
        "codes": len(bundle.model.labels),
        "notes": {name: bundle.provenance[name] for name in ("n_train", "n_dev")},
        "threshold": bundle.decision.threshold,
    }


def _embed_from_cache(bundle: Bundle, cache: str) -> None:
    """Lets the coder take embeddings of notes from the cache, which has them from training or from another run."""
    from nosology.encoders.embedding_cache import EmbeddingCache
    from nosology.models.heads.heads_model import Heads

    assert isinstance(bundle.model, Heads)
    embedder = bundle.model.embedder
    stored = EmbeddingCache.for_embedder(cache, embedder)
    embedder.embed = lambda texts: stored.vectors(texts, lambda: embedder)


def table_metrics(counts: Counts, notes: Counter[Code]) -> dict[str, float | None]:
    """The metrics of all tables; notes: train notes of each code."""
    every = counts.metrics()
    metrics = {name: every[name] for name in METRICS}
    for k in TOP:
        top = top_metrics(counts, notes, k)
        metrics |= {f"top{k}.{name}": top[name] for name in METRICS[:3]}
    return metrics


def client_means(evaluation: Evaluation, sites: Sequence[str], notes: Counter[Code]) -> dict[str, float | None]:
    """The metrics of all tables as means over sites, weighted by their notes; sites: of each note (B,).

    A site where a metric is undefined does not count; None if it is undefined at every site.
    """
    gold, predicted, counts = evaluation.scored.gold, evaluation.predicted, evaluation.counts
    if len(sites) != gold.shape[0]:
        raise DataError(f"every test note must be scored to average over sites; got {gold.shape[0]} of {len(sites)}")
    names = np.array(sites)
    by_site, sizes = [], []
    for site in sorted(set(sites)):
        rows = np.flatnonzero(names == site)
        of_site = Counts.of(counts.space, counts.n_labels, gold[rows].tocsr(), predicted[rows].tocsr())
        by_site.append(table_metrics(of_site, notes))
        sizes.append(len(rows))
    means: dict[str, float | None] = {}
    for name in by_site[0]:
        defined = [(value, size) for metrics, size in zip(by_site, sizes) if (value := metrics[name]) is not None]
        means[name] = sum(v * n for v, n in defined) / sum(n for _, n in defined) if defined else None
    return means


def top_metrics(counts: Counts, notes: Counter[Code], k: int) -> dict[str, float | None]:
    """The metrics over the k codes with most train notes; of equally frequent codes the first by name."""
    from nosology.core.label_space import LabelSpace

    known = set(counts.space.codes)
    chosen = [code for code in sorted(notes, key=lambda code: (-notes[code], code))[:k] if code in known]
    columns = [counts.space.column(code) for code in chosen]
    tp, fp, fn = (getattr(counts, name)[columns] for name in ("tp", "fp", "fn"))
    return Counts(LabelSpace(chosen), len(chosen), tp, fp, fn, counts.n_notes, 0).metrics()
