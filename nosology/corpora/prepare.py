"""Corpus recipes, and the way from the files of a dataset to a corpus folder.

corpus = prepare("mimic4", [Path("physionet.org/files")], Path("corpus"), recipe="mimic4-icd10")
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError, field_validator

from nosology.core import SYSTEMS, ConfigError, DataError, Note
from nosology.core.progress import progress
from nosology.core.settings import Settings
from nosology.corpora.cmc2007 import read_cmc2007
from nosology.corpora.codiesp import read_codiesp
from nosology.corpora.corpus import Corpus, check_corpus_folder, write_corpus
from nosology.corpora.filters import assign_splits, drop_uncoded, frequent_codes, keep_codes, read_splits
from nosology.corpora.mimic import read_mimic3, read_mimic4, read_mimic4_radiology
from nosology.corpora.notes_file import read_notes_files
from nosology.corpora.validation import ISSUES, RecordValidator

NoteReader = Callable[[Sequence[Path], RecordValidator], Iterator[Note]]

KINDS: dict[str, Callable[..., Iterator[Note]]] = {
    "mimic4": read_mimic4,
    "mimic4-radiology": read_mimic4_radiology,
    "mimic3": read_mimic3,
    "codiesp": read_codiesp,
    "cmc2007": read_cmc2007,
    "table": read_notes_files,
}


class ExpectedCounts(Settings):
    """Published counts to compare with; None is not compared."""

    notes: int | None = None
    train: int | None = None
    dev: int | None = None
    test: int | None = None
    codes: int | None = None


class CorpusRecipe(Settings):
    """Filters, applied in the order systems, min_count, drop_uncoded; split files come last."""

    kind: str
    name: str = ""
    about: str = ""
    systems: tuple[str, ...] = SYSTEMS
    min_count: int = Field(default=1, ge=1)
    drop_uncoded: bool = False
    expected: ExpectedCounts = ExpectedCounts()

    @field_validator("systems")
    @classmethod
    def _check_systems(cls, systems: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [system for system in systems if system not in SYSTEMS]
        if unknown or not systems:
            raise ValueError(f"must be some of {', '.join(SYSTEMS)}; got {', '.join(unknown) or 'none'}")
        return systems


def built_in_recipes() -> dict[str, Path]:
    """name -> file of the corpus recipes in the package."""
    folder = Path(str(files("nosology"))) / "recipes" / "corpora"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_corpus_recipe(name: str | Path) -> CorpusRecipe:
    """The built-in recipe of that name, or the recipe in that file."""
    path = built_in_recipes().get(str(name), Path(name))
    if not path.is_file():
        raise ConfigError(f"recipe must be a file or one of {', '.join(built_in_recipes())}; got {str(name)!r}")
    try:
        return CorpusRecipe.model_validate({"name": path.stem} | tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_error(error)}") from error
    except (ValueError, RecursionError) as error:  # ValueError: also a number with thousands of digits
        raise ConfigError(f"{path}: not a TOML file ({error})") from error


def override_recipe(
    name: str | Path | None,
    kind: str,
    *,
    min_count: int | None = None,
    systems: Sequence[str] | None = None,
    drop_uncoded: bool | None = None,
) -> CorpusRecipe:
    """The named recipe (without a name: one without filters) with the settings that are not None."""
    recipe = load_corpus_recipe(name) if name is not None else CorpusRecipe(kind=kind)
    options: dict[str, Any] = {"min_count": min_count, "systems": systems, "drop_uncoded": drop_uncoded}
    changed = {key: value for key, value in options.items() if value is not None}
    if changed:
        changed["expected"] = ExpectedCounts()  # the published counts are for the published filters
    try:
        return CorpusRecipe.model_validate(recipe.model_dump() | changed)
    except ValidationError as error:
        raise ConfigError(f"--{_first_error(error)}") from error


def _first_error(error: ValidationError) -> str:
    """The key and the message of the first error. For an unknown key it lists the allowed keys."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        model = ExpectedCounts if first["loc"][0] == "expected" else CorpusRecipe
        return f"{key} is not a key; allowed are {', '.join(model.model_fields)}"
    return f"{key}: {first['msg'].removeprefix('Value error, ')}"


