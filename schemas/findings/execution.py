"""Evidence in how the rows were computed: settings, shapes of passes, the environment."""

from __future__ import annotations

from typing import Any, Literal

from .statement import Side, Statement


class SettingDiffers(Statement):
    """A setting of the lane."""

    kind: Literal["setting-differs"] = "setting-differs"
    name: str
    a: Any = None
    b: Any = None
    stated_in: Literal["A", "B", "both"] = "both"
    sent_together: bool = False
    """It says what was sent together, not what shared a forward pass: passes were not observed."""


class SamplingDiffers(Statement):
    """A sampling field of the request."""

    kind: Literal["sampling-differs"] = "sampling-differs"
    name: str
    a: Any = None
    b: Any = None
    source_a: str
    """The source of the value, as `Setting.source`."""
    source_b: str


class ShapeDiffers(Statement):
    """A number of the execution shape of the first differing row."""

    kind: Literal["shape-differs"] = "shape-differs"
    name: Literal["batch_size", "padded_tokens", "num_tokens", "cached_tokens"]
    a: int
    b: int


class DtypeDiffers(Statement):
    """Dtype of some of the observed rows."""

    kind: Literal["dtype-differs"] = "dtype-differs"
    a: str
    b: str


class ExecutionDiffers(Statement):
    """Engine, mode of the replay, or how it was observed to run (eager, graph, compiled)."""

    kind: Literal["execution-differs"] = "execution-differs"
    of: Literal["engine", "mode", "channel"]
    a: str
    b: str


class PassDiffers(Statement):
    """The first differing row ran in forward passes of different length."""

    kind: Literal["pass-differs"] = "pass-differs"
    how: Literal["prefill or decode", "prompt and answer in one pass"]
    a: int
    """Tokens of the pass."""
    b: int
    site: str | None = None
    position: int | None = None


class SeveralDiffer(Statement):
    """More than one circumstance differs, so none alone can be named."""

    kind: Literal["several-differ"] = "several-differ"
    names: list[str]


class FieldChanged(Statement):
    """A field of the fingerprint."""

    kind: Literal["field-changed"] = "field-changed"
    section: str
    field: str
    path: list[str] = []
    """Keys inside the field's value to the first part that differs."""
    before: str
    after: str
    others: int = 0
    """Further parts of the same record that differ."""


class VariableChanged(Statement):
    """An environment variable, with the fields that follow from it."""

    kind: Literal["variable-changed"] = "variable-changed"
    name: str
    before: str | None = None
    """Absent: not set."""
    after: str | None = None
    follows: list[FieldChanged] = []
    """Fields of the fingerprint that it decides, and that changed with it."""


class TensorsChanged(Statement):
    """Tensors of the checkpoint whose digests differ."""

    kind: Literal["tensors-changed"] = "tensors-changed"
    names: list[str]
    """The first of them."""
    count: int


class TensorOfModule(Statement):
    """A changed tensor belongs to the module where the difference begins, or where its drift grows."""

    kind: Literal["tensor-of-module"] = "tensor-of-module"
    tensor: str
    site: str
    position: int
    role: Literal["begins", "grows"] | None = None
    """Which of the two; absent: it begins there."""


class NoSeed(Statement):
    """An engine takes no seed."""

    kind: Literal["no-seed"] = "no-seed"
    side: Side
    engine: str
