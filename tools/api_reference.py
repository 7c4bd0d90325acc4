"""Builds the API reference from the docstrings of nosology/ into a folder of HTML pages, with pdoc.

    python tools/api_reference.py --out out/api                       # then open out/api/index.html
    python tools/api_reference.py --out out/api nosology.serving      # these packages alone, to see one's changes

A warning of pdoc is an error: a docstring that does not parse or a module that cannot be imported stops it.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import pdoc
import pdoc.render

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nosology"
SCRIPTS = "migrations"  # a folder of scripts that Alembic loads by path, not of modules


def public_modules() -> list[str]:
    """The dotted names of all modules of the package but private ones and scripts of the database."""
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        if SCRIPTS in relative.parts or path.stem == "__main__":
            continue
        parts = relative.with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if not any(part.startswith("_") for part in parts):
            names.append(".".join(("nosology", *parts)))
    return names


def main() -> None:
    """Writes the pages into the folder given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/api"))
    parser.add_argument("packages", nargs="*", default=["nosology"])
    arguments = parser.parse_args()
    out, packages = arguments.out, arguments.packages
    names = public_modules()
    found = {package: [name for name in names if f"{name}.".startswith(f"{package}.")] for package in packages}
    if unknown := [package for package, inside in found.items() if not inside]:
        parser.error(f"no module is in {', '.join(unknown)}")
    modules = sorted(set().union(*found.values()))
    pdoc.render.configure(show_source=False, template_directory=ROOT / "docs/api")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # what pdoc raises
        # a type that a NamedTuple or an inherited __init__ has from another module is printed as it is written
        warnings.filterwarnings("ignore", message="Error parsing type annotation")
        # pdoc walks a package without __all__ by itself; one with __all__ needs its modules named
        warnings.filterwarnings("ignore", message="The module specification .* adds a module named")
        pdoc.pdoc(*modules, output_directory=out)
    print(f"{out / 'index.html'}: {len(modules)} modules")


if __name__ == "__main__":
    main()
