"""What `rip diverge` prints: the first screen, and behind `--verbose` evidence, statistics and notes."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...schemas.claim import LEVELS
from ..comparison.site_plan import layer_number
from .findings.experiments import decision
from .findings.labels import label
from .findings.sentences import how_to_read, in_shell, sentence
from .first_screen.causes import own_evidence
from .first_screen.compose import Scene, first_screen
from .first_screen.lines import screen_lines, sparkline
from .first_screen.places import site_course
from .first_screen.screen import Course
from .format import drift, listed, number, plain, plural
from .report.reading.traces import find_sources
from .sequence_sentences import agreement_rows, pattern_lines, text_sides, unique_line
from .verdict_sentences import is_cut, level_reason, logprob_line, reference_lines, second_line
from .zoom import zoom_lines

if TYPE_CHECKING:
    from rich.console import Console

    from ...schemas.change import Change
    from ...schemas.trace import TraceHeader
    from ...schemas.verdict import Cause, Verdict
    from .first_screen.screen import FirstScreen

_STATE_STYLE = {"holds": "green", "fails": "red"}
_SHOWN = 6
_WIDTH_WITHOUT_TERMINAL = 160


def print_first_screen(console: Console, screen: FirstScreen) -> None:
    """Print the answer of a comparison, in about ten lines."""
    width = console.width if console.is_terminal else _WIDTH_WITHOUT_TERMINAL
    for line in screen_lines(screen, width):
        console.print(line, soft_wrap=True)


def print_result(console: Console, verdict: Verdict, folder: Path) -> None:
    """Print the first screen of a result folder, with what experiments decided since.

    Raises:
        BadInput: A table of the folder cannot be read.
    """
    _, sources = find_sources(verdict, folder)
    headers = sources[0].header, sources[1].header
    scene = Scene(str(folder), headers, site_course(folder), more="all of it")
    print_first_screen(console, first_screen(verdict, scene))


def print_details(
    console: Console, verdict: Verdict, folder: Path, headers: tuple[TraceHeader, TraceHeader]
) -> None:
    """Print what the first screen leaves out: evidence, statistics, notes, and the commands in full.

    Args:
        verdict: The verdict.
        folder: The result folder, for totals by site and for the next command.
        headers: Headers of A and B, for token text.
    """
    if console.is_terminal:
        _print_all(console, verdict, folder, headers)
        return
    console.width = _WIDTH_WITHOUT_TERMINAL
    with console.capture() as captured:
        _print_all(console, verdict, folder, headers)
    # Tables fill their lines up to the width; in a file or a paste that is noise.
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _print_all(
    console: Console, verdict: Verdict, folder: Path, headers: tuple[TraceHeader, TraceHeader]
) -> None:
    console.print()
    _line(console, 0, second_line(verdict))
    if logprobs := logprob_line(verdict):
        _line(console, 0, logprobs)
    _print_diverging(console, verdict, folder)
    _print_levels(console, verdict)
    _print_token(console, verdict, headers)
    _print_text(console, verdict)
    _print_agreement(console, verdict)
    _print_drift(console, folder)
    if verdict.reference is not None:
        _print_list(console, "Against the reference", reference_lines(verdict.reference))
    if verdict.patterns is not None:
        title = f"Patterns over {plural(verdict.patterns.sequences, 'sequence')}, with 95 % intervals"
        _print_list(console, title, pattern_lines(verdict.patterns))
    _print_causes(console, verdict)
    changes = [f"{change.name} ({_risk(change)})" for change in verdict.changes]
    _print_list(console, f"{plural(len(changes), 'fingerprint change')} from A to B", changes)
    _print_list(console, "Limits", [sentence(one) for one in verdict.not_seen])
    if verdict.first_site is not None:
        console.print()
        sql = "SELECT * FROM site_totals WHERE differing > 0"
        _command(console, 0, f"Look closer: {shlex.join(['rip', 'query', str(folder), sql])}", "dim")


def print_zoom(console: Console, verdict: Verdict) -> None:
    """Print what zoom found; nothing where it did not run."""
    if verdict.zoom is None:
        return
    console.print()
    where = f"{verdict.zoom.site or 'logits'} at position {verdict.zoom.position}"
    console.print(Text(f"Zoom: {plain(where)}", style="bold"))
    for line in zoom_lines(verdict.zoom):
        _line(console, 2, plain(line))


def _risk(change: Change) -> str:
    for side, known in (("A", change.before), ("B", change.after)):
        if known is None or known.unavailable is not None:
            return f"unknown in {side}"
    if not change.has_rule:
        return "no rule: replay to find out"
    return f"{change.risk} at risk" if change.risk else "no level at risk"


def _print_diverging(console: Console, verdict: Verdict, folder: Path) -> None:
    """Every diverging sequence by name, where the headline names one of several."""
    if verdict.compared.sequences_diverging < 2:
        return
    columns = ["request_id", "sample", "diverged", "divergence_step"]
    rows = pq.read_table(folder / "sequences.parquet", columns=columns, filters=[("diverged", "=", True)])
    named = [
        plain(row["request_id"])
        + (f" sample {row['sample']}" if row["sample"] else "")
        + ("" if row["divergence_step"] is None else f" step {row['divergence_step']}")
        for row in rows.slice(0, _SHOWN).to_pylist()
    ]
    _line(console, 0, f"Diverging: {listed(named, _SHOWN, rows.num_rows)}.")


def _print_levels(console: Console, verdict: Verdict) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for level in LEVELS:
        judged = verdict.levels[level]
        table.add_row(
            Text(level),
            Text(judged.state, style=_STATE_STYLE.get(judged.state, "yellow")),
            Text(level_reason(judged)),
        )
    console.print(Padding(table, (1, 0, 0, 2), expand=False))


def _print_token(console: Console, verdict: Verdict, headers: tuple[TraceHeader, TraceHeader]) -> None:
    first = verdict.first_token
    if first is None:
        return
    table = Table(box=None, pad_edge=False)
    for column in ("", "token", "text", "margin"):
        table.add_column(column)
    sides = ((first.token_a, first.margin_a), (first.token_b, first.margin_b))
    for name, header, (token, margin) in zip("AB", headers, sides, strict=True):
        text = header.token_text.get(str(token))
        shown = "–" if text is None else plain(repr(text))
        table.add_row(name, "ended" if token is None else str(token), Text(shown), number(margin))
    console.print(Padding(table, (1, 0, 0, 2), expand=False))
    kind, gap = "logit", first.max_abs_logit_diff
    if gap is None:
        kind, gap = "logprob", first.max_abs_logprob_diff
    if gap is not None:
        console.print(Text(f"  largest {kind} difference at that step: {number(gap)}"))


def _print_text(console: Console, verdict: Verdict) -> None:
    if verdict.first_text is None:
        return
    console.print()
    for name, before, after in text_sides(verdict.first_text):
        shown = Text(f"  {name}  {'…' if is_cut(verdict.first_text) else ''}{before}")
        shown.append(after or "(ends here)", style="bold red")
        console.print(shown, soft_wrap=True)


def _print_agreement(console: Console, verdict: Verdict) -> None:
    found = verdict.agreement
    if found is None:
        return
    console.print()
    by = " and ".join(dict.fromkeys(request.by for request in found.requests))
    console.print(Text(f"Agreement{f' of {by}' if by else ''}, with Wilson 95 % intervals", style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in agreement_rows(found):
        table.add_row(*(Text(cell) for cell in row))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    if any(side is not None for side in (found.a, found.b, found.both)):
        _line(console, 2, "TARr@N: share of requests whose N samples are all equal", "dim")
    if unique := unique_line(found):
        _line(console, 2, unique)
    for note in found.notes:
        _line(console, 2, plain(sentence(note)), "dim")


def _print_drift(console: Console, folder: Path) -> None:
    """One bar a layer: the largest median drift of its sites, on a log scale."""
    columns = ["name", "compared", "by_sketch", "drift_p50"]
    totals = pq.read_table(folder / "site_totals.parquet", columns=columns).to_pylist()
    by_layer: dict[int, float] = {}
    for site in totals:
        layer = layer_number(site["name"])
        if layer is not None and (site["compared"] or site["by_sketch"]):
            by_layer[layer] = max(by_layer.get(layer, 0.0), site["drift_p50"] or 0.0)
    moved = [value for value in by_layer.values() if value > 0 and math.isfinite(value)]
    if not moved:
        return
    last = max(by_layer)
    line = sparkline(Course(tuple(by_layer.get(layer) for layer in range(last + 1)), ""), last + 1)
    console.print()
    console.print(Text.assemble("  drift by layer 0 … ", str(last), "  ", (line, "cyan")))
    span = drift(moved[0]) if min(moved) == max(moved) else f"{drift(min(moved))} to {drift(max(moved))}"
    unseen = "; ? not observed" if "?" in line else ""
    console.print(Text(f"  median relative drift of differing rows: {span}; · equal{unseen}"))


def _print_causes(console: Console, verdict: Verdict) -> None:
    if not verdict.causes:
        return
    console.print()
    console.print(Text("Possible causes", style="bold"))
    for rank, cause in enumerate(verdict.causes, start=1):
        _item(
            console, 2, f"{rank}. ", f"{plain(label(cause))} ({cause.confidence} confidence{_decided(cause)})"
        )
        for found in own_evidence(verdict.causes, rank - 1)[:_SHOWN]:
            _item(console, 5, "- ", plain(sentence(found)))
        for missing in cause.missing:
            _item(console, 5, "- ", f"missing evidence: {plain(sentence(missing))}", "dim")
        if cause.confirm:
            _command(console, 5, f"confirm: {plain(in_shell(cause.confirm))}", "cyan")
        if reading := how_to_read(cause):
            _line(console, 5, f"how to read it: {plain(reading)}", "dim")


def _decided(cause: Cause) -> str:
    return "" if cause.confirmation is None else f", {decision(cause.confirmation)}"


def _print_list(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print()
    console.print(Text(title, style="bold"))
    for line in lines[:_SHOWN]:
        _item(console, 2, "- ", plain(line))
    if len(lines) > _SHOWN:
        console.print(Text(f"  … and {len(lines) - _SHOWN} more", style="dim"))


def _line(console: Console, indent: int, text: str, style: str = "") -> None:
    """A sentence: wrapped between words on a terminal, one line in a log."""
    if console.is_terminal:
        console.print(Padding(Text(text, style=style), (0, 0, 0, indent), expand=False), soft_wrap=False)
    else:
        _command(console, indent, text, style)


def _item(console: Console, indent: int, mark: str, text: str, style: str = "") -> None:
    """A line of a list: wrapped behind its mark on a terminal, one line in a log."""
    if console.is_terminal:
        grid = Table.grid()
        grid.add_row(Text(mark, style=style), Text(text, style=style))
        console.print(Padding(grid, (0, 0, 0, indent), expand=False))
    else:
        _command(console, indent, mark + text, style)


def _command(console: Console, indent: int, text: str, style: str) -> None:
    """A command: never wrapped here, so that it is copied as one line."""
    console.print(Text(" " * indent + text, style=style), soft_wrap=True)
