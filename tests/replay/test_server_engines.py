"""Replays on servers: what each engine asks of its server, and what then stands in the trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.failing_server import FakeServer
from fakes.inference import (
    SERVERS,
    LlamaCpp,
    OpenAi,
    Sglang,
    Tgi,
    TrtLlm,
    Vllm,
)
from fakes.replay_lab import (
    MESSAGES,
    PROMPT,
    TELL_IDS,
    TELL_TEXT,
    TELL_TOPK,
    TEXT,
    Lab,
    envelope,
    greedy,
)
from fakes.toy_model import MODEL, TOY, VOCABULARY, rendered, text_of
from rip.replay.engines.base import Opening
from rip.replay.engines.registry import ENGINES, engine_class
from rip.replay.request.from_trace import golden_from_trace
from rip.schemas.envelope import Runtime
from rip.schemas.errors import BadInput, EngineFailed
from rip.schemas.fingerprint import Fingerprint, Section, fact


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


# What a trace holds


@pytest.mark.parametrize("engine", TELL_IDS)
def test_tokens_distributions_and_times_are_those_of_the_server(engine: str, lab: Lab) -> None:
    trace = lab(engine, SERVERS[engine]())
    wanted = greedy(PROMPT)
    assert [row["token_id"] for row in trace.rows] == PROMPT + wanted
    [result] = trace.header.results
    assert (result.reason, result.text) == ("length", None if engine == "tensorrt-llm" else text_of(wanted))
    assert result.ttft_s is not None
    assert result.latency_s is not None
    assert 0 < result.ttft_s <= result.latency_s
    assert [row["elapsed_s"] is None for row in trace.rows] == [True] * len(PROMPT) + [False] * len(wanted)
    for row, step in zip(trace.rows[len(PROMPT) - 1 : -1], range(len(wanted)), strict=True):
        if engine not in TELL_TOPK:
            assert row["topk_ids"] is None
            continue
        top = TOY.top([*PROMPT, *wanted[:step]], 3)
        assert row["topk_ids"] == [token for token, _ in top]
        np.testing.assert_array_equal(row["topk_logprobs"], np.float32([value for _, value in top]))


@pytest.mark.parametrize("engine", TELL_TEXT)
def test_an_engine_that_tells_only_text_leaves_a_trace_of_texts(engine: str, lab: Lab) -> None:
    trace = lab(engine, SERVERS[engine](), envelope(prompt_token_ids=None))
    assert trace.rows == []
    assert trace.texts() == [text_of(greedy(PROMPT[1:]))]
    assert any("returns only text" in sentence for sentence in trace.header.not_seen)
    [result] = trace.header.results
    assert result.ttft_s is not None
    assert result.itl_s is not None


@pytest.mark.parametrize("engine", [*TELL_IDS, *TELL_TEXT])
def test_the_sequences_of_a_batch_are_under_way_together(engine: str, lab: Lab) -> None:
    """The server answers none of them before all three are there."""
    server = SERVERS[engine](together=3)
    trace = lab(engine, server, *(envelope(name) for name in ("a", "b", "c")), given={"batch_size": 3})
    assert [result.request_id for result in trace.header.results] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("vllm", {"system_fingerprint": "vllm-0.32.0-5e6272be"}),
        ("sglang", {"model": MODEL, "version": "0.5.23", "weight_version": "default"}),
        ("tgi", {"model": "org/toy", "model_sha": "0f1e2d3c", "version": "3.3.5"}),
        ("ollama", {"model": "toy:latest", "digest": "0b" * 32, "version": "0.13.1"}),
        ("openai", {"model": "toy-2026-10-01", "system_fingerprint": "fp_44709d6fcb"}),
    ],
)
def test_who_answered_is_recorded(engine: str, told: dict[str, str], lab: Lab) -> None:
    answered = lab(engine, SERVERS[engine]()).header.results[0].answered_by
    assert told.items() <= answered.items()


def test_no_key_of_a_server_is_kept(lab: Lab) -> None:
    trace = lab("sglang", Sglang())
    assert b"must-never-be-kept" not in trace.path.read_bytes()


# Seeds and settings


@pytest.mark.parametrize("engine", TELL_IDS)
def test_samples_of_one_request_have_seeds_of_their_own_and_come_again(engine: str, lab: Lab) -> None:
    asked = envelope(sampling={"temperature": 1.0, "seed": 7, "n": 3, "max_tokens": 12})
    server = SERVERS[engine]()
    first, again = lab(engine, server, asked), lab(engine, server, asked)
    samples = [first.tokens(sample=sample) for sample in range(3)]
    assert samples[0] != samples[1] != samples[2]
    assert samples == [again.tokens(sample=sample) for sample in range(3)]
    other = lab(engine, server, envelope(sampling={"temperature": 1.0, "seed": 8, "max_tokens": 12}))
    assert other.tokens() != samples[0]


@pytest.mark.parametrize(("engine", "path"), [("openai", "/v1/completions"), ("ollama", "/api/generate")])
def test_a_server_of_text_is_sent_no_seed_that_nobody_stated(engine: str, path: str, lab: Lab) -> None:
    server = SERVERS[engine]()
    trace = lab(engine, server, envelope(sampling={"temperature": 1.0}), repeat=4)
    [*bodies] = server.asked(path)
    assert all("seed" not in {**body, **body.get("options", {})} for body in bodies)
    assert len(set(trace.texts())) > 1  # one seed for all would have made them equal
    assert trace.header.requests[0].sampling["seed"].source == "server default"
    stated = lab(engine, server, envelope(sampling={"temperature": 1.0, "seed": 7}), repeat=4)
    assert len(set(stated.texts())) == 1


def test_defaults_that_the_server_tells_are_called_the_servers(lab: Lab) -> None:
    trace = lab("llama.cpp", SERVERS["llama.cpp"](), envelope(sampling={"seed": 1}))
    used = trace.header.requests[0].sampling
    assert (used["top_k"].resolved, used["top_k"].source) == (40, "told by the server")
    assert (used["min_p"].resolved, used["min_p"].source) == (0.05, "told by the server")


def test_sglang_says_when_the_seed_has_no_effect(lab: Lab) -> None:
    drawn = envelope(sampling={"temperature": 1.0, "seed": 7})
    trace = lab("sglang", Sglang(deterministic=False), drawn)
    assert trace.about("seeds have no effect")
    assert not lab("sglang", Sglang(), drawn).about("seeds have no effect")
    assert not lab("sglang", Sglang(deterministic=False)).about("seeds have no effect")  # greedy needs none


def test_greedy_on_tgi_is_asked_for_by_leaving_the_sampling_out(lab: Lab) -> None:
    server = Tgi()
    lab("tgi", server, envelope(sampling={"temperature": 0, "top_p": 1.0, "top_k": 0, "seed": 3}))
    [body] = server.asked("/generate_stream")
    assert body["parameters"] == {"max_new_tokens": 6, "details": True, "top_n_tokens": 3}
    lab("tgi", server, envelope(sampling={"temperature": 0.5, "top_p": 0.9, "seed": 3}))
    given = server.asked("/generate_stream")[1]["parameters"]
    assert given.items() >= {"temperature": 0.5, "top_p": 0.9, "seed": 3, "do_sample": True}.items()


@pytest.mark.parametrize("engine", sorted(SERVERS))
def test_a_sampling_field_without_a_word_is_refused_and_not_dropped(engine: str, lab: Lab) -> None:
    server = SERVERS[engine]()
    with pytest.raises(BadInput, match=r"logits_processors is not supported by this engine"):
        lab(engine, server, envelope(sampling={"logits_processors": ["a.b:C"]}))
    assert not any("generat" in path or "complet" in path or "chat" in path for path, _ in server.requests)


# SGLang


@pytest.mark.parametrize("incremental", [False, True])
def test_both_kinds_of_stream_of_sglang_mean_the_same(incremental: bool, lab: Lab) -> None:
    trace = lab("sglang", Sglang(incremental=incremental))
    assert trace.tokens() == greedy(PROMPT)
    assert trace.texts() == [text_of(greedy(PROMPT))]
    top = [row["topk_ids"] for row in trace.rows if row["topk_ids"]]
    assert top == [[token for token, _ in TOY.top([*PROMPT, *greedy(PROMPT)[:step]], 3)] for step in range(6)]


def test_a_long_answer_of_sglang_is_not_streamed_where_every_event_repeats_all(lab: Lab) -> None:
    long = envelope(sampling={"max_tokens": 513})
    server = Sglang()
    trace = lab("sglang", server, long)
    assert server.asked("/generate")[0]["stream"] is False
    assert trace.tokens() == greedy(PROMPT, 513)
    assert trace.about("was not streamed")
    once = Sglang(incremental=True)
    assert not lab("sglang", once, long).about("was not streamed")
    assert once.asked("/generate")[0]["stream"] is True


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_golden_prefill_scores_the_recorded_tokens_as_decoding_did(engine: str, lab: Lab) -> None:
    server = SERVERS[engine]()
    free = lab(engine, server)
    golden = (golden_from_trace(free.path), free.path)
    scored = lab(engine, server, mode="golden-prefill", golden=golden)
    assert scored.tokens() == free.tokens()
    assert all(row["forced"] for row in scored.rows if row["phase"] == "decode")
    first = len(PROMPT) - 1
    told = [(row["topk_ids"], row["topk_logprobs"]) for row in free.rows[first:-1]]
    assert [(row["topk_ids"], row["topk_logprobs"]) for row in scored.rows[first:-1]] == told
    assert all(row["topk_ids"] for row in scored.rows[:-1])  # of the prompt too
    other = envelope(prompt_token_ids=[0, 5, 6, 8], prompt_text=None)
    drifted = lab(engine, server, other, mode="golden-prefill", golden=golden)
    assert [(row["topk_ids"], row["topk_logprobs"]) for row in drifted.rows[first:-1]] != told


def test_cold_keeps_other_prefixes_out_and_empties_nobodys_cache(lab: Lab) -> None:
    server = Sglang()
    lab("sglang", server)
    again = lab("sglang", server)
    keys = [body.get("extra_key") for body in server.asked("/generate")]
    assert None not in keys
    assert len(set(keys)) == 2
    assert not again.about("prefix cache")
    assert "/flush_cache" not in [path for path, _ in server.requests]
    lab("sglang", server, given={"cache": "warm"})
    warm = lab("sglang", server, given={"cache": "warm"})
    assert warm.about("4 prompt tokens came from the server's prefix cache")


def test_an_sglang_that_cannot_be_kept_cold_is_found_out(lab: Lab) -> None:
    server = Sglang(old=True)
    lab("sglang", server)
    assert lab("sglang", server).about("cache=cold had no effect")


def test_an_adapter_of_sglang_is_asked_for_by_name(lab: Lab) -> None:
    server = Sglang()
    lab("sglang", server, model_name="terse")
    lab("sglang", server)
    assert [body.get("lora_path") for body in server.asked("/generate")] == ["terse", None]


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("place", ["prompt", "stop_token_ids", "golden"])
def test_a_token_that_the_model_does_not_have_is_never_sent(place: str, files: bool, lab: Lab) -> None:
    """It would end an SGLang server. Without the model's files its own tokenizer shows where ids end."""
    server = Sglang()
    sampling = {"stop_token_ids": [VOCABULARY]} if place == "stop_token_ids" else {}
    prompt = [0, VOCABULARY, 6] if place == "prompt" else PROMPT
    answer = {"token_ids": [5, VOCABULARY, 6]} if place == "golden" else None
    asked = envelope(prompt_token_ids=prompt, sampling=sampling, expected=answer)
    facts = {"sha256": fact("a" * 64, "test"), "vocab_size": fact(VOCABULARY, "test")}
    model = Fingerprint.build("0.1.0", "2026-07-14T09:00:00Z", {"model": Section(facts=facts)})
    known = {"environment": model, "opening": {"model": lab.folder}} if files else {}
    mode = "golden-prefill" if place == "golden" else "free"
    with pytest.raises(BadInput, match=rf"r0: token id {VOCABULARY} in .* outside the vocabulary of 40"):
        lab("sglang", server, asked, mode=mode, **known)
    assert server.asked("/generate") == []
    assert bool(server.asked("/detokenize")) != files


