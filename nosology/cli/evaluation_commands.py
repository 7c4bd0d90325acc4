"""nosology evaluate, compare and probe: scores, significance tests, membership inference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.coder_commands import Overrides, caution_missing, open_bundle
from nosology.core import ConfigError, __version__

if TYPE_CHECKING:
    from nosology.models.compare import Variant
    from nosology.training.recipe_settings import Recipe

COMPARED_METRICS = {
    "micro_precision": "precision",
    "micro_recall": "recall",
    "micro_f1": "F1",
    "macro_f1": "macro F1",
    "micro_auc": "ROC-AUC",
    "hamming_loss": "Hamming",
}


def evaluate(
    bundle: Annotated[Path, typer.Argument(help="The bundle folder, or day-one.")],
    corpus: Annotated[Path, typer.Option(help="The corpus folder.")],
    out: Annotated[Path, typer.Option(help="The report folder to write.")],
    split: Annotated[str, typer.Option(help="train, dev, test, or all.")] = "test",
    system: Annotated[list[str], typer.Option(help="Count only codes of this system; may be repeated.")] = [],  # noqa: B006
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
    caution_missing(loaded)
    measured = measure(loaded, Corpus.open(corpus), split, out, systems=system, codes=codes, tune=tune)
    _print_metrics(measured.evaluation.metrics)
    for caution in measured.cautions:
        typer.echo(f"caution: {caution}", err=True)
    typer.echo(f"report: {out / 'index.html'}")


def _print_metrics(metrics: dict[str, Any]) -> None:
    """Prints each metric with its confidence interval."""
    for name, value in metrics.items():
        if name.endswith(("_low", "_high")):
            continue
        if isinstance(value, float):
            low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
            interval = f"  ({low:.4f} to {high:.4f})" if low is not None and high is not None else ""
            typer.echo(f"{name:<42}{value:>10.4f}{interval}")
        else:
            typer.echo(f"{name:<42}{'undefined' if value is None else value:>10}")


def compare(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE...",
            help="Recipes, TOML files or built in. Settings of one recipe follow its name:"
            " 'hmhan model.attention=single'.",
        ),
    ],
    corpus: Annotated[Path, typer.Option(help="A corpus folder with train, dev and test notes.")],
    out: Annotated[Path, typer.Option(help="A folder for bundles and compare.json.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each recipe.")] = 5,
    settings: Overrides = [],  # noqa: B006
) -> None:
    """Train recipes over seeds and print their scores with paired t-tests and a bootstrap over patients."""
    from nosology.corpora.corpus import Corpus
    from nosology.models.compare import compare as run

    variants = _variants(recipes, settings)
    compared = run(variants, Corpus.open(corpus), out, seeds=seeds, report=lambda line: typer.echo(line, err=True))
    typer.echo(f"{'':<28}" + "".join(f"{name:>18}" for name in COMPARED_METRICS.values()))
    for name, row in compared.rows.items():
        typer.echo(f"{name:<28}" + "".join(f"{_cell(row[metric]):>18}" for metric in COMPARED_METRICS))
    first = next(iter(compared.rows))
    for name, tests in compared.tests.items():
        bootstrap, t_test = tests["bootstrap"], tests["t_test"]
        line = f"{first} minus {name}, F1 of the first seeds: {bootstrap['value']:+.4f}"
        line += (
            f" ({bootstrap['low']:+.4f} to {bootstrap['high']:+.4f}), bootstrap over patients p {bootstrap['p']:.3f}"
        )
        if t_test:
            p = "undefined" if t_test["p"] is None else f"{t_test['p']:.4f}"
            line += f"; mean over seeds {t_test['value']:+.4f}, paired t-test p {p}"
        typer.echo(line)
    typer.echo(f"written: {out / 'compare.json'}")


def _cell(values: dict[str, Any]) -> str:
    if values["mean"] is None:
        return "undefined"
    return f"{values['mean']:.3f}" + ("" if values["std"] is None else f" (sd {values['std']:.3f})")


def _variants(recipes: list[str], settings: list[str]) -> list[Variant]:
    """The recipes with their names. ConfigError if two have the same name."""
    from nosology.config import load_recipe
    from nosology.models.compare import Variant

    named: dict[str, Recipe] = {}
    for argument in recipes:
        name, *overrides = argument.split() or [argument]
        label = "-".join([Path(name).stem, *(part.replace("=", "_").replace("/", "_") for part in overrides)])
        if label in named:
            raise ConfigError(f"recipes must differ; got {argument!r} twice")
        named[label] = load_recipe(name, [*settings, *overrides])
    return [Variant(name, recipe) for name, recipe in named.items()]


def probe(
    bundle: Annotated[Path, typer.Argument(help="The bundle folder, of kind heads.")],
    corpus: Annotated[Path, typer.Option(help="The corpus folder that the coder was trained on.")],
    out: Annotated[Path, typer.Option(help="The JSON file to write.")],
    cache: Annotated[Path | None, typer.Option(help="A folder of vectors of `nosology embed`.")] = None,
    notes: Annotated[int, typer.Option(min=20, help="Largest number of seen and of unseen notes.")] = 2000,
    html: Annotated[Path | None, typer.Option(help="Also write a page with plots to this file.")] = None,
) -> None:
    """Guess which notes a coder was trained on: a membership-inference attack."""
    from nosology.core.files import check_json_output, check_results_folder, write_json
    from nosology.corpora.corpus import Corpus
    from nosology.federated.privacy.membership import probe_bundle
    from nosology.federated.privacy.probe_page import check_probe_page, write_probe_page
    from nosology.models.bundle import Bundle

    if html is not None:
        check_probe_page(html)
    check_json_output(out, keys={"attacks", "strongest", "sentence"})
    if cache is not None:
        check_results_folder(cache)
    loaded, opened = Bundle.load(bundle), Corpus.open(corpus)
    report, cautions = probe_bundle(loaded, opened, cache, notes)
    write_json(out, report.to_json() | {"bundle": str(bundle), "cautions": cautions})
    if html is not None:
        sources = {"bundle": bundle, "corpus": corpus, "hash of the corpus": opened.hash, "nosology": __version__}
        write_probe_page(html, report, cautions, sources)
    typer.echo(f"{'attack':<26}{'AUC':>7}  {'95% interval':<16}  seen notes found at 1% false alarms")
    rows = report.attacks | ({"control: dev against test": report.control} if report.control else {})
    for name, attack in rows.items():
        interval = f"{attack.auc_low:.3f} to {attack.auc_high:.3f}"
        typer.echo(f"{name:<26}{attack.auc:>7.3f}  {interval:<16}  {attack.hits:.1%}")
    typer.echo(report.sentence)
    for caution in cautions:
        typer.echo(f"caution: {caution}", err=True)
