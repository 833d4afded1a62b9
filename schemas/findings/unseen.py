"""What a comparison could not see, as data: earlier rows, missing evidence of causes, limits of the whole."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..base import Record
from .rows import EqualSequences
from .statement import Sentence, SequenceName, Statement


class RowsUnseen(Statement):
    """Rows before the first difference that were not there to compare."""

    kind: Literal["no sites", "by sketch", "not in both", "not computed", "filtered"]
    """`no sites`: only logits were compared. `by sketch`: sites without comparable hashes. `not in both`:
    earlier sites of one trace only. `not computed`: of a cached prefix. `filtered`: a trace observed
    some sites only."""
    count: int | None = None
    """Of `by sketch`: sites. Of `not computed`: rows."""
    position: int | None = None
    """Of `not computed`: the first of them."""
    site: str | None = None
    """Likewise."""
    trace: str | None = None
    """Of `filtered`: the trace's file name."""
    pattern: str | None = None
    """Likewise: what names of sites had to match."""


EarlierRows = Annotated[RowsUnseen | Sentence, Field(discriminator="kind")]
"""Which earlier rows were not there to compare."""


class NoEvidence(Statement):
    """Evidence that was not there and would have helped."""

    kind: Literal[
        "no differing row",
        "not an origin",
        "forward passes",
        "cached tokens",
        "fingerprint",
        "logits hash",
        "draws",
        "finish reasons",
        "repeats",
        "reference",
    ]
    """`no differing row`: neither a site nor a logits hash. `forward passes`: which sequences shared one.
    `fingerprint`: one of the traces has none. `repeats`: of A's lane, for the reference."""
    of: Literal["weights", "tokenizer and template"] | None = None
    """Of `fingerprint`: what it would have shown."""
    unseen: list[EarlierRows] = []
    """Of `not an origin`."""


Missing = Annotated[NoEvidence | Sentence, Field(discriminator="kind")]
"""Evidence that was not there and would have helped."""


class Note(Statement):
    """What a trace says of itself, in recorded words."""

    kind: Literal["note"] = "note"
    trace: str
    """File name."""
    note: str


class UnfinishedRun(Statement):
    """A trace holds what an interrupted run had flushed, so its sequences may end early."""

    kind: Literal["unfinished run"] = "unfinished run"
    trace: str
    """Path of the folder."""


class PartIgnored(Statement):
    """A file of an unfinished run that cannot be read."""

    kind: Literal["part ignored"] = "part ignored"
    error: str
    """Its message, which names the file."""


class RowsIgnored(Statement):
    """Rows of a sequence behind a gap."""

    kind: Literal["rows ignored"] = "rows ignored"
    trace: str
    """File name."""
    sequence: SequenceName
    """`position`: the first without a row."""
    last_missing: int
    """The last of these positions."""


class SequencesLeftOut(Statement):
    """Sequences that are not compared."""

    kind: Literal["only in one trace", "text forced"]
    """`text forced`: one trace has text only, and the text in `trace` was forced."""
    trace: str
    """File name."""
    count: int
    first: list[SequenceName] = []
    """The first few of them."""


class SiteGroup(Record):
    """Sites that differ in the number of their layer only."""

    pattern: str
    """Their label with that number taken out: `layers.*.mlp.gate_up_proj`."""
    count: int


class SitesLeftOut(Statement):
    """Sites that are not compared."""

    kind: Literal["sharded sites", "different width", "sites only in one trace"]
    """`sharded sites`: they are compared under equal tensor parallelism only."""
    groups: list[SiteGroup]
    trace: str | None = None
    """Of `sites only in one trace`: its file name."""
    tensor_parallel_a: int | None = None
    """Of `sharded sites`: the tensor parallel size; absent: not known."""
    tensor_parallel_b: int | None = None


class AfterDivergence(Statement):
    """Positions that cannot be compared because the tokens before them differ."""

    kind: Literal["after divergence"] = "after divergence"
    positions: int
    of: int
    sequences: int
    can_force: bool
    """One of the engines can be forced to the other side's tokens."""


class TextOnly(Statement):
    """Sequences compared as text, because a trace holds no token ids of them."""

    kind: Literal["text only"] = "text only"
    sequences: int
    traces: list[str]


class HashesMissing(Statement):
    """Row hashes that are not in both traces."""

    kind: Literal["hashes missing"] = "hashes missing"
    count: int


class NotRecorded(Statement):
    """Something that is in none or only one of the traces."""

    kind: Literal["not recorded"] = "not recorded"
    what: Literal["sites", "logits hash", "common candidates", "fingerprint"]
    trace: str | None = None
    """File name, where one trace lacks it."""


class SummariesDiffer(Statement):
    """The two traces summarise rows in different ways."""

    kind: Literal["summaries differ"] = "summaries differ"
    what: Literal["row hashes", "sketches"]
    """Without equal row hashes rows are compared by sketch only; without equal sketches no drift is known."""


class LogprobKinds(Statement):
    """The two sides' log-probabilities are of different kinds, or of a kind that is not known."""

    kind: Literal["logprob kinds"] = "logprob kinds"
    a: Literal["raw", "processed", "unknown"]
    b: Literal["raw", "processed", "unknown"]


class ObserverChanged(Statement):
    """Observing a run changed its result."""

    kind: Literal["observer changed"] = "observer changed"
    trace: str
    why: str | None = None


Unread = UnfinishedRun | PartIgnored
"""What of a trace could not be read."""

NotSeen = Annotated[
    Sentence
    | Note
    | UnfinishedRun
    | PartIgnored
    | RowsIgnored
    | SequencesLeftOut
    | SitesLeftOut
    | AfterDivergence
    | TextOnly
    | HashesMissing
    | NotRecorded
    | SummariesDiffer
    | LogprobKinds
    | ObserverChanged
    | EqualSequences,
    Field(discriminator="kind"),
]
"""What limits a whole comparison."""
