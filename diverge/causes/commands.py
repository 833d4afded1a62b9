"""The rip commands that confirm or refute a cause, rebuilt from what the traces say of their runs.

They are argument lists: quoting them for a shell is the work of `present/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...schemas.command_line import DivergeCommand, QueryCommand, ReplayCommand
from ...schemas.findings.statement import Command, Undone
from ...schemas.fingerprint import Absence
from ...schemas.lane import AS_SERVED, NOT_KEPT, OWN_PROGRAM, Setting
from ...schemas.trace import Mode, TraceHeader
from .settings import LANE_SETTINGS, OF_THE_CLIENT, WITHOUT_CAUSE, Group, by_name, names_of, normal

_OF_PROGRAM = "again.parquet"
"""What a program of the user's own is to write."""
_ENV = "env."
"""What the name of a setting begins with that is an environment variable."""
_VARIABLES = "determinism"
"""Section of a fingerprint that holds environment variables, beside other facts."""
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_IDENTITY = {
    "model_artifact_sha256": "model_sha256",
    "tokenizer_sha256": "tokenizer_sha256",
    "chat_template_sha256": "chat_template_sha256",
}
"""Identity hash of an envelope → what the flat fingerprint calls it."""


@dataclass(frozen=True)
class Commands:
    """Commands about two traces, to be run in one folder. `name_*` are their paths as the user gave them."""

    name_a: str
    name_b: str
    result: str
    header_a: TraceHeader
    header_b: TraceHeader
    folder: Path = field(default=Path(), kw_only=True)
    """Where they are run: paths start from it."""

    def replay(
        self,
        mode: Mode | None = None,
        repeat: int | None = None,
        out: str | None = None,
        **settings: object,
    ) -> Command:
        """B's requests as B ran them, but for what is set here, compared with A.

        Args:
            mode: Instead of B's, where its engine has it; a golden mode forces A's tokens.
            repeat: Instead of B's.
            out: What the new trace is called. [default: after what was tried]
            settings: Instead of B's: those of `--set`, and `neighbours`; None: without this one.
        """
        undoes = [Undone(of="setting", name=name, value=value) for name, value in settings.items()]
        if mode is not None and mode != self.header_b.mode and self._has_mode(mode):
            undoes.append(Undone(of="mode", name="mode", value=mode))
        return self.undo(undoes, repeat, out)

    def in_mode(self, mode: Mode) -> Command | None:
        """B again in another mode, with A's tokens forced; None: its engine does not have it."""
        return self.replay(mode) if self._has_mode(mode) else None

    def _has_mode(self, mode: Mode) -> bool:
        abilities = self.header_b.abilities
        return abilities is None or mode in abilities.modes

    def undo(self, undoes: Sequence[Undone], repeat: int | None = None, out: str | None = None) -> Command:
        """B's requests as B ran them, but for some things, compared with A.

        Args:
            undoes: These.
            repeat: Instead of B's.
            out: What the new trace is called. [default: after what was tried]
        """
        lane = self.header_b.lane
        undoes = [one.model_copy(update={"was": self._in_b(one)}) for one in undoes]
        by_kind: dict[str, dict[str, Any]] = {}
        for one in undoes:
            by_kind.setdefault(one.of, {})[one.name] = one.value
        changed = by_kind.get("setting", {})
        if lane.engine == OWN_PROGRAM:
            return Command(
                purpose="rerun program",
                settings={name: str(value) for name, value in changed.items()},
                then=self._compare(_OF_PROGRAM),
                output=_OF_PROGRAM,
            )
        variables = {**self._variables_of_b, **by_kind.get("variable", {})}
        settings = {**changed, **self._stated, **changed}
        of_lane = {name[len(_ENV) :]: value for name, value in changed.items() if name.startswith(_ENV)}
        settings |= {f"{_ENV}{name}": value for name, value in variables.items()}
        settings = {name: value for name, value in settings.items() if value is not None}
        settings.pop("engine", None)
        repeats, neighbours = settings.pop("repeat", 1), settings.pop("neighbours", 0)
        mode: Mode = by_kind.get("mode", {}).get("mode", self.header_b.mode)
        sampling = {**self._overrides, **by_kind.get("sampling", {})}
        tried = "-".join(one.value if one.of == "mode" else one.name for one in undoes if _is_named(one)) or (
            "repeated" if repeat else "again"
        )
        out = out or f"try-{tried}.parquet"
        if Path(out).name == Path(self.name_b).name:  # B is such a run itself
            out = f"again-{out}"
        command = ReplayCommand(
            by_kind.get("requests", {}).get("requests", self.name_b),
            out,
            model=by_kind.get("model", {}).get("model", self._model_of(self.header_b)),
            engine=lane.engine,
            url=lane.url,
            api_key_env=lane.api_key_env,
            python=lane.python,
            tap=lane.tap,
            mode=mode,
            golden=None if mode == "free" else self.name_a,
            neighbours=str(neighbours) if neighbours else None,
            repeat=repeat or (repeats if isinstance(repeats, int) else 1),
            settings=[(name, str(value)) for name, value in settings.items()],
            sampling=[(name, as_option(value)) for name, value in sampling.items()],
            capture="tokens" if self.header_b.capture == "tokens" else None,
            sites=self.header_b.site_filter or None,
            allow_drift=self._drift_was_allowed or "model" in by_kind,
        )
        return Command(
            purpose="rerun",
            argv=["rip", *command.arguments()],
            then=self._compare(out),
            output=out,
            undoes=[one for one in undoes if str(one.value) != str(one.was)] or None,
            unset=[name for name, value in (variables | of_lane).items() if value is None] or None,
            hidden=[name for name, setting in lane.settings.items() if _is_hidden(setting)],
        )

    def _in_b(self, one: Undone) -> Any:
        header = self.header_b
        if one.of == "setting":
            setting = header.lane.settings.get(one.name)
            return None if setting is None else reading(setting)
        if one.of == "sampling":
            stated = [request.sampling.get(one.name) for request in header.requests]
            return stated[0].resolved if stated and stated[0] else None
        known = {"model": self._model_of(header), "requests": self.name_b, "mode": header.mode}
        return self._variables_of_b.get(one.name) if one.of == "variable" else known[one.of]

    @property
    def _overrides(self) -> dict[str, Any]:
        """The sampling that B's replay stated for all its requests."""
        return next((request.overrides for request in self.header_b.requests), {})

    @property
    def _stated(self) -> dict[str, object]:
        """B's settings as its lane states them."""
        return {
            name: setting.resolved
            for name, setting in self.header_b.lane.settings.items()
            if setting.source == "lane" and setting.resolved is not None and not _is_hidden(setting)
        }

    def _compare(self, new: str) -> list[str]:
        """The comparison of A with a new trace."""
        return ["rip", *DivergeCommand(self.name_a, new).arguments()]

    def replay_as_a(self, *groups: Group) -> Command | None:
        """Replay as B with A's value of those settings and variables that differ; where none was stated,
        without B's.

        Returns:
            None where nothing of these groups differs, or the engines do: what one is set to means nothing
            to the other.
        """
        wanted = names_of(*groups)
        return self._as_a(lambda name: normal(name) in wanted)

    def variable_as_a(self, name: str) -> Command | None:
        """The same of one variable of the environment, wherever it was set."""
        return self._as_a(lambda one: one == f"{_ENV}{name}")

    def rest_as_a(self) -> Command | None:
        """The same of all variables of the environment, and of the settings that are in no group."""
        grouped = names_of(*LANE_SETTINGS) | {*WITHOUT_CAUSE, *OF_THE_CLIENT}
        variables = {f"{_ENV}{name}" for name in self._variables}
        return self._as_a(lambda name: name in variables or normal(name) not in grouped)

    def _as_a(self, wanted: Callable[[str], bool]) -> Command | None:
        if not self._same_engine:
            return None
        # What was read in the environment cannot be set.
        a, b = (
            {
                name: (written, known)
                for name, (written, known) in by_name(lane.settings).items()
                if known.source != "environment"
            }
            for lane in (self.header_a.lane, self.header_b.lane)
        )
        undoes = []
        for name in {**a, **b}:
            one, other = a.get(name), b.get(name)
            written = (other or one or (name,))[0]  # in B's spelling, which the command repeats
            values = [None if side is None else reading(side[1]) for side in (one, other)]
            if wanted(written) and values[0] != values[1]:
                if (one and _is_hidden(one[1])) or (other and _is_hidden(other[1])):
                    continue
                value = self._ambient_of_a(written) if one is None else values[0]
                undoes.append(Undone(of="setting", name=written, value=value))
        undoes += [
            Undone(of="variable", name=name, value=value)
            for name, (value, _) in self._variables.items()
            if wanted(f"{_ENV}{name}")
        ]
        return self.undo(undoes) if undoes else None

    def _ambient_of_a(self, setting: str) -> str | None:
        """Of a variable that A's lane does not state: what it was in A's environment, as far as is known."""
        fingerprint = self.header_a.fingerprint
        fact = None if fingerprint is None else fingerprint.get(_VARIABLES, setting.removeprefix(_ENV))
        return None if fact is None or fact.absence is not None else str(fact.value)

    @property
    def _same_engine(self) -> bool:
        a, b = self.header_a.lane, self.header_b.lane
        return a.engine == b.engine and (a.url is None) == (b.url is None)

    @cached_property
    def _variables(self) -> dict[str, tuple[str | None, str | None]]:
        """Environment variables that differ and that a replay of B can set: name → in A, in B; None: not set.

        Those that a lane states are settings.
        """
        lane = self.header_b.lane
        if lane.url is not None or lane.engine == OWN_PROGRAM:
            return {}
        sides = []
        for header in (self.header_a, self.header_b):
            section = None if header.fingerprint is None else header.fingerprint.sections.get(_VARIABLES)
            facts = {} if section is None else section.facts
            sides.append(
                {
                    name: None if fact.absence is not None else str(fact.value)
                    for name, fact in facts.items()
                    if _VARIABLE.fullmatch(name) and fact.absence in (None, Absence.UNSET)
                }
            )
        a, b = sides
        stated = {*self.header_a.lane.settings, *lane.settings}
        return {
            name: (a[name], b[name])
            for name in a
            if name in b and a[name] != b[name] and f"{_ENV}{name}" not in stated
        }

    @property
    def _variables_of_b(self) -> dict[str, str | None]:
        return {name: b for name, (_, b) in self._variables.items()}

    def sampling_as_a(self, names: Sequence[str]) -> Command | None:
        """Replay as B with A's value of some sampling fields.

        Returns:
            Where A's requests state several values of one, A's requests on B's lane; None: neither is
            possible.
        """
        undoes = []
        for name in names:
            found = [request.sampling.get(name) for request in self.header_a.requests]
            values = [None if one is None else one.resolved for one in found]
            if not values or values[0] is None or any(value != values[0] for value in values):
                return self.requests_as_a()
            undoes.append(Undone(of="sampling", name=name, value=values[0]))
        return self.undo(undoes) if undoes else None

    def requests_as_a(self) -> Command | None:
        """A's requests on B's lane; None: they are B's, or A's trace keeps only digests of them."""
        a, b = (
            {request.request_id: request.envelope_sha256 for request in header.requests}
            for header in (self.header_a, self.header_b)
        )
        if a == b or any(request.envelope is None for request in self.header_a.requests):
            return None
        return self.undo([Undone(of="requests", name="requests", value=self.name_a)])

    def model_as_a(self) -> Command | None:
        """B's requests on A's model files; None: they are not there any more, or not known."""
        if not self._same_engine or self.header_b.lane.url is not None:
            return None
        model, own = self._model_of(self.header_a), self._model_of(self.header_b)
        if model is None or model == own or not (self.folder / model).exists():
            return None
        return self.undo([Undone(of="model", name="model", value=model)])

    def _model_of(self, header: TraceHeader) -> str | None:
        """A side's model as its replay named it; the whole path where that ran in a different folder."""
        named, fingerprint = header.lane.model, header.fingerprint
        if not named or named == AS_SERVED:
            return None
        section = None if fingerprint is None else fingerprint.sections.get("model")
        fact = None if section is None else section.volatile.get("path")
        if fact is None or not isinstance(fact.value, str):
            return named
        lay = Path(fact.value)
        # Of a model from a hub the place is its cache, whose folders have other names.
        same_name = Path(named).name in ("", "..", lay.name)
        here = (self.folder / named).resolve() == lay.resolve()
        return str(lay) if same_name and not here and lay.exists() else named

    @cached_property
    def _drift_was_allowed(self) -> bool:
        """B ran on a different model, tokenizer or template than its envelopes name."""
        fingerprint = self.header_b.fingerprint
        if fingerprint is None:
            return False
        here = fingerprint.flat()
        for request in self.header_b.requests:
            stated = request.envelope or {}
            for field_, name in _IDENTITY.items():
                wanted, found = stated.get(field_), here.get(name)
                digests = [isinstance(one, str) and _DIGEST.fullmatch(one) for one in (wanted, found)]
                if all(digests) and wanted != found:
                    return True
        return False

    def show_changes(self) -> Command:
        """What changed between the two environments."""
        return self._show("SELECT * FROM changes")

    def show_differing_tokens(self) -> Command:
        """The first differing tokens."""
        return self._show(
            "SELECT request_id, position, token_a, token_b FROM tokens WHERE NOT token_equal LIMIT 10"
        )

    def show_norms(self) -> Command:
        """The differing rows with non-finite drift."""
        return self._show(
            "SELECT position, name, part, l2_a, l2_b FROM sites WHERE NOT isfinite(rel_drift) LIMIT 10"
        )

    def _show(self, sql: str) -> Command:
        return Command(purpose="show", argv=["rip", *QueryCommand(self.result, sql).arguments()])


def reading(setting: Setting) -> Any:
    """What a setting was, as far as it is known."""
    return setting.resolved if setting.observed is None else setting.observed


def as_option(value: object) -> str:
    """A sampling value as `--sampling` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _is_named(one: Undone) -> bool:
    """A new trace is called after it."""
    return (one.of, one.name) != ("setting", "neighbours")


def _is_hidden(setting: Setting) -> bool:
    """Its value may be a secret, so no trace holds it."""
    return setting.source == "lane" and setting.resolved == NOT_KEPT
