"""How a long experiment reports what it is doing; a command shows it on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """The listener of an experiment."""

    def stage(self, name: str, done: int = 0, total: int | None = None, detail: str = "") -> None:
        """Called when a stage begins and as it advances.

        Args:
            name: What is being done.
            done: How much of it is done.
            total: How much there is; None: not known.
            detail: The same for people, such as `3/16 tokens`.
        """

    def note(self, sentence: str) -> None:
        """Called with a sentence that stays on the screen."""


def show_bytes(progress: Progress, name: str) -> Callable[[int, int], None]:
    """A listener for (bytes done, bytes in all), which shows them as a stage."""

    def show(done: int, total: int) -> None:
        progress.stage(name, done, total, f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

    return show
