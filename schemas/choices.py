"""The closed choices that commands, documents and engines share, and the error for any other value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar, get_args

from .errors import BadInput, stated_option

Mode = Literal["free", "golden-decode", "golden-prefill"]


MODES: tuple[Mode, ...] = get_args(Mode)


CaptureLevel = Literal["tokens", "sites", "tensors"]


CAPTURE_LEVELS: tuple[CaptureLevel, ...] = get_args(CaptureLevel)


Level = Literal["bitwise", "numeric", "token", "semantic"]


LEVELS: tuple[Level, ...] = get_args(Level)
"""Strongest first. `numeric` and `token` are independent of each other."""


CheckMode = Literal["golden-decode", "free"]


CHECK_MODES: tuple[CheckMode, ...] = get_args(CheckMode)
"""Modes of the batch-invariance check."""


NarrowLevel = Literal["token", "bitwise"]


NARROW_LEVELS: tuple[NarrowLevel, ...] = get_args(NarrowLevel)


Redaction = Literal["text", "ids"]


REDACTIONS: tuple[Redaction, ...] = get_args(Redaction)
"""What an envelope loses: its text, or its token ids too."""


Strength = Literal["verified", "sampled", "claimed"]


STRENGTHS: tuple[Strength, ...] = get_args(Strength)
"""How much of a model's weights is read: all bytes, windows of every tensor, or headers only."""


ImportFormat = Literal["auto", "openai", "sglang"]


IMPORT_FORMATS: tuple[ImportFormat, ...] = get_args(ImportFormat)


_Choice = TypeVar("_Choice", bound=str)


def check_choice(option: str, value: str, choices: Sequence[_Choice], noun: str = "choice") -> _Choice:
    """The choice that an option's value names.

    Args:
        option: The option without its dashes.
        noun: What the choices are.

    Raises:
        BadInput: It names none of them.
    """
    for choice in choices:
        if choice == value:
            return choice
    raise BadInput(f"no such {noun}", f"choose one of: {', '.join(choices)}", stated_option(option, value))
