"""The lane of a replay: from options and a lane file to an opened engine, and the fingerprint of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...commands.server_key import server_key
from ...schemas.errors import BadInput
from .other_process import check_interpreter, recorded, runs_in_process, split_variables

if TYPE_CHECKING:
    from ...fingerprint.model.ref import ModelRef
    from ...replay.engines.base import Capabilities, Engine, Opening
    from ...schemas.fingerprint import Fact, Fingerprint
    from ...schemas.trace import Lane, Setting

DEFAULT_TOPK = 20
IN_PROCESS = "hf"
LANE_SUFFIX = ".toml"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Chosen:
    """What was chosen, on the command line or in a lane file; the command line wins.

    Attributes:
        name: What the lane is called in the trace.
        engine: Registered name or `module:Class`; None: as the server at `url` says, else `hf`.
        model: What the user calls the model.
        settings: `--set` texts; later ones win.
        neighbours: What runs beside the requests, as `--neighbours` says it.
    """

    name: str
    engine: str | None
    model: str | None
    url: str | None
    api_key_env: str | None
    python: str | None
    tap: Path | None
    settings: tuple[str, ...]
    neighbours: str | None = None


def choose(lane: str, given: Chosen) -> Chosen:
    """Join the options with the lane file, if `lane` names one.

    Raises:
        BadInput: The file cannot be used.
    """
    if not lane.endswith(LANE_SUFFIX):
        return replace(given, name=lane)
    from ...schemas.lane import load_lane

    file = load_lane(Path(lane))
    return Chosen(
        name=Path(lane).stem,
        engine=given.engine or file.engine,
        model=given.model or file.model,
        url=given.url or file.url,
        api_key_env=given.api_key_env or file.api_key_env,
        python=given.python or file.python,
        tap=given.tap or (Path(file.tap) if file.tap else None),
        settings=(*file.settings(), *given.settings),
        neighbours=str(file.neighbours)
        if given.neighbours is None and file.neighbours is not None
        else given.neighbours,
    )


class LaneRunner:
    """One lane on its way from what was chosen to an opened engine.

    Args:
        chosen: What was chosen.

    Raises:
        BadInput: No model and no server, an unknown engine, or a setting that does not fit.
        EngineFailed: The server does not tell what it is.
    """

    def __init__(self, chosen: Chosen) -> None:
        from ...fingerprint.model.ref import resolve
        from ...fingerprint.remote.address import checked
        from ...replay.engines.registry import engine_class

        if chosen.url is not None:
            chosen = replace(chosen, url=checked(chosen.url))
        self.chosen = chosen
        if chosen.model is None and chosen.url is None:
            raise BadInput(
                "no model was named", "give --model, or the address of a server that serves one with --url"
            )
        self._key = server_key(chosen.url, chosen.api_key_env)
        self._told: Fingerprint | None = None
        self.engine = chosen.engine or self._engine_of_server() if chosen.url else chosen.engine or IN_PROCESS
        self._type = engine_class(self.engine)
        self._in_process = runs_in_process(self.engine, chosen.url)
        self._variables: dict[str, str] = {}
        settings = chosen.settings
        if self._in_process:  # what they say holds for this whole process: see lane_process.py
            self._variables, settings = split_variables(settings)
        self._given = self._type.parse_settings(settings, chosen.url is None)
        # A server may call its model by any name; files of that name need not be here.
        served_name = chosen.url is not None and chosen.model is not None and not Path(chosen.model).exists()
        self._reference = resolve(chosen.model) if chosen.model is not None and not served_name else None
        self._identity: Fingerprint | None = None

    def lane(self) -> Lane:
        """What the trace says of this way to run; its settings come from the engine."""
        from ...schemas.trace import Lane

        chosen = self.chosen
        return Lane(
            name=chosen.name,
            engine=self.engine,
            model=chosen.model or "(as served)",
            url=chosen.url,
            api_key_env=chosen.api_key_env,
            python=chosen.python,
            tap=str(chosen.tap) if chosen.tap else None,
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

    def identify(self, progress: Progress) -> Fingerprint:
        """The model's files, hashed, with the environment of this process; before anything is loaded."""
        from ...fingerprint.collect import collect

        self._identity = collect(self._reference, progress=progress)
        return self._identity

    def refuse(self, capture: str | None, topk: int | None, mode: str, sites: str | None = None) -> None:
        """Refuse, before anything is loaded or started, what this engine can never give.

        Args:
            capture: `--capture` as it was asked for; None: nothing was said.
            topk: `--topk`, likewise.
            mode: What will be run.
            sites: `--sites`, likewise.

        Raises:
            BadInput: It cannot.
        """
        can = self._type.capabilities
        if mode not in can.modes:
            raise BadInput(
                f"the engine {self.engine} has no mode {mode}", f"choose one of: {', '.join(can.modes)}"
            )
        asks_sites = capture in ("sites", "tensors") or sites is not None
        if asks_sites and not can.sites:
            fix = "use --capture tokens" if sites is None else "leave --sites out"
            raise BadInput(f"the engine {self.engine} shows no sites", fix)
        if capture == "tensors" and self.engine != IN_PROCESS:
            raise BadInput(f"the engine {self.engine} keeps no rows", "use --capture sites")
        self._refuse_tap(asks_sites)
        if topk is not None and can.most_topk is not None and topk > can.most_topk:
            most = f"at most {can.most_topk}" if can.most_topk else "no"
            raise BadInput(
                f"--topk {topk}: the engine {self.engine} tells {most} likely tokens",
                f"use --topk {can.most_topk} or less" if can.most_topk else "leave --topk out",
            )

    def _refuse_tap(self, asks_sites: bool) -> None:
        """Refuse sites without the tap folder that they come through, and a folder that can be none."""
        tap, url, taps = self.chosen.tap, self.chosen.url, self._type.capabilities.taps
        if tap is None:
            if asks_sites and taps and url is not None:
                raise BadInput(
                    f"the sites of a {self.engine} server that runs already come through its tap folder",
                    "name the folder RIP_TAP of that server with --tap, or use --capture tokens",
                )
            return
        if not taps:
            raise BadInput(f"--tap: the engine {self.engine} writes no tap folder", "leave --tap out")
        if url is None:
            raise BadInput(
                "--tap: a server that rip starts gets a tap folder of its own",
                "leave --tap out, or name the server that writes there with --url",
            )
        if not tap.is_dir():
            raise BadInput(
                f"--tap {tap}: there is no such folder", "name the folder RIP_TAP of the server at --url"
            )

    def check(self) -> None:
        """Refuse, before anything is loaded or started, what can be told to be wrong without it.

        Raises:
            BadInput: A value that the engine does not know, or an interpreter without what it needs.
            EngineFailed: An interpreter cannot be run, or a server does not answer.
        """
        chosen = self.chosen
        if chosen.url is not None and not self._in_process:
            self._engine_of_server()  # it must answer; which engine it is, the replay will see
        elif self._in_process and chosen.python is not None:
            check_interpreter(chosen.python)  # what its engine knows, this interpreter cannot say
        else:
            model = self._reference.path if self._reference is not None else chosen.model
            self._type.check_start(model, chosen.python, self._given)

    def opening(self, topk: int | None, **rest: Any) -> Opening:
        """What the engine is opened with; `rest` are fields of `Opening`."""
        from ...replay.engines.base import Opening

        assert self._identity is not None
        most = self._type.capabilities.most_topk
        wanted = DEFAULT_TOPK if topk is None else topk
        return Opening(
            topk=wanted if most is None else min(wanted, most),
            model=self._reference.path if self._reference is not None else None,
            model_name=self.chosen.model,
            model_sha256=str(self._identity.flat()["model_sha256"]) if self._reference is not None else None,
            url=self.chosen.url,
            api_key=self._key,
            python=None if self._in_process else self.chosen.python,
            given=self._given,
            tap=self.chosen.tap,
            **rest,
        )

    def open(self, opening: Opening) -> Engine:
        """The opened engine.

        Raises:
            EngineFailed, BadInput: It cannot be opened.
        """
        opened: Engine = self._type(opening)
        if self._variables:
            opened.settings = {**opened.settings, **recorded(self._variables)}
        return opened

    def fingerprint(self, engine: Engine) -> Fingerprint:
        """What the environment is in which the engine runs, with what the loaded engine observed.

        Of a server that was started: its process. Of one that was named by its URL: what it tells. Without a
        model's files, nothing of the model but what a server tells of it.
        """
        from ...fingerprint.collect import collect

        if self.chosen.url is not None:
            return self._of_server(self._reference)
        if engine.pid is not None:
            return collect(self._reference, pid=engine.pid, overrides=_observed(engine.settings, self.engine))
        return collect(self._reference, overrides=_observed(engine.settings, self.engine))

    def _engine_of_server(self) -> str:
        """The engine that the server says it is; any other is called as the OpenAI API says."""
        from ...replay.engines.registry import ENGINES

        told = self._of_server(None).get("engine", "name")
        name = None if told is None else told.value
        return str(name) if name in ENGINES else "openai"

    def _of_server(self, reference: ModelRef | None) -> Fingerprint:
        from ...fingerprint.collect import collect
        from ...fingerprint.remote.address import Server

        assert self.chosen.url is not None
        return collect(reference, server=Server(self.chosen.url, self._key))


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
