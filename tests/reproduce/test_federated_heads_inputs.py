"""Tests of what Xu and Dray (2025) start from: counts of corpora, sizes of embedders and heads, times of notes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from nosology.config import load_recipe
from nosology.core import Code, Note
from nosology.corpora.corpus import write_corpus
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.reproduce import federated_heads_inputs as inputs
from nosology.reproduce import federated_heads_tables as heads
from nosology.reproduce.runner import Run, Task
from tests.encoders.tiny_embedders import tiny_embedder

DIAGNOSIS, RARE, PROCEDURE = Code("icd10cm", "I10"), Code("icd10cm", "E11.9"), Code("icd10pcs", "0DTJ4ZZ")


def execute(run: Run) -> dict:
    """The result of a run, in this process."""
    function = getattr(inputs, run.function.partition(":")[2])
    recipe, corpora = run.recipe.model_dump(mode="json"), [str(corpus.folder) for corpus in run.corpora]
    return function(Task(run.function, recipe, corpora, dict(run.options), "", "", "", ""))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Six notes of three patients: one code in four, one in one and a procedure in two; one note has the rare code."""
    codes = [(DIAGNOSIS,), (DIAGNOSIS, PROCEDURE), (DIAGNOSIS,), (DIAGNOSIS,), (PROCEDURE,), (RARE,)]
    splits = ["train", "train", "train", "dev", "test", "test"]
    notes = [Note(f"n{i}", f"note {i}", f"p{i // 2}", split=splits[i], codes=codes[i]) for i in range(6)]
    folder = tmp_path_factory.mktemp("counts") / "mimic"
    return write_corpus(notes, folder, source={"kind": "test"}, filters=[], counts={})


def test_corpus_is_counted_before_and_after_the_rule(corpus):
    table = inputs.corpus_table(corpus, "mimic", "icd10", 2, 1)
    [run] = table.runs.values()
    shown = table.markdown({run.key: execute(run)})
    assert "| all codes | 6 | 3 | 1.1667 | 3 | 3 | 1 | 2 |" in shown
    assert "| frequent codes | 5 [121,344] | 2 [1,085] | 1.2000 | 3 | 3 | 1 | 1 |" in shown
    assert "| frequent codes: diagnoses | 4 | 1 | 1.0000 | 2 | 3 | 1 | 0 |" in shown
    assert "| frequent codes: procedures | 2 | 1 | 1.0000 | 2 | 1 | 0 | 1 |" in shown
    assert "Frequent codes have at least 2 notes: 1 for each of 2 sites." in shown
    assert "Ours minus the paper's: -121,339 notes, -1,083 codes." in shown
    assert "**" not in shown, "no count is the best"


@pytest.mark.parametrize(("version", "notes", "codes"), [("icd10", 121_344, 1085), ("icd9", 207_817, 1267)])
def test_counts_of_the_paper_are_confirmed(corpus, version, notes, codes):
    table = inputs.corpus_table(corpus, "mimic", version, 20, 10)
    [run] = table.runs.values()
    metrics = {"frequent.notes": notes, "frequent.codes": codes}
    assert list(table.remarks({run.key: {"metrics": metrics, "uncoded": 3}})) == [
        "Frequent codes have at least 200 notes: 10 for each of 20 sites.",
        "3 notes of the corpus have no code at all. They are not counted here, but used in all runs.",
        "Notes and codes are as many as in the paper.",
    ]


def test_counts_equal_the_prepared_corpus(small_corpus, tmp_path):
    study = heads.STUDY.model_validate(heads.SMALL | {"sites": {"count": 3, "notes": 18}})
    [prepared] = heads.prepared(study, [small_corpus], tmp_path, ["central"]).values()
    [run] = inputs.corpus_table(small_corpus, "small", "icd10", 3, 18).runs.values()
    result = execute(run)
    metrics, uncoded = result["metrics"], result["uncoded"]
    notes = [note.codes for note in prepared.notes() if note.codes]
    counted = Counter(code for codes in notes for code in codes)
    assert uncoded == sum(not note.codes for note in small_corpus.notes()) == len(prepared) - len(notes) > 0
    assert metrics["frequent.notes"] == len(notes) < metrics["all.notes"]
    assert metrics["frequent.codes"] == len(counted) < metrics["all.codes"]
    assert metrics["frequent.codes_per_note"] == pytest.approx(counted.total() / len(notes))


def test_heads_have_the_parameters_of_table_2():
    recipes = {head: load_recipe(f"heads-{head}") for head in ("mlp", "deep", "res")}
    table = inputs.head_table(recipes)
    results = {key: execute(run) for key, run in table.runs.items()}
    assert [row.names for row in table.rows] == [("MLP",), ("DeepMLP",), ("DeepResMLP",)]
    cells = [row.cell(results, metric) for row in table.rows for metric in table.columns]
    assert len(cells) == 18 and all(abs(cell.difference) <= 0.06 * cell.paper for cell in cells)
    first = table.rows[0].cell(results, "768.1085")
    assert first.mean == ((768 + 1) * 896 + (896 + 1) * 1085) / 1e6 and first.paper == 1.6
    assert table.rows[2].cell(results, "1536.1267").paper == 7.0
    [remark] = table.remarks(results)
    assert remark.startswith("Ours differ from the paper's by -") and not list(table.remarks({}))


