"""One pair of a postmortem as Markdown: both outputs, candidates, margins, and the drift as a map of text."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING

import numpy as np

from ..format import bar, does, drift_cell, logit, number, percent, plain, plural
from .heat import NOT_COMPUTED, NOT_KNOWN, SIZE_UNKNOWN
from .markdown_text import block, code, flowing, html, table, text
from .pair_words import candidates_place, candidates_told, close_steps_title, margin_line, no_drift_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .drift import Drift
    from .heat import HeatMap, Scale
    from .model import PairView, Postmortem, SideText, Token
    from .rows import LayerTotal

# Bounds that keep the text below what GitHub takes as one comment (65,536 characters).
TOKENS_BEFORE = 120
TOKENS_AFTER = 100
PROMPT_TOKENS = 200
MAX_LINES = 10
"""Lines of the map that stand for layers."""
MAP_COLUMNS = 96
BAR = 10
"""Characters of the longest bar."""

_SHADES = "▁▂▃▄▅▆▇█"


def pair_blocks(document: Postmortem, view: PairView) -> list[str]:
    """The sections about one pair."""
    return [*_outputs(document, view), *_candidates(view), *_margins(document, view), *_drift(document, view)]


def _outputs(document: Postmortem, view: PairView) -> list[str]:
    pair = view.pair
    blocks = [f"## Outputs of {text(view.name)}"]
    if pair.first_position is None:
        blocks.append(f"All {pair.positions:,} tokens are equal.")
    else:
        close = f" {text(view.close_call)}" if view.close_call else ""
        equal = f"{plural(pair.first_position, 'token')} {does(pair.first_position, 'are')} equal"
        blocks.append(f"The first {equal}. The first divergent token is bold.{close}")
    if view.sampling:
        blocks.append(text(view.sampling))
    if view.prompt:
        shown = view.prompt[-PROMPT_TOKENS:]
        hidden = view.prompt_left_out + len(view.prompt) - len(shown)
        title = plural(pair.prompt, "prompt token") + (f", the last {len(shown)}" if hidden else "")
        # In one HTML block, which takes one line.
        quoted = _quoted(shown, "", "")
        blocks.append(f"<details><summary>Prompt: {html(title)}</summary>{quoted}</details>")
    if pair.first_position is None:
        blocks.append(_output(view.a, view, None))
        return blocks
    sides = (("A", view.a, document.verdict.a.lane), ("B", view.b, document.verdict.b.lane))
    for name, side, lane in sides:
        blocks.append(f"<p><b>{name}</b> ({text(lane)})</p>{_output(side, view, pair.first_position)}")
    return blocks


def _output(side: SideText, view: PairView, parts_at: int | None) -> str:
    tokens = [*side.folded, *side.shown]
    first = tokens[0].position if tokens else 0
    middle = first if parts_at is None else parts_at
    shown = [one for one in tokens if middle - TOKENS_BEFORE <= one.position <= middle + TOKENS_AFTER]
    before = max(view.before_left_out, 0) + sum(one.position < middle - TOKENS_BEFORE for one in tokens)
    after = max(view.after_left_out, 0) + sum(one.position > middle + TOKENS_AFTER for one in tokens)
    ending = "<i>[the output ends here]</i>" if side.ends else ""
    return _quoted(
        shown,
        f"<i>[{plural(before, 'earlier token')}]</i> " if before else "",
        ending or (f" <i>[{plural(after, 'later token')}]</i>" if after else ""),
    )


def _quoted(tokens: list[Token], before: str, after: str) -> str:
    """Tokens as one quotation, which wraps where a block of code would not."""
    parts = "".join(token.text for token in tokens if token.kind == "first")
    at = next((index for index, token in enumerate(tokens) if token.kind == "first"), len(tokens))
    start = "".join(token.text for token in tokens[:at])
    rest = "".join(token.text for token in tokens[at + 1 :])
    marked = f"<b>[{flowing(parts)}]</b>" if parts else ""
    return f"<blockquote>{before}{flowing(start)}{marked}{flowing(rest)}{after}</blockquote>"


def _candidates(view: PairView) -> list[str]:
    if not view.candidates:
        return [block(view.sampler)] if view.sampler else []
    rows = []
    for item, pieces in view.candidates:
        moved = None
        if item.logit_a is not None and item.logit_b is not None:
            moved = item.logit_b - item.logit_a
        elif item.logprob_a is not None and item.logprob_b is not None:
            moved = item.logprob_b - item.logprob_a
        chosen = " and ".join(["A"] * item.chosen_a + ["B"] * item.chosen_b)
        rows.append(
            [
                code("".join(part for _, part in pieces)),
                str(item.token_id),
                f"{_bar(item.logprob_a, view.largest_logprob)} {percent(item.logprob_a)}",
                f"{_bar(item.logprob_b, view.largest_logprob)} {percent(item.logprob_b)}",
                logit(item.logit_a),
                logit(item.logit_b),
                logit(moved),
                chosen,
            ]
        )
    heads = ["token", "id", "probability in A", "in B", "logit in A", "in B", "B − A", "chosen by"]
    told = " ".join(filter(None, (candidates_told(view), view.sampler)))
    return [f"### Candidates at {candidates_place(view)}", text(told), table(heads, rows, (1, 4, 5, 6))]


def _bar(logprob: float | None, largest: float) -> str:
    share = bar(logprob, largest)
    return "█" * max(1, round(BAR * share)) if share else ""


def _margins(document: Postmortem, view: PairView) -> list[str]:
    if view.plot is None or not view.close_steps:
        return []
    rows = [
        [
            str(row.step),
            number(row.margin_a),
            number(row.margin_b),
            number(row.drift),
            "equal" if row.equal else "**diverge**",
        ]
        for row in view.close_steps
    ]
    heads = ["step", "margin in A", "margin in B", f"largest {document.kind} difference", "tokens"]
    heading, told = "### Margin and drift", margin_line(view)
    if not view.plot.risky:
        return [heading, text(told)]
    return [heading, text(f"{told} {close_steps_title(view)}:"), table(heads, rows, range(4))]


def _drift(document: Postmortem, view: PairView) -> list[str]:
    heading = "### Drift inside the model"
    if view.drift is None:
        equal = bool(view.pair.rows_compared) and view.first_logits is None  # as the count above says
        return [] if equal else [heading, text(no_drift_line(document, view))]
    moved = view.pair.rows_differing
    return [
        heading,
        f"{plural(moved, 'row')} of this sequence {does(moved, 'differ')}. A line for each layer, positions"
        " from left to right; behind it the largest relative difference ‖a − b‖ / max(‖a‖, ‖b‖) in it, and"
        " the site where:",
        _map(view.drift, view.layers),
    ]


def _map(found: Drift, layers: list[LayerTotal]) -> str:
    """Layers × positions, a character a cell; runs of layers share a line where there are many."""
    heat = found.layers
    values = np.frombuffer(base64.b64decode(heat.data["values"]), "<f4").reshape(len(heat.row_tops), -1)
    per = max(1, -(-values.shape[1] // MAP_COLUMNS))
    largest = {layer.name: layer for layer in layers}
    groups = _groups(_names(heat), [bool((row == 0).all()) for row in values[:, : _compared(values)]])
    width = max(len(name) for name, _ in groups)
    lines = [f"{'':>{width}} {_bands(heat, per)}"]
    for name, members in groups:
        told = [largest[one] for one in (_names(heat)[index] for index in members) if one in largest]
        top = max(told, key=lambda layer: _size(layer.drift_max), default=None)
        cells = "".join(
            _cells(values[members], start, per, found.scale) for start in range(0, values.shape[1], per)
        )
        behind = "" if top is None else f" {drift_cell(top.drift_max)} {plain(top.site_max)}"
        lines.append(f"{name:>{width}} {cells}{behind}".rstrip())
    low, high = f"1e{found.scale.low}", f"1e{found.scale.high}"
    legend = f"{_SHADES} {low} to {high} (logarithmic); · equal; {_other_marks(values)}blank: not compared"
    if per > 1:
        legend += f"; a character stands for the largest of {per} columns"
    return "<pre>" + html("\n".join([*lines, "", legend])) + "</pre>"


def _size(drift: float | None) -> float:
    return math.inf if drift is None or math.isnan(drift) else drift


def _compared(values: NDArray[np.float32]) -> int:
    """Columns up to the last in which anything was compared."""
    seen = np.flatnonzero(~np.isin(values, (NOT_COMPUTED, NOT_KNOWN)).all(axis=0))
    return int(seen[-1]) + 1 if len(seen) else 0


def _groups(names: list[str], equal: list[bool]) -> list[tuple[str, list[int]]]:
    """Lines of the map and the rows each stands for: neighbours that are equal throughout together, and
    neighbouring layers where there are many.

    Args:
        names: Of the rows: `layer 3`, or a site outside the layers.
        equal: Whether nothing differs in a row.
    """
    numbered = sum(name.startswith("layer ") and not same for name, same in zip(names, equal, strict=True))
    size = max(1, -(-numbered // MAX_LINES))
    found: list[list[int]] = []
    for index, name in enumerate(names):
        last = found[-1] if found else []
        alike = bool(last) and equal[index] and equal[last[-1]]
        layers = bool(last) and all(one.startswith("layer ") for one in (name, names[last[-1]]))
        if alike or (layers and not equal[index] and not equal[last[-1]] and len(last) < size):
            last.append(index)
        else:
            found.append([index])
    return [(_joined(names[members[0]], names[members[-1]]), members) for members in found]


def _joined(first: str, last: str) -> str:
    if first == last:
        return first
    layers = first.startswith("layer ") and last.startswith("layer ")
    return f"layers {first[6:]}–{last[6:]}" if layers else f"{first} … {last}"


def _other_marks(values: NDArray[np.float32]) -> str:
    """The legend of marks that are rare, where the map has them."""
    unknown = "? size not known; " if (values == SIZE_UNKNOWN).any() else ""
    return unknown + ("! not finite; " if not np.isfinite(values).all() else "")


def _bands(heat: HeatMap, per: int) -> str:
    """A line that says above which column each group of columns begins."""
    line = ""
    for left, _, title in heat.bands:
        if title:
            at = heat.data["x"].index(left) // per
            line = f"{line:<{at}}" if len(line) <= at else f"{line} "
            line += f"↓{title}"
    return line


def _names(heat: HeatMap) -> list[str]:
    return [str(name)[:28] for name in heat.data["rows"]]


def _cells(rows: NDArray[np.float32], start: int, per: int, scale: Scale) -> str:
    return _cell(rows[:, start : start + per], scale)


def _cell(values: NDArray[np.float32], scale: Scale) -> str:
    if not np.isfinite(values).all():
        return "!"
    moved = values[values > 0]
    if len(moved):
        place = (np.log10(float(moved.max())) - scale.low) / (scale.high - scale.low)
        return _SHADES[min(max(int(place * len(_SHADES)), 0), len(_SHADES) - 1)]
    if (values == SIZE_UNKNOWN).any():
        return "?"
    return " " if np.isin(values, (NOT_COMPUTED, NOT_KNOWN)).all() else "·"
