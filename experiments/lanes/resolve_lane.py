"""A resolved lane: from the lane that was requested to an opened engine, and the fingerprint of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.choices import CaptureLevel, Mode
from ...schemas.errors import BadInput, stated_option
from .process import check_interpreter, recorded_variables, runs_in_process, split_variables
from .request import LaneRequest, read_server_key

if TYPE_CHECKING:
    from ...fingerprint.model.ref import ModelRef
    from ...replay.engines.base import Engine, Opening
    from ...replay.request.resolve_request import Capabilities
    from ...schemas.fingerprint import Fact, Fingerprint
    from ...schemas.lane import Lane, Setting


DEFAULT_TOPK = 20
IN_PROCESS = "hf"
HashProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


class ResolvedLane:
    """One lane whose engine is known: what it can do, and how it is opened.

    Args:
        request: The lane that was requested, its file read.

    Raises:
        BadInput: No model and no server, an unknown engine, or a setting that does not fit.
        EngineFailed: The server does not report what it is.
    """

    def __init__(self, request: LaneRequest) -> None:
        from ...fingerprint.model.ref import resolve
        from ...fingerprint.remote.address import checked
        from ...replay.engines.registry import engine_class

        if request.url is not None:
            request = replace(request, url=checked(request.url))
        self.request = request
        if request.model is None and request.url is None:
            raise BadInput(
                "no model is named", "name one with --model, or a server that serves one with --url"
            )
        self._key = read_server_key(request.url, request.api_key_env)
        # A server may call its model by any name; files of that name need not be here.
        served_name = (
            request.url is not None and request.model is not None and not Path(request.model).exists()
        )
        self._reference = resolve(request.model) if request.model is not None and not served_name else None
        self.engine = request.engine or (self._engine_of_server() if request.url else IN_PROCESS)
        self._type = engine_class(self.engine)
        self._in_process = runs_in_process(self.engine, request.url)
        self._variables: dict[str, str] = {}
        settings = request.settings
        if self._in_process:  # they hold for this whole process: see process.py
            self._variables, settings = split_variables(settings)
        self._settings = self._type.parse_settings(settings, request.url is None)
        self._identity: Fingerprint | None = None

    def lane(self) -> Lane:
        """The lane as the trace records it; its settings come from the engine."""
        from ...schemas.lane import AS_SERVED, Lane

        request = self.request
        return Lane(
            name=request.name,
            engine=self.engine,
            model=request.model or AS_SERVED,
            url=request.url,
            api_key_env=request.api_key_env,
            python=request.python,
            tap=str(request.tap) if request.tap else None,
        )

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do at most."""
        can: Capabilities = self._type.capabilities
        return can

    @property
    def is_gguf(self) -> bool:
        """Whether the model is one GGUF file."""
        return self._reference is not None and self._reference.kind == "gguf"

    def identify(self, progress: HashProgress) -> Fingerprint:
        """The model's files, hashed, with the environment of this process; before anything is loaded."""
        from ...fingerprint.collect import collect

        self._identity = collect(self._reference, progress=progress)
        return self._identity

    def check_capabilities(
        self,
        mode: Mode,
        capture: CaptureLevel | None = None,
        topk: int | None = None,
        sites: str | None = None,
    ) -> None:
        """Refuse, before anything is loaded or started, what this engine can never give.

        Args:
            mode: What will be run.
            capture: `--capture` as it was stated; None: it was not.
            topk: `--topk`, likewise.
            sites: `--sites`, likewise.

        Raises:
            BadInput: It cannot.
        """
        from ...replay.request.resolve_request import check_capabilities

        needs_sites = capture in ("sites", "tensors") or sites is not None
        check_capabilities(self.engine, self.capabilities, mode, needs_sites)
        if capture == "tensors" and self.engine != IN_PROCESS:
            raise BadInput(f"the engine {self.engine} cannot keep rows", "use --capture sites")
        self._check_tap(needs_sites)
        most = self.capabilities.most_topk
        if topk is not None and most is not None and topk > most:
            raise BadInput(
                f"the engine {self.engine} returns {f'at most {most}' if most else 'no'} likely tokens",
                f"use --topk {most} or less" if most else "leave {option} out",
                stated_option("topk", topk),
            )

    def _check_tap(self, needs_sites: bool) -> None:
        """Refuse sites without the tap folder that they come through, and a folder that is none."""
        tap, url, taps = self.request.tap, self.request.url, self.capabilities.taps
        if tap is None:
            if needs_sites and taps and url is not None:
                raise BadInput(
                    f"the sites of a running {self.engine} server are read from its tap folder",
                    "name the folder RIP_TAP of that server with --tap, or use --capture tokens",
                )
            return
        if not taps:
            raise BadInput(
                f"the engine {self.engine} writes no tap folder", "leave {option} out", stated_option("tap")
            )
        if url is None:
            raise BadInput(
                "a server that rip starts gets a tap folder of its own",
                "leave {option} out, or name the server that writes there with --url",
                stated_option("tap"),
            )
        if not tap.is_dir():
            raise BadInput(
                "no such folder", "name the folder RIP_TAP of the server at --url", stated_option("tap", tap)
            )

    def check(self) -> None:
        """Refuse what is wrong in the lane, as far as it shows before anything is loaded or started.

        Raises:
            BadInput: A value that the engine does not know, or an interpreter without what it needs.
            EngineFailed: An interpreter cannot be run, or a server does not answer.
        """
        request = self.request
        if request.url is not None and not self._in_process:
            self._engine_of_server()  # it must answer; the replay checks which engine it is
        elif self._in_process and request.python is not None:
            check_interpreter(request.python)  # which settings its engine has, only that one knows
        else:
            model = self._reference.path if self._reference is not None else request.model
            self._type.check_start(model, request.python, self._settings)

    def opening(self, topk: int | None, **rest: Any) -> Opening:
        """What the engine is opened with; `rest` are fields of `Opening`."""
        from ...replay.engines.base import Opening

        assert self._identity is not None
        most = self._type.capabilities.most_topk
        wanted = DEFAULT_TOPK if topk is None else topk
        return Opening(
            topk=wanted if most is None else min(wanted, most),
            model=self._reference.path if self._reference is not None else None,
            model_name=self.request.model,
            model_sha256=str(self._identity.flat()["model_sha256"]) if self._reference is not None else None,
            url=self.request.url,
            api_key=self._key,
            python=None if self._in_process else self.request.python,
            settings=self._settings,
            tap=self.request.tap,
            **rest,
        )

    def open(self, opening: Opening) -> Engine:
        """The opened engine.

        Raises:
            EngineFailed, BadInput: It cannot be opened.
        """
        opened: Engine = self._type(opening)
        if self._variables:
            opened.settings = {**opened.settings, **recorded_variables(self._variables)}
        return opened

    def fingerprint(self, engine: Engine) -> Fingerprint:
        """The environment in which the engine runs, with what the loaded engine observed.

        Of a server that rip started: its process. Of one at a URL: what it reports. Without a model's files,
        nothing of the model but what a server reports.
        """
        from ...fingerprint.collect import collect

        if self.request.url is not None:
            return self._of_server(self._reference)
        if engine.pid is not None:
            return collect(self._reference, pid=engine.pid, overrides=_observed(engine.settings, self.engine))
        return collect(self._reference, overrides=_observed(engine.settings, self.engine))

    def _engine_of_server(self) -> str:
        """The engine that the server reports; any other is called by the OpenAI API."""
        from ...replay.engines.registry import ENGINES

        reported = self._of_server(None).get("engine", "name")
        name = None if reported is None else reported.value
        return str(name) if name in ENGINES else "openai"

    def _of_server(self, reference: ModelRef | None) -> Fingerprint:
        from ...fingerprint.collect import collect
        from ...fingerprint.remote.address import Server

        assert self.request.url is not None
        return collect(reference, server=Server(self.request.url, self._key))


def _observed(settings: dict[str, Setting] | Any, engine: str) -> dict[str, dict[str, Fact]]:
    """Facts that the loaded engine knows better than any probe."""
    from ...schemas.fingerprint import fact

    if "engine_version" in settings:
        version = fact(settings["engine_version"].observed, "told by the engine")
        return {"engine": {"name": fact(engine, "rip"), "version": version}}
    if "attention" not in settings:
        return {}
    facts = {
        name: fact(settings[setting].observed, "observed in the loaded engine")
        for name, setting in (("attention_backend", "attention"), ("dtype", "dtype"), ("device", "device"))
    }
    return {"engine": facts, "parallelism": {"tensor_parallel_size": fact(1, "hf engine: one process")}}
