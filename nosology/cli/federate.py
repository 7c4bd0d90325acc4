"""nosology federate: hospitals train one coder together; `simulate` has all of them on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.coder_commands import Overrides
from nosology.cli.federate_deploy import add_to
from nosology.core import ConfigError

if TYPE_CHECKING:
    from nosology.models.bundle import Bundle

app = typer.Typer(help="Train one coder at several hospitals while no note leaves home.", no_args_is_help=True)
add_to(app)

_SHOWN = ("micro_f1", "micro_precision", "micro_recall", "macro_f1", "exact_match", "map")


@app.command()
def simulate(
    recipe: Annotated[str, typer.Argument(help="A recipe of kind heads: a built-in one's name or a TOML file.")],
    corpus: Annotated[list[Path], typer.Option(help="A corpus folder; may be given several times.")],
    out: Annotated[Path, typer.Option(help="The bundle folder to write; a run that was stopped goes on.")],
    sites: Annotated[
        int | None, typer.Option(min=1, help="Deal the notes out to so many sites; default: the sites they have.")
    ] = None,
    skew: Annotated[str | None, typer.Option(help="How sites differ: iid, size or dirichlet; default: iid.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="dirichlet: the smaller, the fewer sites see a family of codes; default: 0.5.")
    ] = None,
    stacked: Annotated[
        bool, typer.Option("--stacked", help="All sites in one program, without Flower; much faster on a GPU.")
    ] = False,
    settings: Overrides = [],  # noqa: B006 (typer copies it)
) -> None:
    """Simulate a federation on this machine, one process, site after site."""
    from nosology.config import load_recipe
    from nosology.corpora.corpus import Corpus
    from nosology.federated.federation_settings import FederatedHeadsRecipe, FederationSettings
    from nosology.training.run_folder import VECTORS, clear_run_folder, run_folder

    checked = load_recipe(recipe, settings)
    if not isinstance(checked, FederatedHeadsRecipe):
        raise ConfigError(f"recipe must be of kind heads, such as heads-mlp; got {checked.kind}")
    if sites is None and (skew is not None or alpha is not None):
        raise ConfigError("--skew and --alpha need --sites")
    if alpha is not None and skew != "dirichlet":
        raise ConfigError(f"--alpha needs --skew dirichlet; got {skew or 'iid'}")
    federation = checked.federation
    if stacked and federation.fraction_evaluate not in (FederationSettings().fraction_evaluate, 1.0):
        raise ConfigError("federation.fraction_evaluate must be as it comes with --stacked: every site is evaluated")
    try:
        from nosology.federated.rounds.federation_server import run_federation
        from nosology.federated.rounds.simulation import dealt_sites, grid_of, notes_hash, own_sites, simulated_sites
    except ImportError as error:
        raise ConfigError(f"a federation needs {error.name}: pip install nosology[federated,embed]") from error
    corpora = [Corpus.open(folder) for folder in corpus]
    if sites:
        site_of = dealt_sites(corpora, sites, skew or "iid", 0.5 if alpha is None else alpha, checked.seed)
    else:
        site_of = own_sites(corpora)
    cache = Path(checked.vectors.cache or run_folder(out) / VECTORS)
    hospitals = simulated_sites(corpora, site_of, checked, cache)
    most = max(1, sum(len(each.notes["train"].codes) >= federation.min_site_notes for each in hospitals))
    fitting = {"min_sites": min(federation.min_sites, most), "quorum": min(federation.quorum, most)}
    checked = checked.model_copy(update={"federation": federation.model_copy(update=fitting)})
    about = [{"hash": each.hash, "source": each.manifest["source"]} for each in corpora]
    told = {"corpora": about, "notes": notes_hash(corpora, site_of), "say": typer.echo}
    if stacked:
        from nosology.federated.rounds.stacked import run_stacked

        bundle = run_stacked(hospitals, checked, out, **told)
    else:
        bundle = run_federation(grid_of(hospitals), checked, out, **told).bundle
    clear_run_folder(run_folder(out))
    show(out, bundle)


def show(out: Path, bundle: Bundle) -> None:
    """Prints what a federation has made, and how it does on the sites' test notes."""
    made: dict[str, Any] = bundle.provenance
    typer.echo(
        f"{out}: {bundle.model.kind} coder, {len(bundle.model.labels):,} codes, trained on {made['n_train']:,} notes"
        f" at {len(made['federation']['sites'])} sites, threshold {bundle.decision.threshold:.3f}"
    )
    for site, why in sorted(made["federation"]["refused"].items()):
        typer.echo(f"caution: {site} was left out: {why}", err=True)
    if not made["found"]["dev_codes"]:
        typer.echo("caution: the sites have no coded dev notes: probabilities and threshold are guesses", err=True)
    for name in _SHOWN if "test" in made["found"] else ():
        value = made["found"]["test"][name]
        typer.echo(f"{name + ' (test)':<28}{'undefined' if value is None else f'{value:.4f}':>10}")
