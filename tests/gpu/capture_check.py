"""Capture on a real GPU: is the kernel exact and fast, what do taps cost, do CUDA graphs replay them?

    python tests/gpu/capture_check.py kernel|speed|decode|graph|compiled

Each part prints what it measured and ends with exit code 1 where something that must hold does not. Needs
torch with CUDA, Triton, numba and pydantic; no model and no network.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.plain_llama import PlainLlama
from rip.replay.capture.graph_tap import GraphTaps
from rip.replay.capture.observed_passes import StepBlock
from rip.replay.capture.taps import Taps
from rip.replay.row_summaries import gpu_queue as device_summaries
from rip.replay.row_summaries.gpu_kernels import DTYPES, Launch, table_for
from rip.replay.row_summaries.gpu_queue import Pending, doubt_about, new_slots
from rip.replay.row_summaries.rows import RowSummaries
from rip.replay.row_summaries.summarise import prepare_kernel, summarise_tensor

DEVICE = torch.device("cuda", 0)
CONTEXT = 512
MODEL = {"width": 2048, "inner": 5632, "heads": 16, "layers": 16, "vocab": 32000, "context": CONTEXT}
"""About a billion parameters."""


def main(part: str) -> int:
    """Run one part; the number of its failures is the exit code."""
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(DEVICE)}, {part}")
    with torch.no_grad():
        problems = PARTS[part]()
    print("\n".join(problems) or f"{part}: everything that must hold does")
    return min(len(problems), 1)


def check_kernel() -> list[str]:
    """Every dtype, width, number and stride of rows, against the CPU's kernel and so the reference."""
    problems, cases, random = [], 0, np.random.default_rng(0)
    widths = (1, 2, 3, 15, 16, 17, 31, 33, 64, 127, 511, 512, 513, 531, 576, 1536, 2049, 4099, 16384)
    for dtype in DTYPES:
        began = time.perf_counter()
        doubt = doubt_about(DEVICE, dtype)
        print(f"{dtype}: proof of the kernel took {time.perf_counter() - began:.1f} s; {doubt or 'no doubt'}")
        print(f"  prepare_kernel: {prepare_kernel(DEVICE, dtype)}")
        for width in widths:
            for rows in (1, 3, 64, 65, 130):
                for gap, start, any_bits in ((0, 0, False), (0, 0, True), (7, 1, True)):
                    elements = rows * (width + gap) + start
                    if any_bits:
                        raw = random.integers(0, 256, elements * dtype.itemsize, np.uint8)
                        storage = torch.from_numpy(raw).view(dtype)
                    else:
                        storage = torch.from_numpy(random.standard_normal(elements)).to(dtype)
                    form = ((rows, width), (width + gap, 1), start)
                    expected, actual = RowSummaries.empty(rows, 1), RowSummaries.empty(rows, 1)
                    summarise_tensor(torch.as_strided(storage, *form), expected, 0, 0)
                    pending = Pending()
                    pending.summarise(torch.as_strided(storage.to(DEVICE), *form), actual, 0, 0)
                    pending.settle()
                    cases += 1
                    for name in ("row_hash", "l2", "absmax", "sketch"):
                        ours, theirs = getattr(actual, name), getattr(expected, name)
                        if ours.tobytes() != theirs.tobytes():
                            problems.append(f"{name} of {dtype} {form}, {any_bits=}: {ours}, not {theirs}")
    print(f"{cases} tensors compared to the bit: hash, L2, absmax, sketch; {len(problems)} differences")
    return problems[:20]


