"""Long work shows itself: a bar on a terminal, a line every ten seconds elsewhere. The clock is injected."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress, TextColumn
from rip.commands.console import ShownProgress
from rip.experiments.progress import show_bytes


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(terminal: bool) -> tuple[ShownProgress, Clock, io.StringIO, Progress]:
    file, clock = io.StringIO(), Clock()
    console = Console(file=file, force_terminal=terminal, width=80)
    console.soft_wrap = not terminal
    bar = Progress(TextColumn("{task.fields[note]}"), console=console, disable=not terminal)
    return ShownProgress(console, bar, clock), clock, file, bar


def test_without_a_terminal_a_line_says_every_ten_seconds_what_is_done_of_what() -> None:
    progress, clock, file, _ = shown(terminal=False)
    progress.print_if_due()
    for second in range(31):
        clock.now = 100.0 + second
        progress.stage("replaying · r0", second * 2, 120, f"{second * 2}/120 tokens")
        progress.print_if_due()
    assert file.getvalue().splitlines() == [
        "replaying · r0 · 20/120 tokens · about 50 s left",
        "replaying · r0 · 40/120 tokens · about 40 s left",
        "replaying · r0 · 60/120 tokens · about 30 s left",
    ]


def test_a_stage_that_reports_nothing_more_is_still_named() -> None:
    progress, clock, file, _ = shown(terminal=False)
    progress.stage("loading the model")
    clock.now += 25
    progress.print_if_due()
    progress.print_if_due()
    assert file.getvalue() == "loading the model\n"
    progress.stop()
    clock.now += 25
    progress.print_if_due()
    assert file.getvalue() == "loading the model\n"


def test_the_time_left_is_that_of_the_stage_and_not_of_what_was_before() -> None:
    progress, clock, file, _ = shown(terminal=False)
    hashed = show_bytes(progress, "hashing the model")
    hashed(0, 4_000_000_000)
    clock.now += 100
    hashed(4_000_000_000, 4_000_000_000)
    progress.stage("replaying · r0", 1, 100, "1/100 tokens")
    clock.now += 10
    progress.stage("replaying · r0", 51, 100, "51/100 tokens")
    progress.print_if_due()
    assert file.getvalue() == "replaying · r0 · 51/100 tokens · about 10 s left\n"


def test_on_a_terminal_the_bar_says_it_and_no_line_stays() -> None:
    progress, clock, file, bar = shown(terminal=True)
    progress.stage("replaying · r0", 0, 40, "0/40 tokens")
    clock.now += 20
    progress.stage("replaying · r0", 20, 40, "20/40 tokens")
    progress.print_if_due()
    assert file.getvalue() == ""
    assert bar.tasks[0].fields["note"] == "20/40 tokens · about 20 s left"