def test_sizes_of_an_embedder_are_those_of_its_files(tmp_path):
    folder = tiny_embedder(tmp_path / "mine", "xlm-roberta", dense=5)
    recipe = load_recipe("heads-mlp", [f"embedder.model={str(folder)!r}"])
    table = inputs.embedder_table({str(folder): recipe}, {str(folder): "hash"})
    [run] = table.runs.values()
    metrics = execute(run)["metrics"]
    files = [folder / "model.safetensors", folder / "2_Dense" / "model.safetensors"]
    weights = {name: value for file in files for name, value in load_file(file).items()}
    expected = sum(value.numel() for name, value in weights.items() if not name.startswith("pooler."))
    assert metrics == {"parameters": expected / 1e6, "dim": 5, "positions": 511, "window": 511}
    papers = {row.names[0]: row.paper for row in table.rows[1:]}
    assert papers["gte-qwen2-1.5b (paper)"] == {"parameters": 1500, "dim": 1536, "positions": 32_768}
    assert len(papers) == 6 and papers["nomic-v1.5 (paper)"]["parameters"] == 137


@pytest.fixture
def timed(small_corpus, tmp_path):
    """The table of times of a tiny embedder, and its result."""
    folder = tiny_embedder(tmp_path / "mine", "bert", window=20)
    recipes = {str(folder): load_recipe("heads-mlp", [f"embedder.model={str(folder)!r}"])}
    table = inputs.time_table(recipes, {str(folder): ""}, small_corpus, "small", "icd9", 6, 60, "b")
    [run] = table.runs.values()
    return table, {run.key: execute(run)}


def test_times_of_notes_and_notes_at_the_limit(timed, small_corpus):
    table, results = timed
    [run] = table.runs.values()
    embedder = Embedder.load(EmbedderSettings.model_validate(run.recipe.model_dump()["embedder"]), "cpu")
    batches = list(embedder.embed_batches([note.text for note in small_corpus.notes()]))
    tokens = np.concatenate([batch.tokens for batch in batches])
    metrics, points = results[run.key]["metrics"], results[run.key]["points"]
    assert metrics["notes"] == 160 and metrics["tokens_max"] == tokens.max() and tokens.max() > 60 > tokens.min()
    assert metrics["at_limit"] == (tokens >= 60).sum() and metrics["tokens_median"] == np.median(tokens)
    read = {read for batch in batches for read in batch.read.tolist()}
    assert 2 <= len(points) <= 12 and points == sorted(points) and {point[0] for point in points} <= read
    assert all(milliseconds > 0 for _, milliseconds in points) and metrics["ms_median"] > 0
    shown = table.markdown(results)
    assert "A note longer than 60 tokens is cut there." in shown and "on cpu (" in shown
    assert "| qwen3-embedding-0.6b (paper) | - [207,817] | - [737] |" in shown


def test_figure_2_is_drawn_with_and_without_results(timed, tmp_path):
    table, results = timed
    [figure] = table.figures
    assert figure.write({}, tmp_path) == tmp_path / "figure-2b.png"
    empty = (tmp_path / "figure-2b.png").read_bytes()
    figure.write(results, tmp_path)
    assert (tmp_path / "figure-2b.png").read_bytes() != empty


@given(st.lists(st.integers(0, 9000), min_size=1, max_size=40), st.integers(1, 12))
def test_sampled_notes_cover_notes_and_lengths(tokens, count):
    sizes = np.array(tokens)
    typical, spread = inputs.sample_lengths(sizes, count)
    for rows in (typical, spread):
        assert 1 <= len(rows) == len(set(rows.tolist())) <= count
        if count > 1:
            assert sizes[rows].min() == sizes.min() and sizes[rows].max() == sizes.max()


def test_count_tokens_equals_embedding(tmp_path):
    folder = tiny_embedder(tmp_path / "mine", "qwen3")
    embedder = Embedder.load(EmbedderSettings(model=str(folder), prompt="type 2: "), "cpu")
    texts = ["", "chronic pain", "pain " * 30, " "]
    [batch] = embedder.embed_batches(texts)
    assert embedder.count_tokens(texts)[batch.rows].tolist() == batch.tokens.tolist()


@pytest.mark.parametrize(
    ("embedder", "name"),
    [
        ("nomic-v1.5", "nomic-v1.5"),
        ("/models/gte-Qwen2-1.5B-instruct", "gte-qwen2-1.5b"),
        ("Snowflake/snowflake-arctic-embed-m-v2.0", "arctic-m-v2"),
        ("/models/mine", "mine"),
    ],
)
def test_copy_of_an_embedder_stands_in_the_row_of_the_paper(embedder, name):
    assert inputs.row_name(embedder) == name
