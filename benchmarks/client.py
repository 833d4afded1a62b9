"""`rip replay` on a vLLM server beside vLLM's own benchmark client: generated tokens a second.

    python benchmarks/client.py [--python VLLM_PYTHON] [--model DIR] [--url URL] [--concurrency N]
        [--prompts N] [--tokens N] [--pairs N]

Without --url a server is started first. Both clients send the same number of random prompts of the same
length, at the same concurrency, stream, and ask for 20 log-probabilities a token; rip writes its trace too.
Pairs alternate; medians and the median of the pairs' ratios are printed. Budget: at least 0.95.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet as pq
from rip.schemas.trace import HEADER_KEY
from served import PYTHON, TOPK, small_model, vllm_server

BUDGET = 0.95
PROMPT_TOKENS = 64
VLLM_CLIENT = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "p = argparse.ArgumentParser(); add_cli_args(p); main(p.parse_args())"
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, default=PYTHON, help="interpreter of vLLM's environment")
    parser.add_argument("--model", type=Path, help="the model folder that the server serves")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    model = options.model = options.model or small_model()
    server = nullcontext(options.url) if options.url else vllm_server(options.python, model, taps=False)
    with tempfile.TemporaryDirectory() as folder, server as options.url:
        compare(options, Path(folder))


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Run the pairs and print what they took."""
    write_requests(folder / "set.jsonl", options)
    clients = {"vLLM's benchmark client": of_vllm, "rip replay": of_rip}
    for client in clients.values():  # caches, and the server's first requests
        client(options, folder)
    speeds: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(options.pairs):
        for name, client in clients.items():
            speeds[name].append(client(options, folder))
    for name, measured in speeds.items():
        middle = statistics.median(measured)
        print(f"{name:24} {middle:8.1f} tokens/s  [{min(measured):.1f} … {max(measured):.1f}]")
    ratio = statistics.median(ours / theirs for theirs, ours in zip(*speeds.values(), strict=True))
    print(f"ratio {ratio:.2f} at concurrency {options.concurrency}; budget: at least {BUDGET}")


def write_requests(path: Path, options: argparse.Namespace) -> None:
    """Random prompts that run to their full length."""
    generator = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for index in range(options.prompts):
            envelope = {
                "request_id": f"b{index}",
                "prompt_token_ids": [generator.randrange(100, 40_000) for _ in range(PROMPT_TOKENS)],
                "sampling": {"temperature": 0, "max_tokens": options.tokens, "ignore_eos": True},
            }
            file.write(json.dumps(envelope) + "\n")


def of_rip(options: argparse.Namespace, folder: Path) -> float:
    """Tokens a second of `rip replay`, from the first request to the written trace."""
    trace = folder / "t.parquet"
    command = [
        sys.executable,
        "-m",
        "rip",
        "replay",
        folder / "set.jsonl",
        "--engine",
        "vllm",
        "--url",
        options.url,
    ]
    command += ["--capture", "tokens", "--set", f"batch_size={options.concurrency}", "-o", trace, "--force"]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    header = json.loads(pq.read_metadata(trace).metadata[HEADER_KEY])
    return float(options.prompts * options.tokens / header["seconds"]["replay"])


def of_vllm(options: argparse.Namespace, folder: Path) -> float:
    """Tokens a second as vLLM's client counts them."""
    command = [options.python, "-c", VLLM_CLIENT, "--backend", "openai", "--base-url", options.url]
    command += ["--model", options.model, "--dataset-name", "random", "--random-input-len", PROMPT_TOKENS]
    command += ["--random-output-len", options.tokens, "--num-prompts", options.prompts, "--ignore-eos"]
    command += ["--max-concurrency", options.concurrency, "--logprobs", TOPK, "--disable-tqdm"]
    command += ["--save-result", "--result-dir", folder, "--result-filename", "vllm.json"]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return float(json.loads((folder / "vllm.json").read_text("utf-8"))["output_throughput"])


if __name__ == "__main__":
    main()
