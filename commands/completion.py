"""What a shell completes after an option; each function imports what it needs when a word is completed."""

from __future__ import annotations

from collections.abc import Iterable

import typer


def question_names(incomplete: str) -> list[str]:
    """Of `rip query --ask`."""
    from ..diverge.views.questions import QUESTIONS

    return _beginning(incomplete, QUESTIONS)


def engine_names(incomplete: str) -> list[str]:
    """Of `--engine`."""
    from ..replay.engines.registry import ENGINES

    return _beginning(incomplete, ENGINES)


def setting_keys(context: typer.Context, incomplete: str) -> list[str]:
    """`KEY=` of `--set`, for the engine that the line names; and the values of a key that has few."""
    from ..replay.engines.hf.settings import SETTINGS
    from ..replay.engines.http.settings import CACHE, CLIENT_SETTINGS

    key, equals, value = incomplete.partition("=")
    stated = context.params.get("engine")
    is_server = stated not in (None, "hf") or context.params.get("url") is not None
    specs = {**CLIENT_SETTINGS, "cache": CACHE} if is_server else SETTINGS
    if equals:
        choices = specs[key].choices if key in specs else ()
        return [f"{key}={choice}" for choice in choices if choice.startswith(value)]
    return [f"{name}=" for name in _beginning(incomplete, specs)]


def sampling_keys(incomplete: str) -> list[str]:
    """`KEY=` of `--sampling`."""
    from ..schemas.envelope import Sampling

    return [f"{name}=" for name in _beginning(incomplete, Sampling.model_fields)]


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
