"""nosology codes: look up, search, map and compare ICD codes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.command_group import CommandGroup, refuse_unused
from nosology.core import Code, CodeError, ConfigError

if TYPE_CHECKING:
    from nosology.claims.code_search import FoundLine
    from nosology.codes import CodeMapping, CodePeriod, CodeTable

app = CommandGroup("Look up, search, map and compare ICD codes.")

CodeArgument = Annotated[str, typer.Argument(help="A code in any spelling: I50.9, i509, 4280.", show_default=False)]
System = Annotated[
    str | None, typer.Option(help="icd9cm, icd9proc, icd10cm or icd10pcs; inferred by default.", show_default=False)
]
Release = Annotated[str | None, typer.Option(help="A release such as 2019; by default the newest.", show_default=False)]
Date = Annotated[str | None, typer.Option(help="YYYY-MM-DD: the release in force that day.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

NOTE_TITLES = {
    "inclusion_terms": "also called",
    "includes": "includes",
    "excludes1": "excludes1",
    "excludes2": "excludes2",
    "code_first": "code first",
    "code_also": "code also",
    "use_additional": "use additional code",
    "notes": "notes",
}


@app.command()
def show(
    code: CodeArgument, system: System = None, release: Release = None, date: Date = None, as_json: AsJson = False
) -> None:
    """Show a code: description, place in the tree, notes that apply to it, releases that have it."""
    from nosology.codes import code_history

    (system, name), table, repairs = _resolve(code, system, release, date)
    entry = table[name]
    notes = {kind: table.inherited_notes(name, kind) for kind in NOTE_TITLES}
    history = code_history(Code(system, name))
    if as_json:
        levels = {level: getattr(table, level)(name) for level in ("chapter", "block", "category")}
        inherited = {kind: [{"at": line, "note": note} for line, note in lines] for kind, lines in notes.items()}
        head = {"system": system, "release": table.release, "repairs": repairs}
        below = {"children": table.children(name), "inherited": inherited, "history": list(map(asdict, history))}
        return _print_json(head | asdict(entry) | levels | below)
    state = "billable" if entry.billable else f"{entry.kind}, not billable"
    typer.echo(f"{name}  {entry.description}\n{system} {table.release}, {state}")
    if repairs:
        typer.echo(f"read from {code!r}: {', '.join(repairs)}")
    for line in reversed(table.ancestors(name)):
        typer.echo(f"  in  {line}  {table.description(line)}")
    for child in table.children(name):
        typer.echo(f"  has {child}  {table.description(child)}")
    for kind, lines in notes.items():
        for line, note in lines:
            typer.echo(f"  {NOTE_TITLES[kind]}: {note}" + (f"  [at {line}]" if line != name else ""))
    if len(history) > 1:
        typer.echo("  releases: " + _summarize(history))


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="Words, such as: heart failure, CHF, broken hip, BMI 43")],
    system: Annotated[str, typer.Option(help="A code system, or all: diagnoses and procedures of the date.")] = "all",
    limit: Annotated[int, typer.Option(min=1, help="How many codes to show.")] = 20,
    release: Release = None,
    date: Date = None,
    billable: Annotated[bool, typer.Option("--billable", help="Only billable codes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search codes by words, abbreviations, synonyms, values or a code, best first; spelling is corrected.

    Words for a procedure give ICD-10-PCS codes. Where a character is open, search for one of the patterns shown.
    """
    from nosology.claims.code_search import ALL, search_codes
    from nosology.codes.releases import effective_date

    if release is not None:
        _table("icd10cm" if system == ALL else system, release, date)  # raises an error if there is none
    day = effective_date(release).isoformat() if release is not None else date or ""
    lines = search_codes(query, system, day, limit, billable=billable)[:limit]
    if as_json:
        return _print_json([asdict(line) for line in lines])
    if not lines:
        raise CodeError(f"no code has any of these words: {query!r}")
    width = max(len(line.code) for line in lines)
    for line in lines:
        typer.echo(f"{line.code:{width}}  {_search_line(line)}")


def _search_line(line: FoundLine) -> str:
    """A found line without its code: what it is, what matched, and when it is valid."""
    if line.step:
        value = f"{line.step}: {line.value}"
        return f"{line.description}  ({value})" if line.billable else f"[choice] {value}  ({line.description})"
    also = f"  ({line.matched})" if line.matched else ""
    note = f"  [{line.note}]" if line.note else ""
    return f"{'[header] ' if line.next else ''}{line.description}{also}{note}"


