"""The GPU kernel in a process of its own: Triton interprets it, on CPU tensors that deny being there."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import torch

Arrays = tuple[np.ndarray[Any, Any], ...]


class Elsewhere(torch.Tensor):
    """A tensor in the CPU's memory that is treated like a GPU's, and so is everything computed from it."""

    is_cpu = False


def begin() -> None:
    """What the process does first: Triton reads this when it is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    np.seterr(all="ignore")  # the interpreter computes with numpy, which warns of what a GPU is silent about


def arrays_of(out: Any) -> Arrays:
    """Hash, L2, absmax and sketch."""
    return out.row_hash, out.l2, out.absmax, out.sketch


def summarise(bits: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...], stride: tuple[int, ...],
              offset: int = 0) -> Arrays:  # fmt: skip
    """The kernel's summaries [rows, 1] of a tensor that is given by its storage and how it lies there."""
    from rip.replay.row_summaries.gpu_queue import Pending
    from rip.replay.row_summaries.rows import RowSummaries

    storage = torch.from_numpy(bits.copy()).view(getattr(torch, dtype))
    tensor = torch.as_strided(storage, shape, stride, offset)
    out, pending = RowSummaries.empty(tensor.shape[:-1].numel(), 1), Pending()
    pending.summarise(tensor, out, 0, 0)
    pending.settle()
    return arrays_of(out)


def _counting() -> list[torch.dtype]:
    """The dtype of every launch from now on."""
    from rip.replay.row_summaries.gpu_kernels import Launch

    launches: list[torch.dtype] = []
    original = Launch._enqueue

    def counted(self: Launch, tensor: torch.Tensor, *rest: Any) -> None:
        launches.append(tensor.dtype)
        original(self, tensor, *rest)

    Launch._enqueue = counted  # type: ignore[method-assign]
    return launches


def watched_run(prompts: list[list[int]], steps: int) -> list[tuple[list[Arrays], int]]:
    """A model that taps watch in one prefill and some decode steps: on the CPU, then elsewhere.

    Returns:
        Each time the summaries of prefill and decode by sequence, and how often the kernel ran.
    """
    from fakes.plain_llama import PlainLlama
    from rip.replay.capture.observed_passes import Segment, StepBlock
    from rip.replay.capture.taps import Taps
    from rip.replay.row_summaries.rows import RowSummaries
    from torch import nn

    class Router(nn.Module):
        """Whole numbers for each token: of a dtype that the kernel does not read."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.float().topk(3, dim=-1).indices

    batch, longest = len(prompts), max(map(len, prompts))
    model = PlainLlama(batch=batch).bfloat16()
    model.norm = nn.Sequential(model.norm, Router(), nn.Embedding(32, 32).bfloat16())
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    taps = Taps(model, re.compile("embed_tokens|rotary_emb|:attn|down_proj|mlp$|norm"))
    taps.discover(lambda ids: model(ids % 50), 50, "cpu")
    launches = _counting()
    results = []
    for is_elsewhere in (False, True):
        place = (lambda x: x.as_subclass(Elsewhere)) if is_elsewhere else (lambda x: x)
        prefills = [RowSummaries.empty(len(prompt), len(taps.sites)) for prompt in prompts]
        segments = [
            Segment(row, longest - len(prompt), len(prompt), prefills[row], 0)
            for row, prompt in enumerate(prompts)
        ]
        block = StepBlock(steps, batch, len(taps.sites))
        with taps.attached(), torch.no_grad():
            with taps.long_pass(segments, batch, longest, None):
                model(place(ids), place(torch.arange(longest)))
            for step in range(steps):
                with taps.step(block, step, None):
                    model(place(ids[:, :1] + step), place(torch.tensor([longest + step])))
        decoded = [block.of_row(row, steps) for row in range(batch)]
        results.append(([arrays_of(out) for out in (*prefills, *decoded)], len(launches)))
        launches.clear()
    return results


def landing() -> list[bool]:
    """Whether a row of the CPU's and one from elsewhere are there: before and after the latter is settled."""
    from rip.replay.row_summaries.gpu_queue import Pending
    from rip.replay.row_summaries.rows import RowSummaries
    from rip.replay.row_summaries.summarise import summarise_tensor

    out, pending = RowSummaries.empty(2, 2), Pending()
    summarise_tensor(torch.ones(2, 4), out, 0, 0, pending)
    summarise_tensor(torch.ones(2, 4).as_subclass(Elsewhere), out, 0, 1, pending)
    before = out.row_hash.any(axis=(0, 2)).tolist()
    pending.settle()
    return [
        *before,
        *out.row_hash.any(axis=(0, 2)).tolist(),
        bool((out.row_hash[:, 0] == out.row_hash[:, 1]).all()),
    ]


def doubts() -> dict[str, Any]:
    """What is said, and still computed, where the kernel must not be used."""
    import sys

    from rip.replay.row_summaries import gpu_kernels, gpu_queue
    from rip.replay.row_summaries.rows import RowSummaries
    from rip.replay.row_summaries.summarise import summarise_tensor

    cpu, found = torch.device("cpu"), {}
    rows = torch.linspace(-1, 1, 80).view(4, 20)
    expected = RowSummaries.empty(4, 1)
    summarise_tensor(rows, expected, 0, 0)

    def look(name: str, dtype: torch.dtype) -> None:
        gpu_queue.doubt_about.cache_clear()
        actual = RowSummaries.empty(4, 1)
        summarise_tensor(rows.as_subclass(Elsewhere), actual, 0, 0)
        found[name] = (gpu_queue.doubt_about(cpu, dtype), expected.same_bits(actual))

    look("right", torch.float32)
    look("rare", torch.int64)
    table = gpu_kernels.table_for(cpu, 4096)
    table[0, 3] += 1
    look("wrong", torch.float32)
    table[0, 3] -= 1
    launch, gpu_kernels.Launch._enqueue = gpu_kernels.Launch._enqueue, None  # type: ignore[assignment]
    look("broken", torch.float32)
    gpu_kernels.Launch._enqueue = launch  # type: ignore[method-assign]
    sys.modules["rip.replay.row_summaries.gpu_kernels"] = None  # type: ignore[assignment]
    look("missing", torch.float32)
    sys.modules["rip.replay.row_summaries.gpu_kernels"] = gpu_kernels
    return found
