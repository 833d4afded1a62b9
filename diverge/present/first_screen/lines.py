"""The first screen as lines of a terminal: columns where there is room, breaks between words only."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.text import Text

from .screen import LEVEL_MARKS, MARKS, Course, FirstScreen, Row

BARS = "▁▂▃▄▅▆▇█"
_FEW, _MANY, _WIDE = 9, 30, 110
"""Bars of a course; where the lines are at least so wide, many."""
_GAP = 3
"""Spaces between columns."""
_SHARE = 0.55
"""Of a line, at most, for what stands before an aside."""
_STYLES = {"differs": "red", "moved": "yellow", "equal": "green", "unknown": "yellow"}
_LEVEL_STYLES = {"holds": "green", "fails": "red"}
_DECIDED = {"confirmed": "green", "refuted": "dim", "not decided": "yellow"}


def screen_lines(screen: FirstScreen, width: int) -> Iterator[Text]:
    """The lines of a first screen.

    Args:
        width: Columns. Only a command may be longer: it is one line, to be copied.
    """
    yield from _headline(screen, width)
    rows = [*screen.rows, *screen.next]
    indent = 4 + max(cell_len(name) for name in ["levels", *(row.name for row in rows)])
    middle = _middle(rows, width - indent)
    for row in screen.rows:
        yield from _row(row, indent, middle, width)
    yield from _levels(screen, indent, middle, width)
    for row in screen.next:
        yield from _row(row, indent, middle, width)


def sparkline(course: Course, bars: int) -> str:
    """Drift on a log scale, one bar for neighbouring sites, the largest of them: · equal, ? not observed."""
    count = min(bars, len(course.drifts))
    edges = [round(at * len(course.drifts) / count) for at in range(count + 1)]
    groups = [course.drifts[start:stop] for start, stop in pairwise(edges)]
    moved = [value for value in course.drifts if value and math.isfinite(value)]
    low, high = (math.log10(end(moved)) for end in (min, max)) if moved else (0.0, 0.0)
    return "".join(_bar([value for value in group if value is not None], low, high) for group in groups)


def _bar(values: Sequence[float], low: float, high: float) -> str:
    if not values:
        return "?"
    value = max(values)
    if math.isinf(value):
        return "!"
    if value <= 0:
        return "·"
    share = 1.0 if high == low else (math.log10(value) - low) / (high - low)
    return BARS[round(share * (len(BARS) - 1))]


def _headline(screen: FirstScreen, width: int) -> Iterator[Text]:
    mark = MARKS[screen.state]
    tokens = "" if screen.tokens is None else f"  {screen.tokens[0]} → {screen.tokens[1]}"
    whole = f"{mark} {screen.headline}{tokens}"
    if screen.prompt and cell_len(whole) + cell_len(screen.prompt) + 6 <= width:
        line = Text.assemble((whole, "bold"), (f"   “{screen.prompt}”", "dim"))
        line.stylize(_STYLES[screen.state], 0, 1)
        yield line
        return
    pieces = [whole] if cell_len(whole) <= width else [f"{mark} {screen.headline}", tokens.strip()]
    for at, piece in enumerate(piece for piece in pieces if piece):
        for number, text in enumerate(_wrapped(piece, width - 2 * (at > 0))):
            line = Text("  " * (at > 0 or number > 0) + text, style="bold")
            if at == number == 0:
                line.stylize(_STYLES[screen.state], 0, 1)
            yield line


def _middle(rows: Sequence[Row], room: int) -> int:
    """Where asides begin: behind the longest text that leaves its aside room on the line."""
    texts = (cell_len(row.text) for row in rows if row.aside)
    return max((length for length in texts if length <= _SHARE * room), default=0) + _GAP


def _row(row: Row, indent: int, middle: int, width: int) -> Iterator[Text]:
    style = "cyan" if row.command else ""
    texts = [row.text] if row.command else _wrapped(row.text, width - indent)
    lines = [Text.assemble((f"  {row.name}".ljust(indent), "dim"), (texts[0], style))]
    lines += [Text(" " * indent + text, style=style) for text in texts[1:]]
    for piece in _beside(row, width - indent):
        _place(lines, piece, indent, middle, width)
    yield from lines


def _place(lines: list[Text], piece: Text, indent: int, middle: int, width: int) -> None:
    """Put a piece beside the last line: in its column, else behind the text, else on a line of its own."""
    used, size = cell_len(lines[-1].plain), cell_len(piece.plain)
    at = max(indent + middle, used + _GAP)
    if at + size <= width:
        lines[-1].append(" " * (at - used)).append_text(piece)
        return
    column = indent + middle if indent + middle + size <= width else indent
    lines.append(Text(" " * column).append_text(piece))


def _beside(row: Row, room: int) -> list[Text]:
    """What stands beside a text: its aside, and its course."""
    style = _DECIDED.get(row.decided, "dim" if row.command else "")
    found = [Text(text, style=style) for text in _wrapped(row.aside, room)] if row.aside else []
    if row.course is not None:
        bars = sparkline(row.course, _MANY if room >= _WIDE else _FEW)
        found.append(Text.assemble((bars, "cyan"), f" {row.course.end}" if row.course.end else ""))
    return found


def _levels(screen: FirstScreen, indent: int, middle: int, width: int) -> Iterator[Text]:
    line = Text.assemble(("  levels".ljust(indent), "dim"))
    for at, (level, state) in enumerate(screen.levels):
        line.append(f"{'  ' if at else ''}{level} ")
        line.append(LEVEL_MARKS.get(state, "–"), _LEVEL_STYLES.get(state, ""))
    lines = [line]
    held = any(state == "holds" for _, state in screen.levels)
    for text in filter(None, [screen.safe if held else "", screen.judged]):
        _place(lines, Text(text), indent, middle, width)
    yield from lines


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of words; a word that is longer than a line stays whole."""
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False) or [""]
