"""Choosing the next token in-process: transformers' own logits processors, a recorded uniform draw.

The draw is inverse-CDF sampling over token ids in ascending order, so that the choice follows from the
processed logits and ONE uniform number, both of which a trace keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as hf

from ...schemas.errors import BadInput
from ..plan import PlannedSequence
from .base import SamplerRecord


class OccurrencePenalties(LogitsProcessor):  # type: ignore[misc]
    """OpenAI's presence and frequency penalties over generated tokens, which transformers lacks.

    logit[v] −= frequency_penalty · count(v) + presence_penalty · [count(v) > 0]
    (OpenAI API reference, "Frequency and presence penalties"; vLLM counts generated tokens likewise).
    """

    def __init__(self, presence: float, frequency: float, prompt_length: int) -> None:
        self._presence = presence
        self._frequency = frequency
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """input_ids int64[1, L], scores float32[1, V] → float32[1, V]."""
        counts = torch.bincount(input_ids[0, self._prompt_length :], minlength=scores.shape[-1])
        counts = counts.to(scores.dtype)
        return scores - self._frequency * counts - self._presence * (counts > 0)


class UniformDraws:
    """A seeded stream of uniform numbers in [0, 1) that counts what it gave."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator(device="cpu")
        self._generator.manual_seed(seed % 2**64)
        self.drawn = 0

    def next(self) -> float:
        """The next number, with 53 random bits."""
        self.drawn += 1
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))


class Sampler:
    """Chooses the tokens of one sequence.

    Args:
        sequence: The sequence with its resolved sampling values.
        draws: Its stream of uniform numbers (shared where the seed's scope is the worker).
        eos: End-of-sequence ids of the model.
        vocab_size: V.
        encode: Text to token ids without special tokens; None without a tokenizer.

    Raises:
        BadInput: Stop or bad words without a tokenizer, or a token id outside the vocabulary.
    """

    def __init__(
        self,
        sequence: PlannedSequence,
        draws: UniformDraws,
        eos: Sequence[int],
        vocab_size: int,
        encode: Callable[[str], list[int]] | None,
    ) -> None:
        self._draws = draws
        self.temperature = float(str(sequence.value("temperature")))
        self._before, self._after = _processors(sequence, self.temperature, list(eos), vocab_size, encode)

    def choose(self, logits_V: torch.Tensor, tokens: Sequence[int]) -> tuple[int, SamplerRecord]:
        """Choose the next token.

        Args:
            logits_V: Raw logits, float32[V], on the CPU.
            tokens: All tokens of the sequence so far, prompt included.

        Returns:
            The token id, and what chose it.
        """
        scores = logits_V
        if self._before or self._after:
            ids = torch.tensor([list(tokens)], dtype=torch.int64)
            scores = self._after(ids, self._before(ids, logits_V[None].clone()))[0]
        top1 = int(torch.argmax(scores))  # the lowest id among equals
        top1_logit = float(scores[top1])
        if self.temperature == 0:
            return top1, SamplerRecord(top1, top1_logit, draw=None, rng_offset=None)
        offset = self._draws.drawn
        draw = self._draws.next()
        # Probabilities relative to the largest; float64 so that the CDF of 10^5 ids keeps its order.
        mass = torch.exp(scores.double() - scores[top1].double())
        cumulative = torch.cumsum(torch.nan_to_num(mass, nan=0.0), dim=0)
        target = draw * float(cumulative[-1])
        token = int(torch.searchsorted(cumulative, target, right=True))
        return min(token, scores.numel() - 1), SamplerRecord(top1, top1_logit, draw, offset)


