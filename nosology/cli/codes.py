"""`nosology codes ...`: look codes up, search them, walk the tree, map, compare releases."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.core import Code, CodeError, ConfigError

if TYPE_CHECKING:
    from nosology.codes import CodeMapping, CodeTable

app = typer.Typer(help="Look up, search, map and compare ICD codes.", no_args_is_help=True, rich_markup_mode=None)

CodeArgument = Annotated[str, typer.Argument(help="A code in any spelling: I50.9, i509, 4280.", show_default=False)]
System = Annotated[
    str | None, typer.Option(help="icd9cm, icd9proc, icd10cm or icd10pcs; guessed if left out.", show_default=False)
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
    """Shows a code: meaning, place in the tree, notes that bind it, releases that have it."""
    from nosology.codes import code_history

    found, table, repairs = _find(code, system, release, date)
    entry = table[found.code]
    notes = {kind: table.inherited_notes(found.code, kind) for kind in NOTE_TITLES}
    stages = code_history(found)
    if as_json:
        place = {level: getattr(table, level)(found.code) for level in ("chapter", "block", "category")}
        inherited = {kind: [{"at": line, "note": note} for line, note in lines] for kind, lines in notes.items()}
        history = [asdict(stage) for stage in stages]
        head = {"system": found.system, "release": table.release, "repairs": repairs}
        below = {"children": table.children(found.code), "inherited": inherited, "history": history}
        return _print_json(head | asdict(entry) | place | below)
    state = "billable" if entry.billable else f"{entry.kind}, not billable"
    typer.echo(f"{found.code}  {entry.description}\n{found.system} {table.release}, {state}")
    if repairs:
        typer.echo(f"read from {code!r}: {', '.join(repairs)}")
    for line in reversed(table.ancestors(found.code)):
        typer.echo(f"  in  {line}  {table.description(line)}")
    for child in table.children(found.code):
        typer.echo(f"  has {child}  {table.description(child)}")
    for kind, lines in notes.items():
        for line, note in lines:
            typer.echo(f"  {NOTE_TITLES[kind]}: {note}" + (f"  [at {line}]" if line != found.code else ""))
    if len(stages) > 1:
        typer.echo("  releases: " + _life(stages))


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="Words, such as: heart failure")],
    system: Annotated[str, typer.Option(help="The code system to search.")] = "icd10cm",
    limit: Annotated[int, typer.Option(min=1, help="How many codes to show.")] = 20,
    release: Release = None,
    date: Date = None,
    billable: Annotated[bool, typer.Option("--billable", help="Only codes that may be billed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Searches descriptions and inclusion terms, best first."""
    hits = _table(system, release, date).search(query, limit, billable=True if billable else None)
    if as_json:
        return _print_json([asdict(hit) for hit in hits])
    if not hits:
        raise CodeError(f"no {system} code has any of these words: {query!r}")
    width = max(len(hit.code) for hit in hits)
    for hit in hits:
        also = f"  ({hit.matched})" if hit.matched != hit.description else ""
        typer.echo(f"{hit.code:{width}}  {'' if hit.billable else '[header] '}{hit.description}{also}")


