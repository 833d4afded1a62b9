"""A live server by its address: what each engine tells, and that nothing is changed."""

from __future__ import annotations

import hashlib
import json

import pytest
from fakes import servers
from fakes.served_readings import ask, reason, value
from fakes.servers import API_KEY, serve
from rip.fingerprint.collect import collect
from rip.fingerprint.drift import drift
from rip.fingerprint.remote.address import Server
from rip.schemas.errors import EngineFailed
from rip.schemas.fingerprint import FLAT_KEYS, SECTIONS, Fingerprint

CHANGING_NOTHING = {"POST /tokenize", "POST /apply-template", "POST /chat_tokenize", "POST /api/show"}
"""The routes that are asked with a body and only compute an answer."""


@pytest.mark.parametrize(
    ("engine", "facts"),
    [
        (
            "vllm",
            {
                "engine.version": "0.32.0",
                "model.served_name": "smol",
                "model.served": "/models/smol",
                "model.adapters": {"terse": "/adapters/terse"},
                "engine.max_model_len": 1024,
                "cache.prefix_cache": True,
                "cache.block_size": 128,
                "cache.blocks": 364,
                "engine.kv_cache_dtype": "auto",
                "frameworks.python": "3.11.7",
            },
        ),
        (
            "sglang",
            {
                "engine.version": "0.5.10",
                "engine.attention_backend": "fa3",
                "parallelism.tensor_parallel_size": 2,
                "cache.prefix_cache": False,
                "engine.cuda_graphs": True,
                "engine.async_scheduling": True,
                "engine.prefill_chunk_size": 4096,
                "determinism.batch_invariance": "enable_deterministic_inference=true",
                "engine.quantization": "none",
                "model.quantization_method": "none",
                "replica.weight_version": "step-400",
                "model.served": "Qwen/Qwen3-8B",
                "model.architecture": "Qwen3ForCausalLM",
            },
        ),
        (
            "llama.cpp",
            {
                "engine.version": "b6789-1a2b3c4d",
                "template.sha256": hashlib.sha256(servers.LLAMA_TEMPLATE.encode()).hexdigest(),
                "model.quantization_method": "Q4_1",
                "model.vocab_size": 49152,
                "model.parameters": 134515008,
                "engine.max_sequences": 2,
                "cache.slots": [1024, 1024],
                "model.adapters": [{"path": "/adapters/terse.gguf", "scale": 0.5}],
            },
        ),
        (
            "tgi",
            {
                "engine.version": "3.3.5",
                "engine.commit": "abc123",
                "model.revision": "0f1e2d3c",
                "engine.dtype": "float16",
                "cache.tokens": 16384,
            },
        ),
        (
            "ollama",
            {
                "engine.version": "0.13.1",
                "model.digests": {"smol:latest": "ab" * 32},
                "model.served": "smol:latest",
                "model.quantization_method": "Q4_K_M",
                "model.context_length": 8192,
                "sampling.server_defaults": {"stop": ['"<|end|>"', '"</s>"'], "temperature": ["0.2"]},
            },
        ),
        (
            "tensorrt-llm",
            {
                "engine.version": "1.1.0",
                "parallelism.tensor_parallel_size": 4,
                "engine.max_sequences": 8,
                "model.served_name": "llama",
            },
        ),
    ],
)
def test_each_engine_is_recognised_and_tells(engine: str, facts: dict[str, object]) -> None:
    found = ask(servers.BY_ENGINE[engine])
    assert value(found, "engine.name") == engine
    assert {place: value(found, place) for place in facts} == facts


@pytest.mark.parametrize("engine", servers.BY_ENGINE)
def test_nothing_is_asked_that_could_change_the_server(engine: str) -> None:
    with serve(servers.BY_ENGINE[engine]) as served:
        collect(server=Server(served.url))
    posted = {question for question in served.questions if not question.startswith("GET ")}
    assert posted <= CHANGING_NOTHING
    assert not any("weights_checker" in question or "flush" in question for question in served.questions)
    if engine == "tensorrt-llm":
        assert not any("metrics" in question for question in served.questions), "reading them empties them"
    gets = [question for question in served.questions if question.startswith("GET ")]
    assert len(gets) == len(set(gets))


def test_a_server_of_no_owner_is_recognised_by_its_endpoints() -> None:
    for engine in ("vllm", "sglang", "llama.cpp", "tgi", "ollama"):
        closed = {**servers.BY_ENGINE[engine], "GET /v1/models": 401}
        found = ask(closed)
        assert value(found, "engine.name") == engine
        assert "--api-key-env" in reason(found, "model.served_name") or engine in ("llama.cpp", "sglang")


def test_a_bare_version_names_no_engine_and_its_metrics_are_left_alone() -> None:
    with serve({**servers.TRTLLM, "GET /v1/models": {"data": [{"id": "m", "owned_by": "us"}]}}) as served:
        found = collect(server=Server(served.url))
    assert value(found, "engine.version") == "1.1.0"
    assert not any("metrics" in question for question in served.questions)


