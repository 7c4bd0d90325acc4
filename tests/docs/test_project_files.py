"""The changelog, CITATION.cff, REFERENCES.md and the Makefile agree with the package."""

import ast
import importlib
import pkgutil
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import nosology
from nosology.core.settings import Settings

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_changelog_and_citation_name_the_version():
    assert re.search(rf"^## {re.escape(nosology.__version__)}$", read("CHANGELOG.md"), re.MULTILINE)
    assert f"\nversion: {nosology.__version__}\n" in read("CITATION.cff")


def all_settings() -> set[type[Settings]]:
    """All classes of settings that the package defines."""
    for module in pkgutil.walk_packages(nosology.__path__, "nosology."):
        if module.name.endswith(("settings", "config", "recipe", "tfidf")):
            importlib.import_module(module.name)
    pending, seen = [Settings], set()
    while pending:
        new = [each for each in pending.pop().__subclasses__() if each not in seen]
        seen.update(new)
        pending += new
    return {each for each in seen if each.__module__.startswith("nosology.")}


def test_changelog_lists_every_renamed_setting():
    rows = [line for line in read("CHANGELOG.md").splitlines() if line.startswith("|")]
    names = {(old, new) for settings in all_settings() for old, new in settings.renamed.items()}
    assert ("most", "top_k") in names
    for old, new in sorted(names):
        row = re.compile(rf"\b{old}`.*\b{new}`")
        assert any(row.search(line) for line in rows), f"{old} -> {new} is missing"


def test_every_reference_has_a_bibtex_entry():
    text = read("REFERENCES.md")
    entries = re.findall(r"^@\w+\{(\w+),", text, re.MULTILINE)
    listed = re.findall(r"`([a-z]+\d{4}\w*)`", text)
    assert sorted(entries) == sorted(listed)
    for entry in re.findall(r"^@.*?^}", text, re.MULTILINE | re.DOTALL):
        assert entry.count("{") == entry.count("}")


def test_phony_targets_of_the_makefile_exist():
    makefile = read("Makefile")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert {name for name in phony.split() if not re.search(rf"^{name}:", makefile, re.MULTILINE)} == set()


def test_every_imported_package_is_a_declared_dependency():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    groups = [project["dependencies"], *(v for k, v in project["optional-dependencies"].items() if k != "dev")]
    declared = {re.split(r"[\[<>=; ]", entry)[0].lower().replace("_", "-") for group in groups for entry in group}
    modules = {
        name.partition(".")[0]
        for path in (ROOT / "nosology").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _imported(node)
    }
    providers = packages_distributions()
    for module in sorted(modules - set(sys.stdlib_module_names) - {"nosology", "triton"}):  # torch brings triton
        names = {provider.lower().replace("_", "-") for provider in providers[module]}
        assert names & declared, f"{module} is imported and not declared"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
