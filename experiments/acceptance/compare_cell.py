"""A cell's finished runs, compared: each side with itself first, then B with A."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...schemas.errors import NothingCompared
from ...schemas.findings.statement import Location
from ...schemas.matrix import Cell, Comparison, Invalid, Numbers, Pair, Run
from ...schemas.plan import Value
from ..lanes.request import setting_key
from .cells import Configuration, PlannedCell
from .dimensions import find_dimension
from .samples import take_sample
from .store import Store

if TYPE_CHECKING:
    from ...schemas.trace import TraceHeader
    from ...schemas.verdict import Verdict

Side = Literal["a", "b"]
Outcome = Literal["equal", "differs", "not comparable"]

_NUMBERS = """
SELECT max(max_abs_logit_diff), max(max_abs_logprob_diff), max(max_rel_logit_diff), count(logits_equal)
FROM read_parquet(?) WHERE comparable
"""
_KL = """
SELECT max(mean) FROM (
  SELECT avg(exp(logprob_a - logprob_b) - 1 - (logprob_a - logprob_b)) AS mean
  FROM read_parquet(?) WHERE comparable AND token_equal AND logprob_a IS NOT NULL AND logprob_b IS NOT NULL
  GROUP BY pair)
"""
_RANKS = """
SELECT min(coalesce(list_min(list_filter(range(1, len(a.topk_ids) + 1),
                                         lambda i: a.topk_ids[i] IS DISTINCT FROM b.topk_ids[i])) - 1,
                    len(a.topk_ids)))
FROM read_parquet(?) t
JOIN read_parquet(?) a ON (a.request_id, a.sample, a.position) = (t.request_id, t.sample, t.position - 1)
JOIN read_parquet(?) b ON (b.request_id, b.sample, b.position) = (t.request_id, t.sample, t.position - 1)
WHERE t.logits_equal IS NOT NULL OR t.max_abs_logprob_diff IS NOT NULL
"""


def compare_cell(cell: PlannedCell, store: Store) -> Cell:
    """Compare the runs of a cell, all of which have ended.

    Returns:
        What goes into the ledger. A folder of a comparison is kept where something differs.
    """
    runs_a = [store.runs[cell.a.key, launch] for launch in range(1, cell.rounds + 1)]
    runs_b = [store.runs[cell.b.key, launch] for launch in range(1, cell.rounds + 1)] if cell.b else []
    done = Cell(
        id=cell.id,
        lane=cell.lane,
        dimension=cell.dimension,
        value_a=cell.value_a,
        value_b=cell.value_b,
        runs_a=[run.key for run in runs_a],
        runs_b=[run.key for run in runs_b],
        state="invalid",
    )
    failed = [_failed("a", run) for run in runs_a if run.trace is None]
    failed += [_failed("b", run) for run in runs_b if run.trace is None]
    if failed:
        return done.model_copy(update={"why": failed})
    resolved = _Resolved(cell, store, runs_a[0], runs_b[0] if runs_b else None)
    done = done.model_copy(update={"resolved_a": resolved.a, "resolved_b": resolved.b})
    if resolved.why:
        return done.model_copy(update={"why": resolved.why})
    try:
        compared = list(_comparisons(cell, store, runs_a, runs_b))
    except NothingCompared as error:
        return done.model_copy(update={"why": [Invalid(kind="nothing compared", message=error.message)]})
    return done.model_copy(update={"state": "done", "comparisons": compared})


def _failed(side: Side, run: Run) -> Invalid:
    return Invalid(kind="run failed", side=side, message=run.error)


class _Resolved:
    """Whether the runs had what the plan says, as the engine resolved it."""

    def __init__(self, cell: PlannedCell, store: Store, a: Run, b: Run | None) -> None:
        self.why: list[Invalid] = []
        self.a = self._check(cell, cell.a, "a", cell.value_a, store.trace(a))
        self.b = None
        if b is not None and cell.b is not None:
            self.b = self._check(cell, cell.b, "b", cell.value_b, store.trace(b))

    def _check(
        self,
        cell: PlannedCell,
        side: Configuration,
        name: Side,
        value: Value | None,
        trace: Path,
    ) -> str | None:
        from ...diverge.reading.load import read_header

        dimension = find_dimension(cell.dimension)
        if dimension.how != "setting" or value is None:
            return None
        setting = str(dimension.name(side.engine))
        found = _resolved(read_header(trace), setting)
        wanted = str(value).lower() if isinstance(value, bool) else str(value)
        if found is not None and wanted and not _is_same(wanted, found):
            self.why.append(
                Invalid(kind="not as planned", side=name, name=setting, wanted=wanted, found=found)
            )
        elif cell.dimension == "batch_size" and not _shared_a_pass(trace, value):
            self.why.append(Invalid(kind="not exercised", side=name, name=setting, wanted=wanted))
        return found


def _resolved(header: TraceHeader, name: str) -> str | None:
    """What the engine says of a setting; None: nothing."""
    for key, setting in header.lane.settings.items():
        if setting_key(key) == setting_key(name):
            found = setting.resolved if setting.observed is None else setting.observed
            return None if found is None else str(found)
    if name.startswith("env.") and header.fingerprint is not None:
        fact = header.fingerprint.get("determinism", name.removeprefix("env."))
        return None if fact is None or fact.absence is not None else str(fact.value)
    return None


def _is_same(wanted: str, found: str) -> bool:
    # An engine may report `torch.float32`, `cuda:0` or `True` for what was stated as float32, cuda or true.
    one, other = wanted.lower(), found.lower().removeprefix("torch.")
    return one == other or other.startswith(f"{one}:")


def _shared_a_pass(trace: Path, value: Value) -> bool:
    """Whether a run with a batch size above 1 ever had two sequences in one pass, where the trace knows."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 2:
        return True
    most = _one("SELECT max(batch_size) FROM read_parquet(?)", trace)[0]
    return most is None or most > 1


