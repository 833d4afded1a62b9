"""Golden decode inside vLLM: a logits processor that leaves a request only its recorded token at every step.

A request asks for it with `rip_force` in its extra_args (over HTTP: `vllm_xargs`): a list of token ids, or
the text "1,2,3". Token i of the answer is then the i-th of them; behind the list the request runs free. vLLM
takes the log-probabilities that it returns before logits processors act, so they stay the raw ones.

The class serves both of vLLM's model runners. vLLM loads it in every process where rip is installed, whether
or not anything is forced, and does not start where that fails: it imports nothing but vLLM's own interface.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Interface = object
else:
    try:  # the second runner takes subclasses of its interface only; the first takes any class
        from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as Interface
    except ImportError:
        Interface = object

ARGUMENT = "rip_force"

LOG = logging.getLogger("vllm.rip_force")


class ForcedTokens(Interface):
    """Both runners' logits processor.

    Args:
        vllm_config: vLLM's configuration.
        rest: (device, is_pin_memory) from the first runner; the request states from the second.
    """

    def __init__(self, vllm_config: Any, *rest: Any) -> None:
        self._states = rest[0] if len(rest) == 1 else None
        self._forced: dict[int, tuple[list[int], Sequence[int]]] = {}
        """Batch row (first runner) or slot (second) → forced ids, and the list of ids generated so far."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """ValueError where `rip_force` is not what it should be: vLLM answers 400."""
        forced_ids(sampling_params)

    # The first runner.

    def is_argmax_invariant(self) -> bool:
        """False: greedy requests are forced too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests through the batch."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._forced.pop(row, None)
        for row, sampling, _, generated in batch_update.added:
            forced = forced_ids(sampling)
            if forced:
                self._forced[row] = (forced, generated)
            else:
                self._forced.pop(row, None)
        for source, target, direction in batch_update.moved:
            moving, there = self._forced.pop(source, None), self._forced.pop(target, None)
            if moving is not None:
                self._forced[target] = moving
            if there is not None and direction.name == "SWAP":
                self._forced[source] = there

    # The second runner.

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request takes a slot."""
        self._forced.pop(req_idx, None)
        forced = forced_ids(sampling_params)
        if forced:
            self._forced[req_idx] = (forced, ())
        return bool(forced)

    def apply_staged_writes(self) -> None:
        """Nothing is kept on the device."""

    # Both.

    def apply(self, logits: torch.Tensor, context: Any = None) -> torch.Tensor:
        """Leave forced rows one token, in place.

        Args:
            logits: [rows, vocabulary], float32.
            context: The second runner's batch layout.
        """
        if not self._forced:
            return logits
        wanted = self._by_row() if context is None else self._by_slot(context)
        rows, ids = [], []
        for row, token in wanted:
            if token < logits.shape[-1]:
                rows.append(row)
                ids.append(token)
            else:
                LOG.warning("rip_force: %d is no token of this model; this step runs free", token)
        if rows:
            logits[rows] = float("-inf")
            # A fixed value, not the token's own logit: a processor before this one may have forbidden it.
            logits[rows, ids] = 0.0
        return logits

    def _by_row(self) -> list[tuple[int, int]]:
        return [
            (row, forced[len(generated)])
            for row, (forced, generated) in self._forced.items()
            if len(generated) < len(forced)
        ]

    def _by_slot(self, context: Any) -> list[tuple[int, int]]:
        if not any(int(slot) in self._forced for slot in context.idx_mapping_np):
            return []
        found = []
        slots, positions = context.expanded_idx_mapping.tolist(), context.pos.tolist()
        for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            forced = self._forced.get(slot, ((), ()))[0]
            # The row's token is the one behind `position`.
            step = position + 1 - int(self._states.prompt_len.np[slot]) if self._states is not None else 0
            if 0 <= step < len(forced):
                found.append((row, forced[step]))
        return found


def forced_ids(sampling_params: Any) -> list[int]:
    """The ids that a request is to be forced to; empty: none.

    Raises:
        ValueError: `rip_force` holds something else.
    """
    extra = getattr(sampling_params, "extra_args", None)
    argument = extra.get(ARGUMENT) if extra else None
    if argument is None:
        return []
    items = argument.split(",") if isinstance(argument, str) else argument
    try:
        ids = [int(item) for item in items]
        if all(number == item or isinstance(item, str) for number, item in zip(ids, items, strict=True)) and (
            not ids or min(ids) >= 0
        ):
            return ids
    except (TypeError, ValueError):
        pass
    raise ValueError(f'{ARGUMENT} must be a list of token ids, or text like "1,2,3"')
