"""What capture costs: decode and 1024-token prefill with taps, beside the same loop without, in one run.

Alternating pairs (plain, captured, plain, …); the ratio is the median of the pairs' ratios. The loop is
the bare model forward and argmax, so nothing dilutes the figure. Run: python benchmarks/capture.py [MODEL]
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from rip.replay.capture.observed_passes import Segment, StepBlock
from rip.replay.capture.taps import Taps
from rip.replay.row_summaries.rows import RowSummaries

COARSE = r"layers\.\d+(\.self_attn|\.mlp)?$"
SETS = {"coarse": (COARSE, 1.05, 1.15), "every": ("", 1.10, 1.50)}
"""Name → (pattern, budget of decode, budget of prefill)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a model folder [default: SmolLM2-135M-Instruct]")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--steps", type=int, default=32, help="decode steps per measurement")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--context", type=int, default=32, help="tokens in the KV cache before decoding")
    options = parser.parse_args()

    from transformers import AutoModelForCausalLM

    folder = Path(options.model) if options.model else small_model()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, options.dtype)).eval()
    print(
        f"{folder.name} {options.dtype}, {torch.get_num_threads()} threads, {options.pairs} alternating pairs"
    )
    for name, (pattern, decode_budget, prefill_budget) in SETS.items():
        taps = Taps(model, re.compile(pattern))
        taps.discover(lambda ids: model(input_ids=ids, use_cache=False), model.config.vocab_size, "cpu")
        decode = paired(lambda on: decode_once(model, taps if on else None, options), options.pairs)  # noqa: B023
        report(f"decode, {name} ({len(taps.sites)} sites)", decode, options.steps, "token", decode_budget)
        prefill = paired(lambda on: prefill_once(model, taps if on else None), options.pairs)  # noqa: B023
        report(f"prefill 1024, {name} ({len(taps.sites)} sites)", prefill, 1, "pass", prefill_budget)


def small_model() -> Path:
    """The converted folder of the packaged model."""
    from rip.commands.demo import packaged_model
    from rip.fingerprint.model.read_and_hash import Job, read_files
    from rip.replay.engines.model_files import loadable_folder

    path = Path(packaged_model())
    return loadable_folder(path, read_files([Job(path)])[path].sha256)


def decode_once(model: torch.nn.Module, taps: Taps | None, options: argparse.Namespace) -> float:
    """Seconds for `steps` greedy decode steps."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    ids = torch.arange(5, 5 + options.context)[None]
    with torch.no_grad():
        token = model(input_ids=ids, cache=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
        with taps.attached() if taps else nullcontext():
            block = StepBlock(options.steps, 1, len(taps.sites)) if taps else None
            started = time.perf_counter()
            for step in range(options.steps):
                with taps.step(block, step, None) if taps and block else nullcontext():
                    logits = model(input_ids=token, cache=cache, use_cache=True).logits
                token = logits[:, -1].argmax(-1, keepdim=True)
            return time.perf_counter() - started


def prefill_once(model: torch.nn.Module, taps: Taps | None) -> float:
    """Seconds for one prefill of 1024 tokens."""
    ids = torch.randint(5, 40000, (1, 1024), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), taps.attached() if taps else nullcontext():
        started = time.perf_counter()
        if taps is None:
            model(input_ids=ids, use_cache=True, logits_to_keep=1)
        else:
            out = RowSummaries.empty(1024, len(taps.sites))
            with taps.long_pass([Segment(0, 0, 1024, out, 0)], 1, 1024, None):
                model(input_ids=ids, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - started


def paired(measure: Callable[[bool], float], pairs: int) -> list[tuple[float, float]]:
    """(plain, captured) seconds, alternating which comes first, after one pair of warm-up."""
    measure(False), measure(True)
    found = []
    for index in range(pairs):
        first = measure(index % 2 == 1)
        second = measure(index % 2 == 0)
        found.append((second, first) if index % 2 else (first, second))
    return found


def report(what: str, pairs: list[tuple[float, float]], per: int, unit: str, budget: float) -> None:
    """One line: medians of both, median ratio, budget."""
    plain = statistics.median(pair[0] for pair in pairs) / per * 1e3
    captured = statistics.median(pair[1] for pair in pairs) / per * 1e3
    ratios = sorted(pair[1] / pair[0] for pair in pairs)
    ratio = statistics.median(ratios)
    verdict = "within" if ratio <= budget else "OVER"
    print(
        f"{what:38} plain {plain:8.2f} ms/{unit}  captured {captured:8.2f} ms/{unit}  "
        f"ratio {ratio:.3f} [{ratios[0]:.3f} … {ratios[-1]:.3f}]  budget {budget:.2f}: {verdict}"
    )


if __name__ == "__main__":
    main()
