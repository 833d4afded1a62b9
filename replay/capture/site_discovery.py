"""What one forward pass shows of a model's sites: names, parts, dtypes, and where their rows lie.

It is shown the inputs and outputs of modules by `taps.py`, and knows nothing of how they were intercepted.
Axes: B sequences, T columns of the pass, W elements of a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import nn

from ...schemas.errors import BadInput
from ...schemas.trace import Site
from ..row_summaries.rows import RowSummaries
from ..row_summaries.summarise import summarise_tensor
from .modules import (
    ATTENTION_OUTPUT,
    Layout,
    Output,
    RowShape,
    first_three,
    layout_of,
    sentence_about,
    tensors_of,
)

EXPERTS = "experts"
"""What models call the group of experts behind a router."""

INPUT = -1
"""In place of an output: the first input of the attention's output projection."""

UNOBSERVED = -1
"""In place of the index of a site."""

Axes = Literal["batch-first", "time-first"]
"""How a program lays out its tensors: [B, T, …] or [T, B, …]."""

Span = tuple[int, int, int]
"""(batch row, first column, number of columns): the rows of one sequence in a pass."""


class SiteDiscovery:
    """Sites as one pass of B sequences × T tokens shows them, in execution order.

    Args:
        wanted: Keep only sites whose label matches this pattern (`re.search`); None keeps all.
        batch: B.
        tokens: T.
    """

    def __init__(self, wanted: re.Pattern[str] | None, batch: int, tokens: int) -> None:
        self._wanted = wanted
        self.batch, self.tokens = batch, tokens
        self.sites: list[Site] = []
        self.rows: list[RowShape] = []
        self.sources: dict[str, dict[Output, list[int]]] = {}
        """Module → which output → the site of each occurrence."""
        self._skipped: list[str] = []
        self.without_tensors: list[str] = []
        """Modules that returned none."""

    def not_seen(self) -> list[str]:
        """What was shown and could not become a site, in sentences."""
        return [
            *sentence_about(
                self._skipped, "outputs have no row of fixed width per token and were not captured"
            ),
            *sentence_about(
                self.without_tensors,
                "modules return neither a tensor nor a tuple, list or dict that holds one, and were not "
                "captured",
            ),
        ]

    def see_input(self, name: str, module: nn.Module, tensor: torch.Tensor) -> None:
        """The attention `name` hands this to its output projection."""
        self._found(name, module, INPUT, ATTENTION_OUTPUT, tensor)

    def see_output(self, name: str, module: nn.Module, output: object) -> None:
        """The module `name` returned this."""
        tensors = tensors_of(output)
        if not tensors:
            self.without_tensors.append(name)
        with_rows = [which for which, tensor in tensors if self._layout(tensor)]
        for which, tensor in tensors:
            # No part where only one output has rows: whether an attention returns its weights as
            # well depends on its implementation, and must not rename its output.
            part = "" if len(tensors) == 1 or with_rows == [which] else str(which)
            self._found(name, module, which, part, tensor)

    def _layout(self, tensor: torch.Tensor) -> Layout | None:
        return layout_of(tensor, self.batch, self.tokens)

    def _found(self, name: str, module: nn.Module, which: Output, part: str, tensor: torch.Tensor) -> None:
        indices = self.sources.setdefault(name, {}).setdefault(which, [])
        # Inside a group of experts the rows come in the order of the experts, not of the tokens.
        in_experts = EXPERTS in name.split(".")[:-1]
        layout = None if in_experts else self._layout(tensor)
        sequences = layout.sequences(tensor.shape, self.batch) if layout else self.batch
        site = Site(
            name=name,
            occurrence=len(indices),
            part=part,
            module=type(module).__name__,
            dtype=str(tensor.dtype).removeprefix("torch."),
            width=tensor.numel() // (sequences * self.tokens),
        )
        if self._wanted is not None and not self._wanted.search(site.label()):
            indices.append(UNOBSERVED)  # still counts, so that later occurrences keep their number
        elif layout is None:
            indices.append(UNOBSERVED)
            self._skip(site.label(), tensor)
        else:
            indices.append(len(self.sites))
            self.sites.append(site)
            self.rows.append(RowShape(layout, site.width))
            self._take(tensor)

    def _skip(self, label: str, tensor: torch.Tensor) -> None:
        self._skipped.append(label)

    def _take(self, tensor: torch.Tensor) -> None:
        """A new site's tensor; a probe's values are nobody's."""