@app.command()
def tree(
    code: CodeArgument,
    system: System = None,
    release: Release = None,
    date: Date = None,
    depth: Annotated[int, typer.Option(min=1, help="How many levels below the code.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Shows the lines above and below a code, block or chapter."""
    found, table, _ = _find(code, system, release, date)

    def branch(line: str, levels: int) -> dict[str, Any]:
        below = [branch(child, levels - 1) for child in table.children(line)] if levels else []
        entry = table[line]
        return {"code": line, "description": entry.description, "billable": entry.billable, "children": below}

    above, root = table.ancestors(found.code)[::-1], branch(found.code, depth)
    if as_json:
        return _print_json({"system": found.system, "release": table.release, "ancestors": above} | root)

    def draw(node: dict[str, Any], indent: int) -> None:
        typer.echo(f"{'  ' * indent}{node['code']}  {node['description']}")
        for child in node["children"]:
            draw(child, indent + 1)

    for indent, line in enumerate(above):
        typer.echo(f"{'  ' * indent}{line}  {table.description(line)}")
    draw(root, len(above))


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
    """Maps a code between ICD-9 and ICD-10, with all targets and their flags."""
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
    together = f", combination: scenario {mapping.scenario}, choice list {mapping.choice_list}"
    return f"({kind}{together if mapping.combination else ''})"


@app.command()
def diff(
    old: Annotated[str, typer.Argument(help="A release such as 2024, or an order file.")],
    new: Annotated[str, typer.Argument(help="A release such as 2026, or an order file.")],
    system: Annotated[str, typer.Option(help="The code system.")] = "icd10cm",
    limit: Annotated[int, typer.Option(min=0, help="How many codes to list of each kind; 0 for all.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Compares two releases: codes added, removed, divided and reworded."""
    from nosology.codes import diff as compare

    before, after = _release_or_file(old, system), _release_or_file(new, system)
    found = compare(before, after)
    if as_json:
        return _print_json({"system": system, "old": before.release, "new": after.release} | asdict(found))
    typer.echo(f"{system} {before.release} -> {after.release}")
    for kind, table in (("added", after), ("removed", before), ("divided", after), ("reworded", after)):
        codes = getattr(found, kind)
        typer.echo(f"{kind}: {len(codes)}")
        for code in codes[: limit or None]:
            typer.echo(f"  {code}  {table.description(code)}")
        if limit and len(codes) > limit:
            typer.echo(f"  ... and {len(codes) - limit} more (--limit 0 shows all)")


@app.command()
def follow(code: CodeArgument, system: System = None, as_json: AsJson = False) -> None:
    """Follows a code through the releases: when it was valid, what it was made from and what it became."""
    from nosology.codes import code_history, is_known, parse, predecessors, releases, successors

    found = parse(code, system).code
    if not is_known(found):
        raise CodeError(f"no release of {found.system} has {found.code}{_did_you_mean(found)}")
    stages = code_history(found)
    first, last = releases(found.system)[0], releases(found.system)[-1]
    was = [other.code for other in predecessors(found, first) if other != found]
    became = [other.code for other in successors(found, last) if other != found]
    if as_json:
        history = [asdict(stage) for stage in stages]
        return _print_json(found._asdict() | {"history": history, "was": was, "became": became})
    typer.echo(f"{found.code} ({found.system})")
    for stage in stages:
        typer.echo(f"  {stage.first}-{stage.last}  {stage.state}  {stage.description}".rstrip())
    if was:
        typer.echo(f"  in {first} it was {', '.join(was)}")
    if became:
        typer.echo(f"  in {last} it is {', '.join(became)}")


@app.command("add-index")
def add_index(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="icd10cm_index_YYYY.xml, as published.")],
) -> None:
    """Adds the official Alphabetic Index: its lines become terms of the lexicon (nosology code day-one)."""
    from nosology.codes.alphabetic_index import add_index as add

    kept, lines = add(path)
    typer.echo(f"{lines:,} terms; kept as {kept}; the lexicon is made anew when it is next used")


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _life(stages: list) -> str:
    return "; ".join(f"{stage.state} {stage.first}-{stage.last}" for stage in stages)


def _table(system: str, release: str | None, date: str | None) -> CodeTable:
    from nosology.codes import release_on, table

    if release is not None and date is not None:
        raise ConfigError("--release and --date exclude each other; give one")
    return table(system, release if date is None else release_on(date, system))


def _release_or_file(name: str, system: str) -> CodeTable:
    from nosology.codes import table
    from nosology.codes.lookup import read_order

    if Path(name).is_file():
        found = read_order(Path(name))
        if found.system != system:
            raise CodeError(f"{name} is an order file of {found.system}; give --system {found.system}")
        return found
    if "/" in name or "." in name:
        raise CodeError(f"no such file: {name}; give a release such as 2024 or an order file")
    return table(system, name)


def _find(raw: str, system: str | None, release: str | None, date: str | None) -> tuple[Code, CodeTable, list[str]]:
    """The code that a user means, its table, and what was mended; chapters and blocks go by their own names."""
    from nosology.codes import in_release, parse

    name = raw.strip().upper()
    for candidate in (system,) if system else ("icd10cm", "icd9cm", "icd9proc"):
        if ("-" in name or name.isdigit()) and (system or "-" in name):
            table = _table(candidate, release, date)
            # A chapter of ICD-10-CM is a number; its range stands at the end of its description.
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
    """The rest of a sentence: what is near a code that is not there."""
    from difflib import get_close_matches

    from nosology.codes import code_history, is_known, table

    newest = table(code.system)
    if is_known(code) and (len(stages := code_history(code)) > 1 or code.code not in newest):
        return f"; it is {_life(stages)}"
    if code.code in newest:
        near = [child for child in newest.descendants(code.code) if newest.billable(child)][:4]
    else:
        stem = next((code.code[:n] for n in range(len(code.code), 0, -1) if code.code[:n].rstrip(".") in newest), "")
        near = get_close_matches(code.code, newest.descendants(stem.rstrip(".")) if stem else newest.codes(), n=4)
        near = near or [stem.rstrip(".")] * bool(stem)
    return f"; did you mean {', '.join(near)}?" if near else ""