def _processors(
    sequence: PlannedSequence,
    temperature: float,
    eos: list[int],
    vocab_size: int,
    encode: Callable[[str], list[int]] | None,
) -> tuple[LogitsProcessorList, LogitsProcessorList]:
    """Processors that hold for greedy too, and those that only shape a random choice (HF's own order)."""
    value = sequence.value
    prompt_length = len(sequence.prompt)
    before, after = LogitsProcessorList(), LogitsProcessorList()

    def ids_inside(name: str, ids: Sequence[int]) -> list[int]:
        if ids and max(ids) >= vocab_size:
            raise BadInput(
                f"{sequence.request_id}: sampling.{name} holds token id {max(ids)}, the vocabulary has {vocab_size}",
                "remove it, or give the model it was recorded with",
            )
        return list(ids)

    bias: dict[str, float] = value("logit_bias")  # type: ignore[assignment]
    if bias:
        biased = ids_inside("logit_bias", [int(token) for token in bias])
        pairs = {(token,): float(amount) for token, amount in zip(biased, bias.values(), strict=True)}
        before.append(hf.SequenceBiasLogitsProcessor(pairs))
    words: list[str] = value("bad_words")  # type: ignore[assignment]
    if words:
        before.append(hf.NoBadWordsLogitsProcessor(_word_ids(sequence, words, encode), eos_token_id=eos or None))
    allowed: list[int] = value("allowed_token_ids")  # type: ignore[assignment]
    if allowed:
        kept = ids_inside("allowed_token_ids", allowed)
        before.append(hf.PrefixConstrainedLogitsProcessor(lambda _batch, _ids: kept, num_beams=1))
    min_tokens = int(str(value("min_tokens")))
    stop_ids: list[int] = value("stop_token_ids")  # type: ignore[assignment]
    ends = [*eos, *ids_inside("stop_token_ids", stop_ids)]
    if min_tokens and ends:
        before.append(hf.MinNewTokensLengthLogitsProcessor(prompt_length, min_tokens, ends))
    repetition = float(str(value("repetition_penalty")))
    if repetition != 1.0:
        before.append(hf.RepetitionPenaltyLogitsProcessor(repetition))
    presence, frequency = float(str(value("presence_penalty"))), float(str(value("frequency_penalty")))
    if presence or frequency:
        before.append(OccurrencePenalties(presence, frequency, prompt_length))
    if temperature == 0:
        return before, after
    if temperature != 1.0:
        after.append(hf.TemperatureLogitsWarper(temperature))
    top_k = int(str(value("top_k")))
    if top_k > 0:
        after.append(hf.TopKLogitsWarper(top_k))
    top_p = float(str(value("top_p")))
    if top_p < 1.0:
        after.append(hf.TopPLogitsWarper(top_p))
    min_p = float(str(value("min_p")))
    if min_p > 0.0:
        after.append(hf.MinPLogitsWarper(min_p))
    return before, after


def _word_ids(
    sequence: PlannedSequence, words: list[str], encode: Callable[[str], list[int]] | None
) -> list[list[int]]:
    """Token ids of bad words, at the start of a text and after a space (as vLLM bans both)."""
    if encode is None:
        raise BadInput(
            f"{sequence.request_id}: sampling.bad_words needs a tokenizer, and the model folder has none",
            "add tokenizer.json to the folder, or state logit_bias instead",
        )
    forms: list[list[int]] = []
    for word in words:
        for text in (word, " " + word.lstrip()):
            ids = encode(text)
            if ids and ids not in forms:
                forms.append(ids)
    return forms


class StopRule:
    """Decides after each token whether a sequence ends, and by which rule."""

    def __init__(
        self, sequence: PlannedSequence, eos: Sequence[int], decode: Callable[[list[int]], str] | None
    ) -> None:
        value: Callable[[str], Any] = sequence.value
        self.max_tokens = len(sequence.golden) if sequence.golden is not None else int(value("max_tokens"))
        self._forced = sequence.golden is not None
        self._min_tokens = int(value("min_tokens"))
        self._ends = set(value("stop_token_ids")) | (set() if value("ignore_eos") else set(eos))
        self._strings = list(value("stop"))
        self._decode = decode
        if self._strings and decode is None:
            raise BadInput(
                f"{sequence.request_id}: sampling.stop needs a tokenizer, and the model folder has none",
                "add tokenizer.json to the folder, or state stop_token_ids instead",
            )

    def reason(self, generated: Sequence[int]) -> str | None:
        """`stop`, `length`, `golden`, or None while the sequence goes on."""
        if self._forced:
            return "golden" if len(generated) >= self.max_tokens else None
        if len(generated) >= max(self._min_tokens, 1):
            if generated[-1] in self._ends:
                return "stop"
            if self._strings and self._decode is not None:
                text = self._decode(list(generated))
                if any(string in text for string in self._strings):
                    return "stop"
        return "length" if len(generated) >= self.max_tokens else None
