"""How long `rip --help` takes, as a multiple of an empty Python process: the budget is three of them.

    python benchmarks/help_time.py

Runs alternate, so that all meet the same machine; a ratio is the median over the rounds. Compiled files lie
in a folder of the benchmark, as an installation has them. Where the budget is missed, the slowest imports are
listed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUDGET = 3.0
"""Of `rip --help`, in empty Python processes."""
PAIRS = 15

RIP = Path(sys.executable).with_name("rip")
EMPTY = "python -c pass"
COMMANDS = {
    EMPTY: [sys.executable, "-c", "pass"],
    "rip --help": [str(RIP), "--help"],
    "rip replay --help": [str(RIP), "replay", "--help"],
}


def environment(compiled: str) -> dict[str, str]:
    """This process's environment, with compiled files in a folder."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": compiled}


def seconds(command: list[str], env: dict[str, str]) -> float:
    """Wall time of one run, in seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
    return time.perf_counter() - start


def slowest_imports(count: int, env: dict[str, str]) -> list[str]:
    """The imports of `rip --help` that take longest by themselves: lines of `python -X importtime`."""
    command = [sys.executable, "-X", "importtime", str(RIP), "--help"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    told = done.stderr.splitlines()[1:]
    return sorted(told, key=lambda line: int(line.split(":")[1].split("|")[0]), reverse=True)[:count]


def main() -> int:
    """Print the figures. Exit code 1 if the budget is missed."""
    with tempfile.TemporaryDirectory() as compiled:
        env = environment(compiled)
        for command in COMMANDS.values():
            seconds(command, env)  # the first run fills the caches
        rounds = [{name: seconds(command, env) for name, command in COMMANDS.items()} for _ in range(PAIRS)]
        ratios = {}
        for name in COMMANDS:
            median = statistics.median(times[name] for times in rounds)
            fastest = min(times[name] for times in rounds)
            ratios[name] = statistics.median(times[name] / times[EMPTY] for times in rounds)
            print(
                f"{name:<18} median {median * 1000:6.1f} ms   fastest {fastest * 1000:6.1f} ms   "
                f"{ratios[name]:4.1f} × {EMPTY}"
            )
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        if load > cores:
            print(f"the machine is busy (load {load:.1f} on {cores} cores)")
        missed = ratios["rip --help"] > BUDGET
        print(f"budget of rip --help {BUDGET:.0f} × {EMPTY}: {'MISSED' if missed else 'met'}")
        if missed:
            print("\n".join(slowest_imports(12, env)))
        return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
