"""The verbs around a model: train, evaluate, code."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.core import Code, ConfigError, DataError, Note, Suggestion

if TYPE_CHECKING:
    from nosology.corpora.corpus import Corpus
    from nosology.models.bundle import Bundle

Overrides = Annotated[list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting.")]


def train(
    recipe: Annotated[str, typer.Argument(help="A built-in recipe's name or a TOML file.")],
    corpus: Annotated[list[Path], typer.Option(help="A corpus folder; may be given several times.")],
    out: Annotated[Path, typer.Option(help="The bundle folder to write.")],
    settings: Overrides = [],  # noqa: B006 (typer copies it)
    refit: Annotated[bool, typer.Option("--refit", help="In the end train once more on train + dev.")] = False,
) -> None:
    """Train a coder on one or more corpora."""
    from nosology.config import load_recipe
    from nosology.corpora.corpus import Corpus
    from nosology.models.train import train as run

    checked, corpora = load_recipe(recipe, settings), [Corpus.open(folder) for folder in corpus]
    first = not int(os.environ.get("RANK") or 0)
    if first and len(corpora) > 1:
        _caution_crossing(corpora)
    started = time.monotonic()
    bundle = run(checked, corpora, out, refit=refit)
    if not first:
        return  # of several processes the first has written the bundle, and speaks
    made = bundle.provenance
    typer.echo(
        f"{out}: {bundle.model.kind} coder, {len(bundle.model.labels):,} codes, trained on {made['n_train']:,} notes"
        f"{' + dev' if made['refit'] else ''}, tuned on {made['tuned_on']} ({made['n_dev']:,} notes)"
        f" with threshold {bundle.decision.threshold:.3f}, {time.monotonic() - started:.0f} s"
    )
    if not made["found"].get("dev_codes", 1):
        typer.echo("caution: no code of the tuning notes is in the training notes: probabilities are guesses", err=True)
    if made["found"].get("net_share", 1.0) < 1:
        typer.echo(f"net weight chosen on held-out notes: {made['found']['net_share']:g}")
    if strange := made["found"].get("contexts_as_on_day_one"):
        told = f"caution: too few mentions are {', '.join(strange)} to learn what that is worth: as on day one"
        typer.echo(told, err=True)


def code(
    bundle: Annotated[Path, typer.Argument(help="The bundle folder, or day-one: every code, without training.")],
    notes: Annotated[list[str], typer.Argument(metavar="NOTE...", help="Text files, notes files, or - .")],
    as_json: Annotated[bool, typer.Option("--json", help="Print predictions as JSON lines.")] = False,
    top: Annotated[
        int | None, typer.Option(min=1, help="How many codes a note (default: those accepted; JSON: 50 at least).")
    ] = None,
    release: Annotated[str | None, typer.Option(help="Keep to the code set of this year, for example 2019.")] = None,
    codes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Choose among these codes, trained or not: a CSV file with a column code and, if wanted, description"
            " and system. For coders that read descriptions, such as dual_laat.",
        ),
    ] = None,
    system: Annotated[
        list[str],
        typer.Option(
            help="Suggest only codes of this system; may be given several times. Without it, a dual_laat coder trained"
            " on ICD-9 and ICD-10 suggests ICD-10 codes alone (icd10cm, icd10pcs)."
        ),
    ] = [],  # noqa: B006
    settings: Overrides = [],  # noqa: B006
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Where to code: in this process, or on a Ray cluster.")
    ] = "local",
    workers: Annotated[int, typer.Option(min=1, help="ray: how many copies of the coder.")] = 2,
    address: Annotated[str | None, typer.Option(help="ray: a running cluster; without one, this machine.")] = None,
) -> None:
    """Code notes and show the words each code rests on."""
    from nosology.codes.code_list import read_code_list
    from nosology.core.model import OpenVocabulary
    from nosology.serving.coder import Coder

    if engine == "ray" and as_json and not settings:
        from nosology.serving.ray_engine import code_on_ray

        options = {"bundle": bundle, "top": top, "release": release, "codes": codes, "systems": system}
        for note_id, found in code_on_ray(read_given(notes), workers=workers, address=address, **options):
            typer.echo(f'{{"id": {json.dumps(note_id, ensure_ascii=False)}, "codes": {found}}}')
        return
    if engine != "local":
        raise ConfigError(f"--engine must be local, or ray with --json and without --set; got {engine!r}")
    loaded, release = open_bundle(bundle, settings, release)
    coder = Coder(loaded, release, codes=None if codes is None else read_code_list(codes), systems=system)
    if codes is not None and isinstance(coder.model, OpenVocabulary):
        caution_unread(coder.model.unreadable_codes(), codes)
    for_ids, to_code = tee(read_given(notes))
    for note, suggestions in zip(for_ids, coder.code_all(to_code, top)):
        if as_json:
            record = {"id": note.id, "codes": [suggestion.to_json() for suggestion in suggestions]}
            typer.echo(json.dumps(record, ensure_ascii=False))
        else:
            show(note.id, suggestions if top else [item for item in suggestions if item.accepted])


def evaluate(
    bundle: Annotated[Path, typer.Argument(help="The bundle folder, or day-one.")],
    corpus: Annotated[Path, typer.Option(help="The corpus folder.")],
    out: Annotated[Path, typer.Option(help="The report folder to write.")],
    split: Annotated[str, typer.Option(help="train, dev, test, or all.")] = "test",
    system: Annotated[
        list[str], typer.Option(help="Count only codes of this system; may be given several times.")
    ] = [],  # noqa: B006
    codes: Annotated[
        str | None,
        typer.Option(
            metavar="full|frequent|rare|known",
            help="Count only the codes of the corpus, those of them with 10 notes or more, those with fewer, or those"
            " that the coder has learned (of the last two, over the notes that have one).",
        ),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Find the threshold anew, on the corpus's dev notes and these codes.")
    ] = False,
    settings: Overrides = [],  # noqa: B006
) -> None:
    """Measure a coder on the notes of a corpus and write a report."""
    from nosology.corpora.corpus import Corpus
    from nosology.evaluation.measure import measure

    if tune and any(setting.startswith("decision.threshold") for setting in settings):
        raise ConfigError("either --tune finds the threshold or --set decision.threshold gives it, not both")
    loaded, _ = open_bundle(bundle, settings)
    measured = measure(loaded, Corpus.open(corpus), split, out, systems=system, codes=codes, tune=tune)
    show_metrics(measured.evaluation.metrics)
    for caution in measured.cautions:
        typer.echo(f"caution: {caution}", err=True)
    typer.echo(f"report: {out / 'index.html'}")


def _caution_crossing(corpora: list[Corpus]) -> None:
    """Says how many patients are on two sides of corpora that were split apart; ids may be the same by chance."""
    from nosology.corpora.audit import count_leaked_patients

    if count := count_leaked_patients(corpora):
        typer.echo(
            f"caution: {count:,} patient{' is' if count == 1 else 's are'} in train of one corpus and in dev or test of"
            " another: if these are the same people, scores flatter; prepare one corpus of all systems and split that",
            err=True,
        )


def caution_unread(codes: Sequence[Code], source: Path) -> None:
    """Says which codes of a list nobody should believe, for want of a word that the coder knows."""
    if codes:
        some = ", ".join(code.code for code in codes[:5]) + (", ..." if len(codes) > 5 else "")
        typer.echo(
            f"caution: {source} describes {len(codes):,} code{'' if len(codes) == 1 else 's'} without a word that the"
            f" coder knows ({some}): their probabilities mean nothing",
            err=True,
        )


def show(note_id: str, suggestions: list[Suggestion]) -> None:
    """Prints suggestions: code, probability, description, and below it the words it rests on."""
    typer.echo(f"{note_id}: {len(suggestions)} code{'' if len(suggestions) == 1 else 's'}")
    for item in suggestions:
        typer.echo(f"  {item.code:<9}{item.probability:5.2f} {' ' if item.accepted else '?'} {item.description}")
        words = dict.fromkeys(" ".join(span.text.split()) for span in item.evidence)
        typer.echo(f"{'':18}{', '.join(words) or '(no word of this note: the code is frequent in the training notes)'}")


def show_metrics(metrics: dict[str, Any]) -> None:
    """Prints each metric with its interval."""
    for name, value in metrics.items():
        if name.endswith(("_low", "_high")):
            continue
        if isinstance(value, float):
            low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
            interval = f"  ({low:.4f} to {high:.4f})" if low is not None and high is not None else ""
            typer.echo(f"{name:<42}{value:>10.4f}{interval}")
        else:
            typer.echo(f"{name:<42}{'undefined' if value is None else value:>10}")


def read_given(names: list[str]) -> Iterator[Note]:
    """The notes of text files, notes files and, for -, of standard input, with what stands beside their texts."""
    from nosology.corpora.notes_file import is_notes_file, read_notes

    for name in names:
        if name == "-":
            yield Note("-", _decoded(sys.stdin.buffer.read()))
            continue
        path = Path(name)
        if not path.is_file():
            raise DataError(f"no such note: {name}")
        if is_notes_file(path):
            yield from read_notes(path, coded=False)
        else:
            yield Note(path.name, _decoded(path.read_bytes()))


def _decoded(raw: bytes) -> str:
    """The text of a note in UTF-8, or, where it is not that, in Windows' Western encoding, as old systems write."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace")


