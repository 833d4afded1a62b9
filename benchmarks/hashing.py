"""Reading a checkpoint beside the tools that hash the same files, in one run: throughput, a warm run, memory.

    python benchmarks/hashing.py [--gigabytes 4] [--shards 8] [--rounds 5] [--folder DIR]

A checkpoint of random tensors is written to a temporary folder and removed afterwards. All lanes take turns
in every round, files lie in the page cache; a ratio is the median of the rounds' ratios. The baselines are
`sha256sum` on as many files at once as there are cores, and the blake3 package alone (memory mapped, all its
threads). `hashlib` in as many threads shows what this machine's SHA-256 instructions can do at most.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from blake3 import blake3
from rip.fingerprint.model.read_and_hash import ReadOptions, usable_cores
from rip.fingerprint.model.ref import resolve
from rip.fingerprint.model.weights import layouts_of, read_weights

RATIO = 0.9
WARM_FILES, WARM_S = 1000, 0.3
MEMORY_MB = 300
TENSOR_SHAPE = (2048, 4096)  # BF16, 16 MiB
SMALL_SHAPE = (256, 256)
SETTLED_S = 3.0
"""A file younger than two seconds is not remembered."""

READ = """
import sys, time
began = time.perf_counter()
from rip.fingerprint.model.ref import resolve
from rip.fingerprint.probes.model_files import describe_model
loaded = time.perf_counter()
sections = describe_model(resolve(sys.argv[1]), fast="fast" in sys.argv)
seconds = time.perf_counter() - loaded, time.perf_counter() - began
# Of this program alone: the figures of getrusage begin with what its parent had.
peak_kb = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(*seconds, sections["model"].volatile["cached"].value, peak_kb)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to put the checkpoint [default: temporary folder]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="rip-hashing-") as place:
        os.environ["XDG_CACHE_HOME"] = str(Path(place) / "cache")
        tensors = max(1, round(options.gigabytes * 1e9 / options.shards / (2 * np.prod(TENSOR_SHAPE))))
        model = write_model(Path(place) / "model", options.shards, tensors, TENSOR_SHAPE)
        throughput(model, options.rounds)
        memory(model)
        for file in model.iterdir():
            file.unlink()
        small = write_model(Path(place) / "small", WARM_FILES, 9, SMALL_SHAPE)
        warm(small, options.rounds)


def write_model(folder: Path, shards: int, tensors: int, shape: tuple[int, int]) -> Path:
    """A folder with a config and numbered safetensors files of random bytes."""
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}')
    size = 2 * shape[0] * shape[1]
    rng = np.random.default_rng(0)
    for shard in range(1, shards + 1):
        header = {
            f"model.layers.{shard}.w{index}": {
                "dtype": "BF16",
                "shape": list(shape),
                "data_offsets": [index * size, (index + 1) * size],
            }
            for index in range(tensors)
        }
        text = json.dumps(header).encode()
        with (folder / f"model-{shard:05d}-of-{shards:05d}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _ in range(tensors):
                file.write(rng.bytes(size))
    return folder


def throughput(model: Path, rounds: int) -> None:
    files = sorted(model.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in files)
    cores = usable_cores()
    layouts = layouts_of(resolve(str(model)).weight_files, {})

    def read(fast: bool) -> None:
        read_weights(layouts, ReadOptions(fast=fast), None)

    def sha256sum() -> None:
        names = "\0".join(map(str, files)).encode()
        command = ["xargs", "-0", "-P", str(cores), "-n", "1", "sha256sum"]
        subprocess.run(command, input=names, stdout=subprocess.DEVNULL, check=True)

    def with_hashlib() -> None:
        with ThreadPoolExecutor(cores) as pool:
            for _ in pool.map(hashlib_of, files):
                pass

    def blake3_alone() -> None:
        for path in files:
            blake3(max_threads=blake3.AUTO).update_mmap(path).digest()

    lanes: dict[str, Callable[[], None]] = {
        "sha256sum": sha256sum,
        "rip, SHA-256 and tensors": lambda: read(fast=False),
        "hashlib": with_hashlib,
        "blake3 package": blake3_alone,
        "rip --fast": lambda: read(fast=True),
    }
    print(f"{size / 1e9:.1f} GB in {len(files)} files, {cores} cores, {rounds} rounds in turn")
    blake3_alone()  # fills the page cache
    seconds: dict[str, list[float]] = {name: [] for name in lanes}
    for _ in range(rounds):
        for name, lane in lanes.items():
            seconds[name].append(timed(lane))
    for name, found in seconds.items():
        print(f"  {name:<26} {size / 1e9 / statistics.median(found):5.2f} GB/s")
    for ours, theirs, budget in (
        ("rip, SHA-256 and tensors", "sha256sum", RATIO),
        ("rip --fast", "blake3 package", RATIO),
        ("rip, SHA-256 and tensors", "hashlib", None),
    ):
        ratio = statistics.median(
            base / own for base, own in zip(seconds[theirs], seconds[ours], strict=True)
        )
        verdict(f"throughput of {ours} / {theirs}", ratio, budget, at_least=True)


def hashlib_of(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def memory(model: Path) -> None:
    peak = max(int(child(model, *options)[3]) for options in ([], ["fast"])) / 1024
    verdict("peak memory of the process that hashes, MB", peak, MEMORY_MB, at_least=False)


def warm(model: Path, rounds: int) -> None:
    time.sleep(SETTLED_S)
    first, *_ = child(model)
    found = [child(model) for _ in range(rounds)]
    assert all(run[2] == "True" for run in found)
    print(f"{WARM_FILES} files, first run {float(first):.2f} s")
    reading = statistics.median(float(run[0]) for run in found)
    whole = statistics.median(float(run[1]) for run in found)
    verdict("second run, the model's part, s", reading, WARM_S, at_least=False)
    verdict("second run with loading the modules, s", whole, WARM_S, at_least=False)
    journal = Path(os.environ["XDG_CACHE_HOME"]) / "rip" / "digests.journal"
    print(f"  journal: {journal.stat().st_size / 1e6:.1f} MB")


def child(model: Path, *options: str) -> list[str]:
    command = [sys.executable, "-c", READ, str(model), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def timed(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def verdict(what: str, found: float, budget: float | None, at_least: bool) -> None:
    if budget is None:
        print(f"  {what}: {found:.2f}")
        return
    holds = found >= budget if at_least else found <= budget
    sign = "at least" if at_least else "at most"
    print(f"  {what}: {found:.2f} ({sign} {budget:g}: {'holds' if holds else 'MISSED'})")


if __name__ == "__main__":
    main()
