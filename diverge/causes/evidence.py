"""What a diagnosis rests on: both headers, the first differences, the rows around them, commands."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ...schemas.change import Change
from ...schemas.findings.execution import (
    DtypeDiffers,
    FieldChanged,
    NoSeed,
    SamplingDiffers,
    SettingDiffers,
    ShapeDiffers,
    VariableChanged,
)
from ...schemas.findings.rows import FirstDifferenceAt, NotFinite, RepeatsDiffer
from ...schemas.findings.statement import SIDES, Side
from ...schemas.findings.unseen import NoEvidence
from ...schemas.fingerprint import Absence, Fact
from ...schemas.lane import NOT_KEPT, Lane, Setting
from ...schemas.reference import Reference
from ...schemas.trace import Site, TraceHeader
from ...schemas.verdict import FirstSite, FirstText, FirstToken
from ..comparison.agreement import unseeded
from .commands import Commands, reading
from .observe.observation import Observation
from .settings import (
    OF_THE_CLIENT,
    TOKENS_OF_A_PASS,
    Group,
    by_name,
    decided_by,
    field_changed,
    names_of,
    normal,
)

Shape = Literal["batch_size", "padded_tokens", "num_tokens", "cached_tokens"]
SHAPES: tuple[Shape, ...] = ("batch_size", "padded_tokens", "num_tokens", "cached_tokens")
"""Numbers of the execution shape of a row."""
_NO_CIRCUMSTANCE = ("neighbours", "repeat")
"""Settings that the shapes of the passes show better, or that change no row."""
_NO_CIRCUMSTANCES = frozenset({"sampling", "process", "cache", "replica"})
"""Sections of a fingerprint that say nothing of how rows are computed."""


@dataclass(frozen=True)
class RowFacts:
    """One row of one trace, without its site columns."""

    shape: dict[Shape, int | None]
    sampler: dict[str, Any] | None
    from_cache: int | None = None
    """Tokens of its prompt that no pass of this run computed: read from a prefix cache; None: not known."""


@dataclass(frozen=True)
class Basis:
    """What the rules read."""

    commands: Commands
    changes: list[Change]
    sites: list[Site]
    """The compared sites, as A describes them."""
    dtypes_b: list[str]
    first_token: FirstToken | None
    first_site: FirstSite | None
    first_text: FirstText | None
    differs: bool
    """Anything at all differs in the numbers, or in texts that stand for tokens."""
    logits_equal: bool | None
    """Whether the logits that chose the first divergent token are bit-identical; None: not known."""
    deciding: tuple[RowFacts, RowFacts] | None
    """The rows whose distribution chose the first divergent token."""
    differing: tuple[RowFacts, RowFacts] | None
    """The rows of the first differing site."""
    not_finite: list[NotFinite] = field(default_factory=list)
    observed: Observation = field(default_factory=Observation)
    """What was read again for the diagnosis."""
    repeats: list[RepeatsDiffer] = field(default_factory=list)
    """Requests whose repeats on one side gave different outputs."""
    reference: Reference | None = None
    """How both sides lie to a reference trace; None: there is none."""

    @property
    def headers(self) -> tuple[TraceHeader, TraceHeader]:
        """Of A and B."""
        return self.commands.header_a, self.commands.header_b

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """Of A and B."""
        return self.headers[0].lane, self.headers[1].lane

    @property
    def ended(self) -> int | None:
        """The side (0: A, 1: B) that ended first at the first divergence; None: neither."""
        token = self.first_token
        if token is None:
            return None
        return 0 if token.token_a is None else 1 if token.token_b is None else None

    @property
    def noisy(self) -> set[Side]:
        """The sides whose repeats differ though they ran under equal conditions, as far as is known."""
        pattern = self.observed.pattern
        rows = [] if pattern is None else pattern.twins
        return {one.side for one in rows if one.differing and not one.in_one_batch} | {
            one.side for one in self.repeats if one.passes != "one pass"
        }

    @property
    def has_fingerprints(self) -> bool:
        """Both traces carry a fingerprint."""
        return all(header.fingerprint is not None for header in self.headers)

    def first_difference(
        self, role: Literal["here", "origin", "begins", "earlier", "attention"] = "here"
    ) -> FirstDifferenceAt:
        """Where the first differing row is."""
        site = self.first_site
        if site is None:
            return FirstDifferenceAt(role=role)
        return FirstDifferenceAt(role=role, site=site.label(), position=site.position)

    @property
    def not_an_origin(self) -> NoEvidence:
        """Why the first differing row is not known to be where the difference began."""
        if self.first_site is None:
            return NoEvidence(kind="no differing row")
        return NoEvidence(kind="not an origin", unseen=self.first_site.unseen)

    @property
    def only_cached_is_unseen(self) -> bool:
        """Everything before the first differing row was compared, but for rows read from a cache."""
        site = self.first_site
        if site is None:
            return False
        return site.is_origin or [rows.kind for rows in site.unseen] == ["not computed"]

    @property
    def greedy(self) -> bool:
        """The request was decoded greedily on both sides, as far as they say."""
        settings = [sampling.get("temperature") for sampling in self.sampling]
        return all(setting is not None and setting.resolved == 0 for setting in settings)

    @property
    def prompts_differ(self) -> bool:
        """The first divergent token lies in a prompt, or the prompts are of different lengths."""
        if self.observed.prompts is not None:
            return self.observed.prompts[0] != self.observed.prompts[1]
        token = self.first_token
        return token is not None and token.step is None and self.ended is None

    @property
    def parts_in_the_answer(self) -> bool:
        """The first divergent token, or the first differing text, was generated."""
        return self.first_token.step is not None if self.first_token else self.first_text is not None

    def temperature(self, side: int) -> float:
        """The temperature that a side (0: A, 1: B) states; 1 where it states none."""
        return self._stated_temperature(side) or 1.0

    def is_drawn(self, side: int) -> bool:
        """Whether the tokens of a side (0: A, 1: B) were drawn, as far as it says."""
        return self._stated_temperature(side) is not None

    def _stated_temperature(self, side: int) -> float | None:
        setting = self.sampling[side].get("temperature")
        value = None if setting is None else setting.resolved
        return float(value) if isinstance(value, int | float) and value > 0 else None

    def number_of(self, name: str) -> int | None:
        """A lane setting that is a whole number on both sides, and the same."""
        sides = [by_name(lane.settings) for lane in self.lanes]
        found = {reading(settings[name][1]) for settings in sides if name in settings}
        value = found.pop() if len(found) == 1 else None
        return value if isinstance(value, int) and value > 0 else None

    @property
    def without_seed(self) -> list[NoSeed]:
        """The sides that drew tokens on an engine that takes no seed."""
        sides = zip(SIDES, self.headers, strict=True)
        return [NoSeed(side=side, engine=header.lane.engine) for side, header in sides if unseeded(header)]

    def changed(self, *sections: str, fields: Collection[str] | None = None) -> list[FieldChanged]:
        """The fingerprint changes of some sections; of some fields only, where these are named."""
        return [
            field_changed(change)
            for change in self._known_changes
            if change.section in sections
            and (fields is None or change.field in fields)
            and change.name not in self._of_variables
        ]

    @cached_property
    def variables(self) -> list[VariableChanged]:
        """The environment variables that changed, each with what follows from it."""
        changes = {change.name: change for change in self._known_changes}
        return [
            VariableChanged(
                name=change.field,
                before=_set_to(change.before),
                after=_set_to(change.after),
                follows=[
                    field_changed(changes[name]) for name in decided_by(change.field) if name in changes
                ],
            )
            for change in self._known_changes
            if change.section == "determinism" and change.field.isupper()
        ]

    @cached_property
    def _of_variables(self) -> frozenset[str]:
        """Fields of the fingerprint that are a variable or follow from one."""
        follows = [f"{one.section}.{one.field}" for variable in self.variables for one in variable.follows]
        return frozenset({*follows, *(f"determinism.{variable.name}" for variable in self.variables)})

    @property
    def changed_tensors(self) -> list[str]:
        """Names of the tensors (of very many: layers) whose digests differ."""
        for change in self._known_changes:
            if change.tensors is not None:
                return change.tensors.differing
            if change.name == "model.tensors":
                a, b = (side and side.value for side in (change.before, change.after))
                if isinstance(a, dict) and isinstance(b, dict):
                    return [name for name in sorted({**a, **b}) if a.get(name) != b.get(name)]
        return []

    @cached_property
    def _known_changes(self) -> list[Change]:
        """Changes of values that both fingerprints hold: what one could not read is no difference."""
        beside = {("engine", "arguments")}  # the lane's settings and a free port
        if all(header.channel == "eager" for header in self.headers):
            beside.add(("kernels", "inductor_cache"))  # what Inductor compiled runs in no eager pass
        return [
            change
            for change in self.changes
            if _is_known(change.before)
            and _is_known(change.after)
            and (change.section, change.field) not in beside
        ]

    def shape(self, name: Shape) -> tuple[int, int] | None:
        """One number of the execution shape of the first differing row, on both sides."""
        if self.differing is None:
            return None
        a, b = (side.shape.get(name) for side in self.differing)
        return None if a is None or b is None else (a, b)

    @property
    def from_cache(self) -> tuple[int, int] | None:
        """Tokens that each side took from a prefix cache, not from its own chunks; None: not known."""
        if self.differing is None:
            return None
        a, b = (side.from_cache for side in self.differing)
        return None if a is None or b is None else (a, b)

    def shape_differences(self, *names: Shape) -> list[ShapeDiffers]:
        """Those of these numbers that differ."""
        found = [(name, self.shape(name)) for name in names or SHAPES]
        return [
            ShapeDiffers(name=name, a=values[0], b=values[1])
            for name, values in found
            if values is not None and values[0] != values[1]
        ]

    def settings_of(self, *groups: Group) -> list[SettingDiffers]:
        """The lane settings of these groups that differ."""
        wanted = names_of(*groups)
        return [setting for setting in self.setting_differences if normal(setting.name) in wanted]

    @property
    def scored_differently(self) -> bool:
        """One side scored prompt and answer in one pass, the other did not."""
        a, b = (header.mode == "golden-prefill" for header in self.headers)
        return a != b

    @cached_property
    def circumstances(self) -> list[str]:
        """What differs in how the rows were computed: names of settings, shapes, fingerprint sections."""
        names = [normal(setting.name) for setting in self.setting_differences]
        # A pass that is a prefill on one side has a different cache too: one circumstance, not two.
        shapes: list[str] = [shape.name for shape in self.shape_differences()]
        if "num_tokens" in shapes and "cached_tokens" in shapes:
            shapes.remove("cached_tokens")
        if "batch_size" in shapes and "padded_tokens" in shapes:
            shapes.remove("padded_tokens")
        if TOKENS_OF_A_PASS.intersection(
            names
        ):  # a different chunk is a different pass, with a different cache before it
            shapes = [name for name in shapes if name not in ("num_tokens", "cached_tokens")]
        names = [name for name in names if name not in (*_NO_CIRCUMSTANCE, *shapes)]
        a, b = (by_name(lane.settings) for lane in self.lanes)
        stated = [(reading(a[name][1]), reading(b[name][1])) for name in names if name in a and name in b]
        sections = {
            change.section
            for change in self._known_changes
            if change.section not in _NO_CIRCUMSTANCES
            and change.name not in self._of_variables
            # The fingerprint repeats some settings: what a setting says already is not a second difference.
            and (change.before and change.before.value, change.after and change.after.value) not in stated
        }
        channels = ["channel"] if self.channels_differ else []
        variables = [variable.name for variable in self.variables]
        return list(dict.fromkeys([*names, *variables, *shapes, *channels, *sorted(sections)]))

    @property
    def channels_differ(self) -> bool:
        """One side ran eagerly, the other as a graph or compiled, as far as both say."""
        channels = [header.channel for header in self.headers]
        return all(channels) and channels[0] != channels[1]

    @cached_property
    def sampling_differences(self) -> list[SamplingDiffers]:
        """Sampling fields whose resolved values differ, with the source of each."""
        a, b = self.sampling
        return [
            SamplingDiffers(
                name=name,
                a=a[name].resolved,
                b=b[name].resolved,
                source_a=a[name].source,
                source_b=b[name].source,
            )
            for name in sorted({*a} & {*b})
            if a[name].resolved != b[name].resolved
        ]

    @cached_property
    def setting_differences(self) -> list[SettingDiffers]:
        """Lane settings that differ: by what was observed, else by what was resolved.

        Of one engine also those that only one lane states, as the arguments of a server are.
        """
        changed = {variable.name for variable in self.variables}
        stated = [by_name(lane.settings) for lane in self.lanes]
        # What a changed variable says, or decides, is no second difference.
        sources = {
            name: {side[name][1].source for side in stated if name in side}
            for side in stated
            for name in side
        }
        folded = {
            name
            for name, found in sources.items()
            if name.removeprefix("env.") in changed or (found & changed and "lane" not in found)
        }
        a, b = (
            {name: reading(setting) for name, (_, setting) in side.items() if name not in folded}
            for side in stated
        )
        found = [
            SettingDiffers(name=stated[1][name][0], a=a[name], b=b[name])
            for name in sorted({*a} & {*b})
            if None not in (a[name], b[name])
            and str(a[name]) != str(b[name])  # a lane may have stated a number as text
            and name not in OF_THE_CLIENT
        ]
        one, other = self.lanes
        if one.engine == other.engine:
            for name in sorted({*a} ^ {*b}):
                written, setting = stated[name in b][name]
                if setting.source == "lane" and reading(setting) != NOT_KEPT:
                    stated_in = SIDES[name in b]
                    found.append(
                        SettingDiffers(name=written, a=a.get(name), b=b.get(name), stated_in=stated_in)
                    )
        return found

    @cached_property
    def dtype_differences(self) -> list[DtypeDiffers]:
        """Dtypes of the compared sites, where they differ."""
        dtypes = zip((site.dtype for site in self.sites), self.dtypes_b, strict=True)
        return [DtypeDiffers(a=a, b=b) for a, b in sorted({*dtypes}) if a != b]

    @cached_property
    def sampling(self) -> tuple[dict[str, Setting], dict[str, Setting]]:
        """The sampling fields of the request that the first difference is of, on both sides."""
        first = self.first_token or self.first_site or self.first_text
        a, b = (
            next((r.sampling for r in header.requests if first and r.request_id == first.request_id), {})
            for header in self.headers
        )
        return a, b


def _set_to(fact: Fact | None) -> str | None:
    """What a variable is set to; None: it is not set."""
    return None if fact is None or fact.absence is Absence.UNSET else fact.text()


def _is_known(fact: Fact | None) -> bool:
    """It has a value, or is known to be unset."""
    if fact is None:
        return False
    return fact.absence in (None, Absence.UNSET)
