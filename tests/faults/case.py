"""What a case of the fault corpus is: two sides, what is planted into the second, what must be said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from fakes.models import VOCAB
from rip.replay.engines.hf.engine import HfEngine

NEW_TOKENS = 10
LENGTHS = (21, 35, 14)
"""Tokens of the three prompts."""
TOPK = VOCAB
"""Every candidate, so that a draw can be taken again from what a trace holds."""

Plant = Callable[[HfEngine, ExitStack], None]
"""Puts a fault into an opened engine; what it changes outside the engine it undoes through the stack."""
Rewrite = Callable[[pa.Table], pa.Table]
"""Changes columns of a finished trace, for what the engine cannot do itself."""


def prompt(seed: int, length: int) -> tuple[int, ...]:
    """Random token ids above the special ones."""
    rng = np.random.default_rng(seed)
    return tuple(int(token) for token in rng.integers(6, VOCAB, length))


PROMPTS = tuple(prompt(seed, length) for seed, length in enumerate(LENGTHS))


@dataclass(frozen=True)
class Side:
    """How one of the two runs is made.

    Attributes:
        plant: The fault; None: there is none.
        settings: Of the engine.
        sampling: Fields of every envelope.
        prompts: One request each.
        envelope: Further fields of every envelope; `prompt_token_ids` is left out where it says None.
        options: Of the replay.
        golden: Force the tokens of the case's A side, or of a free run where that forces tokens itself.
        rewrite: Applied to the finished trace.
        model_changes: Tensor name → change: the checkpoint on disk differs, and its fingerprint says so.
        template: Changes the chat template on disk, likewise.
    """

    plant: Plant | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    prompts: Sequence[Sequence[int]] = PROMPTS
    envelope: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    golden: bool = False
    rewrite: Rewrite | None = None
    model_changes: Mapping[str, Callable[[torch.Tensor], None]] = field(default_factory=dict)
    template: Callable[[str], str] | None = None


@dataclass(frozen=True)
class Named:
    """What zoom must name, op by op.

    Attributes:
        kind: `op`: the finding lists one of `names` among the ops of one side, alone or in a block of others.
            `weight`, `outside`: the tensor that the finding names is one of them.
        names: ATen ops or tensors.
        module: Where these ops run; None: in the module of the case's site.
        origins: Labels of further sites that the same fault moves by itself, each behind equal inputs; the
            output head is `logits`.
    """

    kind: Literal["op", "weight", "outside"]
    names: tuple[str, ...]
    module: str | None = None
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One planted fault and what must be said about it.

    Attributes:
        kind: What was planted.
        where: Where, in words.
        model: Family of `fakes.models`, or `smollm2`.
        a: The side without the fault.
        b: The side with it.
        causes: Ids of which one must be ranked first; empty: nothing may be found at all.
        site: Label of the site where it must begin; None: no site, or not told beforehand.
        position: Where it must begin; None: as a plain loop over the columns finds it.
        step: The same as an index among generated tokens.
        named: What zoom must name; None: the fault has no op of its own, or zoom is not run.
    """

    kind: str
    where: str
    model: str
    a: Side
    b: Side
    causes: tuple[str, ...]
    site: str | None = None
    position: int | None = None
    step: int | None = None
    named: Named | None = None

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.model}-{self.where}".replace(" ", "-")
