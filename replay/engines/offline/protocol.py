"""The protocol of an offline engine, a class that generates a whole batch in one call, and the class checked.

`--engine module:Class` names it. engine.py wraps it as an `Engine`.
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
from typing import Any, Protocol

from ....schemas.errors import (
    BadInput,
    EngineFailed,
    MissingPackage,
    RipError,
    Stated,
    first_line,
    stated_option,
)
from ...request.resolve_request import Capabilities
from ..base import BATCH_SIZE, split_pair

DOCUMENT = "docs/offline-engines.md shows a whole engine"


@dataclass(frozen=True)
class OfflineCapabilities:
    """What an offline engine supports; a claim that it does not keep ends the replay."""

    forced_tokens: bool = False
    """It puts `golden_token_ids` in place of its own choices, step by step, on the path of generation."""
    seeds: bool = False
    """A seed for each sequence chooses its draws."""
    top_logprobs: int | None = 0
    """Largest K of the distributions that it returns with every token; 0: none at all, None: no limit."""
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
    """K: how many of the most likely tokens are returned with every token."""


@dataclass(frozen=True)
class OfflineOutput:
    """What was generated for one prompt: G generated, P prompt tokens, at most K candidates a token."""

    token_ids: Sequence[int]
    """[G], an end token included where it was generated."""
    finish_reason: str
    """`length`, `stop`, or the engine's own name."""
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
    """What the class of `--engine module:Class` must have.

    It may also have:

    - a classmethod `parse_settings(settings: dict[str, str]) -> dict[str, Any]` that reads the texts of
      `--set` and raises ValueError with a sentence for the user; without it the constructor gets the texts;
    - `observed: Mapping[str, Any]`, the settings that actually apply, which the trace then records;
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
            settings: From `--set KEY=VALUE`.
        """

    def generate(self, prompts: list[list[int]], params: list[OfflineSampling]) -> Sequence[OfflineOutput]:
        """Generate for all prompts, in one batch if `capabilities.one_batch`.

        Args:
            prompts: Token ids of each.
            params: One for each.

        Returns:
            One for each, in the same order.
        """


class OfflineClass:
    """A class that satisfies the protocol: for rip what the class of any other engine is.

    Args:
        name: What the trace calls it.

    Raises:
        BadInput: It does not satisfy the protocol.
    """

    def __init__(self, name: str, offline: Any) -> None:
        claims = getattr(offline, "capabilities", None)
        if not inspect.isclass(offline):
            raise BadInput(f"{name} is not a class", DOCUMENT)
        if not callable(getattr(offline, "generate", None)):
            raise BadInput(f"{name} has no method generate", DOCUMENT)
        if not isinstance(claims, OfflineCapabilities):
            raise BadInput(
                f"{name} has no class attribute capabilities that is an OfflineCapabilities", DOCUMENT
            )
        self.name = name
        self.offline: Any = offline
        self.claims = claims
        self.capabilities = Capabilities(
            modes=("free", "golden-decode") if claims.forced_tokens else ("free",),
            seed=claims.seeds,
            most_topk=claims.top_logprobs,
            logprobs="none" if claims.top_logprobs == 0 else "raw" if claims.raw_logprobs else "processed",
            batch="static" if claims.one_batch else "concurrent",
        )

    def parse_settings(self, pairs: Sequence[str], starts: bool) -> dict[str, Any]:
        """Read `key=value` texts: `batch_size` is rip's own, all others are the engine's.

        Raises:
            BadInput: A value that does not fit.
        """
        texts: dict[str, str] = {}
        for pair in pairs:
            key, text = split_pair(pair, r"[A-Za-z_][A-Za-z0-9_-]*")
            texts[key.replace("-", "_")] = text
        size = texts.pop("batch_size", None)
        own = {} if size is None else {"batch_size": BATCH_SIZE.read("batch_size", size)}
        reader = getattr(self.offline, "parse_settings", None)
        if reader is None:
            return {**own, **texts}
        try:
            read = reader(texts)
        except ValueError as error:
            raise BadInput(
                f"{self.name}: {first_line(error)}", "correct the value", Stated("", "--set", "--set")
            ) from error
        if not isinstance(read, dict) or not all(isinstance(key, str) for key in read):
            raise EngineFailed(f"{self.name}.parse_settings does not return a dict of settings", DOCUMENT)
        return {**own, **read}

    def check_start(self, model: Path | str | None, python: str | None, settings: Mapping[str, Any]) -> None:
        """Refuse a setting that the constructor does not have (see `base.EngineKind.check_start`)."""
        self.check_arguments(str(model), own_settings(settings))

    def check_arguments(self, model: str, settings: Mapping[str, Any]) -> None:
        """Refuse a setting that the constructor does not have, before it loads anything.

        Raises:
            BadInput: It has no such argument, or needs one that is not stated.
        """
        try:
            inspect.signature(self.offline).bind(model, **settings)
        except TypeError as error:
            raise BadInput(
                f"{self.name} cannot be opened with these settings: {error}", "correct --set KEY=VALUE"
            ) from None

    @contextmanager
    def foreign_errors(self, action: str) -> Iterator[None]:
        """Whatever the engine's own code raises becomes an error with a fix.

        Args:
            action: What it does meanwhile: `opening the model`.

        Raises:
            MissingPackage: A package that it imports is not installed.
            EngineFailed: Anything else.
        """
        try:
            yield
        except RipError:
            raise
        except ModuleNotFoundError as error:
            raise _missing(self.name, error) from error
        except Exception as error:  # a foreign program: it raises whatever it raises
            raise EngineFailed(
                f"{self.name} failed while {action}: {type(error).__name__}: {first_line(error)}",
                "the fault is in the engine: --debug shows where",
            ) from error


def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the engine itself: all but the batch size, which is rip's."""
    return {name: value for name, value in settings.items() if name != "batch_size"}


def find_class(name: str) -> Any:
    """The class `module:Class`. Modules are searched for as Python does, then in the current folder.

    Raises:
        BadInput: No such module or class.
        MissingPackage: The module needs a package that is not installed.
        EngineFailed: The module cannot be imported.
    """
    option = stated_option("engine", name)
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", name):
        raise BadInput("not of the form module:Class", "for example --engine my_engine:MyEngine", option)
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # at the end: no file here may replace an installed package
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.split(".")[: error.name.count(".") + 1] == error.name.split("."):
            raise BadInput(
                f"there is no module {error.name!r}",
                "install it into the environment that runs rip, or run rip in the folder that holds it",
                option,
            ) from None
        raise _missing(module_name, error) from error
    except Exception as error:  # a foreign program
        raise EngineFailed(
            f"{module_name} cannot be imported: {type(error).__name__}: {first_line(error)}",
            "correct it there: --debug shows where",
        ) from error
    if not hasattr(module, attribute):
        raise BadInput(f"{module_name} has no {attribute}", "check the name of the class", option)
    return getattr(module, attribute)


def _missing(name: str, error: ModuleNotFoundError) -> MissingPackage:
    return MissingPackage(
        f"{name} needs the package {error.name!r}, which is not installed",
        "install it into the environment that runs rip",
    )