def test_an_sglang_without_texts_of_tokens_needs_the_models_files(lab: Lab) -> None:
    server = Sglang(detokenizes=False)
    with pytest.raises(BadInput, match=r"does not report which token ids it has") as raised:
        lab("sglang", server)
    assert raised.value.fix == "name the model's files with --model"
    assert lab("sglang", server, opening={"model": lab.folder}).tokens() == greedy(PROMPT)


def test_sglang_is_asked_for_the_texts_of_all_tokens_at_once(lab: Lab) -> None:
    server = Sglang()
    trace = lab("sglang", server, opening={"model": lab.folder})
    assert len(server.asked("/detokenize")) == 1
    assert {text_of([token]) for token in trace.tokens()} <= {*trace.header.token_text.values()}


@pytest.mark.parametrize(
    ("stated", "sent"),
    [
        ({"json": {"type": "object"}}, {"json_schema": '{"type": "object"}'}),
        ({"json": '{"type": "array"}'}, {"json_schema": '{"type": "array"}'}),
        ({"json_object": True}, {"json_schema": '{"type": "object"}'}),
        ({"regex": "[0-9]+"}, {"regex": "[0-9]+"}),
        ({"grammar": 'root ::= "a"', "json": None}, {"ebnf": 'root ::= "a"'}),
    ],
)
def test_a_structured_output_is_asked_of_sglang_by_its_own_names(
    stated: dict[str, Any], sent: dict[str, str], lab: Lab
) -> None:
    server = Sglang()
    lab("sglang", server, envelope(sampling={"structured_outputs": stated}))
    [body] = server.asked("/generate")
    assert body["sampling_params"].items() >= sent.items()