@app.command()
def tree(
    code: CodeArgument,
    system: System = None,
    release: Release = None,
    date: Date = None,
    depth: Annotated[int, typer.Option(min=1, help="How many levels below the code.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Show the lines above and below a code, block or chapter."""
    (system, name), table, _ = _resolve(code, system, release, date)

    def branch(line: str, levels: int) -> dict[str, Any]:
        below = [branch(child, levels - 1) for child in table.children(line)] if levels else []
        entry = table[line]
        return {"code": line, "description": entry.description, "billable": entry.billable, "children": below}

    above, root = table.ancestors(name)[::-1], branch(name, depth)
    if as_json:
        return _print_json({"system": system, "release": table.release, "ancestors": above} | root)

    def print_node(node: dict[str, Any], indent: int) -> None:
        typer.echo(f"{'  ' * indent}{node['code']}  {node['description']}")
        for child in node["children"]:
            print_node(child, indent + 1)

    for indent, line in enumerate(above):
        typer.echo(f"{'  ' * indent}{line}  {table.description(line)}")
    print_node(root, len(above))


@app.command("map")
def map_(
    code: CodeArgument,
    to: Annotated[str, typer.Option(help="The system to map to: icd9cm or icd10cm.")],
    from_: Annotated[str | None, typer.Option("--from", help="The system of the code.", show_default=False)] = None,
    gem: Annotated[
        Path | None, typer.Option(help="An official GEM file to use, e.g. for procedures.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Map a code between ICD-9 and ICD-10, with all targets and their flags."""
    from nosology.codes import describe, map_code, parse

    if from_ is None and to in ("icd9cm", "icd10cm"):
        from_ = {"icd9cm": "icd10cm", "icd10cm": "icd9cm"}[to]
    source = parse(code, from_).code
    mappings = map_code(source, to, gem=gem)
    if not mappings:
        header = "" if not describe(source) else "; only billable codes of 2018 and before are mapped"
        raise CodeError(f"no mapping of {source} to {to}{header}{_did_you_mean(source)}")
    if as_json:
        return _print_json([_mapping_json(mapping) for mapping in mappings])
    typer.echo(f"{source.code}  {describe(source)}")
    for mapping in mappings:
        target = mapping.target
        typer.echo(f"  {target.code}  {describe(target)}  {_flags(mapping)}" if target else "  no equivalent")


def _mapping_json(mapping: CodeMapping) -> dict[str, Any]:
    target = mapping.target._asdict() if mapping.target else None
    return asdict(mapping) | {"source": mapping.source._asdict(), "target": target}


def _flags(mapping: CodeMapping) -> str:
    kind = "approximate" if mapping.approximate else "exact"
    combination = f", combination: scenario {mapping.scenario}, choice list {mapping.choice_list}"
    return f"({kind}{combination if mapping.combination else ''})"


@app.command()
def diff(
    old: Annotated[str, typer.Argument(help="A release such as 2024, or an order file.")],
    new: Annotated[str, typer.Argument(help="A release such as 2026, or an order file.")],
    system: Annotated[str, typer.Option(help="The code system.")] = "icd10cm",
    limit: Annotated[int, typer.Option(min=0, help="How many codes to list of each kind; 0 for all.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Compare two releases: codes added, removed, divided and reworded."""
    from nosology.codes import diff as compare

    if as_json:
        refuse_unused(("limit",), "with --json, which has all codes")
    before, after = _release_or_file(old, system), _release_or_file(new, system)
    differences = compare(before, after)
    if as_json:
        return _print_json({"system": system, "old": before.release, "new": after.release} | asdict(differences))
    typer.echo(f"{system} {before.release} -> {after.release}")
    for kind, table in (("added", after), ("removed", before), ("divided", after), ("reworded", after)):
        codes = getattr(differences, kind)
        typer.echo(f"{kind}: {len(codes)}")
        for code in codes[: limit or None]:
            typer.echo(f"  {code}  {table.description(code)}")
        if limit and len(codes) > limit:
            typer.echo(f"  ... and {len(codes) - limit} more (--limit 0 shows all)")


@app.command()
def follow(code: CodeArgument, system: System = None, as_json: AsJson = False) -> None:
    """Show a code through the releases: when it was valid, what it replaced, and what replaced it."""
    from nosology.codes import code_history, is_known, parse, predecessors, releases, successors

    parsed = parse(code, system).code
    if not is_known(parsed):
        raise CodeError(f"no release of {parsed.system} has {parsed.code}{_did_you_mean(parsed)}")
    history = code_history(parsed)
    first, last = releases(parsed.system)[0], releases(parsed.system)[-1]
    was = [other.code for other in predecessors(parsed, first) if other != parsed]
    became = [other.code for other in successors(parsed, last) if other != parsed]
    if as_json:
        periods = list(map(asdict, history))
        return _print_json(parsed._asdict() | {"history": periods, "was": was, "became": became})
    typer.echo(f"{parsed.code} ({parsed.system})")
    for period in history:
        typer.echo(f"  {period.first}-{period.last}  {period.state}  {period.description}".rstrip())
    if was:
        typer.echo(f"  in {first} it was {', '.join(was)}")
    if became:
        typer.echo(f"  in {last} it is {', '.join(became)}")


OfficialFiles = Annotated[
    list[Path] | None, typer.Argument(metavar="FILE...", help="Files as published: .txt, .xml, .xlsx, .pdf, .zip.")
]


@app.command()
def install(
    files: OfficialFiles = None,
    release: Annotated[
        str | None, typer.Option(help="The year of files that do not state it, such as 2027.", show_default=False)
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show what is installed.")] = False,
    remove: Annotated[
        str | None, typer.Option(metavar="YEAR", help="Remove an installed release.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Install a newer official release for good: order file, tabular list, index, tables, addenda, POA list."""
    from nosology.codes.install import install as install_files
    from nosology.codes.install import remove as remove_release
    from nosology.codes.installed import KINDS, installed_files

    if sum((bool(files), list_, remove is not None)) != 1:
        raise ConfigError("give files to install, or --list, or --remove YEAR")
    if files:
        shown, empty = install_files(files, release), ""
    elif remove is not None:
        shown, empty = remove_release(remove), ""
    else:
        shown, empty = list(installed_files()), "nothing is installed; the built-in releases are used"
    if as_json:
        return _print_json([file._asdict() | {"path": str(file.path)} for file in shown])
    for file in shown:
        action = "removed  " if remove else ""
        typer.echo(f"{action}{file.system} {file.release}  {KINDS[file.kind]}" + ("" if remove else f"  {file.path}"))
    if not shown:
        typer.echo(empty)


@app.command("add-index", hidden=True)
def add_index(path: Annotated[Path, typer.Argument(metavar="FILE", help="icd10cm_index_YYYY.xml.")]) -> None:
    """The same as nosology codes install."""
    install([path])


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _summarize(history: list[CodePeriod]) -> str:
    return "; ".join(f"{period.state} {period.first}-{period.last}" for period in history)


def _table(system: str, release: str | None, date: str | None) -> CodeTable:
    from nosology.codes import release_on, table

    if release is not None and date is not None:
        raise ConfigError("--release and --date exclude each other; give one")
    return table(system, release if date is None else release_on(date, system))


def _release_or_file(name: str, system: str) -> CodeTable:
    from nosology.codes import table
    from nosology.codes.order_file import read_order

    if Path(name).is_file():
        codes = read_order(Path(name))
        if codes.system != system:
            raise CodeError(f"{name} is an order file of {codes.system}; give --system {codes.system}")
        return codes
    if "/" in name or "." in name:
        raise CodeError(f"no such file: {name}; give a release such as 2024 or an order file")
    return table(system, name)


def _resolve(raw: str, system: str | None, release: str | None, date: str | None) -> tuple[Code, CodeTable, list[str]]:
    """The code, block or chapter of an argument, its table, and what was repaired."""
    from nosology.codes import in_release, parse

    name = raw.strip().upper()
    for candidate in (system,) if system else ("icd10cm", "icd9cm", "icd9proc"):
        if ("-" in name or name.isdigit()) and (system or "-" in name):
            table = _table(candidate, release, date)
            # A chapter of ICD-10-CM is a number, and its description ends with its range.
            ranged = [chapter for chapter in table.chapters() if table.description(chapter).endswith(f"({name})")]
            if ranged or (name in table and table.kind(name) in ("chapter", "block")):
                return Code(candidate, (*ranged, name)[0]), table, []
    code, repairs = parse(raw, system)
    table = _table(code.system, release, date)
    if code.code not in table:
        relatives = ", ".join(other.code for other in in_release(code, table.release))
        hint = f"; there it is {relatives}" if relatives else _did_you_mean(code)
        raise CodeError(f"{code.system} {table.release} has no code {code.code}{hint}")
    return code, table, list(repairs)


def _did_you_mean(code: Code) -> str:
    """The end of an error message: similar codes, or the history of the code."""
    from difflib import get_close_matches

    from nosology.codes import code_history, is_known, table

    newest = table(code.system)
    if is_known(code) and (len(history := code_history(code)) > 1 or code.code not in newest):
        return f"; it is {_summarize(history)}"
    if code.code in newest:
        similar = [child for child in newest.descendants(code.code) if newest.billable(child)][:4]
    else:
        stem = next((code.code[:n] for n in range(len(code.code), 0, -1) if code.code[:n].rstrip(".") in newest), "")
        similar = get_close_matches(code.code, newest.descendants(stem.rstrip(".")) if stem else newest.codes(), n=4)
        similar = similar or [stem.rstrip(".")] * bool(stem)
    return f"; did you mean {', '.join(similar)}?" if similar else ""
