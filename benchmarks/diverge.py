"""`rip diverge` beside what it costs to merely read the same columns, and its memory at two lengths.

    python benchmarks/diverge.py [--folder DIR] [--pairs N] [--positions N]

Pairs of (diverge, baseline) alternate in one process; medians and the median of the pairs' ratios are
printed. Traces are synthetic: 150 sites, sequences of 1000 positions (400 prompt, 600 decode), 20 candidates
for every generated token, row groups of 5000 rows, as `rip replay` writes them at that width.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fakes.traces import Sequence, header, llama_sites, sequence, write_trace
from rip.diverge.compare import diverge

SITES = llama_sites(30)[:150]
LENGTH = 1000
KINDS = ("equal", "1 % clustered", "1 % by row", "1 % scattered", "all")
BUDGET = dict.fromkeys(KINDS, 1.5)


def sequences(positions: int, kind: str) -> Iterator[Sequence]:
    """Trace A is the kind `equal`; the others differ from it in the share of rows that they name."""
    for index in range(positions // LENGTH):
        one = sequence(index, len(SITES), prompt=400, decode=600, k=20, request_id=f"r{index}")
        one.has_logits[:399] = False  # a prefill computes logits for the last prompt token only
        rng = np.random.default_rng(index)
        differing = np.zeros(one.present.shape, bool)
        if kind == "all":
            differing[:] = True
        elif kind == "1 % scattered":
            differing = rng.random(one.present.shape) < 0.01
        elif kind == "1 % clustered":
            differing[500:510] = True
        elif kind == "1 % by row":  # some positions, each from one of its sites on
            moved = rng.random(LENGTH) < 0.02
            differing = moved[:, None] & (np.arange(len(SITES)) >= rng.integers(len(SITES), size=(LENGTH, 1)))
        one.hashes[differing, 0] ^= np.uint64(1)
        one.sketch[differing] *= np.float32(1.001)
        moved = differing.any(axis=1) if kind != "1 % scattered" else rng.random(LENGTH) < 0.01
        one.logits_hash[moved, 0] ^= np.uint64(1)
        one.topk_logits[moved] += rng.standard_normal((int(moved.sum()), 20), dtype=np.float32) * 0.01
        yield one


def trace(folder: Path, positions: int, kind: str) -> Path:
    """Make a trace unless it is there."""
    path = folder / f"{kind.replace(' ', '-').replace('%', 'percent')}-{positions}.parquet"
    if not path.exists():
        about = header(SITES, [f"r{index}" for index in range(positions // LENGTH)])
        write_trace(path, sequences(positions, kind), about, rows_per_group=5000)
    return path


def read(paths: tuple[Path, Path], columns: list[str]) -> None:
    """The baseline: pyarrow reads these columns of both traces."""
    tables = [pq.read_table(path, columns=columns) for path in paths]
    del tables


def timed(folder: Path, positions: int, pairs: int) -> None:
    """Print time and ratio of every kind."""
    base = trace(folder, positions, "equal")
    size = f"{positions:,} positions x {len(SITES)} sites"
    print(f"{size}, {os.cpu_count()} cores, median of {pairs} alternating pairs")
    print(
        f"{'differing rows':16} {'diverge':>9} {'read columns':>13} {'ratio':>6} {'budget':>7}  columns read"
    )
    for kind in KINDS:
        other = trace(folder, positions, kind)
        columns = ["site_hash", "site_sketch"] if kind == "all" else ["site_hash"]
        ours: list[float] = []
        theirs: list[float] = []
        for turn in range(pairs + 1):
            out = folder / "result"
            shutil.rmtree(out, ignore_errors=True)
            start = time.perf_counter()
            diverge(base, other, out)
            middle = time.perf_counter()
            read((base, other), columns)
            end = time.perf_counter()
            if turn:  # the first pair warms caches
                ours.append(middle - start)
                theirs.append(end - middle)
        ratio = statistics.median(mine / its for mine, its in zip(ours, theirs, strict=True))
        mine, its = statistics.median(ours), statistics.median(theirs)
        named = " + ".join(columns)
        print(f"{kind:16} {mine:7.3f} s {its:11.3f} s {ratio:6.2f} {BUDGET[kind]:7.1f}  {named}")


def peak(folder: Path, positions: int, kind: str) -> float:
    """Peak resident memory in MB of one comparison in a fresh process, imports included."""
    base, other = trace(folder, positions, "equal"), trace(folder, positions, kind)
    shutil.rmtree(folder / "result", ignore_errors=True)
    child = [sys.executable, __file__, "--child", str(base), str(other), str(folder / "result")]
    return float(subprocess.run(child, check=True, capture_output=True, text=True).stdout)


def high_water_mark() -> float:
    """Peak resident memory of this program in MB, mapped file pages included."""
    # Not getrusage: its maximum is carried over from the parent process.
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    """Run the benchmark, or one comparison as its child."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="keep the traces here for the next time")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--positions", type=int, default=50_000)
    parser.add_argument("--child", nargs=3, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        diverge(*options.child)
        print(high_water_mark())
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        timed(folder, options.positions, options.pairs)
        print("\npeak resident memory of a process that compares once, imports included")
        for kind in ("1 % scattered", "all"):
            lengths = (options.positions, 4 * options.positions)
            said = ", ".join(
                f"{length:,} positions: {peak(folder, length, kind):.0f} MB" for length in lengths
            )
            print(f"{kind:16} {said}")


if __name__ == "__main__":
    main()