def test_a_structured_output_that_sglang_does_not_have_is_refused(lab: Lab) -> None:
    server = Sglang()
    with pytest.raises(BadInput, match=r"structured_outputs.choice is not supported by this engine"):
        lab("sglang", server, envelope(sampling={"structured_outputs": {"choice": ["a", "b"]}}))
    assert server.asked("/generate") == []


# TGI


def test_tgi_replays_messages_with_the_first_token_only_once(lab: Lab) -> None:
    """The template writes the first token, and the server puts one before every text."""
    server = Tgi()
    trace = lab("tgi", server, envelope(prompt_token_ids=None, prompt_text=None, messages=MESSAGES))
    prompt = [row["token_id"] for row in trace.rows if row["phase"] == "prompt"]
    assert prompt[:2] == [0, prompt[1]]
    assert prompt[1] != 0
    [body] = server.asked("/generate_stream")
    assert body["inputs"] == rendered(MESSAGES).removeprefix("<s>")
    assert trace.tokens() == greedy(prompt)


def test_tgi_generates_nothing_from_a_text_that_it_reads_as_other_tokens(lab: Lab) -> None:
    server = Tgi()
    with pytest.raises(BadInput, match=r"tokenizes the text differently .*, from position 2 on") as raised:
        lab("tgi", server, envelope(prompt_token_ids=[0, 5, 4, 7]))
    assert "remove prompt_token_ids" in raised.value.fix
    assert server.asked("/generate_stream") == []


