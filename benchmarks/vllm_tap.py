"""What vLLM's taps cost in decode: eight requests together, observed and not, alternating against one server.

Not observed are requests with an empty `rip_tap`: for them a step runs as if there were no taps but for a
look. The prompts are in the prefix cache from the first round on, so that decoding is what is timed: from the
moment when every request has its first token until one has its last. Ratios are the median of the pairs'.

    python benchmarks/vllm_tap.py [--model DIR] [--python VLLM_PYTHON]
    python benchmarks/vllm_tap.py --model DIR --url http://127.0.0.1:8000     (a server with RIP_TAP set)
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import httpx
from served import PYTHON, TOPK, small_model, vllm_server

BUDGET = 1.10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="the model folder that the server serves")
    parser.add_argument("--python", type=Path, default=PYTHON, help="interpreter of vLLM's environment")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--topk", type=int, default=TOPK, help="K of the tapped distributions")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="decode steps per measurement")
    # Whole blocks of the prefix cache and one token, so that a prompt is hardly computed again.
    parser.add_argument("--context", type=int, default=129, help="tokens of each prompt")
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    model = options.model = options.model or small_model()
    server = (
        nullcontext(options.url)
        if options.url
        else vllm_server(options.python, model, taps=True, topk=options.topk)
    )
    with server as url:
        for observed in (False, True):
            asyncio.run(measure(url, observed, options))
        pairs = []
        for index in range(options.pairs):
            first = asyncio.run(measure(url, index % 2 == 1, options))
            second = asyncio.run(measure(url, index % 2 == 0, options))
            pairs.append((second, first) if index % 2 else (first, second))
    plain, tapped = (statistics.median(pair[side] for pair in pairs) * 1e3 for side in (0, 1))
    ratios = sorted(pair[1] / pair[0] for pair in pairs)
    ratio = statistics.median(ratios)
    print(
        f"decode at batch {options.batch}: not observed {plain:.2f} ms/step, observed {tapped:.2f} ms/step, "
        f"ratio {ratio:.3f} [{ratios[0]:.3f} … {ratios[-1]:.3f}], budget {BUDGET:.2f}: "
        f"{'within' if ratio <= BUDGET else 'OVER'}"
    )


async def measure(url: str, observed: bool, options: argparse.Namespace) -> float:
    """Seconds a decode step of the whole batch."""
    first: list[float] = []
    last: list[float] = []

    async def request(client: httpx.AsyncClient, number: int) -> None:
        body = {
            "model": str(options.model),
            "prompt": [100 + (number * 37 + index * 11) % 20000 for index in range(options.context)],
            "max_tokens": options.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "vllm_xargs": {"rip_tap": f"bench-{number}-{secrets.token_hex(4)}" if observed else ""},
        }
        times = []
        async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            times += [
                time.perf_counter() async for line in answer.aiter_lines() if line.startswith("data: {")
            ]
        first.append(times[0])
        last.append(times[-1])

    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=options.batch)) as client:
        await asyncio.gather(*(request(client, number) for number in range(options.batch)))
    return (min(last) - max(first)) / (options.tokens - 1)


if __name__ == "__main__":
    main()
