"""One sequence of a batch in this process: how its next token is chosen, when it ends, its rows so far.

The draw is inverse-CDF sampling over token ids in ascending order, so that the choice follows from the
processed logits and ONE uniform number, both of which a trace keeps. Nothing here knows the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as hf

from ....schemas.errors import BadInput
from ...request.batches import PlannedSequence
from ...row_summaries.rows import ExecutionShape, Rows, RowSummaries, SamplerRecord, TopK


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
    """

    def __init__(
        self,
        sequence: PlannedSequence,
        draws: UniformDraws,
        eos: Sequence[int],
        vocab_size: int,
        encode: Callable[[str], list[int]] | None,
    ) -> None:
        self._request_id = sequence.request_id
        self._draws = draws
        self.temperature = float(sequence.value("temperature"))
        self._processors = _constraints(sequence, eos, vocab_size, encode)
        if self.temperature != 0:
            self._processors += _warpers(sequence, self.temperature)

    def choose(self, logits_V: torch.Tensor, tokens: Sequence[int]) -> tuple[int, SamplerRecord]:
        """Choose the next token.

        Args:
            logits_V: Raw logits, float32[V], on the CPU.
            tokens: All tokens of the sequence so far, prompt included.

        Returns:
            The token id, and what chose it.

        Raises:
            BadInput: The constraints together forbid every token.
        """
        scores = logits_V
        if self._processors:
            ids = torch.tensor([list(tokens)], dtype=torch.int64)
            scores = self._processors(ids, logits_V[None].clone())[0]
        top1 = int(torch.argmax(scores))  # the lowest id among equals
        top1_logit = float(scores[top1])
        if top1_logit == -torch.inf:
            raise BadInput(
                f"{self._request_id}: the sampling constraints together forbid every token",
                "correct allowed_token_ids, bad_words, logit_bias or min_tokens of the envelope",
            )
        if self.temperature == 0:
            return top1, SamplerRecord(top1, top1_logit, draw=None, rng_offset=None)
        offset = self._draws.drawn
        draw = self._draws.next()
        # Probabilities relative to the largest; float64 so that the CDF of 10^5 ids keeps its order.
        mass = torch.exp(scores.double() - scores[top1].double())
        cumulative = torch.cumsum(torch.nan_to_num(mass, nan=0.0), dim=0)
        token = int(torch.searchsorted(cumulative, draw * cumulative[-1], right=True))
        # A draw next to 1 may round up to the whole mass: then the last id that has any.
        last = int(torch.searchsorted(cumulative, cumulative[-1]))
        return min(token, last), SamplerRecord(top1, top1_logit, draw, offset)


def _constraints(
    sequence: PlannedSequence,
    eos: Sequence[int],
    vocab_size: int,
    encode: Callable[[str], list[int]] | None,
) -> LogitsProcessorList:
    """Processors that hold for greedy choices too, in transformers' own order; the foreign one comes last,
    where transformers puts a caller's processors.
    """
    value = sequence.value
    prompt_length = len(sequence.prompt)
    processors = LogitsProcessorList()

    bias: dict[str, float] = value("logit_bias")
    if bias:
        pairs = {(int(token),): float(amount) for token, amount in bias.items()}
        processors.append(hf.SequenceBiasLogitsProcessor(pairs))
    repetition = float(value("repetition_penalty"))
    if repetition != 1.0:
        processors.append(hf.RepetitionPenaltyLogitsProcessor(repetition))
    banned = _word_ids(sequence, encode)
    if banned:
        # Without eos_token_id: given it, transformers would not ban a bad word that ends the sequence.
        processors.append(hf.NoBadWordsLogitsProcessor(banned))
    ends = [*([] if value("ignore_eos") else eos), *value("stop_token_ids")]
    min_tokens = int(value("min_tokens"))
    if min_tokens and ends:
        processors.append(hf.MinNewTokensLengthLogitsProcessor(prompt_length, min_tokens, ends))
    allowed: list[int] = value("allowed_token_ids")
    if allowed:
        processors.append(hf.PrefixConstrainedLogitsProcessor(lambda _batch, _ids: allowed, num_beams=1))
    presence, frequency = float(value("presence_penalty")), float(value("frequency_penalty"))
    if presence or frequency:
        processors.append(OccurrencePenalties(presence, frequency, prompt_length))
    return processors


