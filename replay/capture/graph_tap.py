"""Taps that become part of a compiled model or a CUDA graph: an operator that writes into a fixed buffer.

It knows torch's operator registry and forward hooks; sites come from `taps.py`, the buffer's layout from
`gpu_queue.py`.

Ordinary taps are Python around a module's call: a compiler does not see them, and a graph that is replayed
does not run them. `rip::observe` is an operator: torch.compile keeps it in its graph, and because on a GPU it
only launches a kernel that reads and writes fixed addresses, CUDA graphs replay it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from ...schemas.errors import EngineFailed
from ...schemas.trace import Site
from ..row_summaries.gpu_queue import HostCopy, doubt_about, new_slots, summaries_in
from ..row_summaries.rows import RowSummaries, as_rows, rows_do_not_fit_error
from ..row_summaries.summarise import summarise_tensor
from .modules import Output, sentence_about, tensors_of
from .site_discovery import UNOBSERVED
from .taps import PROBE_BATCH, PROBE_TOKENS, Taps

See = Callable[[int, torch.Tensor], object]
"""Called with (site, rows [R, W])."""

_library = torch.library.Library("rip", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "observe(Tensor rows, Tensor(a!) slots, Tensor table, int site) -> ()"
)


def _observe_on_cpu(rows: torch.Tensor, slots: torch.Tensor, table: torch.Tensor, site: int) -> None:
    count = rows.shape[0]
    found, out = RowSummaries.empty(count, 1), summaries_in(slots)
    if count > len(out.l2):
        raise rows_do_not_fit_error(out, count, 0, site)
    summarise_tensor(rows, found, 0, 0)
    for array, new in zip(out.arrays(), found.arrays(), strict=True):
        array[:count, site] = new[:, 0]


def _observe_on_cuda(rows: torch.Tensor, slots: torch.Tensor, table: torch.Tensor, site: int) -> None:
    from ..row_summaries.gpu_kernels import Launch

    positions, sites, _ = slots.shape
    rows, count, stride = as_rows(rows)
    if count > positions:
        raise IndexError(f"{count} rows do not fit into a buffer for {positions}")
    Launch(count, stride, rows.shape[1], sites, table)(rows, slots, site)


_library.impl("observe", _observe_on_cpu, "CPU")  # type: ignore[no-untyped-call]
_library.impl("observe", _observe_on_cuda, "CUDA")  # type: ignore[no-untyped-call]
torch.library.register_fake("rip::observe", lambda rows, slots, table, site: None, lib=_library)


class GraphTaps:
    """Observes a model that is compiled, or captured in a CUDA graph, while the taps are attached.

    In this order: `discover`; inside `attached` compile, or capture; after each step `read`.

    Args:
        model: A causal language model (its base model is observed) or any module.
        max_tokens: Most rows (sequences × tokens) of one step: the buffer has 88 bytes for each at each site.
        wanted: Keep only sites whose label matches this pattern (`re.search`); None keeps all.
    """

    def __init__(self, model: nn.Module, max_tokens: int, wanted: re.Pattern[str] | None = None) -> None:
        self._taps = Taps(model, wanted)
        self._max_tokens = max_tokens
        self.sites: list[Site] = []
        """In execution order."""
        self.not_seen: list[str] = []
        self._kept: dict[int, int] = {}
        """Site of `Taps` → our site: those whose rows can be summarised where they are."""
        self._shared: list[int] = []
        """Our sites whose rows serve every sequence."""
        self._slots = new_slots(0, 0, "cpu")
        self._table = torch.empty(0, dtype=torch.int64)

    def discover(
        self, forward: Callable[[torch.Tensor], object], vocab_size: int, device: torch.device | str
    ) -> None:
        """Run two small forward passes, uncompiled, to learn which sites exist, and make the buffer.

        Args:
            forward: Runs the model on int64[2, 11] token ids.
            vocab_size: The ids are spread over the vocabulary.
            device: Where the model is.

        Raises:
            EngineFailed: The model is on a GPU, and there is no kernel that runs on it.
        """
        device = torch.device(device)
        self._taps.discover(forward, vocab_size, device)
        found: dict[int, torch.Tensor] = {}
        self._kept = {site: site for site in range(len(self._taps.sites))}
        with self._hooks(found.setdefault), torch.no_grad():
            forward(
                torch.arange(PROBE_BATCH * PROBE_TOKENS, device=device).view(PROBE_BATCH, -1) % vocab_size
            )
        doubts = {site: _doubt_about(rows) for site, rows in found.items()}
        usable = [site for site, doubt in sorted(doubts.items()) if not doubt]
        if not usable:
            why = next(iter(doubts.values()), "no site was found")
            raise EngineFailed(f"nothing can be observed in a graph: {why}", "observe it eagerly")
        self._kept = {site: index for index, site in enumerate(usable)}
        self.sites = [self._taps.sites[site] for site in usable]
        self._shared = [self._kept[site] for site in usable if len(found[site]) == PROBE_TOKENS]
        lost = [site.label() for index, site in enumerate(self._taps.sites) if index not in self._kept]
        lost_sites = sentence_about(lost, "sites cannot be summarised in a graph")
        self.not_seen = [*self._taps.not_seen, *lost_sites]
        self._slots = new_slots(self._max_tokens, len(usable), device)
        if device.type == "cuda":
            from ..row_summaries.gpu_kernels import table_for

            widest = max(rows.shape[-1] * rows.itemsize for rows in found.values())
            self._table = table_for(self._slots.device, widest)

    @contextmanager
    def attached(self) -> Iterator[GraphTaps]:
        """What is compiled or captured inside this context is observed, and stays so after it.

        It must be the whole model, or the module below its head: with that a pass begins.
        """
        # Without this, CUDA graphs made by torch.compile would copy the buffer instead of writing into it.
        torch._dynamo.mark_static_address(self._slots)
        self._slots.zero_()
        with self._hooks(self._observe):
            yield self

    def read(self, tokens: int, sequences: int = 1) -> RowSummaries:
        """Copy out what the last step left, and make room for the next.

        Args:
            tokens: How many rows that step had, all sequences together.
            sequences: Among how many sequences.

        Returns:
            Summaries [tokens, sites], sequence by sequence; 0 at a site that did not run.

        Raises:
            EngineFailed: Nothing was observed.
        """
        used = self._slots[:tokens]
        landing = HostCopy(used)
        used.zero_()  # so that what the next step leaves out is not taken for its own
        found = landing.wait()
        if not found.row_hash.any():
            raise EngineFailed(
                "the compiled model holds no taps", "compile or capture it inside GraphTaps.attached()"
            )
        own = tokens // sequences
        for array in found.arrays():
            for site in self._shared:
                array[:, site] = np.tile(array[:own, site], (sequences, *[1] * (array.ndim - 2)))
        return found

    def _observe(self, site: int, rows: torch.Tensor) -> None:
        torch.ops.rip.observe(rows, self._slots, self._table, site)

    @contextmanager
    def _hooks(self, see: See) -> Iterator[None]:
        """Forward hooks, because compilers trace them, where they pass over the replaced calls of `Taps`."""
        turns: list[list[int]] = []
        handles: list[torch.utils.hooks.RemovableHandle] = []

        def begin(_module: nn.Module, _inputs: object) -> None:
            for turn in turns:
                turn[0] = 0

        def make_observer_hook(indices: list[int]) -> Callable[[torch.Tensor], None]:
            turn = [0]
            turns.append(turn)

            def seen(tensor: torch.Tensor) -> None:
                occurrence = turn[0]
                turn[0] = occurrence + 1
                site = indices[occurrence] if occurrence < len(indices) else UNOBSERVED
                if site in self._kept:
                    see(self._kept[site], self._rows_of(site, tensor))

            return seen

        inputs, outputs = self._taps.observed()
        for module, indices in inputs.items():
            handles.append(module.register_forward_pre_hook(_on_input(make_observer_hook(indices))))
        for module, of_outputs in outputs.items():
            seers = {which: make_observer_hook(indices) for which, indices in of_outputs.items()}
            handles.append(module.register_forward_hook(_on_output(seers)))
        handles.append(self._taps.base.register_forward_pre_hook(begin))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _rows_of(self, site: int, tensor: torch.Tensor) -> torch.Tensor:
        """[R, W], sequence by sequence."""
        shape = self._taps.rows[site]
        return shape.layout.by_sequence(tensor.detach()).reshape(-1, shape.width)


def _on_input(seen: Callable[[torch.Tensor], None]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor):
            seen(inputs[0])

    return hook


def _on_output(
    seers: dict[Output, Callable[[torch.Tensor], None]],
) -> Callable[[nn.Module, object, object], None]:
    def hook(_module: nn.Module, _inputs: object, output: object) -> None:
        for which, tensor in tensors_of(output):
            if which in seers:
                seers[which](tensor)

    return hook


def _doubt_about(rows: torch.Tensor) -> str:
    return "" if rows.is_cpu else doubt_about(rows.device, rows.dtype)
