"""`rip fingerprint` beside `python -m torch.utils.collect_env`: whole processes, and whether readings repeat.

    python benchmarks/fingerprint.py [--pairs N] [--runs N]

Pairs alternate; medians and the median of the pairs' ratios are printed. The budget for `rip fingerprint`
without a model is 1.0 s, and less than collect_env takes. Afterwards it runs N times and counts different
root digests.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "rip fingerprint": [sys.executable, "-m", "rip", "fingerprint"],
    "collect_env": [sys.executable, "-m", "torch.utils.collect_env"],
}
BUDGET_S = 1.0


def seconds(command: list[str]) -> float:
    """Wall time of one process, output thrown away."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    for command in COMMANDS.values():  # caches
        seconds(command)
    times = {name: [0.0] * options.pairs for name in COMMANDS}
    for turn in range(options.pairs):
        for name, command in COMMANDS.items():
            times[name][turn] = seconds(command)
    for name, measured in times.items():
        print(f"{name:16} {statistics.median(measured):6.2f} s  [{min(measured):.2f} … {max(measured):.2f}]")
    ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
    print(f"ratio {ratio:.2f}; budgets: {BUDGET_S:.1f} s and a ratio of 1")
    digests: dict[str, int] = {}
    for _ in range(options.runs):
        read = subprocess.run(COMMANDS["rip fingerprint"], check=True, capture_output=True).stdout
        digest = json.loads(read)["root_digest"]
        digests[digest] = digests.get(digest, 0) + 1
    print(f"{options.runs} runs on an unchanged machine: {len(digests)} root digest(s)")


if __name__ == "__main__":
    main()