def _comparisons(cell: PlannedCell, store: Store, runs_a: list[Run], runs_b: list[Run]) -> list[Comparison]:
    found: list[Comparison] = []
    if cell.dimension == "repeat":
        samples = [take_sample(store.trace(runs_a[0]), index) for index in range(cell.a.repeat)]
        for index, sample in enumerate(samples[1:], start=2):
            found.append(_compare(cell, store, "a-a", (samples[0], 1), (sample, index)))
        for sample in samples:
            sample.unlink()
        return found
    sides: tuple[tuple[Pair, list[Run]], ...] = (("a-a", runs_a), ("b-b", runs_b))
    for pair, runs in sides:
        # Pairs with the first launch show every difference; the rest would show them again.
        found += [
            _compare(cell, store, pair, _kept(runs[0], store), _kept(other, store)) for other in runs[1:]
        ]
    for one, other in zip(runs_a, runs_b, strict=True) if runs_b else ():
        found.append(_compare(cell, store, "a-b", _kept(one, store), _kept(other, store)))
    return found


def _kept(run: Run, store: Store) -> tuple[Path, int]:
    return store.trace(run), run.launch


def _compare(
    cell: PlannedCell, store: Store, pair: Pair, a: tuple[Path, int], b: tuple[Path, int]
) -> Comparison:
    """Compare two traces; the result folder is kept where something differs.

    Raises:
        NothingCompared: They have nothing in common.
    """
    from ...diverge.compare import diverge

    name = f"{pair}-{a[1]}-{b[1]}"
    if a[0] == b[0]:
        return Comparison(pair=pair, launch_a=a[1], launch_b=b[1], **_same(a[0]))
    folder = store.result(cell.id, name)
    verdict = diverge(a[0], b[0], folder, force=True)
    bitwise, token = _bitwise(verdict), _token(verdict)
    found = Comparison(
        pair=pair,
        launch_a=a[1],
        launch_b=b[1],
        sequences=verdict.compared.sequences + (verdict.compared.texts or 0),
        sequences_diverging=verdict.compared.sequences_diverging + (verdict.compared.texts_differing or 0),
        rows=verdict.compared.rows,
        rows_differing=verdict.compared.rows_differing,
        bitwise=bitwise,
        token=token,
        numbers=_numbers(folder, a[0], b[0]),
        first_token=_first_token(verdict),
        first_site=_first_site(verdict),
        causes=[cause.id for cause in verdict.causes],
    )
    if bitwise == "equal" and token == "equal":
        shutil.rmtree(folder)
        return found
    return found.model_copy(update={"result": folder.name})


def _same(trace: Path) -> dict[str, Any]:
    """Of a trace and itself, bit for bit: launches whose traces are one file."""
    from ...diverge.reading.load import open_trace

    opened = open_trace(trace)
    rows = opened.rows * len(opened.header.sites)
    return {"sequences": len(opened.header.results), "rows": rows, "bitwise": "equal", "token": "equal"}


def _bitwise(verdict: Verdict) -> Outcome:
    state = verdict.levels["bitwise"].state
    differs = state == "fails" or verdict.first_site is not None or verdict.first_logprob is not None
    if differs or verdict.compared.sequences_diverging or verdict.compared.texts_differing:
        return "differs"
    return "equal" if state == "holds" else "not comparable"


def _token(verdict: Verdict) -> Outcome:
    compared = verdict.compared
    if compared.sequences_diverging or compared.texts_differing:
        return "differs"
    return "equal" if verdict.levels["token"].state == "holds" else "not comparable"


def _numbers(result: Path, a: Path, b: Path) -> Numbers:
    """The numeric distance, from the result's table and the two traces."""
    tokens = result / "tokens.parquet"
    logits, logprobs, relative, steps = _one(_NUMBERS, tokens)
    if logits is None and logprobs is None:
        return Numbers()
    return Numbers(
        max_abs=logprobs if logits is None else logits,
        max_rel=relative,
        same_ranks=_one(_RANKS, tokens, a, b)[0],
        max_kl=_one(_KL, tokens)[0],
        of="logprobs" if logits is None else "logits",
        steps=steps,
    )


def _one(sql: str, *paths: Path) -> tuple[Any, ...]:
    import duckdb

    with duckdb.connect() as connection:
        row = connection.execute(sql, [str(path) for path in paths]).fetchone()
    assert row is not None
    return tuple(row)


def _first_token(verdict: Verdict) -> Location | None:
    token = verdict.first_token
    if token is None:
        return None
    return Location(
        request_id=token.request_id, sample=token.sample, position=token.position, step=token.step
    )


def _first_site(verdict: Verdict) -> Location | None:
    site = verdict.first_site
    if site is None:
        return None
    return Location(request_id=site.request_id, sample=site.sample, position=site.position, site=site.label())
