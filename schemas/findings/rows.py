"""Evidence in the rows around a first difference, of the same and of other sequences."""

from __future__ import annotations

from typing import Literal

from ..base import Real, Record
from ..reference import Reference, ReferenceSite
from .statement import SequenceName, Side, Statement


class FirstDifferenceAt(Statement):
    """Where the first differing row is."""

    kind: Literal["first-difference-at"] = "first-difference-at"
    role: Literal["here", "origin", "begins", "earlier", "attention"] = "here"
    """`origin`: its inputs, shape and settings are equal. `earlier`: before what this cause explains."""
    site: str | None = None
    """Absent: the row was not observed."""
    position: int | None = None


class DriftSize(Statement):
    """How large the drift of a module is beside the rounding of its dtype, with equal inputs."""

    kind: Literal["drift-size"] = "drift-size"
    rel_drift: Real
    ulps: Real
    """The same in ULP of the dtype."""
    dtype: str
    reading: Literal["below resolution", "within rounding", "fewer bits", "beyond rounding", "other values"]
    site: str | None = None
    """Where it is not the first differing row's."""
    position: int | None = None


class DriftGrows(Statement):
    """A module whose drift is beyond rounding, and far above that of all that ran before it."""

    kind: Literal["drift-grows"] = "drift-grows"
    site: str
    position: int
    rel_drift: Real
    ulps: Real
    dtype: str
    before: Real
    """Median drift of the differing sites before it."""
    factor: Real
    """The one over the other."""


class OriginsAbsorbed(Statement):
    """Differences whose layer gives an equal output all the same."""

    kind: Literal["origins-absorbed"] = "origins-absorbed"
    count: int
    site: str | None = None
    """Where the first one begins that goes on; absent: none that was looked at does."""
    position: int | None = None


RowRelationKind = Literal["negative", "zeros", "scaled", "signs flipped", "signs flipped or reordered"]


class StaleRow(Statement):
    """B's row is one that B gave for an earlier position, while what it was given is not."""

    kind: Literal["stale-row"] = "stale-row"
    site: str
    position: int
    earlier: int
    """The position whose row it repeats."""


class RowRelation(Statement):
    """What B's first differing row is of A's."""

    kind: Literal["row-relation"] = "row-relation"
    relation: RowRelationKind
    factor: Real | None = None
    """Of `scaled`."""


class RowLikeness(Statement):
    """How B's first differing row compares with A's in length and direction."""

    kind: Literal["row-likeness"] = "row-likeness"
    norm_ratio: Real
    """B's norm over A's."""
    cosine: Real


class ConstantDifference(Statement):
    """B's rows less A's are one and the same vector."""

    kind: Literal["constant-difference"] = "constant-difference"
    positions: int


class ChannelsDiffering(Statement):
    """Only a few output channels differ."""

    kind: Literal["channels-differing"] = "channels-differing"
    lanes: list[int]
    """Of the sketch: channel i is in lane i modulo `modulus`."""
    modulus: int


class ExpertsAtFault(Statement):
    """Every differing row went through these experts, and no equal row did."""

    kind: Literal["experts-at-fault"] = "experts-at-fault"
    experts: list[int]


class MovedLogit(Record):
    """A candidate whose logit differs."""

    token: int
    token_text: str | None = None
    a: Real
    b: Real


class LogitsDiffering(Statement):
    """Which candidates' logits differ, where the output head is all that does."""

    kind: Literal["logits-differing"] = "logits-differing"
    common: int
    """Candidates that both sides list."""
    differing: int
    tokens: list[MovedLogit] = []
    """Those that differ; empty: too many for single rows of the head."""


class TokenRow(Statement):
    """The differing row is looked up by a token."""

    kind: Literal["token-row"] = "token-row"
    token: int
    later_positions: int = 0
    """Where the same token stands later."""


class OtherRows(Statement):
    """Rows of the same site at other positions of the sequence."""

    kind: Literal["other-rows"] = "other-rows"
    equal_before: int = 0
    """Earlier rows, all equal."""
    later_equal: int | None = None
    """Of later rows with equal inputs; absent: not counted."""
    later_differing: int | None = None


class RowsBySize(Statement):
    """Of the rows that differ with equal inputs, which are beyond rounding."""

    kind: Literal["rows-by-size"] = "rows-by-size"
    beyond: list[int]
    """Positions."""
    within: int
    """How many are within rounding."""


class OtherSequences(Statement):
    """Where the other compared sequences begin to differ."""

    kind: Literal["other-sequences"] = "other-sequences"
    same_position: list[SequenceName] = []
    """At the same site and position."""
    same_site: list[SequenceName] = []
    other_site: list[SequenceName] = []
    equal: list[SequenceName] = []
    """In which nothing differs."""


