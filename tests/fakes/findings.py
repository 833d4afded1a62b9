"""One finding of every kind, and a verdict that holds them all."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from rip.schemas.findings import evidence, experiments, reasons, unseen
from rip.schemas.findings.evidence import Conclusion, Evidence
from rip.schemas.findings.execution import (
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
from rip.schemas.findings.reasons import (
    DtypesDiffer,
    EngineOf,
    HashesCompared,
    Incomplete,
    Measured,
    Plain,
    Reason,
    TextsCompared,
    TokensForced,
    Tolerance,
    Unseeded,
)
from rip.schemas.findings.rows import (
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
    MovedLogit,
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
from rip.schemas.findings.statement import (
    Command,
    Location,
    Sentence,
    SequenceName,
    Statement,
    Undone,
)
from rip.schemas.findings.tokens import (
    CandidateOrder,
    CandidatesFiltered,
    DrawStream,
    LogprobDrift,
    Margins,
    ProcessedLogits,
    PromptsDiffer,
    SameLogits,
    SamplingFilter,
    SequenceEnded,
)
from rip.schemas.findings.unseen import (
    AfterDivergence,
    HashesMissing,
    LogprobKinds,
    NoEvidence,
    Note,
    NotRecorded,
    NotSeen,
    ObserverChanged,
    PartIgnored,
    RowsIgnored,
    RowsUnseen,
    SequencesLeftOut,
    SiteGroup,
    SitesLeftOut,
    SummariesDiffer,
    TextOnly,
    UnfinishedRun,
)
from rip.schemas.reference import NotJudged, ReferenceNote, ReferenceSite
from rip.schemas.sequences import AgreementNote
from rip.schemas.verdict import Cause, Fault, Interpretation, Subject, Verdict

SITE, AT = "layers.4.mlp.gate_proj", 70
_ONE = SequenceName(request_id="req-1", sample=1, position=70)
_REFERENCE = ReferenceSite(
    site=SITE, request_id="req-1", sample=0, position=3, ratio=11.5, low=10.0, high=13.0, rows=64
)

EVIDENCE: list[Evidence] = [
    Sentence(text="an old sentence"),
    Conclusion(what="cache entries"),
    SettingDiffers(name="threads", a=1, b=2),
    SettingDiffers(name="block-size", b=16, stated_in="B", sent_together=True),
    SamplingDiffers(name="top_p", a=1.0, b=0.9, source_a="envelope", source_b="engine default"),
    ShapeDiffers(name="batch_size", a=1, b=8),
    DtypeDiffers(a="bfloat16", b="float32"),
    ExecutionDiffers(of="channel", a="eager", b="graph"),
    PassDiffers(how="prefill or decode", a=1, b=20, site=SITE, position=AT),
    PassDiffers(how="prompt and answer in one pass", a=7, b=20, site=SITE, position=AT),
    SeveralDiffer(names=["threads", "batch_size"]),
    FieldChanged(section="libraries", field="loaded", path=["libm"], before="1f", after="2e", others=2),
    TensorsChanged(names=["x"], count=3),
    TensorOfModule(tensor=f"model.{SITE}.weight", site=SITE, position=AT),
    TensorOfModule(tensor=f"model.{SITE}.weight", site=SITE, position=AT, role="grows"),
    VariableChanged(
        name="OMP_NUM_THREADS",
        after="1",
        follows=[FieldChanged(section="cpu", field="torch_threads", before="4", after="1")],
    ),
    NoSeed(side="A", engine="ollama"),
    FirstDifferenceAt(role="origin", site=SITE, position=AT),
    FirstDifferenceAt(),
    DriftSize(rel_drift=0.0021, ulps=0.27, dtype="bfloat16", reading="within rounding"),
    DriftSize(rel_drift=2.5, ulps=320.0, dtype="bfloat16", reading="beyond rounding", site=SITE, position=AT),
    DriftSize(rel_drift=0.0, ulps=0.0, dtype="bfloat16", reading="below resolution"),
    DriftGrows(
        site=SITE, position=AT, rel_drift=0.5, ulps=64.0, dtype="bfloat16", before=0.0003, factor=1563.0
    ),
    OriginsAbsorbed(count=12, site=SITE, position=AT),
    OriginsAbsorbed(count=1),
    StaleRow(site=SITE, position=AT, earlier=3),
    RowRelation(relation="scaled", factor=0.5),
    RowLikeness(norm_ratio=1.5, cosine=0.1),
    ConstantDifference(positions=9),
    ChannelsDiffering(lanes=[3], modulus=16),
    ChannelsDiffering(lanes=[3, 5], modulus=16),
    ExpertsAtFault(experts=[2]),
    LogitsDiffering(common=5, differing=1, tokens=[MovedLogit(token=260, token_text=" the", a=5.0, b=4.5)]),
    LogitsDiffering(common=5, differing=5),
    TokenRow(token=260, later_positions=2),
    OtherRows(equal_before=4, later_equal=2, later_differing=1),
    RowsBySize(beyond=[4, 5, 9], within=6),
    OtherSequences(same_position=[_ONE], same_site=[_ONE], other_site=[_ONE], equal=[_ONE]),
    EqualSequences(
        side="B", in_one_batch=True, sequence=_ONE, site=SITE, position=AT, compared=3, differing=[_ONE]
    ),
    RepeatsDiffer(side="A", passes="equal", request_id="r0", samples=5, unique=3, requests=2, repeated=4),
    RoutingDiffers(
        site="layers.0.mlp.gate:2",
        position=2,
        experts_a=[3, 1],
        experts_b=[3, 2],
        inputs_equal=True,
        differing=1,
        compared=6,
    ),
    RoutingDiffers(site="layers.0.mlp.gate:2", position=2, inputs_equal=False),
    RowsShifted(site="rotary_emb", position=1, shift=-2),
    RowsShifted(site="rotary_emb", position=1),
    RowsShifted(site="rotary_emb", position=1, shift=7, padded=7),
    RowsShifted(site="rotary_emb", position=1, padded=7),
    CachedTokensRead(cached_tokens=64, drift_before=0.001, decode_steps=0),
    CacheBoundary(cached_tokens=64, block_sizes=[64, 32, 16], exactly=True),
    NotFinite(site=SITE, position=AT, side="B", norm=float("nan")),
    NotFinite(position=101),
    PrefillEqual(site=SITE, rows=64),
    ReferenceDistance(
        farther="B",
        first=_REFERENCE,
        single_rows=False,
        separated=True,
        sites_farther=21,
        sites=47,
        dtype_a="bfloat16",
        dtype_b="bfloat16",
        output=_REFERENCE,
    ),
    Margins(a=0.02, b=0.03, drift=0.05, of="logits", enough=True),
    SequenceEnded(
        side="B",
        position=101,
        step=31,
        reason="stop",
        rule="stop",
        rule_value="\n",
        limit=64,
        same_limit=True,
        other_reason="length",
    ),
    SameLogits(),
    SameLogits(step=3, token_a=1, token_b=2, draw_a=0.25, draw_b=0.5),
    DrawStream(relation="shifted", ahead=2),
    DrawStream(relation="shared by sequences", side="A", starts=[0, 10, 20]),
    ProcessedLogits(token_a=1, logit_a=5.0, token_b=2, logit_b=4.0, temperature_a=1.0, temperature_b=0.6),
    ProcessedLogits(
        token_a=1, logit_a=5.0, token_b=2, logit_b=4.0, changed_by="A", raw=6.0, not_applied="logit_bias"
    ),
    CandidateOrder(side="B", tested=10, other_by_id=True),
    CandidatesFiltered(
        side="B",
        filters=[
            SamplingFilter(name="top_k", low=3.0, high=5.0),
            SamplingFilter(name="top_p", low=0.5, high=0.5),
        ],
    ),
    LogprobDrift(largest=0.03),
    PromptsDiffer(how="tokens", position=2, tokens_a=[7], tokens_b=[70]),
    PromptsDiffer(how="same text", position=1, length_a=3, length_b=2, tokens_a=[6, 8], tokens_b=[8]),
    PromptsDiffer(
        how="inserted",
        position=3,
        side="B",
        count=1,
        length_a=5,
        length_b=6,
        tokens_b=[99],
        inserted_text=" ",
    ),
    PromptsDiffer(
        how="last tokens missing", position=3, side="B", count=2, length_a=5, length_b=3, tokens_a=[8, 9]
    ),
]
EARLIER = [RowsUnseen(kind="not computed", count=12, position=0, site=SITE), Sentence(text="old")]
MISSING = [
    *(
        NoEvidence(kind=kind, unseen=EARLIER if kind == "not an origin" else [])
        for kind in get_args(NoEvidence.model_fields["kind"].annotation)
    ),
    Sentence(text="an fp32 reference"),
]
NOT_SEEN: list[NotSeen] = [
    Sentence(text="old"),
    Note(note="a note of a trace", trace="a.parquet"),
    UnfinishedRun(trace="out/a.parquet.parts"),
    PartIgnored(error="part-2.parquet is empty"),
    RowsIgnored(
        trace="a.parquet", sequence=SequenceName(request_id="req-1", cell="c", position=4), last_missing=6
    ),
    *(
        SequencesLeftOut(kind=kind, trace="a.parquet", count=5, first=[SequenceName(request_id="req-1")])
        for kind in get_args(SequencesLeftOut.model_fields["kind"].annotation)
    ),
    *(
        SitesLeftOut(
            kind=kind,
            groups=[SiteGroup(pattern="layers.*.mlp", count=2), SiteGroup(pattern="norm", count=1)],
            trace="a.parquet",
            tensor_parallel_a=2,
        )
        for kind in get_args(SitesLeftOut.model_fields["kind"].annotation)
    ),
    *(SummariesDiffer(what=what) for what in ("row hashes", "sketches")),
    AfterDivergence(positions=12, of=40, sequences=1, can_force=True),
    TextOnly(sequences=2, traces=["b.parquet"]),
    HashesMissing(count=5),
    *(
        NotRecorded(what=what, trace="a.parquet")
        for what in get_args(NotRecorded.model_fields["what"].annotation)
    ),
    LogprobKinds(a="raw", b="processed"),
    ObserverChanged(trace="b.parquet", why="its tokens differ"),
]
REASONS: list[Reason] = [
    Sentence(text="old"),
    *(Plain(kind=kind) for kind in get_args(Plain.model_fields["kind"].annotation)),
    HashesCompared(rows=100, rows_differing=7, logits=20, logits_differing=3, sites_by_sketch=2),
    DtypesDiffer(sites=3),
    Measured(
        of="logit",
        largest=0.61,
        at=Location(request_id="req-1", position=101),
        compared=30,
        comparable=100,
    ),
    Tolerance(value=0.05),
    Incomplete(side="B", positions=30),
    Unseeded(engines=[EngineOf(side="B", engine="openai")]),
    *(TextsCompared(texts=3, differing=1, about=about) for about in ("numbers", "tokens", "texts")),  # type: ignore[arg-type]
    TokensForced(forced=8, generated=10, unknown=2, choices_differ=False),
]
COMMANDS = [
    Command(
        purpose="rerun",
        argv=["rip", "replay", "b.parquet", "--set", "batch_size=1", "-o", "try.parquet"],
        then=["rip", "diverge", "a.parquet", "try.parquet"],
        output="try.parquet",
        hidden=["env.HF_TOKEN"],
    ),
    Command(
        purpose="rerun program",
        then=["rip", "diverge", "a.parquet", "again.parquet"],
        settings={"threads": "1"},
        output="again.parquet",
    ),
    Command(purpose="show", argv=["rip", "query", "out dir", "SELECT * FROM changes"]),
    Command(purpose="not known", text="rip query out 'SELECT 1'"),
]
LOCATIONS = [
    Location(request_id="req-1", sample=1, cell="c", position=7, step=3, site=SITE),
    Location(text="req-1, position 101"),
]
OTHERS: list[Statement] = [
    *(
        NotJudged(kind=kind, requests_a=["r0"], coarser_than={"A": "bfloat16"}, dtype="bfloat16", needed=9)
        for kind in get_args(NotJudged.model_fields["kind"].annotation)
    ),
    *(
        ReferenceNote(kind=kind, rows=4, covered=8, dtypes=["int8"], repeats=2, equal=1, largest=0.02)
        for kind in get_args(ReferenceNote.model_fields["kind"].annotation)
    ),
    *(
        AgreementNote(kind=kind, trace="a.parquet", requests=2)
        for kind in get_args(AgreementNote.model_fields["kind"].annotation)
    ),
]


def kinds_of(union: object) -> set[type[Statement]]:
    """The classes of a discriminated union."""
    return set(get_args(get_args(union)[0]))


_UNDONE = [
    Undone(of="setting", name="batch_size", value=1, was=8),
    Undone(of="variable", name="ATEN_CPU_CAPABILITY", was="avx2"),
    Undone(of="sampling", name="stop", value=["END"], was=[]),
    Undone(of="model", name="model", value="old"),
    Undone(of="requests", name="requests", value="a.parquet"),
]
EXPERIMENTS: list[experiments.ExperimentFinding] = [
    *(
        experiments.RunCompared(
            run=run, against="A", equal=equal, by=by, compared=9, undoes=_UNDONE, where=where, gone_at=where
        )
        for run in get_args(experiments.Run)
        for by in get_args(experiments.By)
        for equal, where in ((True, None), (False, None), (False, Location(request_id="r", position=AT)))
    ),
    experiments.RepeatsCompared(repeats=8, requests=2, differing=1),
    experiments.RepeatsCompared(repeats=8, requests=2, differing=0),
    *(experiments.NotAsAsked(undone=one, found="x") for one in _UNDONE),
    experiments.LargestDrift(largest=0.2, there=0.25),
    experiments.BeyondRounding(drift=0.58),
    *(experiments.RunFailed(run=run, message="out of memory") for run in get_args(experiments.Run)),
    *(
        experiments.Limit(what=what, names=["weights", "tokenizer"])
        for what in get_args(experiments.Limit.model_fields["what"].annotation)
    ),
]

KINDS = {
    *kinds_of(evidence.Evidence),
    *kinds_of(unseen.EarlierRows),
    *kinds_of(unseen.Missing),
    *kinds_of(unseen.NotSeen),
    *kinds_of(reasons.Reason),
    *kinds_of(experiments.ExperimentFinding),
    Location,
    Command,
    NotJudged,
    ReferenceNote,
    AgreementNote,
}
"""Every kind of finding."""
EXAMPLES: list[Statement] = [
    *EVIDENCE,
    *EARLIER,
    *MISSING,
    *NOT_SEEN,
    *REASONS,
    *COMMANDS,
    *LOCATIONS,
    *OTHERS,
    *EXPERIMENTS,
]


def everything(golden: Path) -> Verdict:
    """A verdict with every kind of finding.

    Args:
        golden: A verdict of version 1, for all that has no kinds.
    """
    verdict = Verdict.from_json(golden.read_bytes(), golden.name)
    subject = Subject(site=SITE, module="linear layer", fault="unknown", position=AT, token=260)
    faults = [subject.model_copy(update={"fault": fault}) for fault in get_args(Fault)]
    readings = get_args(Interpretation)
    causes = [
        Cause(
            id="module",
            subject=fault,
            evidence=EVIDENCE if not index else [Conclusion(what="cache entries")],
            missing=MISSING if not index else [],
            confidence="high",
            confirm=COMMANDS[index % len(COMMANDS)],
            interpretation=readings[index % len(readings)],
            confirmation=experiments.Confirmation(
                state="not decided", evidence=EXPERIMENTS, created="2026-01-01T00:00:00Z"
            ),
        )
        for index, fault in enumerate(faults)
    ]
    levels = {
        name: level.model_copy(update={"where": LOCATIONS[0], "why": REASONS})
        for name, level in verdict.levels.items()
    }
    assert verdict.first_site is not None
    site = verdict.first_site.model_copy(update={"is_origin": False, "unseen": EARLIER})
    return verdict.model_copy(
        update={"causes": causes, "levels": levels, "first_site": site, "not_seen": NOT_SEEN}
    )