def prepare(
    kind: str,
    paths: Sequence[Path],
    out: Path,
    *,
    recipe: CorpusRecipe | str | Path | None = None,
    splits: Sequence[Path] = (),
    lang: str | None = None,
    system: str | None = None,
    columns: Mapping[str, str] | None = None,
    strict: bool = False,
    reader: NoteReader | None = None,
) -> Corpus:
    """The corpus of a dataset, written to `out`.

    columns: of a table, the column from which a field is read, where it has another name.

    reader: reads a kind that is not in KINDS, such as the reviews of a workbench.

    A filter with counts over all notes reads the dataset twice. No more than one block of notes is held in memory.
    """
    paths, splits = [Path(path) for path in paths], [Path(path) for path in splits]
    read = partial(reader or _find_reader(kind, lang, system, columns), paths)
    _check_reachable([*paths, *splits])
    if not isinstance(recipe, CorpusRecipe):
        recipe = load_corpus_recipe(recipe) if recipe else CorpusRecipe(kind=kind)
    if recipe.kind != kind:
        raise ConfigError(f"the recipe is for kind {recipe.kind}; got kind {kind}")
    check_corpus_folder(out)
    steps = _filter_steps(recipe, splits, read(RecordValidator(strict=strict)))
    validator = RecordValidator(strict=strict, check_codes=True)
    notes = read(validator)
    for step in steps:
        notes = step.apply(notes, record=step.record)
    source = {
        "kind": kind,
        "paths": [str(path) for path in paths],
        "recipe": recipe.model_dump(mode="json", exclude_none=True),
    }
    return write_corpus(
        progress(_require_notes(notes, paths, validator, steps), "preparing"),
        out,
        source=source,
        filters=[step.record for step in steps],
        counts={"troubles": validator.issues, "cautions": validator.cautions},
    )


def _check_reachable(paths: Sequence[Path]) -> None:
    """Raise DataError for a path that the system refuses. A missing file is reported by its reader."""
    for path in paths:
        try:
            path.exists()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error


class _FilterStep(NamedTuple):
    """A filter, and its entry in corpus.json: its settings and what it dropped."""

    record: dict[str, Any]
    apply: Callable[..., Iterator[Note]]


def _filter_steps(recipe: CorpusRecipe, splits: Sequence[Path], notes: Iterator[Note]) -> list[_FilterStep]:
    """The filters of a recipe in order. `notes` are read only if codes must be counted."""
    steps = []
    split_of = read_splits(splits) if splits else {}  # first: reading the notes takes long
    if set(recipe.systems) != set(SYSTEMS):
        select = partial(keep_codes, keep=lambda code: code.system in recipe.systems)
        steps.append(_FilterStep({"filter": "systems", "keep": recipe.systems}, select))
        notes = select(notes, record={})
    if recipe.min_count > 1:
        frequent = frequent_codes(progress(notes, "counting codes"), recipe.min_count)
        record = {"filter": "min_count", "min_count": recipe.min_count}
        steps.append(_FilterStep(record, partial(keep_codes, keep=frequent.__contains__)))
    if recipe.drop_uncoded:
        steps.append(_FilterStep({"filter": "drop_uncoded"}, drop_uncoded))
    if splits:
        record = {"filter": "splits", "files": [path.name for path in splits]}
        steps.append(_FilterStep(record, partial(assign_splits, splits=split_of)))
    return steps


def _require_notes(
    notes: Iterator[Note], paths: Sequence[Path], validator: RecordValidator, steps: Sequence[_FilterStep]
) -> Iterator[Note]:
    """The notes; DataError with what was dropped if there is none."""
    first = next(notes, None)
    if first is None:
        issues = [f"{issue['count']:,} {ISSUES[name].description}" for name, issue in validator.issues.items()]
        filters = [
            f"filter {step.record['filter']}: {step.record['notes_left_out']:,} notes left out" for step in steps
        ]
        where = f"{', '.join(map(str, paths))}: " if paths else ""
        raise DataError(
            "; ".join([f"{where}no note is left after reading and filtering", *issues, *filters, *validator.cautions])
        )
    yield first
    yield from notes


def _find_reader(kind: str, lang: str | None, system: str | None, columns: Mapping[str, str] | None) -> NoteReader:
    """The reader of a kind with its options. ConfigError if an option does not apply to it."""
    if kind not in KINDS:
        raise ConfigError(f"KIND must be one of {', '.join(KINDS)} or reviews; got {kind!r}")
    if system is not None and system not in SYSTEMS:
        raise ConfigError(f"--system must be one of {', '.join(SYSTEMS)}; got {system!r}")
    if lang is not None and kind not in ("codiesp", "table"):
        raise ConfigError(f"--lang applies to codiesp and table; got kind {kind}")
    if system is not None and kind != "table":
        raise ConfigError(f"--system applies to table; got kind {kind}")
    if columns and kind != "table":
        raise ConfigError(f"--column applies to table; got kind {kind}")
    options = {"lang": lang, "system": system, "columns": columns or None}
    return partial(KINDS[kind], **{name: value for name, value in options.items() if value is not None})


def compare_with_expected(corpus: Corpus) -> list[tuple[str, int, int]]:
    """(name, expected, actual) of each count in the recipe; counts of splits only if the corpus has that split."""
    counts = corpus.manifest["counts"]
    actual = {
        "notes": counts["notes"],
        "codes": sum(system["codes"] for system in counts["systems"].values()),
        **{name: count for name, count in counts["splits"].items() if name != "none"},
    }
    expected = corpus.manifest["source"]["recipe"]["expected"]
    return [(name, count, actual[name]) for name, count in expected.items() if name in actual]