def seconds_of(run: Callable[[], object], repeats: int = 20, rounds: int = 5) -> float:
    """Median seconds of one run on the GPU, without what launching costs the CPU: replayed from a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    found = []
    for _ in range(rounds + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1000 / repeats)
    return statistics.median(found[1:])


def copy_speed() -> float:
    """GB/s of a copy in the GPU's memory, counting what is read and what is written."""
    source = torch.empty(2**30, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds_of(lambda: target.copy_(source), 4) / 1e9


def measure_speed() -> list[str]:
    """GB/s of the kernel by shape, beside a copy; microseconds of a launch; other forms of the kernel."""
    print(f"device-to-device copy of 1 GiB: {copy_speed():.0f} GB/s read and written")
    shapes = [(rows, width) for width in (576, 4096, 14336) for rows in (1, 8, 64, 1024, 8192)]
    for dtype in (torch.bfloat16, torch.float32):
        for rows, width in [*shapes, (1, 128256), (8, 128256)]:
            tensor = torch.randn(rows, width, device=DEVICE).to(dtype)
            slots = new_slots(rows, 1, DEVICE)
            table = table_for(DEVICE, width * dtype.itemsize)
            launch = Launch(rows, width, width, 1, table)
            seconds = seconds_of(lambda launch=launch, tensor=tensor, slots=slots: launch(tensor, slots, 0))
            size = tensor.numel() * tensor.itemsize
            print(f"{dtype} {rows} × {width}: {1e6 * seconds:8.1f} µs {size / seconds / 1e9:8.1f} GB/s")
    tensor, slots = torch.randn(1, 4096, device=DEVICE, dtype=torch.bfloat16), new_slots(1, 1, DEVICE)
    launch = Launch(1, 4096, 4096, 1, table_for(DEVICE, 8192))
    for _ in range(100):
        launch(tensor, slots, 0)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(1000):
        launch(tensor, slots, 0)
    print(f"a launch costs the CPU {1e3 * (time.perf_counter() - began):.1f} µs")
    torch.cuda.synchronize()
    compare_forms()
    return []


def compare_forms() -> None:
    """Other numbers of rows and blocks of a program, and of its warps, than `Launch` chooses."""
    forms = ((1, 8, 1), (1, 32, 1), (1, 32, 4), (1, 64, 8), (2, 16, 1), (4, 8, 1), (8, 8, 1), (8, 8, 4))
    table = table_for(DEVICE, 8192)
    for rows in (1, 8, 64, 1024, 8192):
        tensor, slots = torch.randn(rows, 4096, device=DEVICE).bfloat16(), new_slots(rows, 1, DEVICE)
        found = []
        for form in forms:
            launch = Launch(rows, 4096, 4096, 1, table)
            launch._grid = (-(-rows // form[0]),)
            launch._after = (1, table.shape[1], *form[:2])
            launch._options = {**launch._options, "num_warps": form[2]}
            seconds = seconds_of(lambda launch=launch, tensor=tensor, slots=slots: launch(tensor, slots, 0))
            found.append(f"{form} {1e6 * seconds:.1f}")
        print(f"{rows} × 4096, µs by (rows, blocks, warps) of a program: {', '.join(found)}")


def step_inputs(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B, 1] and their position [1], in place for a graph to read."""
    ids, position = (torch.zeros(shape, dtype=torch.int64, device=DEVICE) for shape in ((batch, 1), (1,)))
    return ids, position


def median_step(run: Callable[[int], object], steps: range) -> float:
    """Median seconds of a step, the GPU's work included."""
    found = []
    for step in steps:
        torch.cuda.synchronize()
        began = time.perf_counter()
        run(step)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def measure_decode() -> list[str]:
    """What taps cost a decode step that runs eagerly: with the kernel, and with rows copied to the CPU."""
    problems = []
    for batch in (1, 8):
        model = PlainLlama(batch=batch, **MODEL).to(DEVICE, torch.bfloat16)
        ids, position = step_inputs(batch)
        taps = Taps(model)
        taps.discover(model, MODEL["vocab"], DEVICE)

        def step(at: int, ids=ids, position=position, model=model) -> torch.Tensor:
            ids.fill_(at)
            position.fill_(at)
            return model(ids, position)

        def watched(at: int, step=step, taps=taps, batch=batch) -> torch.Tensor:
            if at % 32 == 0:
                watched.block = StepBlock(32, batch, len(taps.sites))
            with taps.step(watched.block, at % 32, None):
                logits = step(at)
            if at % 32 == 31:
                watched.block.of_row(0, 32)
            return logits

        for at in range(4):
            step(at)
        ratios, plain_ms, tapped_ms = [], [], []
        for first in range(0, 320, 64):
            plain = median_step(step, range(first, first + 64))
            with taps.attached():
                tapped = median_step(watched, range(first, first + 64))
            if first:  # the first round compiles
                ratios.append(tapped / plain)
                plain_ms.append(1e3 * plain)
                tapped_ms.append(1e3 * tapped)
        print(
            f"eager decode, batch {batch}, {len(taps.sites)} sites: {statistics.median(plain_ms):.2f} ms, "
            f"with taps {statistics.median(tapped_ms):.2f} ms: {statistics.median(ratios):.3f}x"
        )
        plain_logits = step(400).clone()
        with taps.attached():
            same = torch.equal(watched(416), step(416)) and torch.equal(step(400), plain_logits)
        if not same:
            problems.append(f"batch {batch}: other logits with taps than without")
        proved, device_summaries.doubt_about = (
            device_summaries.doubt_about,
            lambda *_: "copied for comparison",
        )
        try:
            with taps.attached():
                copied = median_step(watched, range(352, 360))
            print(f"  rows copied to the CPU instead: {copied * 1e3 / statistics.median(plain_ms):.2f}x")
        finally:
            device_summaries.doubt_about = proved
        del model
    return problems


def own_hash_matches(taps: GraphTaps, found: RowSummaries, logits: torch.Tensor) -> bool:
    """Whether the last site's hashes are those of the logits that the same run put out."""
    expected = RowSummaries.empty(len(logits), 1)
    summarise_tensor(logits.reshape(len(logits), -1).cpu(), expected, 0, 0)
    place = [site.label() for site in taps.sites].index("lm_head")
    return bool((found.row_hash[:, place] == expected.row_hash[:, 0]).all())


def check_graph() -> list[str]:
    """A decode step in a CUDA graph, replayed with other inputs, against the same steps run eagerly."""
    problems = []
    for batch in (1, 8):
        model = PlainLlama(batch=batch, **MODEL).to(DEVICE, torch.bfloat16)
        ids, position = step_inputs(batch)
        taps = GraphTaps(model, max_tokens=16)
        taps.discover(model, MODEL["vocab"], DEVICE)
        model(ids, position)  # cuBLAS and SDPA prepare themselves outside the graph
        torch.cuda.synchronize()
        plain, tapped = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(plain):
            plain_logits = model(ids, position)
        with taps.attached():
            model(ids, position)
            torch.cuda.synchronize()
            taps.read(batch, batch)
            with torch.cuda.graph(tapped):
                tapped_logits = model(ids, position)

        def step(graph: torch.cuda.CUDAGraph, at: int, ids=ids, position=position) -> None:
            ids.fill_(at % 997)
            position.fill_(at)
            graph.replay()

        equal = hashes = 0
        before = None
        for at in range(20):
            step(plain, at)
            expected = plain_logits.clone()
            step(tapped, at)
            found = taps.read(batch, batch)
            with taps.attached():
                eager_logits = model(ids, position)
            eager = taps.read(batch, batch)
            if not torch.equal(expected, tapped_logits):
                problems.append(f"batch {batch}, step {at}: other logits with taps in the graph than without")
            if not found.row_hash.any(axis=2).all():
                problems.append(f"batch {batch}, step {at}: a site is missing")
            if not own_hash_matches(taps, found, tapped_logits):
                problems.append(f"batch {batch}, step {at}: the logits' hash is not that of the logits")
            if before is not None and (before == found.row_hash).all():
                problems.append(f"batch {batch}, step {at}: the hashes are those of the step before")
            before = found.row_hash.copy()
            equal += torch.equal(eager_logits, tapped_logits)
            hashes += int((found.row_hash == eager.row_hash).all(axis=(0, 2)).sum())
        print(
            f"CUDA graph, batch {batch}: 20 replays; logits equal to the eager run's in {equal}, "
            f"hashes in {hashes} of {20 * len(taps.sites)} sites"
        )

        def read_and_step(at: int, step=step, tapped=tapped, taps=taps, batch=batch) -> None:
            step(tapped, at)
            taps.read(batch, batch)

        ratios = []
        for _ in range(5):
            times = [
                median_step(lambda at, graph=graph, step=step: step(graph, at), range(32, 96))
                for graph in (plain, tapped)
            ]
            ratios.append(times[1] / times[0])
        print(
            f"  a replay {1e3 * times[0]:.3f} ms, with taps {1e3 * times[1]:.3f} ms: "
            f"{statistics.median(ratios):.3f}x; with reading "
            f"{1e3 * median_step(read_and_step, range(64)):.3f} ms"
        )
        del model
    return problems[:20]


def check_compiled() -> list[str]:
    """A decode step compiled by Inductor with CUDA graphs: still one graph, and the taps in it."""
    problems = []
    model = PlainLlama(batch=8, **{**MODEL, "layers": 4}).to(DEVICE, torch.bfloat16)
    ids, position = step_inputs(8)
    taps = GraphTaps(model, max_tokens=16)
    taps.discover(model, MODEL["vocab"], DEVICE)

    def ready(run: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        for at in range(4):
            position.fill_(at)
            run(ids, position).clone()
        return run

    began = time.perf_counter()
    plain = ready(torch.compile(model, fullgraph=True, dynamic=False, mode="reduce-overhead"))
    middle = time.perf_counter()
    expected = []
    for at in range(8, 16):
        position.fill_(at)
        expected.append(plain(ids, position).clone())
    plain_s = median_step(lambda at: plain(ids, position), range(64))
    torch._dynamo.reset()
    with taps.attached():
        again = time.perf_counter()
        tapped = ready(torch.compile(model, fullgraph=True, dynamic=False, mode="reduce-overhead"))
        print(f"compiling took {middle - began:.0f} s, with taps {time.perf_counter() - again:.0f} s")
        taps.read(8, 8)
        same = 0
        for at in range(8, 16):
            position.fill_(at)
            logits = tapped(ids, position).clone()
            found = taps.read(8, 8)
            same += torch.equal(logits, expected[at - 8])
            if not found.row_hash.any(axis=2).all():
                problems.append(f"compiled, step {at}: a site is missing")
            if not own_hash_matches(taps, found, logits):
                problems.append(f"compiled, step {at}: the logits' hash is not that of the logits")
        tapped_s = median_step(lambda at: tapped(ids, position), range(64))
    print(f"compiled: the same logits with taps and without in {same} of 8 steps (it may fuse otherwise)")
    print(f"  a step {1e3 * plain_s:.3f} ms, with taps {1e3 * tapped_s:.3f} ms: {tapped_s / plain_s:.3f}x")
    return problems


PARTS = {
    "kernel": check_kernel,
    "speed": measure_speed,
    "decode": measure_decode,
    "graph": check_graph,
    "compiled": check_compiled,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
