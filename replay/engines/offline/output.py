"""Reading what an offline engine returned: lengths, ids and numbers are checked before they are recorded."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ....schemas.errors import EngineFailed
from ...request.batches import PlannedSequence
from ...row_summaries.rows import TopK
from ..base import sorted_topk, unforced_tokens
from .protocol import DOCUMENT, OfflineClass, OfflineSampling

ABOVE_ZERO = 1e-3
"""A log-probability may lie so far above 0 by rounding; more means that they are probabilities."""


class CheckedOutput:
    """One output, as the protocol promises it.

    Args:
        vocab_size: Token ids lie below this.
        output: An `OfflineOutput`, or anything with its attributes.

    Attributes:
        token_ids: [G]
        topk: [G] The distribution that each generated token was chosen from.
        prompt_topk: [P − 1] Of the prompt tokens after the first.

    Raises:
        EngineFailed: It does not keep what the protocol promises.
    """

    def __init__(
        self,
        kind: OfflineClass,
        vocab_size: int,
        plan: PlannedSequence,
        params: OfflineSampling,
        output: Any,
    ) -> None:
        self._where = f"{kind.name}.generate, {plan.request_id}"
        self._vocab_size, self._k = vocab_size, params.top_logprobs
        self.token_ids = self._ids(self._of(output, "token_ids"), "token_ids")
        self.finish_reason = self._of(output, "finish_reason")
        if not isinstance(self.finish_reason, str):
            raise self._fault("finish_reason is not a text")
        if params.golden_token_ids is not None and (lack := unforced_tokens(plan, self.token_ids)):
            raise self._fault(f"the recorded tokens were not forced: {lack}")
        if len(self.token_ids) > params.max_tokens:
            raise self._fault(
                f"{len(self.token_ids)} tokens where at most {params.max_tokens} were requested"
            )
        count = len(self.token_ids)
        chosen = self._chosen(getattr(output, "logprobs", None), count)
        if kind.claims.top_logprobs != 0 and getattr(output, "top_ids", None) is None:
            raise self._fault("no top_ids and top_logprobs, though its capabilities promise them")
        self.topk = self._distributions(output, "top", count, chosen)
        self.prompt_topk = self._distributions(output, "prompt_top", len(plan.prompt) - 1, None)
        self.text: str | None = getattr(output, "text", None)
        if not isinstance(self.text, str | None):
            raise self._fault("text is not a text")

    def _distributions(
        self, output: Any, prefix: str, count: int, chosen: Sequence[float | None] | None
    ) -> list[TopK | None]:
        """One distribution a token, None for each where there is none.

        Args:
            prefix: `top` or `prompt_top`.
            count: How many there must be.
            chosen: The log-probability of each token that followed.
        """
        ids = getattr(output, f"{prefix}_ids", None)
        logprobs = getattr(output, f"{prefix}_logprobs", None)
        following = chosen if chosen is not None else [None] * count
        if ids is None and logprobs is None:
            if chosen is None:
                return [None] * count
            return [sorted_topk({}, self._k, value) for value in following]
        rows, values = (
            self._listed(one, f"{prefix}_{what}", count)
            for one, what in ((ids, "ids"), (logprobs, "logprobs"))
        )
        found: list[TopK | None] = []
        for step, (row, numbers, value) in enumerate(zip(rows, values, following, strict=True)):
            where = f"{prefix}_ids[{step}]"
            candidates = self._ids(row, where)
            likely = [
                self._logprob(number, where) for number in self._listed(numbers, where, len(candidates))
            ]
            if len(set(candidates)) < len(candidates):
                raise self._fault(f"{where} names a token twice")
            found.append(sorted_topk(dict(zip(candidates, likely, strict=True)), self._k, value))
        return found

    def _chosen(self, found: Any, count: int) -> list[float | None] | None:
        if found is None:
            return None
        values = self._listed(found, "logprobs", count)
        return [None if value is None else self._logprob(value, "logprobs") for value in values]

    def _listed(self, found: Any, name: str, count: int) -> list[Any]:
        try:
            items = list(found)
        except TypeError:
            raise self._fault(f"{name} is not a list") from None
        if len(items) != count:
            raise self._fault(f"{name} has {len(items)} entries where {count} were expected")
        return items

    def _ids(self, found: Any, name: str) -> list[int]:
        try:
            ids = [operator.index(token) for token in found]
        except TypeError:
            raise self._fault(f"{name} is not a list of token ids") from None
        if (outside := next((token for token in ids if not 0 <= token < self._vocab_size), None)) is not None:
            raise self._fault(f"{name} holds {outside}, outside the vocabulary of {self._vocab_size}")
        return ids

    def _logprob(self, found: Any, name: str) -> float:
        try:
            value = float(found)
        except (TypeError, ValueError):
            raise self._fault(f"{name}: {found!r} is not a log-probability") from None
        if value > ABOVE_ZERO:
            raise self._fault(
                f"{name}: {value} is above 0, so it is not a log-probability (natural logarithm)"
            )
        return value

    def _of(self, output: Any, name: str) -> Any:
        if not hasattr(output, name):
            raise self._fault(f"an output has no {name}: it is a {type(output).__name__}")
        return getattr(output, name)

    def _fault(self, message: str) -> EngineFailed:
        return EngineFailed(f"{self._where}: {message}", DOCUMENT)
