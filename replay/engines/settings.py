"""Settings of engines (`--set KEY=VALUE`): what is known of each, and how its text is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...schemas.errors import BadInput, stated_setting

MOST = 10**6
"""Largest whole number that a setting takes."""
MOST_SEQUENCES = 10_000
"""Largest batch."""


@dataclass(frozen=True)
class Known:
    """One setting: how its text is read, what it does, and what applies where it is not stated."""

    kind: Literal["choice", "number", "text"]
    meaning: str
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = MOST
    default: Any = None

    def read(self, name: str, text: str) -> Any:
        """The value of a text.

        Raises:
            BadInput: It does not fit.
        """
        option = stated_setting(f"{name}={text}")
        if self.kind == "number":
            digits = len(str(self.most))
            if not re.fullmatch(rf"[0-9]{{1,{digits}}}", text) or not self.least <= int(text) <= self.most:
                raise BadInput(
                    f"not a whole number from {self.least} to {self.most}",
                    f"for example --set {name}={max(self.least, 2)}",
                    option,
                )
            return int(text)
        if self.choices and text not in self.choices:
            raise BadInput(f"not a value of {name}", f"choose one of: {', '.join(self.choices)}", option)
        if not text:
            raise BadInput(f"not a value of {name}", f"give a {self.meaning}", option)
        return text


BATCH_SIZE = Known(
    "number", "requests of the set that are sent together", least=1, most=MOST_SEQUENCES, default=1
)


def split_pair(pair: str, form: str = r"\w+", example: str = "batch_size=8") -> tuple[str, str]:
    """Key and text of a `KEY=VALUE`.

    Args:
        pair: As `--set` has it.
        form: Pattern of the keys that there can be.
        example: What a fix shows.

    Raises:
        BadInput: Not of that form.
    """
    key, equals, text = pair.partition("=")
    if not equals or not re.fullmatch(form, key):
        raise BadInput("not of the form KEY=VALUE", f"for example --set {example}", stated_setting(pair))
    return key, text


def defaults(known: Mapping[str, Known]) -> dict[str, Any]:
    """What applies where nothing is stated, of those settings that have a default."""
    return {name: one.default for name, one in known.items() if one.default is not None}
