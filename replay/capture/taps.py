"""Taps: forward hooks on a torch model that find its sites and observe them without changing a value.

It knows modules, their names and what they return; what happens to an observed tensor is in passes.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from ...schemas.trace import Site
from .passes import Keep, LongPass, RowShape, Segment, StepBlock, StepPass, layout_of

ATTENTION_OUTPUT = "attn"
"""Part name of the attention output before its projection (the input of o_proj)."""

OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense", "wo")
"""What models call the linear layer behind the attention heads."""

EXPERTS = "experts"
"""What models call the group of experts behind a router."""

RENAMED = (("h.", "layers."), ("blocks.", "layers."), ("decoder.", ""))
"""Beginnings of module paths that other model families use → the canonical ones."""

_PROBE_BATCH, _PROBE_TOKENS = 2, 11  # no model has an axis of 11, so a shape tells its axes apart

_INPUT = -1
"""In place of the index of an output: the first input of the attention's output projection."""

_UNOBSERVED = -1


class Taps:
    """Observes one model: `discover` once, then `attached` around a run, `long_pass` or `step` around a pass.

    Args:
        model: A causal language model (its base model is observed) or any module.
        wanted: Keep only sites whose label matches this pattern (`re.search`); None keeps all.
    """

    def __init__(self, model: nn.Module, wanted: re.Pattern[str] | None = None) -> None:
        self._base = _base_model(model)
        self._wanted = wanted
        self.sites: list[Site] = []
        """In execution order."""
        self.not_seen: list[str] = []
        self._rows: list[RowShape] = []
        self._sources: dict[str, dict[int, list[int]]] = {}
        """Module → index of the output → the site of each occurrence."""
        self._see: Callable[[int, torch.Tensor], None] | None = None
        """What the pass that is being observed does with an output; None between passes."""
        self._occurrences: dict[int, int] = {}

    def discover(
        self, forward: Callable[[torch.Tensor], object], vocab_size: int, device: torch.device | str
    ) -> None:
        """Run one small forward pass to learn which sites exist, in execution order.

        Args:
            forward: Runs the model on int64[2, 11] token ids.
            vocab_size: The ids are spread over the vocabulary: equal tokens would all take the same way
                through a mixture of experts.
            device: Where the ids go.
        """
        self.sites, self.not_seen, self._rows, self._sources = [], [], [], {}
        skipped: list[str] = []
        handles: list[torch.utils.hooks.RemovableHandle] = []
        for name, module in self._observed_modules():
            handles += self._discovery_hooks(name, module, skipped)
        count = _PROBE_BATCH * _PROBE_TOKENS
        ids = (torch.arange(count, dtype=torch.int64) * vocab_size) // count
        try:
            with torch.no_grad():
                forward(ids.view(_PROBE_BATCH, _PROBE_TOKENS).to(device))
        finally:
            for handle in handles:
                handle.remove()
        if skipped:
            shown = ", ".join(skipped[:3]) + (" …" if len(skipped) > 3 else "")
            self.not_seen.append(
                f"{len(skipped)} outputs have no row of fixed width per token and were not captured: {shown}"
            )

    def _discovery_hooks(
        self, name: str, module: nn.Module, skipped: list[str]
    ) -> list[torch.utils.hooks.RemovableHandle]:
        def found(index: int, part: str, tensor: torch.Tensor) -> None:
            indices = self._sources.setdefault(name, {}).setdefault(index, [])
            # Inside a group of experts the rows come in the order of the experts, not of the tokens.
            in_experts = EXPERTS in name.split(".")[:-1]
            layout = None if in_experts else layout_of(tensor, _PROBE_BATCH, _PROBE_TOKENS)
            tokens = _PROBE_TOKENS * (1 if tensor.shape[:1] == (1,) else _PROBE_BATCH)
            site = Site(
                name=name,
                occurrence=len(indices),
                part=part,
                module=type(module).__name__,
                dtype=str(tensor.dtype).removeprefix("torch."),
                width=tensor.numel() // tokens,
            )
            if self._wanted is not None and not self._wanted.search(site.label()):
                indices.append(_UNOBSERVED)  # still counts, so that later occurrences keep their number
            elif layout is None:
                indices.append(_UNOBSERVED)
                skipped.append(site.label())
            else:
                indices.append(len(self.sites))
                self.sites.append(site)
                self._rows.append(RowShape(layout, site.width))

        def on_output(_module: nn.Module, _inputs: object, output: object) -> None:
            tensors = _tensors_of(output)
            with_rows = [index for index, tensor in tensors if layout_of(tensor, _PROBE_BATCH, _PROBE_TOKENS)]
            for index, tensor in tensors:
                # No part where only one output has rows: whether an attention returns its weights as
                # well depends on its implementation, and must not rename its output.
                part = "" if len(tensors) == 1 or with_rows == [index] else str(index)
                found(index, part, tensor)

        def on_input(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if inputs and isinstance(inputs[0], torch.Tensor):
                found(_INPUT, ATTENTION_OUTPUT, inputs[0])

        projection = _attention_projection(module)
        handles = [] if projection is None else [projection.register_forward_pre_hook(on_input)]
        return [*handles, module.register_forward_hook(on_output)]

    @contextmanager
    def attached(self) -> Iterator[Taps]:
        """The taps are on the model inside this context, and gone after it."""
        tapped: list[nn.Module] = []
        inputs: dict[nn.Module, list[int]] = {}
        outputs: dict[nn.Module, dict[int, list[int]]] = {}
        for name, module in self._observed_modules():
            observed = {
                index: indices
                for index, indices in self._sources.get(name, {}).items()
                if any(site != _UNOBSERVED for site in indices)
            }
            of_input = observed.pop(_INPUT, None)
            projection = _attention_projection(module)
            if of_input is not None and projection is not None:
                inputs[projection] = of_input
            if observed:
                outputs[module] = observed
        try:
            for module in {**inputs, **outputs}:
                # Not forward hooks: they send every call of the module through torch's slow path, which
                # costs more than the summaries. Torch calls this attribute in place of the module's own
                # call, hooks included, so that the outputs seen are those that the model goes on with.
                call = module._compiled_call_impl or module._call_impl
                module._compiled_call_impl = self._tapped(call, inputs.get(module), outputs.get(module, {}))
                tapped.append(module)
            yield self
        finally:
            for module in tapped:
                module._compiled_call_impl = getattr(module._compiled_call_impl, "untapped", None)

    def long_pass(
        self, segments: list[Segment], batch: int, tokens: int, keep: Keep | None
    ) -> AbstractContextManager[None]:
        """Observe one forward pass of `batch` sequences × `tokens` columns."""
        return self._observing(LongPass(segments, batch, tokens, self._rows, keep))

    def step(self, block: StepBlock, step: int, keep: Keep | None) -> AbstractContextManager[None]:
        """Observe one decode step of a batch, the `step`-th of its block."""
        return self._observing(StepPass(block, step, self._rows, keep))

    @contextmanager
    def _observing(self, current: LongPass | StepPass) -> Iterator[None]:
        self._see, self._occurrences = current.see, {}
        try:
            yield
            current.end()
        finally:
            self._see = None

    def _observed_modules(self) -> Iterator[tuple[str, nn.Module]]:
        for path, module in self._base.named_modules():
            if path and not isinstance(module, nn.ModuleList | nn.ModuleDict):
                yield canonical_name(path), module

    def _tapped(
        self, call: Callable[..., Any], of_input: list[int] | None, observed: dict[int, list[int]]
    ) -> Callable[..., Any]:
        """A module's call, with its input and outputs shown to the pass that is being observed.

        It runs hundreds of times a token, between operations that leave the caches cold: every call and
        look-up in it is felt. So the usual module (one tensor, once a pass) has a form of its own.
        """

        def plain(*args: Any, **kwargs: Any) -> Any:
            output = call(*args, **kwargs)
            see = self._see
            if see is not None:
                if isinstance(output, torch.Tensor):
                    see(site, output)
                elif isinstance(output, tuple | list) and output and isinstance(output[0], torch.Tensor):
                    see(site, output[0])
            return output

        def any_form(*args: Any, **kwargs: Any) -> Any:
            if of_input is not None and args and isinstance(args[0], torch.Tensor):
                self._see_any(of_input, args[0])
            output = call(*args, **kwargs)
            for index, tensor in _tensors_of(output):
                if index in observed:
                    self._see_any(observed[index], tensor)
            return output

        usual = of_input is None and list(observed) == [0] and len(observed[0]) == 1
        site = observed[0][0] if usual else _UNOBSERVED
        chosen = plain if usual else any_form
        chosen.untapped = None if call.__name__ == "_call_impl" else call  # type: ignore[attr-defined]
        return chosen

    def _see_any(self, indices: list[int], tensor: torch.Tensor) -> None:
        """Count which occurrence of the module this is, and let the pass see it if it is observed."""
        if self._see is None:
            return
        key = id(indices)
        occurrence = self._occurrences.get(key, 0)
        self._occurrences[key] = occurrence + 1
        if occurrence < len(indices) and indices[occurrence] != _UNOBSERVED:
            self._see(indices[occurrence], tensor)


def _tensors_of(output: object) -> list[tuple[int, torch.Tensor]]:
    """The tensors a module returned, each with its index in the returned tuple."""
    if isinstance(output, torch.Tensor):
        return [(0, output)]
    if not isinstance(output, tuple | list):
        return []
    return [(index, item) for index, item in enumerate(output) if isinstance(item, torch.Tensor)]


def canonical_name(path: str) -> str:
    """A module path with the root stripped, as the trace names sites (`layers.4.mlp`)."""
    for old, new in RENAMED:
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
