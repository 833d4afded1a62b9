"""Offline engines: the small protocol that an engine of one's own has to satisfy, and how one is found.

An offline engine is a Python class that generates a whole batch in one call; `--engine module:Class` names
it. The `Engine` that rip puts around it is in offline_lane.py.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ....schemas.errors import BadInput, EngineFailed, MissingPackage, RipError, stated_setting
from ..base import Capabilities, Opening
from ..hf.load import first_line

if TYPE_CHECKING:
    from .engine import OfflineLane

DOCUMENT = "docs/offline-engines.md shows a whole engine"
MOST_SEQUENCES = 10_000


@dataclass(frozen=True)
class OfflineCapabilities:
    """What an offline engine can do; a claim that it does not keep ends the replay."""

    forced_tokens: bool = False
    """It puts `golden_token_ids` in place of its own choices, step by step, on the path of generation."""
    seeds: bool = False
    """A seed for each sequence chooses its draws."""
    top_logprobs: int | None = 0
    """Largest K of the distributions that it tells with every token; 0: none at all, None: no limit."""
    raw_logprobs: bool = False
    """They are those before temperature, top-p and the like."""
    one_batch: bool = False
    """All prompts of one call share every forward pass; else its scheduler decides which do."""


@dataclass(frozen=True)
class OfflineSampling:
    """How the tokens of one prompt are chosen. Everything is stated: an engine's own defaults never apply."""

    max_tokens: int
    temperature: float
    """0: greedy."""
    top_p: float
    """1: no limit."""
    top_k: int
    """0: no limit."""
    seed: int | None
    """Of this sequence alone; None where the engine has no seeds."""
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    """The model's own end tokens do not end the sequence."""
    golden_token_ids: tuple[int, ...] | None
    """Tokens to force, `max_tokens` of them; None: the engine chooses."""
    top_logprobs: int
    """K: how many of the most likely tokens are told with every token."""


@dataclass(frozen=True)
class OfflineOutput:
    """What became of one prompt. G generated tokens, P prompt tokens, at most K candidates a token."""

    token_ids: Sequence[int]
    """[G], an end token included where it was generated."""
    finish_reason: str
    """`length`, `stop`, or the engine's own word."""
    logprobs: Sequence[float | None] | None = None
    """[G] nats: the log-probability of each generated token, among the K or not."""
    top_ids: Sequence[Sequence[int]] | None = None
    """[G][≤ K]: the most likely tokens where each token was chosen, in any order."""
    top_logprobs: Sequence[Sequence[float]] | None = None
    """[G][≤ K] nats: theirs."""
    prompt_top_ids: Sequence[Sequence[int]] | None = None
    """[P − 1][≤ K]: the same for every prompt token but the first."""
    prompt_top_logprobs: Sequence[Sequence[float]] | None = None
    text: str | None = None
    """The generated text, where the engine makes one."""


class OfflineEngine(Protocol):
    """What a class must have to be given as `--engine module:Class`.

    It may also have:

    - a classmethod `parse_settings(settings: dict[str, str]) -> dict[str, Any]` that reads what `--set` said
      and raises ValueError with a sentence for the user; without it the constructor is given the texts;
    - `observed: Mapping[str, Any]`, the settings that really apply, which the trace then records;
    - `close()`.
    """

    capabilities: OfflineCapabilities
    """Of the class."""
    context_length: int
    """Most tokens of a sequence, prompt included; known once it is opened, like the next two."""
    vocab_size: int
    version: str

    def __init__(self, model: str, **settings: Any) -> None:
        """Load the model.

        Args:
            model: The folder or file that `--model` leads to.
            settings: What `--set KEY=VALUE` said.
        """

    def generate(self, prompts: list[list[int]], params: list[OfflineSampling]) -> Sequence[OfflineOutput]:
        """Generate for all prompts, in one batch if `capabilities.one_batch`.

        Args:
            prompts: Token ids of each.
            params: One for each.

        Returns:
            One for each, in the same order.
        """