def test_tgi_needs_a_text(lab: Lab) -> None:
    with pytest.raises(BadInput, match=r"r0 has no text"):
        lab("tgi", Tgi(), envelope(prompt_text=None))


# TensorRT-LLM


def test_a_trtllm_that_tells_text_in_place_of_ids_is_no_trace_of_tokens(lab: Lab) -> None:
    with pytest.raises(EngineFailed, match=r"does not return token ids") as raised:
        lab("tensorrt-llm", TrtLlm(detokenizes=True))
    assert "--engine openai" in raised.value.fix


# Ollama and OpenAI


@pytest.mark.parametrize(
    ("engine", "chat", "plain"),
    [
        ("openai", "/v1/chat/completions", "/v1/completions"),
        ("ollama", "/api/chat", "/api/generate"),
    ],
)
def test_messages_go_through_the_servers_template_and_a_text_does_not(
    engine: str, chat: str, plain: str, lab: Lab
) -> None:
    server = SERVERS[engine]()
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    lab(engine, server, envelope(prompt_token_ids=None, prompt_text=None, messages=MESSAGES, tools=tools))
    [body] = server.asked(chat)
    assert (body["messages"], body["tools"]) == (MESSAGES, tools)
    lab(engine, server, envelope(prompt_token_ids=None))
    [body] = server.asked(plain)
    assert body["prompt"] == TEXT


def test_what_else_the_client_stated_is_asked_again_of_an_openai_server(lab: Lab) -> None:
    server = OpenAi()
    rest = {"model": "another", "response_format": {"type": "json_object"}, "stream": False, "user": "u1"}
    lab("openai", server, envelope(prompt_text=None, messages=MESSAGES, request=rest))
    [body] = server.asked("/v1/chat/completions")
    assert (body["response_format"], body["user"]) == ({"type": "json_object"}, "u1")
    assert (body["model"], body["stream"]) == (MODEL, True)


def test_a_server_without_a_system_fingerprint_cannot_be_held_to_anything(lab: Lab) -> None:
    assert lab("openai", OpenAi(fingerprint="")).about("--repeat")
    assert not lab("openai", OpenAi()).about("--repeat")


def test_a_model_that_calls_the_limit_otherwise_is_asked_by_its_name(lab: Lab) -> None:
    server = OpenAi(newer=True)
    with pytest.raises(EngineFailed, match=r"max_completion_tokens") as raised:
        lab("openai", server)
    assert raised.value.fix == "add --set max_tokens_field=max_completion_tokens"
    trace = lab("openai", server, given={"max_tokens_field": "max_completion_tokens"})
    assert trace.texts() == [text_of(greedy(PROMPT[1:]))]


