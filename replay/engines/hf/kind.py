"""What the engine `hf` is, known without torch: a lane that is refused has loaded nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .settings import CAPABILITIES, parse_settings

if TYPE_CHECKING:
    from ..base import Opening
    from .engine import HfEngine


class HfKind:
    """The registry's entry (see `base.EngineKind`)."""

    capabilities = CAPABILITIES

    def __call__(self, opening: Opening) -> HfEngine:
        """The opened engine; imports torch and transformers."""
        from .engine import HfEngine

        return HfEngine(opening)

    def parse_settings(self, pairs: Sequence[str], starts: bool) -> dict[str, Any]:
        """Read `key=value` texts (see `settings.parse_settings`)."""
        return parse_settings(pairs)

    def check_start(self, model: Path | str | None, python: str | None, settings: Mapping[str, Any]) -> None:
        """Refuse an attention implementation that the model lacks (see `base.EngineKind.check_start`)."""
        if "attention" in settings and isinstance(model, Path):
            from .model import check_attention

            check_attention(model, settings["attention"])


ENGINE = HfKind()