class FirstPass(SiteDiscovery):
    """The first pass of a program that is not ours: it is recorded while it shows the sites.

    A model may carry a state (a KV cache), so no probe can be run on it; and the sizes of this pass are the
    program's choice, so two axes may be equally long. `check` refuses such an ambiguous output, unless the
    program's axes were stated.

    Args:
        batch: B.
        tokens: T.
        spans: The rows to record.
        model: The sizes of its parameters are the widths of rows.
        axes: How the program lays out its tensors, where it was stated.
    """

    def __init__(
        self,
        wanted: re.Pattern[str] | None,
        batch: int,
        tokens: int,
        spans: Sequence[Span],
        model: nn.Module,
        axes: Axes | None,
    ) -> None:
        super().__init__(wanted, batch, tokens)
        self._spans, self._axes = spans, axes
        self._widths = _widths(model) if tokens > 1 else frozenset()
        self._doubtful: list[str] = []
        self._columns: list[RowSummaries] = []
        """For each site the summaries of all spans' rows [rows, 1]."""

    def check(self) -> None:
        """Refuse to guess.

        Raises:
            BadInput: Some outputs have two axes that may count the tokens.
        """
        if not self._doubtful:
            return
        raise BadInput(
            f"the first forward pass fed {self.batch} × {self.tokens} tokens, and {len(self._doubtful)} "
            f"outputs have two axes of {self.tokens}: which one counts tokens is ambiguous "
            f"({first_three(self._doubtful)})",
            "state it, axes='batch-first' for [batch, tokens, …] or axes='time-first' for "
            "[tokens, batch, …], or begin with a different number of tokens",
        )

    def summaries(self) -> list[RowSummaries]:
        """What was recorded: for each span its rows [count, sites]."""
        whole = RowSummaries.concatenate(self._columns, axis=1)
        ends = np.cumsum([0, *(count for _, _, count in self._spans)]).tolist()
        return [whole.at(slice(*rows)) for rows in pairwise(ends)]

    def _layout(self, tensor: torch.Tensor) -> Layout | None:
        if not self._is_doubtful(tensor):
            return super()._layout(tensor)
        shape, batch, tokens = tensor.shape, self.batch, self.tokens
        if self._axes is None:
            return None
        if len(shape) == 2 and batch != tokens:
            return Layout.FLAT if batch == 1 else Layout.TABLE
        if self._axes == "batch-first" and shape[0] in (batch, 1) and shape[1] == tokens:
            return Layout.BATCH_FIRST
        if self._axes == "time-first" and len(shape) == 3 and shape[:2] == (tokens, batch):
            return Layout.TIME_FIRST
        return None

    def _is_doubtful(self, tensor: torch.Tensor) -> bool:
        """Two of its axes are as long as the pass has tokens, and either may count them."""
        shape, tokens = tensor.shape, self.tokens
        if tokens == 1 or len(shape) not in (2, 3):
            return False
        if len(shape) == 3 and shape[:2] == (tokens, tokens) and self.batch == tokens:
            return True
        # An axis that is as long as the pass and no width of the model grows with the context, as
        # attention weights do: nothing is in doubt there, such an output has no rows of fixed width.
        alike = sum(size == tokens for size in shape) > 1
        return alike and tokens in self._widths and shape[0] in (self.batch, 1, tokens)

    def _skip(self, label: str, tensor: torch.Tensor) -> None:
        if self._axes is None and self._is_doubtful(tensor):
            self._doubtful.append(label)
        else:
            super()._skip(label, tensor)

    def _take(self, tensor: torch.Tensor) -> None:
        rows_BTW = self.rows[-1].of(tensor, self.batch, self.tokens)
        column = RowSummaries.empty(sum(count for _, _, count in self._spans), 1)
        first_row = 0
        for batch_row, first, count in self._spans:
            if rows_BTW is not None:
                row = batch_row if rows_BTW.shape[0] > 1 else 0
                summarise_tensor(rows_BTW[row, first : first + count], column, first_row, 0)
            first_row += count
        self._columns.append(column)


def _widths(model: nn.Module) -> frozenset[int]:
    """Every number of elements that the model's weights have along an axis.

    How many entries a table of embeddings has is none: it says how many tokens or positions there are.
    """
    found: set[int] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            found.update(parameter.shape[1:] if isinstance(module, nn.Embedding) else parameter.shape)
    return frozenset(found)
