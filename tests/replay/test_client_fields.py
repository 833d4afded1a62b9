"""What a client stated beside prompt and sampling: sent as it was, refused or reported, never dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fakes.inference import SERVERS, Ollama, OpenAi, Vllm
from fakes.replay_lab import MESSAGES, PROMPT, TELL_IDS, Lab, envelope, greedy
from rip.replay.request.contract import refusals
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import Fingerprint

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
NAMED = {"type": "function", "function": {"name": "weather"}}
AS_JSON = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
SUPPORT_GRAMMARS = ("vllm", "sglang")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


def stating(**fields: Any) -> Any:
    return envelope(request=fields)


@pytest.mark.parametrize(
    ("stated", "constraint"),
    [
        ({"response_format": AS_JSON}, {"json": SCHEMA}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_regex": "[0-9]+"}, {"regex": "[0-9]+"}),
        ({"guided_choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
        ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"ebnf": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"regex": "[0-9]+"}, {"regex": "[0-9]+"}),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
            {"structural_tag": '{"type": "structural_tag", "format": {"type": "any_text"}}'},
        ),
        ({"response_format": {"type": "text"}}, None),
        ({"tool_choice": "auto"}, None),
    ],
    ids=lambda value: next(iter(value)) if value else "none",
)
def test_vllm_gets_the_constraint_under_its_own_name(
    lab: Lab, stated: dict[str, Any], constraint: dict[str, Any] | None
) -> None:
    server = Vllm()
    lab("vllm", server, stating(**stated))
    [body] = server.asked("/v1/completions")
    assert body.get("structured_outputs") == constraint


@pytest.mark.parametrize("engine", [name for name in TELL_IDS if name not in SUPPORT_GRAMMARS])
def test_an_engine_without_grammars_refuses_before_it_sends_anything(lab: Lab, engine: str) -> None:
    server = SERVERS[engine]()
    with pytest.raises(BadInput, match=r"r0: request\.response_format constrains the answer") as caught:
        lab(engine, server, stating(response_format=AS_JSON))
    assert "golden" in caught.value.fix
    assert lab(engine, server, stating(response_format={"type": "text"})).tokens() == greedy(PROMPT)


@pytest.mark.parametrize("choice", [NAMED, "required"], ids=["named", "required"])
def test_a_forced_tool_call_is_sent_as_it_was_or_refused(lab: Lab, choice: Any) -> None:
    with pytest.raises(BadInput, match=r"request\.tool_choice forces a tool call") as caught:
        lab("vllm", Vllm(), stating(tool_choice=choice))
    assert "--engine openai" in caught.value.fix
    server = OpenAi()
    chat = envelope(
        messages=MESSAGES, tools=TOOLS, request={"tool_choice": choice, "response_format": AS_JSON}
    )
    lab("openai", server, chat)
    [body] = server.asked("/v1/chat/completions")
    assert (body["tool_choice"], body["tools"], body["response_format"]) == (choice, TOOLS, AS_JSON)


def test_forced_tokens_need_no_constraint(lab: Lab) -> None:
    server = Vllm()
    recorded = stating(response_format=AS_JSON, tool_choice="required").model_copy(
        update={"expected": envelope(expected={"token_ids": [9, 8]}).expected}
    )
    assert lab("vllm", server, recorded, mode="golden-decode").tokens() == [9, 8]
    assert all("structured_outputs" not in body for body in server.asked("/v1/completions"))


def test_ollama_gets_a_schema_as_its_format(lab: Lab) -> None:
    server = Ollama()
    lab("ollama", server, stating(response_format=AS_JSON))
    assert server.asked("/api/generate")[-1]["format"] == SCHEMA
    with pytest.raises(BadInput, match="not to regex"):
        lab("ollama", server, stating(regex="[0-9]+"))


def test_what_may_change_the_answer_and_is_not_sent_is_said_as_data(lab: Lab) -> None:
    stated = {"length_penalty": 0.5, "lora_path": "poet", "user": "me", "stream": True, "model": "toy"}
    trace = lab("vllm", Vllm(), stating(**stated))
    [found] = [one for one in trace.header.findings_data if one.kind == "fields-not-sent"]
    assert found.data == {"fields": {"length_penalty": "0.5", "lora_path": '"poet"'}}
    assert trace.about("may change the answer: length_penalty=0.5, lora_path=")
    # The OpenAI API gets everything as it was.
    server = OpenAi()
    trace = lab("openai", server, stating(**stated))
    assert server.asked("/v1/completions")[-1]["length_penalty"] == 0.5
    assert not trace.about("may change the answer")


def test_a_redacted_request_leaves_open_what_it_constrained(lab: Lab) -> None:
    recorded = stating(response_format=AS_JSON).redacted(keep_token_ids=True)
    [said] = lab("vllm", Vllm(), recorded).about("what else the client stated was redacted")
    assert "response_format" in said


def test_a_constraint_of_no_known_form_is_refused(lab: Lab) -> None:
    with pytest.raises(BadInput, match="has a form that is not known: "):
        lab("vllm", Vllm(), stating(response_format={"type": "yaml"}))


def test_a_check_of_the_envelope_finds_the_constraint_before_any_replay() -> None:
    nothing = Fingerprint.build("0.1.0", "2026-07-14T09:00:00Z", {})
    [found] = refusals(stating(response_format=AS_JSON), nothing)
    assert "request.response_format" in found.data["error"]
    assert not refusals(stating(tool_choice="auto"), nothing)
