"""A recorded answer comes again or not, as text on every engine; what was not compared is no pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.inference import LlamaCpp, OpenAi, Vllm
from fakes.replay_lab import MESSAGES, PROMPT, TEXT, Lab, envelope, greedy
from fakes.replaying import planned
from fakes.toy_model import text_of
from rip.replay.request.contract import ANSWERED_TEXT
from rip.replay.request.expected_answer import Compared, Generated, compare
from rip.schemas.envelope import Envelope
from rip.schemas.lane import Setting

SERVERS = {"vllm": Vllm, "llama.cpp": LlamaCpp, "openai": OpenAi}
ANSWER = text_of(greedy(PROMPT))
"""Of PROMPT, which a server of text makes out of TEXT by putting the first token before it."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


def compared(lab: Lab, engine: str, asked: Envelope) -> Compared:
    lab(engine, SERVERS[engine](), asked)
    assert lab.result is not None
    [outcome] = lab.result.outcomes
    return outcome.expected


def answer_of(lab: Lab, engine: str) -> str:
    [text] = lab(engine, SERVERS[engine]()).texts()
    assert text
    return text


@pytest.mark.parametrize("engine", SERVERS)
def test_an_answer_that_is_only_text_is_compared_on_every_engine(engine: str, lab: Lab) -> None:
    text = answer_of(lab, engine)
    again = compared(lab, engine, envelope(expected={"text": text, "finish_reason": "length"}))
    assert again == Compared("text")
    other = compared(
        lab, engine, envelope(expected={"text": f"{text[:4]}another", "finish_reason": "length"})
    )
    assert other == Compared("text", 4)
    assert lab.result is not None
    assert not lab.result.expectations_met


@pytest.mark.parametrize("engine", ["vllm", "openai"])
def test_without_a_recorded_limit_the_answer_has_room_to_come_again(engine: str, lab: Lab) -> None:
    asked = envelope().to_object()
    del asked["sampling"]["max_tokens"]
    longer = text_of(greedy(PROMPT, 30)) if engine == "vllm" else answer_of(lab, engine)
    asked["expected"] = {"text": longer, "finish_reason": "length"}
    assert compared(lab, engine, Envelope.from_object(asked, "test")) == Compared("text")


def test_a_server_of_text_keeps_its_own_limit_where_none_was_recorded(lab: Lab) -> None:
    server = OpenAi()
    lab("openai", server, envelope(sampling={"max_tokens": None}, expected={"text": "w1 "}))
    [body] = server.asked("/v1/completions")
    assert "max_tokens" not in body


@pytest.mark.parametrize(
    ("engine", "expected", "why"),
    [
        ("openai", {"token_ids": [1, 2]}, "this engine returns only text"),
        ("vllm", {"finish_reason": "stop"}, "neither token ids nor text"),
        ("vllm", {"text": "a", "reasoning": "hm"}, "reasoning"),
        ("vllm", {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, "tool calls"),
    ],
)
def test_what_cannot_be_compared_is_said_and_is_no_pass(
    engine: str, expected: dict[str, Any], why: str, lab: Lab
) -> None:
    found = compared(lab, engine, envelope(expected=expected))
    assert found.by is None
    assert why in (found.why_not or "")
    assert lab.result is not None
    assert lab.result.compared_none


def test_a_redacted_answer_cannot_be_compared(lab: Lab) -> None:
    asked = envelope(expected={"text": ANSWER}).redacted(keep_token_ids=True)
    assert "redacted" in (compared(lab, "vllm", asked).why_not or "")


def as_text(
    recorded: dict[str, Any], text: str, reason: str = "stop", limited: bool = True, **fields: Any
) -> Compared:
    """A recorded answer beside what an engine that tells token ids made."""
    asked = envelope(expected=recorded, **fields)
    limit = Setting(resolved=6, source="envelope" if limited else ANSWERED_TEXT)
    stop = asked.sampling.stop_strings()
    plan = planned(0, PROMPT, stop=stop)
    plan = replace(plan, sampling={**plan.sampling, "max_tokens": limit})
    return compare(plan, asked, Generated([1, 2], text, reason, has_ids=True))


def test_texts_are_compared_as_the_api_would_have_told_them() -> None:
    stopped = {"text": "a b", "finish_reason": "stop"}
    assert as_text(stopped, "a b END", sampling={"stop": [" END"]}) == Compared("text")
    kept = {"include_stop_str_in_output": True}
    assert as_text(stopped, "a b END", sampling={"stop": [" END"]}, request=kept) == Compared("text", 3)
    assert as_text({"text": "a"}, "a\ufffd", "length") == Compared("text"), "half a character at the limit"
    assert as_text({"text": " a"}, "a") == Compared("text"), "a tokenizer that drops the first space"
    assert as_text({"text": "a"}, " a") == Compared("text", 0)
    assert as_text({"text": "a b"}, "a") == Compared("text", 1), "it ended before"


def test_an_answer_that_a_limit_ended_here_is_not_compared_with_the_rest() -> None:
    assert as_text({"text": "a b c"}, "a b", "length", limited=False).why_not
    assert as_text({"text": "a b c"}, "a x", "length", limited=False) == Compared("text", 2)
    assert as_text({"text": "a b c"}, "a b", "length") == Compared("text", 3)
    assert as_text({"text": "a", "finish_reason": "length"}, "a b", limited=False) == Compared("text")
    assert as_text({"text": "a", "finish_reason": "stop"}, "a b", limited=False) == Compared("text", 1)


def test_messages_are_compared_too(lab: Lab) -> None:
    asked = envelope(prompt_text=None, prompt_token_ids=None, messages=MESSAGES, expected={"text": TEXT})
    assert compared(lab, "openai", asked).mismatch is not None
