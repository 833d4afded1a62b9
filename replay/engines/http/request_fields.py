"""How the API of a server names the sampling fields of an envelope, and which values it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....schemas.envelope import Sampling
from ...request.batches import PlannedSequence
from ...request.contract import ANSWERED_TEXT

COMMON_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
)
"""Fields of an envelope that nearly every server supports."""

EMPTY: Mapping[str, Any] = {
    "stop": [],
    "stop_token_ids": [],
    "logit_bias": {},
    "bad_words": [],
    "allowed_token_ids": [],
}
"""Values that are the same as leaving the field out."""


@dataclass(frozen=True)
class RequestFields:
    """The sampling fields of one API.

    Attributes:
        names: Fields that are sent, by the envelope's names.
        renamed: The API's names of those that it names differently.
        left_out: Values that are not sent, because leaving the field out means the same.
        seed: From a seed to the number that the API takes.
        special: Fields that it supports in a form of their own.
    """

    names: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    seed: Callable[[int], int] = int
    special: tuple[str, ...] = ()

    @property
    def unsupported(self) -> frozenset[str]:
        """Fields that it does not support. A worker's seed is out of a client's reach."""
        return frozenset(Sampling.model_fields) - {"n", "max_tokens", *self.names, *self.special}

    def applying(self, plan: PlannedSequence) -> dict[str, Any]:
        """Every value that applies to a sequence; a field that is left to the server is not among them."""
        return self._named(plan, [name for name in self.names if plan.value(name) is not None])

    def stated(self, plan: PlannedSequence) -> dict[str, Any]:
        """The values that the envelope states. To the others the server's defaults apply."""
        return self._named(plan, [name for name in self.names if plan.sampling[name].source == "envelope"])

    def _named(self, plan: PlannedSequence, names: list[str]) -> dict[str, Any]:
        values = {name: self.seed(plan.seed) if name == "seed" else plan.value(name) for name in names}
        return {
            self.renamed.get(name, name): value
            for name, value in values.items()
            if name not in self.left_out or value != self.left_out[name]
        }


def is_unlimited(plan: PlannedSequence) -> bool:
    """Whether the limit of tokens is left to the server, as it was when the answer was recorded."""
    return plan.sampling["max_tokens"].source == ANSWERED_TEXT
