"""A tapped stand-in of vLLM's runner in a folder, and what its modules returned as plain hooks saw it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fakes.vllm_runner import FirstRunner
from rip.replay.vllm_tap.tap_folder import TapFolder
from rip.replay.vllm_tap.worker.recorder import Recorder, TapSettings
from rip.replay.vllm_tap.worker.start_taps import TappedEngine, observe

ALONE = {"rank": 0, "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "dp_rank": 0, "dp_size": 1}
FACTS = {"instance": "engine-1", "model": "small", "vllm": "0.32.0"}


def tapped(
    runner: FirstRunner,
    folder: Path,
    place: dict[str, int] = ALONE,
    channel: str = "eager",
    why: str = "",
    **settings: Any,
) -> Recorder:
    """Observe a runner as a worker does."""
    return observe(runner, TapSettings(folder, **settings), TappedEngine(place, FACTS, channel, why))


def ready(folder: Path) -> TapFolder:
    """The folder, its sites known."""
    taps = TapFolder(folder)
    taps.wait_ready(10)
    return taps


def watch(model: torch.nn.Module, path: str, output: int = 0) -> list[torch.Tensor]:
    """A copy of what a module returns at every call from now on, taken before anything can overwrite it."""
    seen: list[torch.Tensor] = []

    def hook(_module: torch.nn.Module, _inputs: object, returned: Any) -> None:
        seen.append((returned if isinstance(returned, torch.Tensor) else returned[output]).clone())

    model.get_submodule(path).register_forward_hook(hook)
    return seen
