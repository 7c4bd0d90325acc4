"""Every command of nosology that a page names exists, with the options that it names."""

import re
from pathlib import Path

import click
import typer.main

import nosology.cli

ROOT = Path(__file__).parents[2]
PAGES = [page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if page.name != "CHANGELOG.md"]
LINE = re.compile(r"^\s*(?:\$ )?(nosology .*)$", re.MULTILINE)


def commands(text: str) -> list[str]:
    """The commands of a page: lines of blocks, and code within the text."""
    blocks = re.findall(r"^```\w*\n.*?^```$|(?:^ {4}.*\n)+", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in LINE.findall(re.sub(r"\\\n\s*", "", block))]
    inline = [
        " ".join(code.split())
        for code in re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    ]
    found = [re.sub(r"\s#.*", "", code) for code in [*lines, *inline]]
    return [part.strip() for code in found for part in re.split(r"&&|\|", code) if part.strip().startswith("nosology ")]


def problem(words: list[str]) -> str | None:
    """What is wrong with the words after `nosology`; None if a parser would accept their names."""
    command: click.Command = typer.main.get_command(nosology.cli.app)
    while words and isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        if words[0] not in command.commands:
            return f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    known = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    known |= {"--help", "-h"}
    unknown = {match[0] for word in words if (match := re.match(r"--[a-z][a-z-]*", word))} - known
    return f"no option {sorted(unknown)}" if unknown else None


def test_commands_of_the_pages_exist():
    found = [(page.name, command) for page in PAGES for command in commands(page.read_text(encoding="utf-8"))]
    assert len(found) > 300
    wrong = {(page, command): said for page, command in found if (said := problem(command.split()[1:]))}
    assert not wrong


def test_a_wrong_command_or_option_is_found():
    assert commands("`nosology train linear\n--corpus DIR | head`") == ["nosology train linear --corpus DIR"]
    assert problem(["corpus", "split", "DIR", "--seed", "1"]) is None
    assert problem(["corpus", "divide"]) == "no command divide"
    assert problem(["corpus", "split", "DIR", "--sead"]) == "no option ['--sead']"
