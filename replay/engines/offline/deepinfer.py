"""Engine `deepinfer`: DeepInfer through the protocol of protocol.py. Not yet run against the real engine.

What is published of it: the two switches, `SamplingParams.seq_seed`, and the `golden_token_ids` of its own
test, which compares token ids, logprobs, top-token ids and top-token logprobs. All other names are taken as
`LLM(model).generate(prompts, params)` engines have them; one that differs is reported as an error.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ....schemas.base import parse_json_object
from ....schemas.errors import EngineFailed, MissingPackage
from .engine import OfflineKind
from .protocol import OfflineCapabilities, OfflineOutput, OfflineSampling

PACKAGE = "deepinfer"
SWITCHES = {
    "batch_invariant": ("DEEPINFER_BATCH_INVARIANT", "1"),
    "mtp_varlen": ("DEEPINFER_ENABLE_MTP_VARLEN", "0"),
}
"""Setting → the variable that it sets, and the value for deterministic runs."""


class DeepInfer:
    """DeepInfer with its determinism switches on, unless `--set` turns them off."""

    capabilities = OfflineCapabilities(forced_tokens=True, seeds=True, top_logprobs=None)

    def __init__(self, model: str, batch_invariant: str = "1", mtp_varlen: str = "0") -> None:
        wanted = {"batch_invariant": batch_invariant, "mtp_varlen": mtp_varlen}
        _set_switches({SWITCHES[name][0]: value for name, value in wanted.items()})
        try:
            self._package = import_module(PACKAGE)
        except ModuleNotFoundError as error:
            if error.name != PACKAGE:
                raise
            raise MissingPackage(
                "DeepInfer is not installed here",
                f"install its package ({PACKAGE}) into the environment that runs rip",
            ) from None
        self._llm = self._package.LLM(model=model)
        config = parse_json_object((Path(model) / "config.json").read_bytes(), f"{model}/config.json")
        self.context_length = config["max_position_embeddings"]
        self.vocab_size = config["vocab_size"]
        self.version = str(getattr(self._package, "__version__", "unknown"))

    @classmethod
    def parse_settings(cls, settings: dict[str, str]) -> dict[str, Any]:
        """Both switches are 0 or 1."""
        for name, text in settings.items():
            if name in SWITCHES and text not in ("0", "1"):
                raise ValueError(f"{name}={text}: choose 0 or 1")
        return dict(settings)

    @property
    def observed(self) -> dict[str, Any]:
        """The switches as the process has them."""
        return {name: os.environ.get(variable, "unset") for name, (variable, _) in SWITCHES.items()}

    def generate(self, prompts: list[list[int]], params: list[OfflineSampling]) -> list[OfflineOutput]:
        """All prompts in one call."""
        wanted = [self._package.SamplingParams(**_arguments(one)) for one in params]
        return [
            OfflineOutput(
                token_ids=output.token_ids,
                finish_reason=str(getattr(output, "finish_reason", "unknown")),
                logprobs=output.logprobs,
                top_ids=output.top_token_ids,
                top_logprobs=output.top_token_logprobs,
            )
            for output in self._llm.generate(prompts, wanted)
        ]


def _set_switches(wanted: dict[str, str]) -> None:
    """Set the variables that DeepInfer reads when it is imported.

    Raises:
        EngineFailed: It was imported under other ones.
    """
    if PACKAGE in sys.modules:
        for variable, value in wanted.items():
            if os.environ.get(variable) != value:
                raise EngineFailed(
                    f"DeepInfer was imported already, with {variable}={os.environ.get(variable, 'unset')}",
                    "open it in a fresh process",
                )
    os.environ.update(wanted)


def _arguments(params: OfflineSampling) -> dict[str, Any]:
    """Arguments of `SamplingParams`; those that would limit nothing are left out."""
    arguments: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "seq_seed": params.seed,
        "top_logprobs": params.top_logprobs,
    }
    if params.top_p < 1:
        arguments["top_p"] = params.top_p
    if params.top_k:
        arguments["top_k"] = params.top_k
    if params.stop_token_ids:
        arguments["stop_token_ids"] = list(params.stop_token_ids)
    if params.ignore_eos:
        arguments["ignore_eos"] = True
    if params.golden_token_ids is not None:
        arguments["golden_token_ids"] = list(params.golden_token_ids)
    return arguments


ENGINE = OfflineKind("deepinfer", DeepInfer)
