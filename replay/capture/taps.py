"""Taps on a torch model: they find its sites and observe them without changing a value.

It connects modules (`modules.py`) to what learns the sites from their outputs (`site_discovery.py`) and to
what summarises the outputs of a pass (`observed_passes.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from ...schemas.trace import Site
from .modules import (
    Call,
    Output,
    RowShape,
    attention_projection,
    base_model,
    canonical_name,
    is_compiled,
    is_compiled_wrapper,
    replace_calls,
    sentence_about,
    tensors_of,
)
from .observed_passes import Keep, LongPass, Segment, StepBlock, StepPass
from .site_discovery import INPUT, UNOBSERVED, Axes, FirstPass, SiteDiscovery, Span

PROBE_BATCH, PROBE_TOKENS = 2, 11  # no model has an axis of 11, so every axis of a shape is known by its size


class Taps:
    """Observes one model: `discover` once, then `attached` around a run, `long_pass` or `step` around a pass.

    Args:
        model: A causal language model (its base model is observed) or any module.
        wanted: Keep only sites whose label matches this pattern (`re.search`); None keeps all.
    """

    def __init__(self, model: nn.Module, wanted: re.Pattern[str] | None = None) -> None:
        self.base = base_model(model)
        """The module whose children are observed."""
        self._wanted = wanted
        self.sites: list[Site] = []
        """In execution order."""
        self.not_seen: list[str] = []
        self.rows: list[RowShape] = []
        self._sources: dict[str, dict[Output, list[int]]] = {}
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
        count = PROBE_BATCH * PROBE_TOKENS
        ids = (torch.arange(count, dtype=torch.int64) * vocab_size) // count
        found = SiteDiscovery(self._wanted, PROBE_BATCH, PROBE_TOKENS)
        with replace_calls(self._showing(found)), torch.no_grad():
            forward(ids.view(PROBE_BATCH, PROBE_TOKENS).to(device))
        self._adopt(found)

    @contextmanager
    def first_pass(
        self, spans: Sequence[Span], batch: int, tokens: int, axes: Axes | None = None
    ) -> Iterator[FirstPass]:
        """Learn the sites from a pass of somebody else's program, and record it on the way.

        Args:
            spans: The rows to record.
            batch: B of this pass.
            tokens: T of this pass.
            axes: How the program lays out its tensors, where that was stated.

        Raises:
            BadInput: On leaving, where the sizes of this pass leave open where rows lie.
        """
        found = FirstPass(self._wanted, batch, tokens, spans, self.base, axes)
        with replace_calls(self._showing(found)):
            yield found
        found.check()
        self._adopt(found)
        ran = {*self._sources, *found.without_tensors}
        silent = [name for name, _ in self._observed_modules() if name not in ran]
        self.not_seen += sentence_about(silent, "modules did not run in the first pass and are not observed")

    def _adopt(self, found: SiteDiscovery) -> None:
        self.sites, self.rows, self._sources = found.sites, found.rows, found.sources
        self.not_seen = [*self._compiled_inside(), *found.not_seen()]

    def _showing(self, found: SiteDiscovery) -> dict[nn.Module, Callable[[Call], Call]]:
        """Replacements of calls that show what a module takes and returns."""
        names = {module: name for name, module in self._observed_modules()}
        attention_of = {
            projection: (name, module)
            for module, name in names.items()
            if (projection := attention_projection(module)) is not None
        }

        def showing(module: nn.Module, call: Call) -> Call:
            def shown(*args: Any, **kwargs: Any) -> Any:
                if module in attention_of and args and isinstance(args[0], torch.Tensor):
                    found.see_input(*attention_of[module], args[0])
                output = call(*args, **kwargs)
                if module in names:
                    found.see_output(names[module], module, output)
                return output

            return shown

        return {
            module: lambda call, module=module: showing(module, call)  # type: ignore[misc]
            for module in {**names, **attention_of}
        }

    def observed(self) -> tuple[dict[nn.Module, list[int]], dict[nn.Module, dict[Output, list[int]]]]:
        """Where sites lie: module → the sites of its first input, and module → output → its sites.

        Sites are indices; a list has one for each time that the module runs, UNOBSERVED where it is no site.
        """
        inputs: dict[nn.Module, list[int]] = {}
        outputs: dict[nn.Module, dict[Output, list[int]]] = {}
        for name, module in self._observed_modules():
            observed = {
                which: indices
                for which, indices in self._sources.get(name, {}).items()
                if any(site != UNOBSERVED for site in indices)
            }
            of_input = observed.pop(INPUT, None)
            projection = attention_projection(module)
            if of_input is not None and projection is not None:
                inputs[projection] = of_input
            if observed:
                outputs[module] = observed
        return inputs, outputs

    @contextmanager
    def attached(self) -> Iterator[Taps]:
        """The taps are on the model inside this context, and gone after it."""
        inputs, outputs = self.observed()
        replacements = {
            module: lambda call, module=module: self._tapped(
                call, inputs.get(module), outputs.get(module, {})
            )
            for module in {**inputs, **outputs}
        }
        with replace_calls(replacements):
            yield self

    def long_pass(
        self, segments: list[Segment], batch: int, tokens: int, keep: Keep | None
    ) -> AbstractContextManager[None]:
        """Observe one forward pass of `batch` sequences × `tokens` columns."""
        return self._observing(LongPass(segments, batch, tokens, self.rows, keep))

    def step(self, block: StepBlock, step: int, keep: Keep | None) -> AbstractContextManager[None]:
        """Observe one decode step of a batch, the `step`-th of its block."""
        return self._observing(StepPass(block, step, self.rows, keep))

    @contextmanager
    def _observing(self, current: LongPass | StepPass) -> Iterator[None]:
        self._see, self._occurrences = current.see, {}
        try:
            yield
            current.end()
        finally:
            self._see = None

    @contextmanager
    def observe_within(self, context: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """Until this context ends, the outputs of the pass that is being observed are summarised inside
        `context()`, so that whoever records what the model does can leave out what the taps do."""
        see = self._see

        def see_within(site: int, tensor: torch.Tensor) -> None:
            assert see is not None
            with context():
                see(site, tensor)

        self._see = None if see is None else see_within
        try:
            yield
        finally:
            self._see = see

    def _observed_modules(self) -> Iterator[tuple[str, nn.Module]]:
        compiled: tuple[str, ...] = ()
        for path, module in self.base.named_modules():
            if not path or path.startswith(compiled):
                continue
            if is_compiled(module):
                compiled = (*compiled, f"{path}.")  # nothing calls the modules inside it one by one
                if is_compiled_wrapper(module):
                    continue
            if not isinstance(module, nn.ModuleList | nn.ModuleDict):
                yield canonical_name(path), module

    def _compiled_inside(self) -> list[str]:
        compiled = [canonical_name(path) for path, module in self.base.named_modules() if is_compiled(module)]
        return sentence_about(compiled, "modules are compiled, and nothing inside them was observed")

    def _tapped(self, call: Call, of_input: list[int] | None, observed: dict[Output, list[int]]) -> Call:
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
            for which, tensor in tensors_of(output):
                if which in observed:
                    self._see_any(observed[which], tensor)
            return output

        usual = of_input is None and list(observed) == [0] and len(observed[0]) == 1
        site = observed[0][0] if usual else UNOBSERVED
        return plain if usual else any_form

    def _see_any(self, indices: list[int], tensor: torch.Tensor) -> None:
        """Count which occurrence of the module this is, and let the pass see it if it is observed."""
        if self._see is None:
            return
        key = id(indices)
        occurrence = self._occurrences.get(key, 0)
        self._occurrences[key] = occurrence + 1
        if occurrence < len(indices) and indices[occurrence] != UNOBSERVED:
            self._see(indices[occurrence], tensor)
