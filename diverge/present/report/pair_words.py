"""What both forms of the report say of one pair, in sentences. Plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..findings.labels import label
from ..format import plain, plural
from ..patterns import cause_label

if TYPE_CHECKING:
    from .model import PairView, Postmortem
    from .rows import Pair


def candidates_place(view: PairView) -> str:
    """The step whose candidates are shown."""
    assert view.candidates_at is not None
    return f"step {view.candidates_at - view.pair.prompt}"


def candidates_told(view: PairView) -> str:
    """What the table of candidates shows."""
    which = "The likeliest candidates and the chosen ones"
    if view.pair.first_position is None:
        which = (
            "No token diverges; here the logits differ for the first time. The likeliest candidates and the"
            " one that moved most"
        )
    return f"{which}, by the raw distribution: before temperature, penalties, bias and filters."


def margin_line(view: PairView) -> str:
    """At how many steps the drift can flip the choice."""
    assert view.plot is not None
    what = "The margin is by how much the likeliest candidate leads the second."
    unit = "step" if view.plot.bin_width == 1 else f"{view.plot.bin_width}-step group"
    if not view.close_steps:
        return f"{what} No drift is known at any step."
    if not view.plot.risky:
        near = min(view.close_steps, key=lambda row: (row.margin_a or 0.0) - 2 * (row.drift or 0.0))
        return (
            f"{what} The drift stays below half of it at every step, too little to flip a choice; nearest to"
            f" that is step {near.step}."
        )
    return (
        f"{what} Where the drift reaches half of it, the drift can flip the choice: that is so at"
        f" {plural(view.plot.risky, unit)}."
    )


def close_steps_title(view: PairView) -> str:
    """Which steps the table of margins shows, in their order."""
    shown, of = len(view.close_steps), view.moved_steps
    return (
        "All steps at which the numbers moved"
        if shown == of
        else f"The {shown} of {of:,} steps nearest to a flip"
    )


def no_drift_line(document: Postmortem, view: PairView) -> str:
    """Why there is no map of the drift."""
    pair = view.pair
    if not document.sites:
        return "No site was captured in both traces, so what happened inside the model was not seen."
    if not pair.rows_compared:
        return "No row of this sequence could be compared."
    moved = (view.first_logits is not None and "; the logits do, so the difference arises behind them") or ""
    return f"No row of this sequence that was compared differs{moved}."


def first_cause(pair: Pair, document: Postmortem) -> str:
    """What the cause that is ranked first for a pair is called: as the verdict says it of its own pair."""
    name = (pair.causes or "").split(", ")[0]
    first = document.verdict.first_token
    own = first is not None and (first.request_id, first.sample) == (pair.request_id, pair.sample)
    labels = {cause.id: label(cause) for cause in document.verdict.causes} if own else {}
    return plain(labels.get(name) or cause_label(name)) if name else "–"
