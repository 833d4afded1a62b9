"""Taps: forward hooks on a torch model that summarise every observed row without changing it.

Axes: B sequences in the batch, T tokens of the forward pass, S sites, W elements of a row.
Long passes (T > 1) are summarised tensor by tensor, while the values are in the CPU's cache and before
memory fills up. In decode steps (T = 1) the taps only keep references and summarise all rows in one
call at the end of the step; a reference whose tensor was written to since is an error, never a wrong
hash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...schemas.errors import EngineFailed
from ...schemas.trace import Site
from .summarise import RowQueue, RowSummaries, summarise_tensor

ATTENTION_OUTPUT = "attn"
"""Part name of the attention output before its projection (the input of o_proj)."""

OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense", "wo")
"""What models call the linear layer behind the attention heads."""

_PROBE_BATCH, _PROBE_TOKENS = 2, 3  # distinct, so that a shape tells its axes apart


@dataclass(frozen=True)
class Segment:
    """Which rows of a forward pass belong to one recorded sequence, and where their summaries go.

    Attributes:
        batch_row: Index into B.
        first_column: First column of T that is not padding.
        count: Number of rows.
        out: Summaries of this sequence's rows.
        first_row: Row of `out` that the first of them fills.
    """

    batch_row: int
    first_column: int
    count: int
    out: RowSummaries
    first_row: int


Keep = Callable[[int, int, int, torch.Tensor], None]
"""Called with (batch row, row of the block, site, values [W]) for every row, when tensors are kept."""


class StepBlock:
    """Room for the summaries of several decode steps of a whole batch: row `step · B + batch row`."""

    def __init__(self, steps: int, batch: int, sites: int) -> None:
        self.batch = batch
        self.summaries = RowSummaries.empty(steps * batch, sites)
        self.queue = RowQueue(self.summaries)

    def of_row(self, batch_row: int, steps: int) -> RowSummaries:
        """The first `steps` rows of one sequence, as views."""
        chosen = slice(batch_row, steps * self.batch, self.batch)
        whole = self.summaries
        return RowSummaries(whole.row_hash[chosen], whole.l2[chosen], whole.absmax[chosen], whole.sketch[chosen])


class _LongPass:
    """A pass of T > 1 columns: summarised tensor by tensor."""

    def __init__(self, segments: list[Segment], batch: int, tokens: int, n_sites: int, keep: Keep | None) -> None:
        self._segments, self._batch, self._tokens, self._keep = segments, batch, tokens, keep
        self.counts = [0] * n_sites
        self._previous: tuple[torch.Tensor, int, int] | None = None

    def see(self, site: int, tensor: torch.Tensor) -> None:
        previous = self._previous
        # A module that hands on its last child's tensor (mlp → down_proj): same rows, same summary.
        source = previous[2] if previous and previous[0] is tensor and previous[1] == tensor._version else None
        rows_BTW = None if source is not None and self._keep is None else _rows_BTW(tensor, self._batch, self._tokens)
        for segment in self._segments:
            filled = slice(segment.first_row, segment.first_row + segment.count)
            if source is not None:
                _copy_site(segment.out, filled, source, filled, site)
            if rows_BTW is None:
                continue
            row = segment.batch_row if rows_BTW.shape[0] > 1 else 0
            rows_TW = rows_BTW[row, segment.first_column : segment.first_column + segment.count]
            if source is None:
                summarise_tensor(rows_TW, segment.out, segment.first_row, site)
            if self._keep is not None:
                for index in range(segment.count):
                    self._keep(segment.batch_row, segment.first_row + index, site, rows_TW[index])
        self._previous = (tensor, tensor._version, site)

    def end(self, sites: list[Site]) -> None:
        """Everything was summarised on the way."""


class _StepPass:
    """A decode step: references are kept and summarised together at its end."""

    def __init__(self, block: StepBlock, step: int, n_sites: int, keep: Keep | None) -> None:
        self._block, self._step, self._keep = block, step, keep
        self.counts = [0] * n_sites
        self._fired: list[tuple[int, torch.Tensor, int]] = []

    def see(self, site: int, tensor: torch.Tensor) -> None:
        self._fired.append((site, tensor, tensor._version))

    def end(self, sites: list[Site]) -> None:
        """Summarise the step.

        Raises:
            EngineFailed: A kept tensor was overwritten before the end of the step.
        """
        block, batch = self._block, self._block.batch
        first = self._step * batch
        shared: list[int] = []
        for site, tensor, version in self._fired:
            if tensor._version != version:
                raise EngineFailed(
                    f"the model overwrote {sites[site].label()} after it was observed",
                    "leave that site out with --sites: its rows cannot be read in a decode step",
                )
            if batch > 1 and tensor.shape[0] == 1:
                shared.append(site)
            block.queue.add(tensor, site, first)
        block.queue.summarise()
        for site in shared:  # one row that serves the whole batch
            _copy_site(block.summaries, slice(first, first + 1), site, slice(first + 1, first + batch), site)
        if self._keep is not None:
            for site, tensor, _ in self._fired:
                rows_BTW = _rows_BTW(tensor, batch, 1)
                for row in range(batch):
                    if rows_BTW is not None:
                        self._keep(row, self._step, site, rows_BTW[row if rows_BTW.shape[0] > 1 else 0, 0])


class Taps:
    """Observes one model: `discover` once, then `attached` around a run, `long_pass` or `step` around each pass.

    Args:
        model: A causal language model (its base model is observed) or any module.
        wanted: Keep only sites whose label matches this pattern (`re.search`); None keeps all.
    """

    def __init__(self, model: nn.Module, wanted: re.Pattern[str] | None = None) -> None:
        self._base = _base_model(model)
        self._wanted = wanted
        self.sites: list[Site] = []
        self.not_seen: list[str] = []
        self._indices: dict[tuple[str, str], list[int]] = {}
        self._pass: _LongPass | _StepPass | None = None

    def discover(self, forward: Callable[[torch.Tensor], object], token: int, device: torch.device | str) -> None:
        """Run one small forward pass to learn which sites exist, in execution order.

        Args:
            forward: Runs the model on int64[2, 3] token ids.
            token: Any valid token id.
            device: Where the ids go.
        """
        skipped: list[str] = []
        counts: dict[tuple[str, str], int] = {}

        def see(name: str, part: str, module: nn.Module, tensor: torch.Tensor) -> None:
            occurrence = counts.get((name, part), 0)
            counts[name, part] = occurrence + 1
            rows_BTW = _rows_BTW(tensor, _PROBE_BATCH, _PROBE_TOKENS)
            site = Site(
                name=name,
                occurrence=occurrence,
                part=part,
                module=type(module).__name__,
                dtype=str(tensor.dtype).removeprefix("torch."),
                width=0 if rows_BTW is None else rows_BTW.shape[-1],
            )
            if self._wanted is not None and not self._wanted.search(site.label()):
                # An unwanted occurrence still counts, so that later ones keep their number.
                self._indices.setdefault((name, part), []).append(_UNOBSERVED)
            elif rows_BTW is None:
                self._indices.setdefault((name, part), []).append(_UNOBSERVED)
                skipped.append(site.label())
            else:
                self._indices.setdefault((name, part), []).append(len(self.sites))
                self.sites.append(site)

        self.sites, self._indices = [], {}
        handles = []
        for name, module in self._observed_modules():
            handles += _hook_for_discovery(see, name, module)
        try:
            with torch.no_grad():
                forward(torch.full((_PROBE_BATCH, _PROBE_TOKENS), token, dtype=torch.int64, device=device))
        finally:
            for handle in handles:
                handle.remove()
        if skipped:
            shown = ", ".join(skipped[:3]) + (" …" if len(skipped) > 3 else "")
            self.not_seen.append(f"{len(skipped)} outputs have no row per token and were not captured: {shown}")

    @contextmanager
    def attached(self) -> Iterator[Taps]:
        """Hooks are on the model inside this context, and gone after it."""
        handles = []
        for name, module in self._observed_modules():
            parts = {
                part: indices
                for (site_name, part), indices in self._indices.items()
                if site_name == name and any(index != _UNOBSERVED for index in indices)
            }
            projection = _attention_projection(module)
            if ATTENTION_OUTPUT in parts and projection is not None:
                handles.append(projection.register_forward_pre_hook(self._input_hook(parts.pop(ATTENTION_OUTPUT))))
            if parts:
                handles.append(module.register_forward_hook(self._output_hook(parts)))
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def long_pass(
        self, segments: list[Segment], batch: int, tokens: int, keep: Keep | None
    ) -> AbstractContextManager[None]:
        """Observe one forward pass of `batch` sequences × `tokens` columns."""
        return self._observing(_LongPass(segments, batch, tokens, len(self.sites), keep))

    def step(self, block: StepBlock, step: int, keep: Keep | None) -> AbstractContextManager[None]:
        """Observe one decode step of a batch, the `step`-th of its block."""
        return self._observing(_StepPass(block, step, len(self.sites), keep))

    @contextmanager
    def _observing(self, current: _LongPass | _StepPass) -> Iterator[None]:
        self._pass = current
        try:
            yield
            current.end(self.sites)
        finally:
            self._pass = None

    def _observed_modules(self) -> Iterator[tuple[str, nn.Module]]:
        for path, module in self._base.named_modules():
            if path and not isinstance(module, nn.ModuleList | nn.ModuleDict):
                yield canonical_name(path), module

    def _see(self, indices: list[int], tensor: torch.Tensor) -> None:
        current = self._pass
        if current is None:
            return
        if len(indices) == 1:
            site = indices[0]
            if not current.counts[site]:
                current.counts[site] = 1
                current.see(site, tensor)
            return
        anchor = max(indices)  # any observed occurrence serves as the module's counter
        occurrence = current.counts[anchor]
        current.counts[anchor] = occurrence + 1
        if occurrence < len(indices) and indices[occurrence] != _UNOBSERVED:
            current.see(indices[occurrence], tensor)

    def _input_hook(self, indices: list[int]) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if inputs and isinstance(inputs[0], torch.Tensor):
                self._see(indices, inputs[0])

        return hook

    def _output_hook(self, parts: dict[str, list[int]]) -> Callable[..., None]:
        see, whole = self._see, parts.get("")

        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if whole is not None and isinstance(output, torch.Tensor):
                see(whole, output)
                return
            for part, tensor in _parts_of(output):
                indices = parts.get(part)
                if indices is not None:
                    see(indices, tensor)

        return hook


_UNOBSERVED = -1


def _hook_for_discovery(
    see: Callable[[str, str, nn.Module, torch.Tensor], None], name: str, module: nn.Module
) -> list[torch.utils.hooks.RemovableHandle]:
    def on_output(_module: nn.Module, _inputs: object, output: object) -> None:
        for part, tensor in _parts_of(output):
            see(name, part, module, tensor)

    def on_input(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor):
            see(name, ATTENTION_OUTPUT, module, inputs[0])

    projection = _attention_projection(module)
    handles = [] if projection is None else [projection.register_forward_pre_hook(on_input)]
    return [*handles, module.register_forward_hook(on_output)]


def _parts_of(output: object) -> list[tuple[str, torch.Tensor]]:
    """The tensors a module returned, with their part names: empty for a single one, else its index."""
    if isinstance(output, torch.Tensor):
        return [("", output)]
    if not isinstance(output, tuple | list):
        return []
    tensors = [(str(index), item) for index, item in enumerate(output) if isinstance(item, torch.Tensor)]
    return [("", tensors[0][1])] if len(tensors) == 1 else tensors


def _copy_site(out: RowSummaries, from_rows: slice, from_site: int, to_rows: slice, to_site: int) -> None:
    for array in (out.row_hash, out.l2, out.absmax, out.sketch):
        array[to_rows, to_site] = array[from_rows, from_site]


def canonical_name(path: str) -> str:
    """A module path with the root stripped, as the trace names sites (`layers.4.mlp`)."""
    for old, new in (("h.", "layers."), ("decoder.layers.", "layers."), ("blocks.", "layers.")):
        if path.startswith(old):
            return new + path[len(old) :]
    return path


def _base_model(model: nn.Module) -> nn.Module:
    """The module whose children are observed: without the head, so that names carry no root."""
    prefix: str = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else None
    return base if isinstance(base, nn.Module) else model


def _attention_projection(module: nn.Module) -> nn.Module | None:
    """The output projection of an attention module, else None."""
    if "attention" not in type(module).__name__.lower():
        return None
    for name in OUTPUT_PROJECTIONS:
        child = getattr(module, name, None)
        if isinstance(child, nn.Module):
            return child
    return None


def _rows_BTW(tensor: torch.Tensor, batch: int, tokens: int) -> torch.Tensor | None:
    """A view [B or 1, T, W] of an output with a row per token, else None.

    [B, T, …] is flattened; [1, T, …] serves all sequences (rotary tables); [B·T, …] is split (routers).
    """
    shape = tensor.shape
    if tensor.dim() >= 2 and shape[1] == tokens and shape[0] in (batch, 1):
        return tensor.reshape(shape[0], tokens, -1)
    if tensor.dim() >= 1 and shape[0] == batch * tokens:
        return tensor.reshape(batch, tokens, -1)
    return None
