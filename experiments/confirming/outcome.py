"""A new trace compared with A or with B: whether it is equal, by what, and whether a place is equal again."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.errors import NothingCompared
from ...schemas.findings.experiments import By
from ...schemas.findings.statement import Command, Location

if TYPE_CHECKING:
    from ...schemas.verdict import Cause, Verdict


@dataclass(frozen=True)
class Outcome:
    """What a comparison gave.

    Attributes:
        equal: To the bit, in all that was compared; None: nothing that both hold decides it.
        by: The finest thing that was compared.
        compared: How many of these.
        where: The first difference.
        place_equal: Nothing differs at the place that was asked for, and before it.
        largest_logit: Largest logit difference, where logits are known.
    """

    equal: bool | None
    by: By
    compared: int
    where: Location | None = None
    place_equal: bool = False
    largest_logit: float | None = None


NOTHING = Outcome(None, "tokens", 0)


def is_of_choice(command: Command) -> bool:
    """It undoes how tokens are chosen, or what is asked: not how numbers are computed."""
    kinds = {one.of for one in command.changes}
    return bool(kinds) and kinds <= {"sampling", "requests"}


def place_of(verdict: Verdict, cause: Cause) -> Location | None:
    """Where a cause makes A and B differ first; None: the comparison knows no place."""
    token, site = verdict.first_token, verdict.first_site
    if site is not None and not (cause.confirm is not None and is_of_choice(cause.confirm)):
        label, position = site.label(), site.position
        if cause.subject is not None:
            label, position = cause.subject.site, cause.subject.position
        return Location(request_id=site.request_id, sample=site.sample, position=position, site=label)
    for found in (token, verdict.first_logprob):
        if found is not None:
            return Location(request_id=found.request_id, sample=found.sample, position=found.position)
    return None


def compare(side: Path, new: Path, folder: Path, place: Location | None = None) -> Outcome:
    """Compare A or B with a new trace.

    Args:
        side: The trace of A or B.
        new: The new one.
        folder: A name for the result, which is removed again.
        place: Where it matters.

    Raises:
        BadInput: One of them cannot be read.
        OutputFailed: No room for the result.
    """
    from ...diverge.compare import diverge

    try:
        verdict = diverge(side, new, folder, force=True)
        return _outcome(verdict, place is not None and _is_equal_at(folder, place))
    except NothingCompared:
        return NOTHING
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _outcome(verdict: Verdict, place_equal: bool) -> Outcome:
    bitwise, token, compared = verdict.levels["bitwise"], verdict.levels["token"], verdict.compared
    where = bitwise.where or token.where
    if bitwise.state in ("holds", "fails"):
        by: By = "rows" if compared.rows else "logits"
        equal: bool | None = bitwise.state == "holds"
        count = compared.rows or compared.positions
    elif compared.texts and not compared.sequences:
        by, equal, count = "texts", verdict.first_text is None, compared.texts
    elif verdict.max_abs_logprob_diff is not None:
        by, count = "logprobs", compared.positions
        same = verdict.first_logprob is None and verdict.max_abs_logprob_diff == 0
        equal = same and token.state == "holds"
    else:
        by, count = "tokens", compared.positions
        equal = {"holds": True, "fails": False}.get(token.state)
    if by != "texts" and compared.texts:
        equal = False if equal is False else None
    return Outcome(equal, by, count, where, place_equal or bool(equal and count), verdict.max_abs_logit_diff)


def _is_equal_at(folder: Path, place: Location) -> bool:
    """Whether the tokens, logits and sites of a sequence are equal up to a place, which was compared."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    columns = ["pair", "request_id", "sample", "position", "step", "token_equal", "logits_equal"]
    tokens = pq.read_table(folder / "tokens.parquet", columns=[*columns, "sites_compared", "sites_differing"])
    mine = pc.and_(
        pc.equal(tokens["request_id"].cast("string"), place.request_id),
        pc.equal(tokens["sample"], place.sample),
    )
    rows = [row for row in tokens.filter(mine).to_pylist() if row["position"] <= (place.position or 0)]
    last = next((row for row in rows if row["position"] == place.position), None)
    if last is None or not all(row["token_equal"] for row in rows):
        return False
    if any(row["logits_equal"] is False for row in rows):
        return False
    if place.site is None:  # a token: of a prompt, which is given, or of an answer, which logits chose
        in_prompt = last["step"] is None and not any(row["sites_differing"] for row in rows)
        return in_prompt or last["logits_equal"] is True
    totals = pq.read_table(folder / "site_totals.parquet").to_pylist()
    index = next((row["site"] for row in totals if _label(row) == place.site), None)
    if index is None or not last["sites_compared"]:
        return False
    path = folder / "sites.parquet"
    if not path.is_file():
        return True
    filters = [("pair", "=", last["pair"]), ("position", "<=", place.position)]
    differing = pq.read_table(path, columns=["position", "site"], filters=filters).to_pylist()
    return not any(row["position"] < last["position"] or row["site"] <= index for row in differing)


def _label(row: dict[str, object]) -> str:
    from ...schemas.trace import site_label

    return site_label(str(row["name"]), int(str(row["occurrence"])), str(row["part"]))


def differing_repeats(trace: Path) -> tuple[int, int, int]:
    """How many repeats a trace holds of its requests, how many requests, and how many of these have
    repeats that are not all equal in tokens, logits and rows."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(trace)
    wanted = ["request_id", "sample", "position", "token_id", "topk_logprobs", "logits_hash", "site_hash"]
    names = [name for name in wanted if name in file.schema_arrow.names]
    runs: dict[str, dict[int, list[object]]] = {}
    for batch in file.iter_batches(batch_size=1 << 12, columns=names):
        for row in batch.to_pylist():
            run = runs.setdefault(row.pop("request_id"), {}).setdefault(row.pop("sample"), [])
            run.append(hash(str(row)))
    differing = sum(len({tuple(run) for run in found.values()}) > 1 for found in runs.values())
    return max((len(found) for found in runs.values()), default=0), len(runs), differing
