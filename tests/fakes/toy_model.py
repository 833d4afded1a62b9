"""A language model of 40 words that computes in a moment what the fake servers tell."""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Sequence
from typing import Any

VOCABULARY = 40
BOS = 0
SPECIAL = {0: "<s>", 1: "</s>"}
MODEL = "toy"


class Toy:
    """A language model of 40 words whose distributions depend on every token before."""

    def logprobs(self, ids: Sequence[int]) -> tuple[float, ...]:
        """Of the next token, over the vocabulary; the specials never come."""
        return _logprobs(tuple(ids))

    def top(self, ids: Sequence[int], k: int) -> list[tuple[int, float]]:
        """The K most likely next tokens with their log-probabilities, best first."""
        ranked = sorted(enumerate(self.logprobs(ids)), key=lambda pair: (-pair[1], pair[0]))
        return ranked[:k]

    def generate(
        self, ids: Sequence[int], count: int, temperature: float | None, seed: int | None
    ) -> list[int]:
        """Greedy at temperature 0; else drawn, by the seed if there is one."""
        made: list[int] = []
        draw = random.Random(seed)
        for _ in range(count):
            so_far = [*ids, *made]
            if temperature == 0:
                made.append(self.top(so_far, 1)[0][0])
            else:
                weights = [math.exp(logprob) for logprob in self.logprobs(so_far)]
                made.append(draw.choices(range(VOCABULARY), weights)[0])
        return made


@functools.cache
def _logprobs(ids: tuple[int, ...]) -> tuple[float, ...]:
    draw = random.Random(repr(ids))
    logits = [draw.uniform(-4, 4) if token not in SPECIAL else -1e4 for token in range(VOCABULARY)]
    total = math.log(sum(math.exp(logit) for logit in logits))
    return tuple(logit - total for logit in logits)


TOY = Toy()


def text_of(ids: Sequence[int]) -> str:
    return "".join(SPECIAL.get(token, f"w{token} ") for token in ids)


def ids_of(text: str) -> list[int]:
    """The inverse of `text_of`; any other word is one of the vocabulary too."""
    words = re.findall(r"<s>|</s>|\S+ ?", text)
    known = {written: token for token, written in SPECIAL.items()}
    return [known[word] if word in known else _word(word.strip()) for word in words]


def _word(word: str) -> int:
    match = re.fullmatch(r"w(\d+)", word)
    return int(match[1]) if match else 2 + sum(word.encode()) % (VOCABULARY - 2)


def rendered(messages: Sequence[dict[str, Any]]) -> str:
    """The chat template: it writes its own first token."""
    return "<s>" + "".join(f"{message['role']} {message['content']} " for message in messages)
