"""One pair of a postmortem as Markdown: both outputs, candidates, margins, and the drift as a map of text."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np

from ..words import bar, count, does, drift_cell, logit, number, percent, plural
from .heat import NOT_COMPUTED, NOT_KNOWN, SIZE_UNKNOWN
from .markdown_text import code, flowing, fold, html, table, text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .drift import Drift
    from .heat import HeatMap, Scale
    from .model import PairView, Postmortem, SideText, Token

# Bounds that keep the text below what GitHub takes as one comment (65,536 characters).
TOKENS_BEFORE = 120
TOKENS_AFTER = 100
PROMPT_TOKENS = 200
MAX_CANDIDATES = 8
MAX_LAYERS = 48
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
        marked = "The first divergent token is bold."
        blocks.append(f"The first {pair.first_position:,} tokens are equal. {marked}{close}")
    if view.prompt:
        shown = view.prompt[-PROMPT_TOKENS:]
        hidden = view.prompt_left_out + len(view.prompt) - len(shown)
        title = plural(pair.prompt, "prompt token") + (f", the last {len(shown)}" if hidden else "")
        blocks.append(fold(f"Prompt: {title}", _quoted(shown, "", "")))
    if pair.first_position is None:
        blocks.append(_output(view.a, view, None))
        return blocks
    sides = (("A", view.a, document.verdict.a.lane), ("B", view.b, document.verdict.b.lane))
    for name, side, lane in sides:
        blocks += [f"**{name}** ({text(lane)})", _output(side, view, pair.first_position)]
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
        return []
    pair = view.pair
    where = f"position {pair.first_position}" if pair.first_step is None else f"step {pair.first_step}"
    rows = []
    for item, pieces in view.candidates[:MAX_CANDIDATES]:
        moved = None
        if item.logit_a is not None and item.logit_b is not None:
            moved = item.logit_b - item.logit_a
        elif item.logprob_a is not None and item.logprob_b is not None:
            moved = item.logprob_b - item.logprob_a
        chosen = "A" * item.chosen_a + "B" * item.chosen_b
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
    return [f"### Candidates at {where}", table(heads, rows, (1, 4, 5, 6))]


def _bar(logprob: float | None, largest: float) -> str:
    share = bar(logprob, largest)
    return "█" * max(1, round(BAR * share)) if share else ""


def _margins(document: Postmortem, view: PairView) -> list[str]:
    if view.plot is None or not view.close_steps:
        return []
    unit = "step" if view.plot.bin_width == 1 else f"{view.plot.bin_width}-step group"
    risky = plural(view.plot.risky, unit)
    said = (
        f"Where the drift reaches half the margin, rounding can flip the choice: that is so at {risky}."
        if view.plot.risky
        else "The drift stays below half the margin at every step."
    )
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
    return ["### Margin and drift", f"{said} The steps nearest to a flip:", table(heads, rows, range(4))]


def _drift(document: Postmortem, view: PairView) -> list[str]:
    if view.drift is None:
        if not document.sites:
            said = "No site was captured in both traces, so what happened inside the model was not seen."
        else:
            said = "No row of this sequence differs."
        return ["### Drift inside the model", said]
    shown = view.layers[:MAX_LAYERS]
    rows = [
        [
            text(row.name),
            count(row.rows),
            str(row.first_position),
            drift_cell(row.drift_first),
            drift_cell(row.drift_max),
            code(row.site_max),
        ]
        for row in shown
    ]
    heads = ["layer", "rows differing", "first position", "largest drift there", "largest drift", "at site"]
    title = f"By layer: {len(shown)} of {plural(len(view.layers), 'layer')} with a differing row"
    return [
        "### Drift inside the model",
        f"{plural(view.pair.rows_differing, 'row')} of this sequence"
        f" {does(view.pair.rows_differing, 'differ')}. The largest relative drift in"
        " each layer, positions from left to right:",
        _map(view.drift),
        fold(title, table(heads, rows, (1, 2, 3, 4))),
    ]


def _map(found: Drift) -> str:
    """Layers × positions, a character a cell."""
    heat = found.layers
    values = np.frombuffer(base64.b64decode(heat.data["values"]), "<f4").reshape(len(heat.row_tops), -1)
    per = max(1, -(-values.shape[1] // MAP_COLUMNS))
    names = _names(heat)
    width = max(len(name) for name in names)
    lines = [
        f"{'':>{width}} {_bands(heat, per)}",
    ]
    lines += [
        f"{name:>{width}} {_line(row, per, found.scale)}".rstrip()
        for name, row in zip(names, values, strict=True)
    ]
    low, high = f"1e{found.scale.low}", f"1e{found.scale.high}"
    legend = (
        f"{_SHADES} {low} to {high} (logarithmic); · equal; ? size not known; ! NaN; blank: not comparable"
    )
    if per > 1:
        legend += f"; a character stands for the largest of {per} columns"
    return "<pre>" + html("\n".join([*lines, "", legend])) + "</pre>"


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


def _line(row: NDArray[np.float32], per: int, scale: Scale) -> str:
    return "".join(_cell(row[start : start + per], scale) for start in range(0, len(row), per))


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
