"""Feeds mutated foreign text to every parser, and kills commands at random moments.

make fuzz                              a million inputs and 200 kills, the tables on stdout
make fuzz-table                        the same, and the tables into docs/robustness.md
python -m fuzz.run --only "lane file"  one kind (the option may be repeated)
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fuzz.kills import KillRow, kill_all
from fuzz.kinds import KINDS, Kind, by_name
from fuzz.workers import Row, Task, run

DOCUMENT = Path(__file__).parents[2] / "docs" / "robustness.md"
_SHARED_MEMORY = Path("/dev/shm")
_PIECES = 40
"""Tasks of a kind: a run that is cut short has fed about the same share of every kind."""


def plan(kinds: Sequence[Kind], inputs: int) -> list[Task]:
    """The kinds' shares of the inputs, in pieces by turns; each kind gets at least one input."""
    total = sum(kind.share for kind in kinds)
    tasks = []
    for kind in kinds:
        count = max(1, round(inputs * kind.share / total))
        pieces = min(count, _PIECES)
        tasks += [Task(kind, first, count, pieces) for first in range(pieces)]
    return sorted(tasks, key=lambda task: task.first / task.of)


def main(arguments: list[str]) -> int:
    """Run and print. Returns 0 where nothing was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", action="append", default=[], metavar="KIND", help=", ".join(k.name for k in KINDS)
    )
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=math.inf, help="end the feeding early")
    parser.add_argument("--found", type=Path, help="where findings are kept [default: build/fuzz]")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args(arguments)
    found = chosen.found or Path("build/fuzz")
    found.mkdir(parents=True, exist_ok=True)
    clean = True
    if chosen.inputs:
        began = time.perf_counter()
        scratch = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="rip-fuzz-", dir=scratch) as folder:
            tempfile.tempdir = folder
            tasks = plan(by_name(chosen.only), chosen.inputs)
            rows = run(tasks, chosen.workers, chosen.seed, found, began + chosen.seconds)
            tempfile.tempdir = None
        clean = not any(row.findings for row in rows)
        spent = f"Seed {chosen.seed}; {time.perf_counter() - began:.0f} s by {chosen.workers} processes."
        show("inputs", f"{inputs_table(rows)}\n\n{spent}", chosen.write)
    if chosen.kills:
        began = time.perf_counter()
        kills = kill_all(chosen.kills, chosen.seed, found, chosen.only)
        clean = clean and not any(row.findings for row in kills)
        spent = f"Seed {chosen.seed}; {time.perf_counter() - began:.0f} s."
        show("kills", f"{kills_table(kills)}\n\n{spent}", chosen.write)
    return 0 if clean else 1


def inputs_table(rows: Sequence[Row]) -> str:
    """One line a kind, and the sum."""
    whole = Row(
        "all",
        *(
            sum(getattr(row, count) for row in rows)
            for count in ("inputs", "refused", "accepted", "findings")
        ),
        max(row.slowest for row in rows),
    )
    lines = ["| kind | inputs | refused | accepted | findings | slowest |", "|---|--:|--:|--:|--:|--:|"]
    for row in (*rows, whole):
        counts = " | ".join(f"{n:,}" for n in (row.inputs, row.refused, row.accepted, row.findings))
        lines.append(f"| {row.kind} | {counts} | {row.slowest * 1000:,.0f} ms |")
    return "\n".join(lines)


def kills_table(rows: Sequence[KillRow]) -> str:
    """One line a command, and the sum."""
    lines = ["| command | kills | of them in the middle | findings |", "|---|--:|--:|--:|"]
    whole = KillRow(
        "all", sum(r.kills for r in rows), sum(r.in_the_middle for r in rows), sum(r.findings for r in rows)
    )
    lines += [
        f"| {one.command} | {one.kills} | {one.in_the_middle} | {one.findings} |" for one in (*rows, whole)
    ]
    return "\n".join(lines)


def show(part: str, text: str, write: bool) -> None:
    """Print a table, and put it into the document between its marks."""
    print(text, flush=True)
    if write:
        begin, end = f"<!-- fuzz {part}: begin (make fuzz-table) -->", f"<!-- fuzz {part}: end -->"
        before, _, rest = DOCUMENT.read_text("utf-8").partition(begin)
        after = rest.partition(end)[2]
        DOCUMENT.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
