"""How long `rip --help` takes, beside an empty Python process, against a budget of 0.15 s.

    python benchmarks/help_time.py

Runs alternate, so that all meet the same machine. Where the budget is missed, the slowest imports are
listed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

BUDGET_S = 0.15
PAIRS = 15

RIP = Path(sys.executable).with_name("rip")
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "rip --help": [str(RIP), "--help"],
    "rip replay --help": [str(RIP), "replay", "--help"],
}


def seconds(command: list[str]) -> float:
    """Wall time of one run, in seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def slowest_imports(count: int) -> list[str]:
    """The imports of `rip --help` that take longest by themselves: lines of `python -X importtime`."""
    command = [sys.executable, "-X", "importtime", str(RIP), "--help"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stderr.splitlines()[1:]
    return sorted(told, key=lambda line: int(line.split(":")[1].split("|")[0]), reverse=True)[:count]


def main() -> int:
    """Print the figures. Exit code 1 if the budget is missed."""
    for command in COMMANDS.values():
        seconds(command)  # the first run fills the caches
    rounds = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(PAIRS)]
    medians = {name: statistics.median(times[name] for times in rounds) for name in COMMANDS}
    for name, median in medians.items():
        fastest = min(times[name] for times in rounds)
        print(f"{name:<18} median {median * 1000:6.1f} ms   fastest {fastest * 1000:6.1f} ms")
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        print(f"the machine is busy (load {load:.1f} on {cores} cores): compare with the empty process")
    missed = medians["rip --help"] > BUDGET_S
    print(f"budget {BUDGET_S * 1000:.0f} ms: {'MISSED' if missed else 'met'}")
    if missed:
        print("\n".join(slowest_imports(12)))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