def test_an_unknown_server_gives_what_the_openai_api_has() -> None:
    found = ask(servers.UNKNOWN)
    assert reason(found, "engine.name") == "no endpoint of an engine that rip knows answers"
    assert value(found, "model.served_name") == ["gpt-large", "gpt-small"]
    assert "replay" in reason(found, "replica.system_fingerprint")


def test_in_development_mode_vllm_tells_its_settings_and_its_machine() -> None:
    found = ask(servers.VLLM_DEVELOPMENT)
    known = {
        "engine.dtype": "bfloat16",
        "engine.attention_backend": "FLASH_ATTN",
        "engine.kv_cache_dtype": "fp8",
        "engine.quantization": "none",
        "engine.cuda_graphs": False,
        "engine.speculative_decoding": "none",
        "engine.compilation": {"mode": 3, "cudagraph_mode": 2},
        "parallelism.tensor_parallel_size": 2,
        "parallelism.custom_all_reduce": False,
        "determinism.batch_invariance": "VLLM_BATCH_INVARIANT=1",
        "determinism.VLLM_USE_DEEP_GEMM": "0",
        "frameworks.torch": "2.13.0+cu130",
        "libraries.cuda": "13.0",
        "driver.version": "580.159.03",
        "template.sha256": hashlib.sha256(b"{{ messages }}").hexdigest(),
    }
    assert {place: value(found, place) for place in known} == known
    text = found.to_json()
    assert "hf_ABC" not in text
    assert "another-secret" not in text
    assert "10.0.0.7" not in text


def test_what_vllm_writes_as_text_is_read_where_it_is_exact() -> None:
    written = (
        "model='m, \\'x\\'', speculative_config=SpeculativeConfig(method='ngram', num_spec_tokens=3), "
        "dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=4, quantization=fp8, seed=0, "
        "enforce_eager=True, compilation_config={'mode': 3, 'local_cache_dir': '/x'}, "
        "block_size=16, block_size=32"
    )
    found = ask({**servers.VLLM, "GET /server_info?config_format=json": {"vllm_config": written}})
    known = {
        "engine.speculative_decoding": "SpeculativeConfig(method='ngram', num_spec_tokens=3)",
        "engine.dtype": "bfloat16",
        "engine.quantization": "fp8",
        "engine.cuda_graphs": False,
        "engine.compilation": {"mode": 3},
        "parallelism.tensor_parallel_size": 4,
        "determinism.engine_seed": 0,
    }
    assert {place: value(found, place) for place in known} == known
    assert reason(found, "engine.attention_backend") == "the server does not tell"
    assert value(found, "cache.block_size") == 128, "given twice: its metrics count"
    off = {"vllm_config": "model='m', speculative_config=None, quantization=None"}
    found = ask({**servers.VLLM, "GET /server_info?config_format=json": off})
    assert value(found, "engine.speculative_decoding") == value(found, "engine.quantization") == "none"


@pytest.mark.parametrize(
    "said",
    [
        *({}, None, [], {"vllm_env": {}}, {"vllm_config": {}}, {"vllm_config": None}, {"vllm_config": [1]}),
        {"vllm_config": {"model_config": {}, "attention_config": {}}},
        {"vllm_config": "model='m', tensor_parallel_size=4"},
        {"vllm_config": "speculative_config=SpeculativeConfig(method='ngram', quantization=None"},
        {"vllm_config": "x='speculative_config=None, quantization=None'"},
    ],
)
def test_what_vllm_does_not_say_is_not_guessed(said: object) -> None:
    found = ask({**servers.VLLM, "GET /server_info?config_format=json": said})
    for place in ("engine.speculative_decoding", "engine.quantization", "engine.attention_backend"):
        assert "automatic" not in reason(found, place)


def test_an_automatic_attention_backend_is_said_only_where_the_server_says_so() -> None:
    said = {"vllm_config": {"attention_config": {"backend": None}}}
    found = ask({**servers.VLLM, "GET /server_info?config_format=json": said})
    assert reason(found, "engine.attention_backend").startswith("set to automatic")


def test_what_sglang_does_not_say_is_not_guessed() -> None:
    silent = ask({**servers.SGLANG, "GET /server_info": {"tp_size": 2}})
    assert reason(silent, "engine.speculative_decoding") == "the server does not tell"
    off = ask({**servers.SGLANG, "GET /server_info": {"tp_size": 2, "speculative_algorithm": None}})
    assert value(off, "engine.speculative_decoding") == "none"
    wrong = ask({**servers.SGLANG, "GET /server_info": {"disable_radix_cache": "maybe"}})
    assert reason(wrong, "cache.prefix_cache") == "the server does not tell"


