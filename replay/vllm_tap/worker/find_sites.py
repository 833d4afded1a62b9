"""Finding the sites of a vLLM model in one forward pass: what its modules return, whole or one rank's shard.

It knows vLLM's modules by the names of their classes and attributes, and imports none of them. What they are
called is in `site_names.py`, what is done with their outputs later in `module_taps.py`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ....schemas.trace import Site
from ...capture.modules import Output, some_of, tensors_of
from .row_block import Columns
from .site_names import Call, Naming


@dataclass(frozen=True)
class Source:
    """One tensor that is observed, and the sites that its rows hold.

    Attributes:
        module: What returns it.
        run: Which run of that module within a forward pass.
        output: Which of its outputs.
        columns: The sites, with their elements of a row.
        handed_on: The source whose very tensor this one was in the pass that was watched (`mlp` hands on what
            `down_proj` returned); None: it was its own.
    """

    module: nn.Module
    run: int
    output: Output
    columns: Columns
    handed_on: int | None = None


@dataclass(frozen=True)
class FoundSites:
    """What one forward pass showed."""

    sites: list[Site]
    """In execution order."""
    sources: list[Source]
    not_seen: list[str]


def find_sites(
    model: nn.Module,
    forward: Callable[[], object],
    wanted: re.Pattern[str] | None = None,
    tp: tuple[int, int] = (0, 1),
) -> FoundSites:
    """Run one forward pass and learn which sites the model has.

    Args:
        model: What `get_model()` of vLLM's runner gives.
        forward: Runs it, with `positions` as a keyword; what it raises goes through.
        wanted: Only sites whose label matches.
        tp: This rank's index and the number of ranks of tensor parallelism.
    """
    watch = _Watch(model, tp[1])
    watch.run(forward)
    packed = getattr(model, "packed_modules_mapping", None)
    naming = Naming(watch.calls, watch.tokens, tp, packed if isinstance(packed, dict) else {})
    sites: list[Site] = []
    sources: list[Source] = []
    skipped: list[str] = []
    labels: set[str] = set()
    last: tuple[torch.Tensor, int] | None = None
    for call in watch.calls:
        for output, tensor in naming.in_causal_order(call):
            if not naming.has_rows(tensor):
                skipped.append(f"{call.path}:{output}")
                continue
            columns = []
            for site, first in naming.sites_of(call, output, tensor):
                label = site.label()
                if label not in labels and (wanted is None or wanted.search(label)):
                    labels.add(label)
                    columns.append((len(sites), first, site.width))
                    sites.append(site)
            if columns:
                handed_on = last[1] if last is not None and last[0] is tensor and len(columns) == 1 else None
                sources.append(Source(call.module, call.run, output, tuple(columns), handed_on))
                is_simple = len(columns) == len(call.outputs) == 1 and call.run == 0 and handed_on is None
                last = (tensor, len(sources) - 1) if is_simple else None
    not_seen = []
    if skipped:
        not_seen.append(
            f"{len(skipped)} outputs have no row per token and were not captured: {some_of(skipped)}"
        )
    return FoundSites(sites, sources, not_seen)


class _Watch:
    """Notes the outputs of every module call, and follows where rows are sharded over tensor parallelism.

    Args:
        model: The model.
        tp_size: Ranks of tensor parallelism.
    """

    def __init__(self, model: nn.Module, tp_size: int) -> None:
        self._model, self._tp_size = model, tp_size
        self.tokens = 0
        """Token rows of the pass, padding included."""
        self.calls: list[Call] = []
        """In the order in which they ended."""
        self._open: list[Call] = []
        self._runs: Counter[nn.Module] = Counter()
        self._occurrences: Counter[str] = Counter()
        self._is_sharded = False
        self._paths: dict[nn.Module, list[str]] = defaultdict(list)
        for path, module in model.named_modules(remove_duplicate=False):
            if path and not isinstance(module, nn.ModuleList | nn.ModuleDict):
                self._paths[module].append(path)

    def run(self, forward: Callable[[], object]) -> None:
        handles = [self._model.register_forward_pre_hook(self._begin, with_kwargs=True)]
        for module in self._paths:
            handles.append(module.register_forward_pre_hook(self._enter))
            handles.append(module.register_forward_hook(self._leave))
        try:
            forward()
        finally:
            for handle in handles:
                handle.remove()

    def _begin(self, _module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        positions = kwargs.get("positions")
        if isinstance(positions, torch.Tensor):
            self.tokens = positions.shape[-1]  # [T], or [3, T] for rotary embeddings of images

    def _enter(self, module: nn.Module, _inputs: tuple[Any, ...]) -> None:
        paths = self._paths[module]
        path = paths[0]
        if self._open:
            self._open[-1].has_children = True
            inside = [known for known in paths if known.rpartition(".")[0] == self._open[-1].path]
            path = inside[0] if inside else path
        self._open.append(Call(module, path, self._occurrences[path], self._runs[module]))
        self._occurrences[path] += 1
        self._runs[module] += 1

    def _leave(self, module: nn.Module, _inputs: tuple[Any, ...], output: object) -> None:
        call = self._open.pop()
        call.outputs = tensors_of(output)
        self._follow_shards(module, call)
        call.sharded = self._is_sharded
        self.calls.append(call)

    def _follow_shards(self, module: nn.Module, call: Call) -> None:
        """What a module does to the rows: takes them apart over the ranks, or puts them together again."""
        if self._tp_size == 1 or getattr(module, "tp_size", self._tp_size) == 1:
            return
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if kinds & {"RowParallelLinear", "FusedMoE"}:
            self._shard(not getattr(module, "reduce_results", False))
        elif "ColumnParallelLinear" in kinds:
            self._shard(not getattr(module, "gather_output", False))
        elif "VocabParallelEmbedding" in kinds or (call.has_children and call.began_shards):
            # A block that began to shard has reduced by its end, be it in a function and not in a module.
            self._shard(False)

    def _shard(self, is_sharded: bool) -> None:
        self._is_sharded = is_sharded
        if is_sharded:
            for call in self._open:
                call.began_shards = True
