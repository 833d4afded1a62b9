"""The sites of a vLLM model, found in one forward pass: canonical names, whole outputs or one rank's shards.

It knows vLLM's modules by the names of their classes and attributes, and imports none of them. What is done
with their outputs later is in `module_taps.py`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ....schemas.trace import Site
from ...capture.modules import ATTENTION_OUTPUT, Output, canonical_name, sentence_about, tensors_of
from .row_block import Columns

ROOTS = ("model", "transformer")
"""What vLLM's models call the module that holds the layers; no part of a canonical name."""

FUSED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Projections that vLLM runs as one GEMM → the ones of the checkpoint, for models that do not say."""

GATED = "act_and_mul"
"""Name of a gated activation's output, which no module of the checkpoint's own returns."""

LAYER = re.compile(r"(?P<group>(?:.*\.)?layers)\.(?P<index>\d+)(?P<inside>\..+)?")


@dataclass
class Call:
    """One run of one module within a forward pass."""

    module: nn.Module
    path: str
    """In the model; for a module that all layers share, the path in the layer that ran it."""
    occurrence: int
    """Which run under that path."""
    run: int
    """Which run of the module at all."""
    outputs: list[tuple[Output, torch.Tensor]] = field(default_factory=list)
    sharded: bool = False
    has_children: bool = False
    began_shards: bool = False


class Naming:
    """Names the outputs of one forward pass.

    Args:
        calls: Every call, in the order in which they ended. Their tensors are alive.
        tokens: Token rows of the pass.
        tp: This rank's index and the number of ranks of tensor parallelism.
        packed: Fused projections of this model → what they consist of.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        tokens: int,
        tp: tuple[int, int],
        packed: Mapping[str, Sequence[str]],
    ) -> None:
        self._tokens, self._tp, self._packed = tokens, tp, {**FUSED, **packed}
        self._made_before: dict[int, set[int]] = {}
        """Call → the tensors that calls before it returned."""
        self._layer_before: dict[int, str] = {}
        """First call of a layer, or a call behind all layers → the layer that had just ended."""
        made: set[int] = set()
        seen: set[str] = set()
        last: str | None = None
        for call in calls:
            self._made_before[id(call)] = set(made)
            made |= {id(tensor) for _, tensor in call.outputs}
            match = LAYER.fullmatch(canonical_path(call.path))
            if match is None:
                if last is not None:
                    self._layer_before[id(call)] = last
                continue
            last = f"{match['group']}.{match['index']}"
            if last not in seen and int(match["index"]) > 0:
                self._layer_before[id(call)] = f"{match['group']}.{int(match['index']) - 1}"
            seen.add(last)

    def has_rows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has a row for each token."""
        return tensor.dim() > 0 and tensor.shape[0] == self._tokens and tensor.numel() > 0

    def in_causal_order(self, call: Call) -> list[tuple[Output, torch.Tensor]]:
        """The outputs of a call: the sum that a fused norm returns comes before what it made of it."""
        return call.outputs[::-1] if self._is_fused_norm(call) else call.outputs

    def sites_of(self, call: Call, output: Output, tensor: torch.Tensor) -> list[tuple[Site, int]]:
        """The sites in one output's rows, each with its first element; none if they are shown elsewhere."""
        path = canonical_path(call.path)
        rows = self._with_rows(call)
        made = self._made_before[id(call)]
        handed_on = call.has_children and all(id(item) in made for _, item in call.outputs)
        if not path or (len(rows) > 1 and handed_on):
            # The model itself, whose output is its last norm's; or a (hidden, residual) pair whose two
            # tensors were observed where they were made.
            return []
        part = "" if rows == [output] else str(output)
        kind = type(call.module).__name__
        if self._is_fused_norm(call):
            # Fused add and norm: (normed, sum). The sum is the residual stream as the layer before left it.
            before = self._layer_before.get(id(call))
            if output == rows[0]:
                part = ""
            elif before is not None:
                path, part = before, ""
        parent, _, last = path.rpartition(".")
        if kind.endswith("AndMul"):
            path = f"{parent}.{GATED}"  # act(gate) · up, where the checkpoint's act_fn is act(gate) alone
        if last == ATTENTION_OUTPUT and "attn" in parent.rpartition(".")[2] and "Attention" in kind:
            path, part = parent, ATTENTION_OUTPUT
        width = tensor.numel() // self._tokens
        names, sizes = self._packed.get(last, ()), partition_sizes(call.module)
        if part or len(names) < 2 or len(names) != len(sizes) or sum(sizes) != width:
            return [(self._site(call, path, part, tensor, width), 0)]
        found, first = [], 0
        for name, size in zip(names, sizes, strict=True):
            found.append((self._site(call, f"{parent}.{name}", "", tensor, size), first))
            first += size
        return found

    def _with_rows(self, call: Call) -> list[Output]:
        return [index for index, item in call.outputs if self.has_rows(item)]

    def _is_fused_norm(self, call: Call) -> bool:
        """Whether a call added to the residual stream and normed the sum: (normed, sum)."""
        return len(self._with_rows(call)) == 2 and "norm" in type(call.module).__name__.lower()

    def _site(self, call: Call, name: str, part: str, tensor: torch.Tensor, width: int) -> Site:
        shard = f"tp{self._tp[0]}of{self._tp[1]}" if call.sharded else ""
        return Site(
            name=name,
            occurrence=call.occurrence,
            part=".".join(filter(None, (part, shard))),
            module=type(call.module).__name__,
            dtype=str(tensor.dtype).removeprefix("torch."),
            width=width,
            sharded=call.sharded,
        )


def partition_sizes(module: nn.Module) -> Sequence[int]:
    """Elements of each projection in a fused one's rows on this rank; empty where they lie in pieces."""
    if getattr(module, "gather_output", False) and getattr(module, "tp_size", 1) > 1:
        return ()  # gathered rank by rank, so every projection lies in pieces
    sizes = getattr(module, "output_partition_sizes", ())
    return sizes if all(isinstance(size, int) for size in sizes) else ()


def canonical_path(path: str) -> str:
    """A module's path in vLLM as the trace names it: `model.layers.0.mlp` is `layers.0.mlp`."""
    names = path.split(".")
    at = next((index for index, name in enumerate(names[:2]) if name in ROOTS), None)
    if at is not None:
        del names[at]
    return canonical_name(".".join(names))


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
    not_seen = sentence_about(skipped, "outputs have no row per token and were not captured")
    return FoundSites(sites, sources, not_seen)


class _Watch:
    """Notes the outputs of every module call, and follows where rows are sharded over tensor parallelism."""

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
