"""Documents and command line agree: every `rip …` that is shown can be typed, and every command is told.

It does not run the commands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rip.cli import app
from typer.main import get_command

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

GLOBAL_OPTIONS = {"--debug", "--version", "--help", "-h", "--install-completion", "--show-completion"}


def commands() -> dict[tuple[str, ...], Any]:
    """Every command by its words: `("replay",)`, `("envelope", "show")`; groups included."""
    found: dict[tuple[str, ...], Any] = {}
    waiting: list[tuple[tuple[str, ...], Any]] = [((), get_command(app))]
    while waiting:
        words, command = waiting.pop()
        found[words] = command
        waiting += [((*words, name), inner) for name, inner in getattr(command, "commands", {}).items()]
    return found


def shown_command_lines() -> Iterator[tuple[str, list[str]]]:
    """(place, arguments) of every `rip …` line in a fenced block or inline code of a document."""
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M):
            if language not in ("", "console", "sh", "bash", "text"):
                continue
            for line in re.sub(r"\\\n\s*", " ", block).splitlines():
                if match := re.match(r"\s*(?:\$ )?(?:\S+/)?rip ((?:[a-z-]).*)", line):
                    # Behind a gap stands what rip prints beside a command.
                    yield f"{path.name}: {line.strip()}", arguments(re.split(r" {3,}", match[1])[0])
        for code in re.findall(r"(?<!`)`rip ([a-z-][^`]*)`(?!`)", text):
            yield f"{path.name}: rip {code}", arguments(code)


def arguments(line: str) -> list[str]:
    """The words of a command line up to a pipe, a redirection, a comment or a dot-dot-dot."""
    words = shlex.split(line.replace("…", " … "), comments=True)
    end = next(
        (index for index, word in enumerate(words) if re.match(r"[|>&;]|2>|…|\.\.\.$", word)), len(words)
    )
    return words[:end]


def split_command(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """The longest known command that `words` start with, and what follows it."""
    words = [word for word in words if word not in GLOBAL_OPTIONS]
    known = commands()
    length = max(size for size in range(len(words) + 1) if tuple(words[:size]) in known)
    return tuple(words[:length]), words[length:]


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


SHOWN = list(shown_command_lines())


@pytest.mark.parametrize(("place", "words"), SHOWN, ids=[place for place, _ in SHOWN])
def test_every_shown_command_exists_with_its_options(place: str, words: list[str]) -> None:
    name, rest = split_command(words)
    command = commands()[name]
    assert name or not rest, f"{place}: there is no such command"
    if hasattr(command, "commands") and not command.invoke_without_command:
        assert not [word for word in rest if not word.startswith("-")], (
            f"{place}: there is no such subcommand"
        )
    options = [word.split("=")[0] for word in rest if re.match(r"--?[A-Za-z]", word)]
    assert set(options) <= options_of(command), f"{place}: no such option"


@pytest.mark.parametrize("words", [words for words in commands() if words], ids=" ".join)
def test_every_command_is_explained(words: tuple[str, ...]) -> None:
    command = commands()[words]
    assert command.help, "its --help says what it does"
    undescribed = [
        parameter.name
        for parameter in command.params
        if parameter.name != "help" and not getattr(parameter, "help", None) and not parameter.hidden
    ]
    assert not undescribed, "every option and argument is described"


@pytest.mark.parametrize("words", [words for words in commands() if len(words) == 1], ids=" ".join)
def test_the_readme_tells_every_command(words: tuple[str]) -> None:
    assert re.search(rf"\brip {words[0]}\b", (ROOT / "README.md").read_text("utf-8"))


def test_links_between_documents_lead_somewhere() -> None:
    for path in DOCUMENTS:
        prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text("utf-8"), flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
            if not re.match(r"[a-z]+:", target):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_checks_themselves_see_faults() -> None:
    """The negative control."""
    assert split_command(arguments("replay e.json --set a=1 | tee log"))[0] == ("replay",)
    assert split_command(["repaly", "e.json"]) == ((), ["repaly", "e.json"])
    assert "--no-such" not in options_of(commands()[("replay",)])
    assert "--out" in options_of(commands()[("replay",)])
