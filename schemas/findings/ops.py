"""What re-runs of both sides showed: of ops, of a transplant (activation patching), of the runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .statement import Location, Sentence, Statement


class OpDiffers(Statement):
    """One op gives a different output for equal inputs."""

    kind: Literal["op differs"] = "op differs"
    op: str
    module: str
    """Empty: the model itself."""
    arguments_a: str = ""
    """Arguments that are no tensors; empty: none."""
    arguments_b: str = ""
    not_compared: list[str] = []
    """Inputs that could not be compared."""


class OpsDiffer(Statement):
    """Different ops run, with equal inputs, and give a different output."""

    kind: Literal["ops differ"] = "ops differ"
    module: str
    a: list[str]
    """Names of the ops that run in A, each once; empty: only B runs any."""
    b: list[str]
    before: str | None = None
    """The op behind them that both sides run, where only one side runs any."""


class WeightDiffers(Statement):
    """A parameter differs, so the op that reads it is not at fault."""

    kind: Literal["weight differs"] = "weight differs"
    tensor: str
    dtype_a: str
    dtype_b: str
    op: str
    module: str


class InputDiffers(Statement):
    """An input of an op differs, and no recorded op made it."""

    kind: Literal["input differs"] = "input differs"
    tensor: str
    op: str
    module: str
    made_by: Literal["different module", "before this pass"]
    """`before this pass`: a KV cache, positions, a mask."""


class NoOpDiffers(Statement):
    """No op is known to differ."""

    kind: Literal["no op differs"] = "no op differs"
    matched: int
    """Ops that both sides run."""
    one_side: int = 0
    """Ops that one side runs."""
    not_comparable: int = 0
    """Ops whose tensors could not be compared."""


class RunsEqual(Statement):
    """The whole runs are equal, rows and logits."""

    kind: Literal["runs equal"] = "runs equal"


OpsShow = Annotated[
    OpDiffers | OpsDiffer | WeightDiffers | InputDiffers | NoOpDiffers | RunsEqual | Sentence,
    Field(discriminator="kind"),
]
"""What the ops show."""


class NotTransplanted(Statement):
    """Why a transplant did not run, or proves nothing."""

    kind: Literal["dtypes differ", "runs equal", "no rows kept", "no logits"]
    """`dtypes differ`: no row of A fits into B. `no logits`: none were computed from there on."""


class StillDiffers(Statement):
    """A row that differs though A's rows were put in, and into which A's row does not fit."""

    kind: Literal["still differs"] = "still differs"
    at: Location


NotProven = Annotated[NotTransplanted | StillDiffers | Sentence, Field(discriminator="kind")]
"""Why a transplant proves nothing."""


class SitesRetyped(Statement):
    """Sites whose dtype is another one in B, so that their hashes always differ."""

    kind: Literal["dtypes differ"] = "dtypes differ"
    sites: int
    first: str
    """Label of the first of them."""


class NotReproduced(Statement):
    """The re-runs are equal, though the traces differ."""

    kind: Literal["not reproduced"] = "not reproduced"


class FoundElsewhere(Statement):
    """The re-runs differ first at another place than the traces."""

    kind: Literal["found elsewhere"] = "found elsewhere"
    recorded: Location
    found: Location
    """Without a site: the logits."""
    is_origin: bool
    """False: the place in the traces is only the first that was observed; the re-runs observe every site."""


class ModelFilesChanged(Statement):
    """The model's files are not those that a trace was recorded with."""

    kind: Literal["model files changed"] = "model files changed"
    model: str
    trace: str
    """File name."""


ZoomNote = Annotated[
    SitesRetyped | NotReproduced | FoundElsewhere | ModelFilesChanged | Sentence, Field(discriminator="kind")
]
"""What a reader has to know of the re-runs."""
