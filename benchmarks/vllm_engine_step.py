"""What vLLM's taps cost at the engine's own step: decode at batch 8 in one process, without a server.

    python benchmarks/vllm_engine_step.py [--model DIR] [--python VLLM_PYTHON]

Observed and unobserved batches alternate in one engine; of each the median time of its decode steps is taken,
and the median of the pairs' ratios is printed. What the processes of a server add is in vllm_tap.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from served import PYTHON, SETTINGS, small_model

BUDGET = 1.10
PROGRAM = """
import json, secrets, statistics, sys, time
from vllm import LLM, SamplingParams

def steps(engine, observed, batch, tokens):
    for number in range(batch):
        name = secrets.token_hex(4)
        ids = [100 + (number * 37 + index * 11) % 20000 for index in range(129)]
        extra = {"rip_tap": name if observed else ""}
        how = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra)
        engine.add_request(name, {"prompt_token_ids": ids}, how)
    times = []
    while engine.has_unfinished_requests():
        begun = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[2:-2])

if __name__ == "__main__":
    batch, tokens, pairs = map(int, sys.argv[2:])
    llm = LLM(sys.argv[1], dtype="bfloat16", enforce_eager=True, max_model_len=2048)
    for observed in (False, True):
        steps(llm.llm_engine, observed, batch, tokens)
    found = []
    for index in range(pairs):
        order = (False, True) if index % 2 else (True, False)
        measured = {observed: steps(llm.llm_engine, observed, batch, tokens) for observed in order}
        found.append([measured[False], measured[True]])
    print("measured", json.dumps(found))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--python", type=Path, default=PYTHON)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    if not options.python.exists():
        raise SystemExit(f"not measured: {options.python} is not there (make engines)")
    counts = [str(options.batch), str(options.tokens), str(options.pairs)]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM, encoding="utf-8")
        variables = {
            name.removeprefix("env."): value for name, value in SETTINGS.items() if name.startswith("env.")
        }
        done = subprocess.run(
            [options.python, program, options.model or small_model(), *counts],
            env={**os.environ, **variables, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "RIP_TAP": folder},
            check=True,
            capture_output=True,
            text=True,
        )
    line = next(line for line in done.stdout.splitlines() if line.startswith("measured "))
    pairs = json.loads(line.removeprefix("measured "))
    plain, observed = (statistics.median(pair[side] for pair in pairs) * 1e3 for side in (0, 1))
    ratios = sorted(tapped / alone for alone, tapped in pairs)
    ratio = statistics.median(ratios)
    print(
        f"engine step at batch {options.batch}: not observed {plain:.2f} ms, observed {observed:.2f} ms, "
        f"ratio {ratio:.3f} [{ratios[0]:.3f} … {ratios[-1]:.3f}], budget {BUDGET:.2f}"
    )


if __name__ == "__main__":
    main()
