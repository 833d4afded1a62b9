"""Taps on the modules of a vLLM model: they show outputs to an observer, and cost little where there is none.

What is shown and how it is named was found by `sites.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ...capture.modules import Call, Output
from .row_block import Columns
from .sites import Source

See = Callable[[int, torch.Tensor, Columns], None]
"""Called with a source's number, its tensor, and the sites in its rows."""

Show = Callable[[See, Any], None]
"""Shows what a module returned."""

Observed = dict[tuple[int, Output], tuple[int, Columns]]
"""(run of a module, output) → (number of the source, its sites)."""


class ModuleTaps:
    """Stands between a model's modules and their callers, without changing what passes.

    Args:
        sources: What is observed.
        failed: Called with an error in `see`; then nothing is shown any more.
    """

    def __init__(self, sources: Sequence[Source], failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._see: See | None = None
        self._runs: dict[nn.Module, int] = {}
        self._last: torch.Tensor | None = None
        """What the last module returned that another one may hand on."""
        self._trusted: frozenset[int] = frozenset()
        self._twins = {number: source.handed_on for number, source in enumerate(sources)}
        self._remembered = frozenset(self._twins.values()) - {None}
        by_module: dict[nn.Module, Observed] = {}
        for number, source in enumerate(sources):
            observed = by_module.setdefault(source.module, {})
            observed[source.run, source.output] = (number, source.columns)
        self._observed = by_module

    def attach(self) -> None:
        """Put the taps on, for the rest of the process.

        Torch calls `_compiled_call_impl`, where it is set, in place of the module's own call, hooks included.
        A forward hook would send every call of the module through torch's slow path.
        """
        for module, observed in self._observed.items():
            call = module._compiled_call_impl or module._call_impl
            if list(observed) == [(0, 0)]:
                number, columns = observed[0, 0]
                if number in self._remembered:
                    tapped = self._tapped(call, self._of_remembered_output(number, columns))
                elif self._twins[number] is not None:
                    tapped = self._tapped(call, self._of_handed_on_output(number, columns))
                else:
                    tapped = self._of_first_output(call, number, columns)
            elif all(run == 0 for run, _ in observed):
                outputs = [(output, number, columns) for (_, output), (number, columns) in observed.items()]
                tapped = self._tapped(call, self._of_outputs(outputs))
            else:
                tapped = self._tapped(call, self._of_runs(module, observed))
            module._compiled_call_impl = tapped

    def show_to(self, see: See | None) -> None:
        """From now on outputs are shown to `see`, or to nobody. A new forward pass begins."""
        self._see, self._last = see, None
        self._runs.clear()

    def skip_passed_on_tensors(self, numbers: frozenset[int]) -> None:
        """Show these sources no more where they hand on the very tensor that another one was shown with.

        Inference tensors count no versions, so the same tensor may have been changed in place in between.
        The caller has seen that the values were the same, too.
        """
        self._trusted = numbers

    def _of_first_output(self, call: Call, number: int, columns: Columns) -> Call:
        """The usual module: one output, once a pass. It runs hundreds of times a token, so it does little."""

        def tapped(*args: Any, **kwargs: Any) -> Any:
            output = call(*args, **kwargs)
            see = self._see
            if see is not None:
                try:
                    see(number, output if isinstance(output, torch.Tensor) else output[0], columns)
                except Exception as error:  # whatever it is, the request goes on
                    self._stop(error)
            return output

        return tapped

    def _of_remembered_output(self, number: int, columns: Columns) -> Show:
        """One whose output a module around it hands on."""

        def show(see: See, output: Any) -> None:
            self._last = tensor = output if isinstance(output, torch.Tensor) else output[0]
            see(number, tensor, columns)

        return show

    def _of_handed_on_output(self, number: int, columns: Columns) -> Show:
        """One that hands on what a module within it returned."""

        def show(see: See, output: Any) -> None:
            tensor = output if isinstance(output, torch.Tensor) else output[0]
            if tensor is not self._last or number not in self._trusted:
                see(number, tensor, columns)

        return show

    def _of_outputs(self, observed: Sequence[tuple[Output, int, Columns]]) -> Show:
        """A module that returns several tensors, once a pass."""

        def show(see: See, output: Any) -> None:
            for index, number, columns in observed:
                see(number, output if isinstance(output, torch.Tensor) else output[index], columns)

        return show

    def _of_runs(self, module: nn.Module, observed: Observed) -> Show:
        """A module that runs several times a pass."""
        outputs = list(dict.fromkeys(output for _, output in observed))

        def show(see: See, output: Any) -> None:
            run = self._runs.get(module, 0)
            self._runs[module] = run + 1
            for index in outputs:
                known = observed.get((run, index))
                if known is not None:
                    tensor = output if isinstance(output, torch.Tensor) else output[index]
                    see(known[0], tensor, known[1])

        return show

    def _tapped(self, call: Call, show: Show) -> Call:
        def tapped(*args: Any, **kwargs: Any) -> Any:
            output = call(*args, **kwargs)
            see = self._see
            if see is not None:
                try:
                    show(see, output)
                except Exception as error:  # whatever it is, the request goes on
                    self._stop(error)
            return output

        return tapped

    def _stop(self, error: Exception) -> None:
        self._see = None
        self._failed(error)
