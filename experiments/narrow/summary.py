"""What `rip narrow` says on the terminal when it is done: a sentence, the settings, with / without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...schemas.narrow import Narrow
from .sentences import run_rows, setting_rows

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 160
_NOISY = ("found with noise", "noise")
_OUTCOMES = {"same": "green", "diverges": "red"}


def print_narrow(console: Console, result: Narrow) -> None:
    """Print the result of a search for people.

    Args:
        console: Where to; stderr.
        result: A finished search.
    """
    style = "bold yellow" if result.state in _NOISY else "bold"
    console.print(Text(result.sentence, style=style), soft_wrap=not console.is_terminal)
    if console.is_terminal:
        _tables(console, result)
    else:
        console.width = _WIDTH_WITHOUT_TERMINAL
        with console.capture() as captured:
            _tables(console, result)
        # Tables fill their lines up to the width; in a file or a paste that is noise.
        console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    for index, command in enumerate(result.commands):
        lead = "Again:  " if index == 0 else "        "
        console.print(Text(f"{lead}{command}", style="cyan"), soft_wrap=True)  # to be copied as one line


def _tables(console: Console, result: Narrow) -> None:
    settings = Table(box=None, pad_edge=False)
    for column in ("setting", "good", "bad", ""):
        settings.add_column(column)
    for name, good, bad, does in setting_rows(result):
        settings.add_row(Text(name), Text(good), Text(bad), Text(does, style="bold red"))
    console.print(Padding(settings, (1, 0, 0, 2), expand=False))
    runs = Table(box=None, pad_edge=False)
    for column in ("with", "outcome", f"first difference ({result.level})"):
        runs.add_column(column)
    for said, outcome, where in run_rows(result):
        style = next((style for start, style in _OUTCOMES.items() if outcome.startswith(start)), "yellow")
        runs.add_row(Text(said), Text(outcome, style=style), Text(where))
    console.print(Padding(runs, (1, 0, 1, 2), expand=False))