class EqualSequences(Statement):
    """Sequences with the same tokens on one side: whether their rows are equal at the first difference."""

    kind: Literal["equal-sequences"] = "equal-sequences"
    side: Side
    in_one_batch: bool
    """Else the same request was run several times."""
    sequence: SequenceName
    site: str
    position: int
    compared: int
    """Other sequences with the same tokens."""
    differing: list[SequenceName] = []
    """Those whose row differs from the sequence's."""


class RepeatsDiffer(Statement):
    """Requests that ran several times on one side, and gave different outputs."""

    kind: Literal["repeats-differ"] = "repeats-differ"
    side: Side
    passes: Literal["equal", "one pass", "not known"]
    """Whether the repeats ran in forward passes of equal shape, or as rows of one pass."""
    request_id: str
    """The first of them."""
    samples: int
    """How often that one ran, …"""
    unique: int
    """… and how many different outputs it gave."""
    requests: int
    """Requests whose repeats differ, …"""
    repeated: int
    """… of so many that ran several times."""


class RoutingDiffers(Statement):
    """A router chose different experts."""

    kind: Literal["routing-differs"] = "routing-differs"
    site: str
    position: int
    experts_a: list[int] | None = None
    """In the router's order; absent: not known."""
    experts_b: list[int] | None = None
    inputs_equal: bool
    """Its scores, and everything before, are equal."""
    differing: int | None = None
    """Positions at which the choice differs with equal inputs, …"""
    compared: int | None = None
    """… of so many."""

    @property
    def same_experts(self) -> bool:
        """Both sides chose the same experts, in a different order."""
        a, b = self.experts_a, self.experts_b
        return a is not None and b is not None and sorted(a) == sorted(b)


class RowsShifted(Statement):
    """B's rows of a table of positions are those that A has at other positions."""

    kind: Literal["rows-shifted"] = "rows-shifted"
    site: str
    position: int
    shift: int | None = None
    """B's position ids less A's; absent: it is no row that A has nearby."""
    padded: int | None = None
    """How many padded tokens more B's row has than A's: positions that count the padding are shifted by as
    many. Absent: as many."""


class CachedTokensRead(Statement):
    """An attention is far off, while what it computed itself is equal: what it read from a cache is not."""

    kind: Literal["cached-tokens-read"] = "cached-tokens-read"
    cached_tokens: int
    drift_before: Real | None = None
    """Largest drift of the sites before it, which is rounding; absent: they are equal."""
    decode_steps: int | None = None
    """Decode steps before it, all equal; absent: it is in the prompt."""


class CacheBoundary(Statement):
    """The first difference is where the cached tokens end."""

    kind: Literal["cache-boundary"] = "cache-boundary"
    cached_tokens: int
    block_sizes: list[int] = []
    """Sizes of cache blocks of which that is a whole number."""
    exactly: bool = False
    """The first difference is named by this position."""


class NotFinite(Statement):
    """NaN or infinity."""

    kind: Literal["not-finite"] = "not-finite"
    site: str | None = None
    """Absent: of the logits that chose the token at this position."""
    position: int
    side: Side | None = None
    """Absent: one of them."""
    norm: Real | None = None


class PrefillEqual(Statement):
    """A site differs from the first decode step on, and in no row of the prefill."""

    kind: Literal["prefill-equal"] = "prefill-equal"
    site: str
    rows: int


class ReferenceDistance(Statement):
    """One side is farther from the reference trace than its dtype explains."""

    kind: Literal["reference-distance"] = "reference-distance"
    farther: Side
    first: ReferenceSite
    """The first site at which it is."""
    single_rows: bool
    """Only single rows are."""
    separated: bool = False
    """Half of its rows there are farther than any row of the other side."""
    sites_farther: int
    sites: int
    dtype_a: str
    dtype_b: str
    expected_ratio: Real = 1.0
    output: ReferenceSite | None = None

    @classmethod
    def of(cls, found: Reference) -> ReferenceDistance | None:
        """What a reference shows; None: neither side is farther."""
        if found.first is None:
            return None
        return cls(
            farther="B" if found.verdict == "B is farther" else "A",
            first=found.first,
            single_rows=bool(found.single_rows),
            separated=found.separated,
            sites_farther=found.sites_farther,
            sites=found.sites,
            dtype_a=found.dtype_a,
            dtype_b=found.dtype_b,
            expected_ratio=found.expected_ratio,
            output=found.output,
        )