def test_two_starts_of_sglang_are_no_drift() -> None:
    again = {
        **servers.SGLANG["GET /server_info"],
        "launch_command": "--model-path Qwen/Qwen3-8B --port 30001",
        "startup_time": {"load_weight": 2.5},
        "port": 30001,
        "engine_info_bootstrap_port": 6790,
    }
    first = ask(servers.SGLANG)
    assert drift(first, ask({**servers.SGLANG, "GET /server_info": again})) == []
    quantized = {**again, "quantization": "fp8"}
    changes = drift(first, ask({**servers.SGLANG, "GET /server_info": quantized}))
    assert {f"{one.section}.{one.field}" for one in changes} >= {"engine.quantization"}


def test_a_list_of_another_shape_is_not_an_empty_list() -> None:
    found = ask({**servers.LLAMA, "GET /lora-adapters": {"error": 1}, "GET /slots": {"error": 1}})
    assert reason(found, "model.adapters") == "its answer lists no adapters"
    assert reason(found, "cache.slots") == "its answer lists no slots"


def test_without_development_mode_it_says_so_and_does_not_advise_it() -> None:
    found = ask(servers.VLLM)
    assert reason(found, "engine.dtype") == "only servers in development mode tell their settings"
    assert "VLLM_SERVER_DEV_MODE" not in found.to_json()


@pytest.mark.parametrize("engine", [*servers.BY_ENGINE, "none"])
def test_nothing_of_this_machine_is_said_of_a_server(engine: str) -> None:
    found = ask(servers.BY_ENGINE.get(engine, servers.UNKNOWN))
    assert tuple(found.sections) == SECTIONS
    assert "unavailable: not probed" not in found.flat().values()
    assert "--pid" in reason(found, "cpu.model")
    assert "--pid" in reason(found, "frameworks.torch")
    assert found.get("frameworks", "numpy") is None
    assert list(found.flat()) == list(FLAT_KEYS)
    assert Fingerprint.from_json(found.to_json(), "it") == found


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "tgi"])
def test_another_tokenizer_is_found_from_outside(engine: str) -> None:
    base = servers.BY_ENGINE[engine]
    same = [ask(base), ask(base)]
    assert drift(*same) == []
    other = [{"id": 2}] if engine == "tgi" else {"tokens": [1, 2]}
    changed = drift(same[0], ask({**base, "POST /tokenize": other}))
    assert ("tokenizer", "probe") in [(change.section, change.field) for change in changed]
    assert {change.section for change in changed} <= {"tokenizer", "template"}


def test_two_answers_differ_in_what_was_changed_and_nothing_else() -> None:
    props = {**servers.LLAMA["GET /props"], "chat_template": servers.LLAMA_TEMPLATE + " "}
    changes = drift(ask(servers.LLAMA), ask({**servers.LLAMA, "GET /props": props}))
    assert [(change.section, change.field) for change in changes] == [("template", "sha256")]


def test_keys_in_an_answer_are_not_kept() -> None:
    found = ask(servers.SGLANG, API_KEY)
    text = found.to_json()
    for secret in (API_KEY, "adm1n", "hunter2"):
        assert secret not in text
    kept = value(found, "engine.arguments")
    assert isinstance(kept, dict)
    assert kept["note"] == "started with --api-key [redacted]"
    assert {"host", "port", "internal_states"}.isdisjoint(kept)


def test_the_key_is_sent_and_an_absent_one_is_named() -> None:
    with serve(servers.VLLM) as served:
        collect(server=Server(served.url, API_KEY))
    assert set(served.keys) == {f"Bearer {API_KEY}"}
    assert API_KEY not in repr(Server(served.url, API_KEY))
    closed = {**servers.VLLM, "POST /tokenize": 401}
    assert "--api-key-env" in reason(ask(closed), "tokenizer.probe")
    assert reason(ask(closed, "wrong"), "tokenizer.probe") == "it refuses the API key"


def test_the_key_does_not_follow_a_redirect_to_another_server() -> None:
    with (
        serve(servers.VLLM) as other,
        serve({"*": (307, {"Location": f"{other.url}/v1/models"}, b"")}) as served,
        pytest.raises(EngineFailed) as raised,
    ):
        collect(server=Server(served.url, API_KEY))
    assert raised.value.fix == f"give that address: --url {other.url}"
    assert served.questions
    assert other.questions == []


def test_what_users_ask_is_not_kept() -> None:
    assert "what a user asked" not in ask(servers.LLAMA).to_json()


def test_integers_beyond_2_53_are_written_as_text() -> None:
    stored = json.loads(ask(servers.SGLANG).to_json())
    assert stored["sections"]["determinism"]["facts"]["engine_seed"]["value"] == "1234567890123456789012"


def test_control_characters_do_not_get_through() -> None:
    props = {**servers.LLAMA["GET /props"], "build_info": "b1\x1b]0;owned\x07\n", "model_alias": "a\u202eb"}
    found = ask({**servers.LLAMA, "GET /props": props})
    assert value(found, "engine.version") == "b1\ufffd]0;owned\ufffd\ufffd"
    assert value(found, "model.served_name") == "a\ufffdb"
