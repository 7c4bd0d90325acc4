"""nosology train, code and import: coders from corpora, codes from coders, coders of other programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.command_group import CommandGroup, recipe_names, refuse_unused
from nosology.cli.input_notes import ColumnOptions, InputNote, InputNotes, NoteArguments, SplitOption, parse_columns
from nosology.core import Code, ConfigError, Note, Suggestion
from nosology.core.errors import printable
from nosology.core.progress import progress

if TYPE_CHECKING:
    from nosology.corpora.corpus import Corpus
    from nosology.models.bundle import Bundle

Overrides = Annotated[
    list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting; may be repeated.")
]


def train(
    recipe: Annotated[str, typer.Argument(help=f"A TOML file, or a built-in recipe: {recipe_names()}.")],
    corpus: Annotated[list[Path], typer.Option(help="A corpus folder; may be repeated.")],
    out: Annotated[Path, typer.Option(help="The bundle folder to write.")],
    settings: Overrides = [],  # noqa: B006 (typer copies it)
    refit: Annotated[bool, typer.Option("--refit", help="At the end, train once more on train and dev.")] = False,
) -> None:
    """Train a coder on one or more corpora."""
    from nosology.config import load_recipe
    from nosology.corpora.corpus import Corpus
    from nosology.models.train import train as run
    from nosology.training.run_folder import run_folder
    from nosology.training.torchrun import is_first_process

    checked, corpora = load_recipe(recipe, settings), [Corpus.open(folder) for folder in corpus]
    first = is_first_process()
    if first and len(corpora) > 1:
        _warn_of_leaked_patients(corpora)
    started = time.monotonic()
    try:
        bundle = run(checked, corpora, out, refit=refit)
    except KeyboardInterrupt:
        if run_folder(out).exists():
            typer.echo(f"{run_folder(out)} has the progress so far: the same command resumes the training", err=True)
        raise
    if not first:
        return  # only the first of several processes writes the bundle and prints
    about = bundle.provenance
    typer.echo(
        f"{out}: {bundle.model.kind} coder, {len(bundle.model.labels):,} codes, trained on {about['n_train']:,} notes"
        f"{' + dev' if about['refit'] else ''}, tuned on {about['tuned_on']} ({about['n_dev']:,} notes)"
        f" with threshold {bundle.decision.threshold:.3f}, {time.monotonic() - started:.0f} s"
    )
    if bundle.decision.at_least_one:
        typer.echo("every note gets at least one code (decision.at_least_one)")
    report = about["found"]
    if not report.get("dev_codes", 1):
        typer.echo("caution: no code of the tuning notes is in the training notes: probabilities are guesses", err=True)
    if report.get("net_weight", 1.0) < 1:
        typer.echo(f"net weight chosen on held-out notes: {report['net_weight']:g}")
    if rare := report.get("contexts_as_on_day_one"):
        typer.echo(
            f"caution: too few {', '.join(rare)} mentions to learn from: these keep the day-one weights", err=True
        )


def code(
    bundle: Annotated[Path, typer.Argument(help="The bundle folder, or day-one: every code, without training.")],
    notes: NoteArguments,
    as_json: Annotated[bool, typer.Option("--json", help="Print predictions as JSON lines.")] = False,
    as_tsv: Annotated[
        bool,
        typer.Option(
            "--tsv",
            help="Print a line per code: the id of the note, a tab, the code; of a note the most probable code first,"
            " as shared tasks want them.",
        ),
    ] = False,
    split: SplitOption = None,
    column: ColumnOptions = [],  # noqa: B006
    top: Annotated[
        int | None, typer.Option(min=1, help="Codes per note (default: all accepted codes; JSON: at least 50).")
    ] = None,
    release: Annotated[
        str | None, typer.Option(help="Translate codes to the code set of this year, such as 2019.")
    ] = None,
    codes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Choose among these codes, trained or not: a CSV file with a column code and, optionally, description"
            " and system. For coders that read descriptions, such as dual_laat.",
        ),
    ] = None,
    system: Annotated[
        list[str],
        typer.Option(
            help="Suggest only codes of this system; may be repeated. Without it, a dual_laat coder trained"
            " on ICD-9 and ICD-10 suggests ICD-10 codes alone (icd10cm, icd10pcs)."
        ),
    ] = [],  # noqa: B006
    settings: Overrides = [],  # noqa: B006
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Where to code: in this process, or on a Ray cluster.")
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that code: of day-one and of lexicons, by default as many as there are cores; of Ray, 2.",
        ),
    ] = None,
    address: Annotated[str | None, typer.Option(help="ray: a running cluster; without one, this machine.")] = None,
) -> None:
    """Code notes and show the evidence for each code."""
    from nosology.codes.code_list import read_code_list
    from nosology.core.forked_processes import forked_map, freeze_objects
    from nosology.core.model import OpenVocabulary
    from nosology.core.parallel import cores
    from nosology.serving.coder import Coder

    if engine != "ray":
        refuse_unused(("address",), "without --engine ray")
    if as_json and as_tsv:
        raise ConfigError("either --json or --tsv, not both")
    read = InputNotes(notes, columns=parse_columns(column), split=split)
    for_errors, to_code = tee(read)
    if engine == "ray" and as_json and not settings:
        from nosology.serving.ray_engine import code_on_ray

        options = {"bundle": bundle, "top": top, "release": release, "codes": codes, "systems": system}
        coded_notes = code_on_ray((item.note for item in to_code), workers=workers or 2, address=address, **options)
        lines = (f'{{"id": {_json(note_id)}, "codes": {predictions}}}' for note_id, predictions in coded_notes)
        _print_coded(for_errors, lines, as_json=True)
        read.exit_if_failed()
        return
    if engine != "local":
        raise ConfigError(f"--engine must be local, or ray with --json and without --set; got {engine!r}")
    loaded, release = open_bundle(bundle, settings, release)
    coder = Coder(loaded, release, codes=None if codes is None else read_code_list(codes), systems=system)
    if codes is not None and isinstance(coder.model, OpenVocabulary):
        warn_of_unreadable_codes(coder.model.unreadable_codes(), codes)
    if coder.model.kind != "lexicon":
        refuse_unused(("workers",), f"without --engine ray for a {coder.model.kind} coder")

    show = _json_line if as_json else _tsv_lines if as_tsv else _suggestions_text

    def coded(note: Note) -> str:
        return show(note.id, next(coder.code_all([note], top)), only_accepted=not top)

    freeze_objects()
    if coder.model.kind == "lexicon":
        shown = forked_map(coded, (item.note for item in to_code), workers or cores())
    else:
        for_ids, to_code = tee(to_code)
        shown = (
            show(item.note.id, suggestions, only_accepted=not top)
            for item, suggestions in zip(for_ids, coder.code_all((item.note for item in to_code), top))
        )
    _print_coded(for_errors, shown, as_json)
    read.exit_if_failed()


def _print_coded(notes: Iterable[InputNote], shown: Iterable[str], as_json: bool) -> None:
    """Prints what is shown of each note; of one that cannot be used the error, as JSON only."""
    # A terminal shows the codes themselves.
    for text, item in zip(shown if sys.stdout.isatty() else progress(shown, "coding"), notes):
        if not item.error:
            typer.echo(text, nl=bool(text))
        elif as_json:
            typer.echo(_json({"id": item.note.id, "error": item.error}))


def _json_line(note_id: str, suggestions: list[Suggestion], *, only_accepted: bool) -> str:
    """All suggestions of a note as JSON, which tells those that are accepted."""
    return _json({"id": note_id, "codes": [item.to_json() for item in suggestions]})


def _tsv_lines(note_id: str, suggestions: list[Suggestion], *, only_accepted: bool) -> str:
    """A line with id and code per suggestion; nothing for a note without one."""
    codes = [item.code for item in suggestions if item.accepted or not only_accepted]
    return "\n".join(f"{printable(note_id)}\t{code}" for code in codes)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _warn_of_leaked_patients(corpora: list[Corpus]) -> None:
    """Prints how many patients are in train of one corpus and in dev or test of another; ids may agree by chance."""
    from nosology.corpora.audit import count_leaked_patients

    if count := count_leaked_patients(corpora):
        typer.echo(
            f"caution: {count:,} patient{' is' if count == 1 else 's are'} in train of one corpus and in dev or test of"
            " another: if these are the same people, scores flatter; prepare one corpus of all systems and split that",
            err=True,
        )


def warn_of_unreadable_codes(codes: Sequence[Code], source: Path) -> None:
    """Prints the codes whose descriptions have no word that the coder knows."""
    if codes:
        some = ", ".join(code.code for code in codes[:5]) + (", ..." if len(codes) > 5 else "")
        typer.echo(
            f"caution: {source} describes {len(codes):,} code{'' if len(codes) == 1 else 's'} without a word that the"
            f" coder knows ({some}): their probabilities mean nothing",
            err=True,
        )


def _suggestions_text(note_id: str, suggestions: list[Suggestion], *, only_accepted: bool) -> str:
    """The suggestions of a note: code, probability, description, and below them the text of the evidence."""
    suggestions = [item for item in suggestions if item.accepted or not only_accepted]
    lines = [f"{printable(note_id)}: {len(suggestions)} code{'' if len(suggestions) == 1 else 's'}"]
    for item in suggestions:
        lines.append(f"  {item.code:<9}{item.probability:5.2f} {' ' if item.accepted else '?'} {item.description}")
        words = dict.fromkeys(printable(" ".join(span.text.split())) for span in item.evidence)
        none = "(no evidence in this note)"
        lines.append(f"{'':18}{', '.join(words) or none}")
    return "\n".join(lines)


def caution_missing(bundle: Bundle) -> None:
    """Prints which weights of a bundle only the sites have, if there are any."""
    if missing := bundle.missing_layers:
        typer.echo(
            f"caution: sites keep their own {', '.join(missing)}, which are untrained in this bundle: each site adds "
            "them with `nosology federate complete`",
            err=True,
        )


def open_bundle(name: Path, settings: list[str], release: str | None = None) -> tuple[Bundle, str | None]:
    """The bundle of a folder or day-one with --set applied, and the release to which its codes must be translated.

    Of a trained coder only the threshold can be set; of a lexicon also the context policies. day-one takes
    every setting and release.
    """
    from nosology.config import load_recipe, override, parse_recipe
    from nosology.models.bundle import DAY_ONE, Bundle, is_day_one, read_manifest

    if is_day_one(name):
        from nosology.models.lexicon.lexicon_model import day_one
        from nosology.models.lexicon.lexicon_settings import LexiconRecipe

        overrides = [*settings, *([] if release is None else [f"codes.release='{release}'"])]
        lexicon_recipe = load_recipe(DAY_ONE, overrides)
        assert isinstance(lexicon_recipe, LexiconRecipe)
        return day_one(lexicon_recipe), None
    if not settings:
        return Bundle.load(name), release
    recipe = read_manifest(name)["recipe"]
    changed, before = parse_recipe(override(recipe, settings), "--set"), parse_recipe(recipe, str(name))
    free = {"decision", "context"} & set(type(changed).model_fields)
    if changed.model_copy(update={field: getattr(before, field) for field in free}) != before:
        settable = "decision.threshold and context" if "context" in free else "decision.threshold"
        raise ConfigError(f"of a trained coder only {settable} can still be set; train anew for the rest")
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


import_app = CommandGroup("Import a coder that another program has trained.")


@import_app.callback()
def _import_options() -> None:
    pass  # without a callback, typer would drop the name of the only command


@import_app.command("dual-laat")
def dual_laat(
    folder: Annotated[Path, typer.Argument(help="The folder with config.json, token2id.json, pytorch_model.bin.")],
    codes: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The codes to suggest: a CSV file with a column code and, optionally, description and system.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The bundle folder to write.")],
    threshold: Annotated[float, typer.Option(min=0, max=1, help="From which probability on a code is accepted.")] = 0.5,
) -> None:
    """Write a bundle from a DualLAAT checkpoint of its authors."""
    from nosology.codes.code_list import read_code_list
    from nosology.core.model import OpenVocabulary
    from nosology.models.bundle import check_bundle_folder
    from nosology.models.dual_laat.dual_laat_import import import_bundle

    check_bundle_folder(out)
    bundle = import_bundle(folder, read_code_list(codes), threshold)
    bundle.save(out)
    typer.echo(f"{out}: dual_laat coder, {len(bundle.model.labels):,} codes, threshold {threshold:.3f}")
    warn_of_unreadable_codes(bundle.model.unreadable_codes() if isinstance(bundle.model, OpenVocabulary) else [], codes)
