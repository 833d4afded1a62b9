"""The rip commands that confirm or refute a cause, rebuilt from what the traces say of their runs.

They are argument lists: quoting them for a shell is the work of `present/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...schemas.command_line import DivergeCommand, QueryCommand, ReplayCommand
from ...schemas.findings.statement import Command
from ...schemas.lane import AS_SERVED, NOT_KEPT, OWN_PROGRAM
from ...schemas.trace import Mode, Setting, TraceHeader
from .settings import Group, by_name, names_of

_OF_PROGRAM = "again.parquet"
"""What a program of the user's own is to write."""
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
        return self._replay(settings, mode, repeat, out)

    def replay_with(self, settings: dict[str, object]) -> Command:
        """The same with settings of any name instead of B's; None: without this one."""
        return self._replay(settings)

    def _replay(
        self,
        changed: dict[str, object],
        mode: Mode | None = None,
        repeat: int | None = None,
        out: str | None = None,
    ) -> Command:
        lane, abilities = self.header_b.lane, self.header_b.abilities
        if mode is not None and abilities is not None and mode not in abilities.modes:
            mode = None
        if lane.engine == OWN_PROGRAM:
            return Command(
                purpose="rerun program",
                settings={name: str(value) for name, value in changed.items()},
                then=self._compare(_OF_PROGRAM),
                output=_OF_PROGRAM,
            )
        settings = {**changed, **self._stated, **changed}
        settings = {name: value for name, value in settings.items() if value is not None}
        settings.pop("engine", None)
        repeats, neighbours = settings.pop("repeat", 1), settings.pop("neighbours", 0)
        mode = mode or self.header_b.mode
        tried = "-".join(name for name in changed if name != "neighbours") or (
            mode if mode != self.header_b.mode else "repeated" if repeat else "again"
        )
        out = out or f"try-{tried}.parquet"
        if Path(out).name == Path(self.name_b).name:  # B is such a run itself
            out = f"again-{out}"
        command = ReplayCommand(
            self.name_b,
            out,
            model=self._model,
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
            capture="tokens" if self.header_b.capture == "tokens" else None,
            sites=self.header_b.site_filter or None,
            allow_drift=self._drift_was_allowed,
        )
        return Command(
            purpose="rerun",
            argv=["rip", *command.arguments()],
            then=self._compare(out),
            output=out,
            hidden=[name for name, setting in lane.settings.items() if _is_hidden(setting)],
        )

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
        """Replay as B with A's value of those settings that differ; where none was stated, without B's.

        Returns:
            None where no setting of these groups differs, or the engines do: what one is set to means nothing
            to the other.
        """
        lane_a, lane_b = self.header_a.lane, self.header_b.lane
        if lane_a.engine != lane_b.engine or (lane_a.url is None) != (lane_b.url is None):
            return None
        # What was read in the environment cannot be set.
        a, b = (
            {
                name: (written, known)
                for name, (written, known) in by_name(lane.settings).items()
                if known.source != "environment"
            }
            for lane in (lane_a, lane_b)
        )
        wanted = names_of(*groups)
        changed: dict[str, object] = {}
        for name in {**a, **b}:
            one, other = a.get(name), b.get(name)
            values = [None if side is None else reading(side[1]) for side in (one, other)]
            if name in wanted and values[0] != values[1]:
                # In B's spelling, which the command repeats.
                changed[(other or one or (name,))[0]] = values[0]
        return self._replay(changed) if changed else None

    @cached_property
    def _model(self) -> str | None:
        """B's model as its replay named it; the whole path where that ran in a different folder."""
        named, fingerprint = self.header_b.lane.model, self.header_b.fingerprint
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


def _is_hidden(setting: Setting) -> bool:
    """Its value may be a secret, so no trace holds it."""
    return setting.source == "lane" and setting.resolved == NOT_KEPT
