"""Activation patching: finding, keeping and replacing the rows of a model's sites while it runs.

It knows sites and modules, and where the positions of a sequence lie in a pass: by token columns and the
attention mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...schemas.zoom import KeptRows, SitePosition
from ..capture.modules import Output, replace_calls, tensors_of
from ..capture.site_discovery import UNOBSERVED
from ..capture.taps import Taps
from .op_recorder import raw_bits


@dataclass(frozen=True)
class PassLocation:
    """One forward pass, as one sequence of its batch lies in it.

    Attributes:
        batch: B.
        row: The sequence's row.
        tokens: T, columns that the pass feeds.
        total: Columns that attention sees: cached ones and T.
        column_of: Position → column of T, for the positions that this pass computes.
        seen: (column of `total`, position) of every token of the sequence so far, in order.
    """

    batch: int
    row: int
    tokens: int
    total: int
    column_of: Mapping[int, int]
    seen: tuple[tuple[int, int], ...]

    def query_columns_up_to(self, position: int) -> tuple[int, ...]:
        """Columns of T that hold positions up to this one."""
        return tuple(column for at, column in self.column_of.items() if at <= position)

    def key_columns_up_to(self, position: int) -> tuple[int, ...]:
        """Columns of `total` that hold positions up to this one."""
        return tuple(column for column, at in self.seen if at <= position)


def location_in_pass(arguments: Mapping[str, Any], row: int) -> PassLocation | None:
    """Where a row's positions lie in the pass that a model is called for.

    Args:
        arguments: `input_ids` [B, T] and `attention_mask` [B, total] of the call.
        row: The row of the batch.

    Returns:
        None where the call states no tokens, as a model inside another one may be called.
    """
    ids, mask = arguments.get("input_ids"), arguments.get("attention_mask")
    if not isinstance(ids, torch.Tensor) or not isinstance(mask, torch.Tensor):
        return None
    batch, tokens = ids.shape
    total = mask.shape[1]
    filled: list[int] = mask[row].nonzero().view(-1).tolist()
    seen = tuple((column, position) for position, column in enumerate(filled))
    first = total - tokens
    column_of = {position: column - first for column, position in seen if column >= first}
    return PassLocation(batch, row, tokens, total, column_of, seen)


KEPT_BYTES = 2 << 30
"""Whole rows that are kept of a run, in all."""

Call = Callable[..., Any]
SiteKey = tuple[str, int, str]


class SiteRows:
    """Sees every site of a sequence, pass by pass.

    Args:
        taps: Know where the sites are.
        stop: Positions from here on are none of the sequence's.
        keep_from: Keep rows from this position on; None: none.
        patch: Rows that replace differing ones.
    """

    def __init__(self, taps: Taps, stop: int, keep_from: int | None, patch: KeptRows | None) -> None:
        self._taps, self._stop, self._keep_from, self._patch = taps, stop, keep_from, patch
        self._keys: list[SiteKey] = [(site.name, site.occurrence, site.part) for site in taps.sites]
        self._dtypes = [site.dtype for site in taps.sites]
        self._rows: dict[SiteKey, dict[int, bytes]] = {}
        self._bytes = 0
        self._full_from = stop
        self._location: PassLocation | None = None
        self._runs: dict[int, int] = {}
        self.patched: set[SitePosition] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The sites are seen inside this context."""
        if self._keep_from is None and self._patch is None:
            yield
            return
        inputs, outputs = self._taps.observed()
        replacements = {
            module: self._replacement(inputs.get(module), outputs.get(module, {}))
            for module in {**inputs, **outputs}
        }
        with replace_calls(replacements):
            yield

    def begin(self, location: PassLocation | None) -> None:
        """A pass begins."""
        self._location = location
        self._runs.clear()

    def kept(self) -> KeptRows | None:
        """What was kept, up to the first position that there was no room for."""
        if self._keep_from is None:
            return None
        dtypes = dict(zip(self._keys, self._dtypes, strict=True))
        return KeptRows(self._rows, dtypes, self._keep_from, self._full_from)

    def _replacement(
        self, of_input: list[int] | None, of_output: dict[Output, list[int]]
    ) -> Callable[[Call], Call]:
        def of(call: Call) -> Call:
            def seen(*args: Any, **kwargs: Any) -> Any:
                if of_input is not None and args and isinstance(args[0], torch.Tensor):
                    args = (self._see_unrecorded(of_input, args[0]), *args[1:])
                output = call(*args, **kwargs)
                for which, tensor in tensors_of(output):
                    if which in of_output:
                        changed = self._see_unrecorded(of_output[which], tensor)
                        if changed is not tensor:
                            output = _with(output, which, changed)
                return output

            return seen

        return of

    def _see_unrecorded(self, indices: list[int], tensor: torch.Tensor) -> torch.Tensor:
        with _disable_current_modes():  # what is done here is none of the model's ops
            return self._see(indices, tensor)

    def _see(self, indices: list[int], tensor: torch.Tensor) -> torch.Tensor:
        """One tensor of a site: kept, and given back as the model goes on with it."""
        location = self._location
        run = self._runs[id(indices)] = self._runs.get(id(indices), -1) + 1
        if location is None or run >= len(indices) or indices[run] == UNOBSERVED:
            return tensor
        site = indices[run]
        shape = self._taps.rows[site]
        rows_BTW = shape.of(tensor, location.batch, location.tokens)
        if rows_BTW is None:
            return tensor
        row = location.row if rows_BTW.shape[0] > 1 else 0
        replaced: dict[int, bytes] = {}
        for position, column in location.column_of.items():
            bits = self._see_row(site, position, rows_BTW[row, column])
            if bits is not None:
                replaced[column] = bits
        if not replaced:
            return tensor
        # The same strides as before: they choose kernels. A copy: others may see this memory too.
        changed = tensor.clone(memory_format=torch.preserve_format)
        flat = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
        indices_BTW = shape.of(flat, location.batch, location.tokens)
        assert indices_BTW is not None
        for column, bits in replaced.items():
            values = torch.frombuffer(bytearray(bits), dtype=tensor.dtype).to(tensor.device)
            changed[torch.unravel_index(indices_BTW[row, column], tensor.shape)] = values
        return changed

    def _see_row(self, site: int, position: int, row_W: torch.Tensor) -> bytes | None:
        """Keep a row where it is wanted; returns the bits that replace it, or None."""
        keeps = self._keep_from is not None and self._keep_from <= position < self._full_from
        patches = self._patch is not None and self._patch.first <= position < self._patch.stop
        if position >= self._stop or not (keeps or patches):
            return None
        own = raw_bits(row_W)
        if keeps:
            self._keep(site, position, own)
        other = self._other(site, position) if patches else None
        if other is None or len(other) != len(own) or other == own:
            return None
        self.patched.add((position, site))
        return other

    def _keep(self, site: int, position: int, bits: bytes) -> None:
        self._bytes += len(bits)
        if self._bytes > KEPT_BYTES:
            # A position of which only some sites are kept looks like one that agrees.
            self._full_from = min(self._full_from, position)
            return
        self._rows.setdefault(self._keys[site], {})[position] = bits

    def _other(self, site: int, position: int) -> bytes | None:
        assert self._patch is not None
        key = self._keys[site]
        if self._patch.dtypes.get(key) != self._dtypes[site]:
            return None
        return self._patch.rows.get(key, {}).get(position)


def _with(output: Any, which: Output, tensor: torch.Tensor) -> Any:
    """A module's output with one of its tensors replaced."""
    if isinstance(output, torch.Tensor):
        return tensor
    if isinstance(which, str):
        output[which] = tensor  # a mapping, such as transformers' ModelOutput
        return output
    items = [tensor if index == which else item for index, item in enumerate(output)]
    return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