def test_answers_that_call_a_tool_differ_where_their_calls_do(lab: Lab) -> None:
    asked = envelope(prompt_text=None, messages=MESSAGES)
    [oslo] = lab("openai", OpenAi(calls='{"city": "Oslo"}'), asked).texts()
    [again] = lab("openai", OpenAi(calls='{"city": "Oslo"}'), asked).texts()
    [rome] = lab("openai", OpenAi(calls='{"city": "Rome"}'), asked).texts()
    assert oslo == again != rome
    assert oslo == '{"arguments":"{\\"city\\": \\"Oslo\\"}","name":"weather"}'


@pytest.mark.parametrize("engine", TELL_TEXT)
def test_token_ids_alone_are_refused_by_an_engine_of_text(engine: str, lab: Lab) -> None:
    server = SERVERS[engine]()
    with pytest.raises(BadInput, match=r"holds no text"):
        lab(engine, server, envelope(prompt_text=None))
    with pytest.raises(BadInput, match=r"synthetic neighbours are token ids"):
        lab(engine, server, fill=2)
    with pytest.raises(BadInput, match=r"does not support mode golden-decode"):
        lab(engine, server, mode="golden-decode")


# Which model


@pytest.mark.parametrize(
    ("engine", "listed"),
    [
        ("vllm", "it serves: toy"),
        ("sglang", "it serves: toy, terse"),
        ("tensorrt-llm", "it serves: toy"),
        ("ollama", "it serves: toy:latest, other:7b"),
        ("openai", "it serves: toy, toy-mini"),
    ],
)
def test_a_wrong_model_name_is_met_with_those_that_are_served(engine: str, listed: str, lab: Lab) -> None:
    with pytest.raises(BadInput, match=r"the server does not serve 'toi'") as raised:
        lab(engine, SERVERS[engine](), model_name="toi")
    assert raised.value.fix == listed


@pytest.mark.parametrize("engine", TELL_TEXT)
def test_one_of_several_models_must_be_named(engine: str, lab: Lab) -> None:
    with pytest.raises(BadInput, match=r"has 2 models") as raised:
        lab(engine, SERVERS[engine](), model_name=None)
    assert "--model" in raised.value.fix


def test_a_server_that_lists_no_models_is_asked_for_the_one_that_was_named(lab: Lab) -> None:
    server = OpenAi(lists=None)
    lab("openai", server)
    assert server.asked("/v1/completions")[0]["model"] == MODEL
    with pytest.raises(EngineFailed, match=r"/v1/models answers 404"):
        lab("openai", server, model_name=None)
    lab("openai", OpenAi(lists=("a", "b")), given={"served_model": "hidden"})


def test_hundreds_of_models_are_not_all_shown(lab: Lab) -> None:
    with pytest.raises(BadInput) as raised:
        lab("openai", OpenAi(lists=tuple(f"m{index}" for index in range(300))))
    assert raised.value.fix.endswith("m19 and 280 more")


@pytest.mark.parametrize("engine", sorted(set(SERVERS) - {"openai"}))
def test_another_server_than_the_engines_own_is_refused(engine: str, lab: Lab) -> None:
    with pytest.raises(EngineFailed, match=r"is not a \S+ server: its /\S+ does not say so") as raised:
        lab(engine, OpenAi())
    assert "--engine" in raised.value.fix


@pytest.mark.parametrize("engine", sorted(set(SERVERS) - {"vllm", "llama.cpp"}))
def test_an_engine_that_rip_cannot_start_asks_for_a_url(engine: str) -> None:
    with pytest.raises(BadInput, match=r"is called by its URL") as raised:
        engine_class(engine)(Opening(Runtime(), 3, model_name=MODEL))
    assert "--url" in raised.value.fix


def test_every_server_engine_is_registered_under_its_name() -> None:
    assert SERVERS.keys() <= ENGINES.keys()
    for name in SERVERS:
        assert engine_class(name).name == name


# Golden decode of the engines that have it


@pytest.mark.parametrize(("engine", "server"), [("vllm", Vllm), ("llama.cpp", LlamaCpp)])
def test_forced_tokens_come_again_with_the_raw_distributions(
    engine: str, server: type[FakeServer], lab: Lab
) -> None:
    one = lab.start(server())
    free = lab(engine, one)
    golden = (golden_from_trace(free.path), free.path)
    forced = lab(engine, one, mode="golden-decode", golden=golden)
    assert forced.tokens() == free.tokens()
    columns = [(row["token_id"], row["topk_ids"], row["topk_logprobs"]) for row in free.rows]
    assert [(row["token_id"], row["topk_ids"], row["topk_logprobs"]) for row in forced.rows] == columns
