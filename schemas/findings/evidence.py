"""All kinds of evidence that a cause can rest on, distinguished by `kind`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .execution import (
    DtypeDiffers,
    ExecutionDiffers,
    FieldChanged,
    NoSeed,
    PassDiffers,
    SamplingDiffers,
    SettingDiffers,
    SeveralDiffer,
    ShapeDiffers,
    TensorOfModule,
    TensorsChanged,
    VariableChanged,
)
from .rows import (
    CacheBoundary,
    CachedTokensRead,
    ChannelsDiffering,
    ConstantDifference,
    DriftGrows,
    DriftSize,
    EqualSequences,
    ExpertsAtFault,
    FirstDifferenceAt,
    LogitsDiffering,
    NotFinite,
    OriginsAbsorbed,
    OtherRows,
    OtherSequences,
    PrefillEqual,
    ReferenceDistance,
    RepeatsDiffer,
    RoutingDiffers,
    RowLikeness,
    RowRelation,
    RowsBySize,
    RowsShifted,
    StaleRow,
    TokenRow,
)
from .statement import Sentence, Statement
from .tokens import (
    CandidateOrder,
    CandidatesFiltered,
    DrawStream,
    LogprobDrift,
    Margins,
    ProcessedLogits,
    PromptsDiffer,
    SameLogits,
    SequenceEnded,
)


class Conclusion(Statement):
    """What follows from the evidence before it, or has to be known with it; it has no numbers."""

    kind: Literal["conclusion"] = "conclusion"
    what: Literal[
        "within one side's own scatter",
        "follows from the routing",
        "angles of the positions",
        "module or not repeatable",
        "cache entries",
        "decode kernel",
        "decode kernel or weights",
        "greedy decoding",
        "sampled tokens",
        "configuration without weights",
        "mask of the padding",
        "not of rounding",
        "padding attended to",
        "padding in the rows",
        "equal logits of two candidates",
        "separate random numbers",
        "comparison without draws",
    ]


Evidence = Annotated[
    Sentence
    | Conclusion
    | SettingDiffers
    | SamplingDiffers
    | ShapeDiffers
    | DtypeDiffers
    | ExecutionDiffers
    | PassDiffers
    | SeveralDiffer
    | FieldChanged
    | VariableChanged
    | TensorsChanged
    | TensorOfModule
    | FirstDifferenceAt
    | DriftSize
    | DriftGrows
    | OriginsAbsorbed
    | RowRelation
    | StaleRow
    | RowLikeness
    | ConstantDifference
    | ChannelsDiffering
    | ExpertsAtFault
    | LogitsDiffering
    | TokenRow
    | OtherRows
    | RowsBySize
    | OtherSequences
    | EqualSequences
    | RepeatsDiffer
    | RoutingDiffers
    | RowsShifted
    | CachedTokensRead
    | CacheBoundary
    | NotFinite
    | PrefillEqual
    | NoSeed
    | Margins
    | SequenceEnded
    | SameLogits
    | DrawStream
    | ProcessedLogits
    | CandidateOrder
    | CandidatesFiltered
    | LogprobDrift
    | PromptsDiffer
    | ReferenceDistance,
    Field(discriminator="kind"),
]
