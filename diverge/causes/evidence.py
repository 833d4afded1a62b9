"""The evidence a diagnosis rests on: both headers, the first differences, and the rows where they lie."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...schemas.change import Change
from ...schemas.fingerprint import Absence, Fact
from ...schemas.reference import Reference
from ...schemas.trace import Lane, Setting, Site
from ...schemas.verdict import FirstSite, FirstText, FirstToken
from ..comparison.agreement import unseeded
from ..present.changes import in_words
from .confirm import NOT_KEPT, Commands, reading
from .gather import Gathered

_SHAPES = ("batch_size", "padded_tokens", "num_tokens", "cached_tokens")
_CHUNKED = frozenset({"prefill_chunk", "n_batch", "n_ubatch", "max_num_batched_tokens"})
"""Settings that say how many tokens a pass takes."""
_OF_THE_CLIENT = ("timeout", "ready_timeout", "port")
"""Settings that say how long to wait and where: they change no number."""


@dataclass(frozen=True)
class RowFacts:
    """One row of one trace, without its site columns."""

    shape: dict[str, int | None]
    sampler: dict[str, Any] | None


@dataclass(frozen=True)
class Evidence(Commands):
    """What the table of causes looks at."""

    changes: list[Change]
    sites: list[Site]
    """The compared sites, as A describes them."""
    dtypes_b: list[str]
    first_token: FirstToken | None
    first_site: FirstSite | None
    first_text: FirstText | None
    differs: bool
    """Anything at all differs in the numbers, or in texts that stand for tokens."""
    ended: str
    """`A` or `B`: the side that ended first at the first divergence; else empty."""
    logits_equal: bool | None
    """Whether the logits that chose the first divergent token are bit-identical; None: not known."""
    deciding: tuple[RowFacts, RowFacts] | None
    """The rows whose distribution chose the first divergent token."""
    differing: tuple[RowFacts, RowFacts] | None
    """The rows of the first differing site."""
    nonfinite: list[str] = field(default_factory=list)
    seen: Gathered = field(default_factory=Gathered)
    """What was read again for the diagnosis."""
    reference: Reference | None = None
    """How both sides lie to a reference trace; None: none was given."""

    @property
    def has_fingerprints(self) -> bool:
        """Both traces carry a fingerprint."""
        return self.header_a.fingerprint is not None and self.header_b.fingerprint is not None

    @property
    def first_place(self) -> str:
        """The first differing row in words."""
        if self.first_site is None:
            return "a row that was not observed"
        part = f":{self.first_site.part}" if self.first_site.part else ""
        return f"{self.first_site.site}{part} at position {self.first_site.position}"

    @property
    def not_an_origin(self) -> str:
        """Why the first differing row is not known to be where the difference began."""
        if self.first_site is None:
            return "no site and no logits hash shows where the numbers begin to differ"
        return f"not an origin: {self.first_site.unseen}"

    @property
    def only_cached_is_unseen(self) -> bool:
        """Everything before the first differing row was compared, but for rows that came from a cache."""
        site = self.first_site
        if site is None:
            return False
        unseen = site.unseen or ""
        return site.is_origin or (";" not in unseen and "cached" in unseen)

    @property
    def greedy(self) -> bool:
        """The request was decoded greedily on both sides, as far as they say."""
        settings = [sampling.get("temperature") for sampling in self._sampling]
        return all(setting is not None and setting.resolved == 0 for setting in settings)

    @property
    def prompts_differ(self) -> bool:
        """The first divergent token lies in a prompt, or the prompts are of different lengths."""
        if self.seen.prompts is not None:
            return self.seen.prompts[0] != self.seen.prompts[1]
        token = self.first_token
        return token is not None and token.step is None and not self.ended

    def temperature(self, side: int) -> float:
        """The temperature that a side (0: A, 1: B) states; 1 where it states none."""
        setting = self._sampling[side].get("temperature")
        value = None if setting is None else setting.resolved
        return float(value) if isinstance(value, int | float) and value > 0 else 1.0

    def is_drawn(self, side: int) -> bool:
        """Whether the tokens of a side (0: A, 1: B) were drawn, as far as it says."""
        setting = self._sampling[side].get("temperature")
        value = None if setting is None else setting.resolved
        return isinstance(value, int | float) and value > 0

    def sampling_of(self, side: int) -> dict[str, Setting]:
        """The sampling fields of the request that the first difference is of, on one side."""
        return self._sampling[side]

    def number_of(self, name: str) -> int | None:
        """A lane setting that is a whole number on both sides, and the same."""
        found = {reading(lane.settings[name]) for lane in self._lanes if name in lane.settings}
        value = found.pop() if len(found) == 1 else None
        return value if isinstance(value, int) and value > 0 else None

    @property
    def _lanes(self) -> tuple[Lane, Lane]:
        return self.header_a.lane, self.header_b.lane

    @property
    def without_seed(self) -> list[str]:
        """The sides whose engine takes no seed, in words."""
        sides = zip("AB", (self.header_a, self.header_b), strict=True)
        return [f"{header.lane.engine}, the engine of {side}" for side, header in sides if unseeded(header)]

    def changed(self, *sections: str) -> list[str]:
        """The fingerprint changes of some sections, in words."""
        return [in_words(change) for change in self._known_changes if change.section in sections]

    def changed_fields(self, section: str, fields: tuple[str, ...]) -> list[str]:
        """The fingerprint changes of some fields, in words."""
        return [
            in_words(change)
            for change in self._known_changes
            if change.section == section and change.field in fields
        ]

    @property
    def changed_tensors(self) -> list[str]:
        """Names of the tensors (of very many: layers) whose digests differ."""
        for change in self._known_changes:
            if (change.section, change.field) == ("model", "tensors") and change.before and change.after:
                a, b = change.before.value, change.after.value
                if isinstance(a, dict) and isinstance(b, dict):
                    return [name for name in sorted({**a, **b}) if a.get(name) != b.get(name)]
        return []

    @cached_property
    def _known_changes(self) -> list[Change]:
        """The changes that both fingerprints tell: what one could not read is no sign of a difference."""
        beside = {("engine", "arguments")}  # the lane's settings and a free port
        if self.header_a.channel == self.header_b.channel == "eager":
            beside.add(("kernels", "inductor_cache"))  # what Inductor compiled runs in no eager pass
        return [
            change
            for change in self.changes
            if _is_known(change.before)
            and _is_known(change.after)
            and (change.section, change.field) not in beside
        ]

    def shape(self, name: str) -> tuple[int, int] | None:
        """One number of the execution shape of the first differing row, on both sides."""
        if self.differing is None:
            return None
        a, b = (side.shape.get(name) for side in self.differing)
        return None if a is None or b is None else (a, b)

    def shape_differences(self, name: str) -> list[str]:
        """That number in words, where it differs."""
        values = self.shape(name)
        return (
            []
            if values is None or values[0] == values[1]
            else [f"{name}: {values[0]} in A, {values[1]} in B"]
        )

    def settings_named(self, *names: str) -> list[str]:
        """The lane settings among these that differ, in words; `_` and `-` in names are the same."""
        wanted = {name.replace("-", "_") for name in names}
        lines = self.setting_differences
        return [line for line in lines if line.partition(":")[0].replace("-", "_") in wanted]

    @property
    def shapes_differ(self) -> bool:
        """The first differing row ran in another execution shape."""
        return any(self.shape_differences(name) for name in _SHAPES)

    @property
    def scored_differently(self) -> bool:
        """One side scored prompt and answer in one pass, the other did not."""
        return (self.header_a.mode == "golden-prefill") != (self.header_b.mode == "golden-prefill")

    @cached_property
    def circumstances(self) -> list[str]:
        """What differs in how the rows were computed: names of settings, shapes, fingerprint sections."""
        names = [line.partition(":")[0] for line in self.setting_differences]
        # A pass that is a prefill on one side has another cache too: one circumstance, not two.
        shapes = [name for name in _SHAPES if self.shape_differences(name)]
        if "num_tokens" in shapes and "cached_tokens" in shapes:
            shapes.remove("cached_tokens")
        if "batch_size" in shapes and "padded_tokens" in shapes:
            shapes.remove("padded_tokens")
        if _CHUNKED.intersection(names):  # another chunk is another pass, with another cache before it
            shapes = [name for name in shapes if name not in ("num_tokens", "cached_tokens")]
        names = [name for name in names if name not in ("neighbours", "repeat", *shapes)]
        ignored = {"sampling", "process", "cache", "replica"}
        a, b = self.header_a.lane.settings, self.header_b.lane.settings
        told = [(reading(a[name]), reading(b[name])) for name in names if name in a and name in b]
        sections = {
            change.section
            for change in self._known_changes
            if change.section not in ignored
            # The fingerprint repeats some settings: what a setting says already is not a second difference.
            and (change.before and change.before.value, change.after and change.after.value) not in told
        }
        channels = ["channel"] if self.channels_differ else []
        return list(dict.fromkeys([*names, *shapes, *channels, *sorted(sections)]))

    @property
    def channels_differ(self) -> bool:
        """One side ran eagerly, the other as a graph or compiled, as far as both say."""
        channels = self.header_a.channel, self.header_b.channel
        return all(channels) and channels[0] != channels[1]

    @cached_property
    def sampling_differences(self) -> list[str]:
        """Sampling fields whose resolved values differ, with the source of each."""
        a, b = self._sampling
        lines: list[str] = []
        for name in sorted({*a, *b}):
            one, other = a.get(name), b.get(name)
            if one is None or other is None:
                continue
            if one.resolved != other.resolved:
                silent = (
                    " (left silent in the envelope)" if "envelope" not in (one.source, other.source) else ""
                )
                lines.append(f"{name}: {_setting(one)} in A, {_setting(other)} in B{silent}")
        return lines

    @cached_property
    def setting_differences(self) -> list[str]:
        """Lane settings that differ: by what was observed, else by what was resolved.

        Of one engine also those that only one lane states, as the arguments of a server are.
        """
        a, b = self.header_a.lane.settings, self.header_b.lane.settings
        found = [
            f"{name}: {reading(a[name])} in A, {reading(b[name])} in B"
            for name in sorted({*a} & {*b})
            if None not in (reading(a[name]), reading(b[name]))
            and str(reading(a[name])) != str(reading(b[name]))  # a lane may have told a number as a word
            and name not in _OF_THE_CLIENT
        ]
        if self.header_a.lane.engine == self.header_b.lane.engine:
            for name in sorted({*a} ^ {*b}):
                known, side, other = (a[name], "A", "B") if name in a else (b[name], "B", "A")
                if known.source == "lane" and reading(known) != NOT_KEPT:
                    found.append(f"{name}: {reading(known)} in {side}, not stated in {other}")
        return found

    @cached_property
    def dtype_differences(self) -> list[str]:
        """Dtypes of the compared sites, where they differ."""
        unlike = {
            (site.dtype, dtype)
            for site, dtype in zip(self.sites, self.dtypes_b, strict=True)
            if site.dtype != dtype
        }
        return [f"dtype of the observed rows: {a} in A, {b} in B" for a, b in sorted(unlike)]

    @property
    def _sampling(self) -> tuple[dict[str, Setting], dict[str, Setting]]:
        first = self.first_token or self.first_site or self.first_text
        found: list[dict[str, Setting]] = []
        for header in (self.header_a, self.header_b):
            named = [
                r.sampling for r in header.requests if first is not None and r.request_id == first.request_id
            ]
            found.append(named[0] if named else {})
        return found[0], found[1]


def _is_known(fact: Fact | None) -> bool:
    """It has a value, or is known to be unset."""
    if fact is None:
        return False
    return fact.absence in (None, Absence.UNSET)


def _setting(setting: Setting) -> str:
    return f"{json.dumps(setting.resolved)} ({setting.source})"