class OfflineKind:
    """An offline engine before it is opened: to rip what the class of any other engine is.

    Args:
        name: What the trace calls it.
        offline: The class.

    Raises:
        BadInput: The class is no offline engine.
    """

    def __init__(self, name: str, offline: Any) -> None:
        told = getattr(offline, "capabilities", None)
        if not inspect.isclass(offline):
            raise BadInput(f"{name} is no class", DOCUMENT)
        if not callable(getattr(offline, "generate", None)):
            raise BadInput(f"{name} has no method generate", DOCUMENT)
        if not isinstance(told, OfflineCapabilities):
            raise BadInput(
                f"{name} has no class attribute capabilities that is an OfflineCapabilities", DOCUMENT
            )
        self.name = name
        self.offline: Any = offline
        self.told = told
        self.capabilities = Capabilities(
            modes=("free", "golden-decode") if told.forced_tokens else ("free",),
            sites=False,
            logits_hash=False,
            seed=told.seeds,
            most_topk=told.top_logprobs,
            logprobs="none" if told.top_logprobs == 0 else "raw" if told.raw_logprobs else "processed",
            batch="static" if told.one_batch else "concurrent",
            cancels=False,
        )

    def parse_settings(self, pairs: Sequence[str], starts: bool) -> dict[str, Any]:
        """Read `key=value` texts: `batch_size` is rip's own, all others are the engine's.

        Raises:
            BadInput: A value that does not fit.
        """
        texts: dict[str, str] = {}
        for pair in pairs:
            key, equals, text = pair.partition("=")
            key = key.replace("-", "_")
            if not equals or not key.isidentifier():
                raise BadInput("not of the form KEY=VALUE", "for example batch_size=8", stated_setting(pair))
            texts[key] = text
        size = texts.pop("batch_size", None)
        if size is not None and (
            not re.fullmatch("[0-9]{1,5}", size) or not 1 <= int(size) <= MOST_SEQUENCES
        ):
            raise BadInput(
                f"not a whole number from 1 to {MOST_SEQUENCES}",
                "for example batch_size=8",
                stated_setting(f"batch_size={size}"),
            )
        own: dict[str, Any] = {} if size is None else {"batch_size": int(size)}
        reader = getattr(self.offline, "parse_settings", None)
        if reader is None:
            return {**own, **texts}
        try:
            read = reader(texts)
        except ValueError as error:
            raise BadInput(f"{self.name}: {first_line(error)}", "correct the setting") from error
        if not isinstance(read, dict) or not all(isinstance(key, str) for key in read):
            raise EngineFailed(f"{self.name}.parse_settings gives no dict of settings", DOCUMENT)
        return {**own, **read}

    def check_start(self, model: Path | str | None, python: str | None, given: Mapping[str, Any]) -> None:
        """Refuse a setting that the constructor does not have (see `base.Engine.check_start`)."""
        from .engine import check_arguments

        own = {name: value for name, value in given.items() if name != "batch_size"}
        check_arguments(self, str(model), own)

    def __call__(self, opening: Opening) -> OfflineLane:
        """The opened engine.

        Raises:
            BadInput, EngineFailed, MissingPackage: It cannot be opened.
        """
        from .engine import OfflineLane

        return OfflineLane(self, opening)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Whatever the engine's own code raises becomes an error with a fix.

        Raises:
            MissingPackage: A package that it imports is not installed.
            EngineFailed: Anything else.
        """
        try:
            yield
        except RipError:
            raise
        except ModuleNotFoundError as error:
            raise MissingPackage(
                f"{self.name} needs the package {error.name!r}, which is not installed",
                "install it into the environment that runs rip",
            ) from error
        except Exception as error:  # a foreign program: it raises whatever it raises
            raise EngineFailed(
                f"{self.name} failed while {what}: {type(error).__name__}: {first_line(error)}",
                "the fault is in the engine: --debug shows where",
            ) from error


def load_offline(name: str) -> OfflineKind:
    """The offline engine `module:Class`. Modules are looked for as Python does, then in the current folder.

    Raises:
        BadInput: No such module or class, or the class is no offline engine.
        MissingPackage: The module needs a package that is not installed.
        EngineFailed: The module cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", name):
        raise BadInput(
            f"--engine {name}: not of the form module:Class", "for example --engine my_engine:MyEngine"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # at the end: no file here may stand in for an installed package
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.split(".")[: error.name.count(".") + 1] == error.name.split("."):
            raise BadInput(
                f"--engine {name}: there is no module {error.name!r}",
                "install it into the environment that runs rip, or run rip in the folder that holds it",
            ) from None
        raise MissingPackage(
            f"{module_name} needs the package {error.name!r}, which is not installed",
            "install it into the environment that runs rip",
        ) from error
    except Exception as error:  # a foreign program
        raise EngineFailed(
            f"{module_name} cannot be imported: {type(error).__name__}: {first_line(error)}",
            "correct it there: --debug shows where",
        ) from error
    if not hasattr(module, attribute):
        raise BadInput(f"--engine {name}: {module_name} has no {attribute}", "check the name of the class")
    return OfflineKind(name, getattr(module, attribute))
