"""What `rip record` adds to time to first token and to the whole answer.

A streaming server, the proxy and this client are three processes. The same request goes to the server and
through the proxy, alternating, so that what else the machine does meets both alike.

    python benchmarks/proxy.py [--pairs N] [--concurrency N] [--tokens N]
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).parent.parent
FAKE = ROOT / "tests" / "fakes" / "upstream.py"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def until_up(client: httpx.AsyncClient, url: str) -> None:
    while True:
        try:
            await client.get(url + "/version")
            return
        except httpx.TransportError:
            await asyncio.sleep(0.05)


async def one(client: httpx.AsyncClient, url: str, tokens: int) -> tuple[float, float]:
    """(time to the first event, time to the end) in milliseconds."""
    body = {
        "model": "plain",
        "messages": [{"role": "user", "content": "Say something long. " * 20}],
        "max_tokens": tokens,
        "stream": True,
    }
    started, first = time.perf_counter(), 0.0
    async with client.stream("POST", url + "/v1/chat/completions", json=body) as response:
        async for _ in response.aiter_raw():
            first = first or time.perf_counter()
    return (first - started) * 1e3, (time.perf_counter() - started) * 1e3


async def measure(direct: str, proxied: str, pairs: int, concurrency: int, tokens: int) -> None:
    async with httpx.AsyncClient(
        timeout=60, trust_env=False, limits=httpx.Limits(max_connections=None)
    ) as client:
        for url in (direct, proxied):
            await until_up(client, url)
        await asyncio.sleep(2)  # the proxy asks the server what it is
        times: dict[str, list[tuple[float, float]]] = {direct: [], proxied: []}
        for index in range(pairs):
            order = (direct, proxied) if index % 2 else (proxied, direct)
            for url in order:
                times[url] += await asyncio.gather(*(one(client, url, tokens) for _ in range(concurrency)))
    print(f"{pairs} pairs, {concurrency} at a time, {tokens} tokens each; medians in ms")
    for index, what in enumerate(("first event", "whole answer")):
        without, behind = (statistics.median(t[index] for t in times[url]) for url in (direct, proxied))
        added = behind - without
        print(f"{what:13} direct {without:7.2f}  through the proxy {behind:7.2f}  added {added:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=32)
    asked = parser.parse_args()
    upstream, proxy = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        direct, proxied = f"http://127.0.0.1:{upstream}", f"http://127.0.0.1:{proxy}"
        server = subprocess.Popen([sys.executable, str(FAKE), str(upstream)])
        rip = [sys.executable, "-m", "rip", "record", "--upstream", direct, "--listen", f"127.0.0.1:{proxy}"]
        recorder = subprocess.Popen([*rip, "-o", f"{folder}/recorded"])
        try:
            asyncio.run(measure(direct, proxied, asked.pairs, asked.concurrency, asked.tokens))
        finally:
            recorder.send_signal(signal.SIGINT)
            recorder.wait()
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