def _warpers(sequence: PlannedSequence, temperature: float) -> LogitsProcessorList:
    """Processors that only shape a random choice, in transformers' own order."""
    value = sequence.value
    warpers = LogitsProcessorList()
    if temperature != 1.0:
        warpers.append(hf.TemperatureLogitsWarper(temperature))
    if int(value("top_k")) > 0:
        warpers.append(hf.TopKLogitsWarper(int(value("top_k"))))
    if float(value("top_p")) < 1.0:
        warpers.append(hf.TopPLogitsWarper(float(value("top_p"))))
    if float(value("min_p")) > 0.0:
        warpers.append(hf.MinPLogitsWarper(float(value("min_p"))))
    return warpers


def _word_ids(sequence: PlannedSequence, encode: Callable[[str], list[int]] | None) -> list[list[int]]:
    """Token ids of bad words, at the start of a text and after a space (as vLLM bans both)."""
    words: list[str] = sequence.value("bad_words")
    if not words:
        return []
    assert encode is not None, "refused by check_constraints"
    forms: list[list[int]] = []
    for word in words:
        for text in (word, " " + word.lstrip()):
            ids = encode(text)
            if ids and ids not in forms:
                forms.append(ids)
    return forms


class StopRule:
    """Decides after each token of one sequence whether it ends, and by which rule.

    Args:
        decode: Token ids to text; None without a tokenizer.

    """

    def __init__(
        self, sequence: PlannedSequence, eos: Sequence[int], decode: Callable[[list[int]], str] | None
    ) -> None:
        value = sequence.value
        self._most_tokens = sequence.most_tokens
        self._forced = sequence.golden is not None
        self._min_tokens = int(value("min_tokens"))
        self._ends = {*value("stop_token_ids"), *([] if value("ignore_eos") else eos)}
        self._strings: list[str] = value("stop")
        self._too_early = 0
        """Characters that came within the minimum: a stop string among them ends nothing."""
        self._decode = decode

    def reason(self, generated: Sequence[int]) -> str | None:
        """`stop`, `length`, `golden`, or None while the sequence goes on. Called once after each token."""
        if self._forced:
            return "golden" if len(generated) >= self._most_tokens else None
        if len(generated) > self._min_tokens and generated[-1] in self._ends:
            return "stop"
        if self._strings and self._decode is not None:
            text = self._decode(list(generated))
            if len(generated) <= self._min_tokens:
                self._too_early = len(text)
            elif any(text.find(stop, max(0, self._too_early + 1 - len(stop))) >= 0 for stop in self._strings):
                return "stop"
        return "length" if len(generated) >= self._most_tokens else None


class Live:
    """One sequence while it runs."""

    def __init__(self, plan: PlannedSequence, batch_row: int, sampler: Sampler, stop: StopRule) -> None:
        self.plan = plan
        self.batch_row = batch_row
        self.sampler = sampler
        self.stop = stop
        self.tokens = list(plan.prompt)
        """Prompt and everything generated so far."""
        self.computed = 0
        """Tokens in the KV cache."""
        self.ended = False
        self.begin_rows(0)

    def begin_rows(self, first_position: int, capacity: int = 0, n_sites: int = 0) -> None:
        """Start a new block of rows, with room for `capacity × n_sites` summaries."""
        self.first_position = first_position
        self.token_ids: list[int] = []
        self.topk: list[TopK | None] = []
        self.samplers: list[SamplerRecord | None] = []
        self.shapes: list[ExecutionShape | None] = []
        self.kept: dict[int, list[tuple[int, bytes]]] = {}
        """Row of the block → kept rows as (site, raw bytes)."""
        self.summaries = RowSummaries.empty(capacity, n_sites) if capacity and n_sites else None

    def add_row(self, token: int, shape: ExecutionShape | None) -> None:
        """A row whose distribution is not known yet."""
        self.token_ids.append(token)
        self.topk.append(None)
        self.samplers.append(None)
        self.shapes.append(shape)

    def rows(self, forced: bool) -> Rows:
        """The block as it is handed over."""
        return Rows(
            sequence=self.plan.sequence,
            first_position=self.first_position,
            token_ids=np.array(self.token_ids, dtype=np.int32),
            forced=forced,
            topk=self.topk,
            samplers=self.samplers,
            shapes=self.shapes,
            summaries=self.summaries,
            tensors=[self.kept.get(row, []) for row in range(len(self.token_ids))] if self.kept else [],
        )
