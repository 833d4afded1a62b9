"""What is added to requests by engine and taken out again, and answers of several forms put together."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from rip.replay.proxy.exchange import Answer
from rip.replay.proxy.recorder import additions_for, without

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
SCORED = {"content": [{"id": 7, "token": "a", "logprob": -0.5, "top_logprobs": []}]}


@pytest.mark.parametrize(
    ("engine", "chat", "body", "fields"),
    [
        ("vllm", True, CHAT, {"return_token_ids": True, "logprobs": True}),
        ("vllm", True, {**CHAT, "logprobs": False}, {"return_token_ids": True, "logprobs": True}),
        ("vllm", True, {**CHAT, "logprobs": True}, {"return_token_ids": True}),
        ("vllm", True, {**CHAT, "return_token_ids": True, "logprobs": True}, {}),
        ("vllm", False, {"prompt": "a", "logprobs": 0}, {"return_token_ids": True}),
        ("vllm", False, {"prompt": "a", "logprob_token_ids": [1]}, {"return_token_ids": True}),
        ("vllm", False, {"prompt": "a", "use_beam_search": True}, {}),
        ("llama.cpp", True, CHAT, {"logprobs": True, "top_logprobs": 1}),
        ("llama.cpp", True, {**CHAT, "tools": [{}], "stream": True}, {}),
        ("llama.cpp", True, {**CHAT, "top_logprobs": 3}, {}),
        ("llama.cpp", False, {"prompt": "a"}, {"logprobs": 1}),
        ("llama.cpp", False, {"prompt": "a", "n_probs": 2}, {}),
        ("ollama", True, CHAT, {}),
        (None, True, CHAT, {}),
    ],
)
def test_only_what_is_missing_and_harmless_is_added(
    engine: str | None, chat: bool, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert additions_for(engine, chat, body).fields == fields


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
def test_llamas_answers_are_as_they_would_be(chat: bool) -> None:
    """As seen: without logprobs a chat's choice has no such key, a completion's is null."""
    plain: dict[str, Any] = {"choices": [{"index": 0, "finish_reason": None}], "id": "x"}
    if not chat:
        plain["choices"][0]["logprobs"] = None
    scored = copy.deepcopy(plain)
    scored["choices"][0]["logprobs"] = SCORED
    added = additions_for("llama.cpp", chat, CHAT if chat else {"prompt": "a"})
    assert without(scored, added, chunk=True) == plain
    assert without(copy.deepcopy(plain), added, chunk=False) == plain


def test_ids_that_only_the_scores_tell_are_taken() -> None:
    answer = Answer()
    for _ in range(2):
        answer.add({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": SCORED}]})
    answer.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    found = answer.choices[0].expected(None)
    assert (found["token_ids"], found["logprobs"], found["text"]) == ([7, 7], [-0.5, -0.5], "aa")


@pytest.mark.parametrize("told", [["token_id:7", "token_id:8"], ["a", "b"]])
def test_names_of_tokens_are_ids_only_where_they_say_so(told: list[str]) -> None:
    answer = Answer()
    scores = {"tokens": told, "token_logprobs": [-1.0, -2.0]}
    answer.add({"choices": [{"index": 0, "text": "ab", "logprobs": scores, "finish_reason": "stop"}]})
    found = answer.choices[0].expected(None)
    assert found.get("token_ids") == ([7, 8] if told[0].startswith("token_id") else None)
    assert found["logprobs"] == [-1.0, -2.0]


def test_tokens_without_a_score_leave_no_scores() -> None:
    answer = Answer()
    scores = {"tokens": ["a", "b"], "token_logprobs": [None, -2.0]}
    answer.add(
        {"choices": [{"text": "ab", "logprobs": scores, "token_ids": [7, 8], "finish_reason": "stop"}]}
    )
    found = answer.choices[0].expected(None)
    assert found["token_ids"] == [7, 8]
    assert "logprobs" not in found


def test_tool_calls_and_reasoning_come_together_from_pieces() -> None:
    answer = Answer()
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": "Let me "},
        {"reasoning_content": "see."},
        {
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}
            ]
        },
        {"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "g", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
    ]
    for delta in deltas:
        answer.add({"choices": [{"index": 0, "delta": delta}]})
    answer.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    found = answer.choices[0].expected(None)
    assert found["reasoning"] == "Let me see."
    assert [call["function"] for call in found["tool_calls"]] == [
        {"name": "f", "arguments": "{}"},
        {"name": "g", "arguments": "{}"},
    ]
    assert "text" not in found


def test_an_echoed_prompt_is_no_part_of_the_answer() -> None:
    answer = Answer()
    scores = {"tokens": ["x", "a"], "token_logprobs": [-9.0, -0.5]}
    answer.add(
        {"choices": [{"text": "The sky is", "logprobs": scores, "token_ids": [7], "finish_reason": "stop"}]}
    )
    found = answer.choices[0].expected("The sky")
    assert (found["text"], found["token_ids"], found["logprobs"]) == (" is", [7], [-0.5])


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        "text",
        {"choices": "x"},
        {"choices": [1, None]},
        {"choices": [{"index": -1}]},
        {"usage": []},
        {"choices": [{"logprobs": {"content": [1]}, "delta": 3, "token_ids": ["a"]}]},
        {"error": {"message": 5}},
    ],
)
def test_nonsense_is_passed_over(payload: Any) -> None:
    answer = Answer()
    answer.add(payload)
    assert not any(choice.expected(None) for choice in answer.choices.values())
