"""Offline engines for tests: a small exact language model with faults that can be planted, and wrong classes.

`PlainEngine` computes next-token distributions from the last tokens in float64, each sequence by itself, so
that nothing depends on the batch. `DriftingEngine` is the same with a rounding that does.
"""

from __future__ import annotations

import math
import random
from typing import Any

from rip.replay.engines.offline.protocol import OfflineCapabilities, OfflineOutput, OfflineSampling

VOCAB, CONTEXT, END = 128, 512, 7


def logprobs_after(tokens: list[int], noise: float = 0.0) -> list[float]:
    """The raw log-probabilities of all token ids after `tokens`."""
    draws = random.Random(str(tokens[-4:]))
    logits = [draws.gauss(0, 2) for _ in range(VOCAB)]
    logits[len(tokens) % VOCAB] += noise
    total = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]


class PlainEngine:
    """Every claim is kept; the settings are `flavour` (any text) and `depth` (a number)."""

    capabilities = OfflineCapabilities(
        forced_tokens=True, seeds=True, top_logprobs=None, raw_logprobs=True, one_batch=True
    )
    vocab_size, context_length, version = VOCAB, CONTEXT, "1.2.3"

    def __init__(self, model: str, flavour: str = "plain", depth: int = 1) -> None:
        self.model, self.flavour, self.depth = model, flavour, depth
        self.asked: list[list[OfflineSampling]] = []
        self.closed = 0

    @classmethod
    def parse_settings(cls, settings: dict[str, str]) -> dict[str, Any]:
        return {name: int(text) if name == "depth" else text for name, text in settings.items()}

    @property
    def observed(self) -> dict[str, Any]:
        return {"depth": self.depth, "threads": 1}

    def generate(self, prompts: list[list[int]], params: list[OfflineSampling]) -> list[OfflineOutput]:
        self.asked.append(params)
        noises = self.noises(len(prompts))
        return [self.answer(*one) for one in zip(prompts, params, noises, strict=True)]

    def noises(self, batch: int) -> list[float]:
        """What the batch does to each sequence: nothing."""
        return [0.0] * batch

    def answer(self, prompt: list[int], params: OfflineSampling, noise: float) -> OfflineOutput:
        draws = random.Random(params.seed)
        tokens, chosen, ids, likely = list(prompt), [], [], []
        for step in range(params.max_tokens):
            row = logprobs_after(tokens, noise)
            order = sorted(range(VOCAB), key=lambda token: (-row[token], token))
            if params.golden_token_ids is not None:
                token = params.golden_token_ids[step]
            elif params.temperature == 0:
                token = order[0]
            else:
                token = draws.choices(range(VOCAB), [math.exp(value) for value in row])[0]
            tokens.append(token)
            chosen.append(row[token])
            ids.append(order[: params.top_logprobs])
            likely.append([row[one] for one in ids[-1]])
            if token in params.stop_token_ids or (token == END and not params.ignore_eos):
                break
        generated = tokens[len(prompt) :]
        return OfflineOutput(generated, "length", chosen, ids, likely)

    def close(self) -> None:
        self.closed += 1


class DriftingEngine(PlainEngine):
    """In a batch, every sequence after the first is computed a little differently."""

    def noises(self, batch: int) -> list[float]:
        return [0.0, *[1e-2] * (batch - 1)]


class LurchingEngine(PlainEngine):
    """In a batch, every sequence after the first chooses other tokens from its first step on."""

    def noises(self, batch: int) -> list[float]:
        return [0.0, *[50.0] * (batch - 1)]


class ScheduledEngine(PlainEngine):
    """Neither forces tokens nor says what runs together, and has no seeds."""

    capabilities = OfflineCapabilities(top_logprobs=5)


class TokensOnlyEngine(PlainEngine):
    """Tells tokens alone."""

    capabilities = OfflineCapabilities(forced_tokens=True, seeds=True, one_batch=True)

    def answer(self, prompt: list[int], params: OfflineSampling, noise: float) -> OfflineOutput:
        return OfflineOutput(super().answer(prompt, params, noise).token_ids, "length")


class WordyEngine(PlainEngine):
    """Tells something else than was asked for: `fault` is a field of the output and its value."""

    fault: tuple[str, Any] = ("token_ids", [1])

    def generate(self, prompts: list[list[int]], params: list[OfflineSampling]) -> Any:
        name, value = self.fault
        outputs = super().generate(prompts, params)
        if name == "outputs":
            return value
        for output in outputs:
            object.__setattr__(output, name, value(output) if callable(value) else value)
        return outputs


class NoGenerate:
    capabilities = OfflineCapabilities()


class NoCapabilities:
    def generate(self, prompts: Any, params: Any) -> Any:
        raise AssertionError("is never asked")


class NoVocabulary(PlainEngine):
    vocab_size = None  # type: ignore[assignment]


class NoVersion(PlainEngine):
    version = None  # type: ignore[assignment]


class FailingToOpen(PlainEngine):
    def __init__(self, model: str) -> None:
        raise RuntimeError("out of memory\nwhile loading layer 3")


class FailingToGenerate(PlainEngine):
    def generate(self, prompts: list[list[int]], params: list[OfflineSampling]) -> list[OfflineOutput]:
        raise IndexError("list index out of range")


class NeedsAPackage(PlainEngine):
    def __init__(self, model: str) -> None:
        import a_package_that_nobody_has  # noqa: F401


a_function = PlainEngine.generate
