"""A stand-in for DeepInfer: what is published of it, and the names that rip's adapter takes for the rest.

It reads its switches when it is imported. Without batch invariance a batch changes the numbers a little; with
variable-length speculation every answer does.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from fakes.offline_engines import PlainEngine
from rip.replay.engines.offline.protocol import OfflineSampling

__version__ = "0.9"
BATCH_INVARIANT = os.environ.get("DEEPINFER_BATCH_INVARIANT") == "1"
MTP_VARLEN = os.environ.get("DEEPINFER_ENABLE_MTP_VARLEN") != "0"


@dataclass
class SamplingParams:
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seq_seed: int | None = None
    top_logprobs: int = 0
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    golden_token_ids: list[int] | None = None


@dataclass
class Output:
    token_ids: list[int]
    logprobs: list[float]
    top_token_ids: list[list[int]]
    top_token_logprobs: list[list[float]]
    finish_reason: str


class LLM:
    calls = 0

    def __init__(self, model: str) -> None:
        self.engine = PlainEngine(model)

    def generate(self, prompts: list[list[int]], params: list[SamplingParams]) -> list[Output]:
        LLM.calls += 1
        outputs: list[Any] = []
        for index, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            noise = 0.0 if BATCH_INVARIANT else 1e-3 * index
            noise += 1e-3 * LLM.calls if MTP_VARLEN else 0.0
            golden = None if one.golden_token_ids is None else tuple(one.golden_token_ids)
            asked = OfflineSampling(
                one.max_tokens,
                one.temperature,
                one.top_p,
                one.top_k,
                one.seq_seed,
                tuple(one.stop_token_ids),
                one.ignore_eos,
                golden,
                one.top_logprobs,
            )
            told = self.engine.answer(prompt, asked, noise)
            outputs.append(
                Output(
                    list(told.token_ids),
                    list(told.logprobs or ()),  # type: ignore[arg-type]
                    [list(row) for row in told.top_ids or ()],
                    [list(row) for row in told.top_logprobs or ()],
                    told.finish_reason,
                )
            )
        return outputs