def open_bundle(name: Path, settings: list[str], release: str | None = None) -> tuple[Bundle, str | None]:
    """The bundle of a folder or day-one with --set applied, and the release to which its codes must be translated.

    Of a trained coder only the threshold can be set; of a lexicon also the context policies. day-one takes
    every setting and release.
    """
    from nosology.config import check, load_recipe, override
    from nosology.models.bundle import DAY_ONE, Bundle, is_day_one, read_manifest

    if is_day_one(name):
        from nosology.models.lexicon.day_one import day_one
        from nosology.models.lexicon.lexicon_settings import LexiconRecipe

        overrides = [*settings, *([] if release is None else [f"codes.release='{release}'"])]
        lexicon_recipe = load_recipe(DAY_ONE, overrides)
        assert isinstance(lexicon_recipe, LexiconRecipe)
        return day_one(lexicon_recipe), None
    if not settings:
        return Bundle.load(name), release
    recipe = read_manifest(name)["recipe"]
    changed, before = check(override(recipe, settings), "--set"), check(recipe, str(name))
    free = {"decision", "context"} & set(type(changed).model_fields)
    if changed.model_copy(update={field: getattr(before, field) for field in free}) != before:
        raise ConfigError(f"of a trained coder only {_settable(free)} can still be set; train anew for the rest")
    threshold = changed.decision.threshold
    if any(setting.strip().startswith("decision") for setting in settings) and not isinstance(threshold, float):
        raise ConfigError(f"decision.threshold must be a number in [0, 1]; got {threshold!r}")
    bundle = Bundle.load(name).with_threshold(threshold if isinstance(threshold, float) else None)
    if "context" in free:
        from nosology.models.lexicon.lexicon_model import Lexicon

        assert isinstance(bundle.model, Lexicon)
        context = getattr(changed, "context")  # noqa: B009 (only lexicon recipes have this table)
        if context != getattr(before, "context"):  # noqa: B009
            bundle = replace(bundle, model=bundle.model.with_context(context))
    return bundle, release


def _settable(sections: set[str]) -> str:
    return "decision.threshold and context" if "context" in sections else "decision.threshold"
