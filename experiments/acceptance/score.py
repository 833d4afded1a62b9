"""Outputs that are kept, scored: nothing is generated again, and nothing that was scored is scored again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...schemas.matrix import Cell, Comparison, Score, Scored
from ...schemas.plan import Plan
from .scorers import Scorer, Unscored, make_scorer
from .store import Store

Key = tuple[str, int]
"""(request_id, sample)."""


def score_cells(plan: Plan, store: Store) -> None:
    """Score the comparisons of all finished cells by the scorers of the plan's claims.

    Raises:
        BadInput: A scorer that cannot be used.
    """
    for claim in plan.claims:
        scorers = [make_scorer(use) for use in claim.scorers]
        for cell in list(store.cells.values()):
            if cell.state == "done" and cell.dimension in claim.varied and scorers:
                _score_cell(cell, scorers, store)


def _score_cell(cell: Cell, scorers: list[Scorer], store: Store) -> None:
    for index, comparison in enumerate(cell.comparisons):
        for scorer in scorers:
            scored = Scored(
                cell=cell.id, comparison=index, scorer=scorer.use, version=scorer.version, score=Score()
            )
            if scored.key not in store.scores:
                found = _score(scorer, *_outputs(cell, comparison, store))
                store.add(scored.model_copy(update={"score": found}))


def _outputs(cell: Cell, comparison: Comparison, store: Store) -> tuple[Mapping[Key, str], ...]:
    """The outputs of both sides, and the requests by id."""
    keys_a = cell.runs_a
    keys_b = cell.runs_b if comparison.pair != "a-a" else keys_a
    keys_a = keys_b if comparison.pair == "b-b" else keys_a
    if cell.dimension == "repeat":
        texts, requests = _texts(store.trace(store.runs[keys_a[0], 1]))
        sides = [
            {(name, 0): text for (name, sample), text in texts.items() if sample == wanted - 1}
            for wanted in (comparison.launch_a, comparison.launch_b)
        ]
        return sides[0], sides[1], requests
    a, requests = _texts(store.trace(store.runs[keys_a[0], comparison.launch_a]))
    b, _ = _texts(store.trace(store.runs[keys_b[0], comparison.launch_b]))
    return a, b, requests


def _texts(trace: Path) -> tuple[dict[Key, str], dict[Any, Any]]:
    """The outputs of a trace, and its requests by id."""
    from ...diverge.reading.load import read_header

    header = read_header(trace)
    texts = {(one.request_id, one.sample): one.text for one in header.results if one.text is not None}
    return texts, {request.request_id: request.envelope or {} for request in header.requests}


def _score(scorer: Scorer, a: Mapping[Key, str], b: Mapping[Key, str], requests: Mapping[Any, Any]) -> Score:
    agree = unscored = 0
    spreads: list[float] = []
    shared = [key for key in a if key in b]
    for key in shared:
        request = requests.get(key[0], {})
        values = [list(_values(scorer, text, request)) for text in (a[key], b[key])]
        spreads += [_spread(scorer, found) for found in values if len(found) > 1]
        if not values[0] or not values[1]:
            unscored += 1
        elif scorer.agree(_usual(scorer, values[0]), _usual(scorer, values[1])):
            agree += 1
    spread = sum(spreads) / len(spreads) if spreads else None
    return Score(agree=agree, of=len(shared), unscored=unscored, judge_spread=spread)


def _values(scorer: Scorer, text: str, request: Mapping[str, Any]) -> Iterator[Any]:
    """The scores of one output: one, or as many as a judge that samples is asked for."""
    for _ in range(scorer.use.repeats):
        try:
            yield scorer.score(text, request)
        except Unscored:
            return


def _usual(scorer: Scorer, values: list[Any]) -> Any:
    """The score that most of the others agree with; the first of several."""
    return max(values, key=lambda one: sum(scorer.agree(one, other) for other in values))


def _spread(scorer: Scorer, values: list[Any]) -> float:
    """Share of the repeated scores of one output that disagree with the usual one."""
    usual = _usual(scorer, values)
    return sum(not scorer.agree(usual, value) for value in values) / len(values)
