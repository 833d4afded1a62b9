"""Engines are recognised by how they were started, and their arguments are read as they mean."""

from __future__ import annotations

import json
import shlex

import pytest
from rip.fingerprint.engine_arguments.command_line import (
    ALIASES,
    SWITCHES,
    arguments_of,
    is_uninteresting,
    recognise,
    split,
)
from rip.fingerprint.engine_arguments.meaning import EXPECTED, SETTINGS, fields_of

TORCH = "/venv/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so"


@pytest.mark.parametrize(
    ("line", "mapped", "engine"),
    [
        ("/venv/bin/python /venv/bin/vllm serve m", [], "vllm"),
        ("python3 -u -m vllm.entrypoints.openai.api_server --model m", [], "vllm"),
        ("python -X dev -m sglang.launch_server --model-path m", [], "sglang"),
        ("/opt/llama/llama-server -m m.gguf", [], "llama.cpp"),
        ("python -m llama_cpp.server --model m.gguf", [], "llama.cpp"),
        ("text-generation-launcher --model-id m", [], "tgi"),
        ("/usr/bin/python3 /usr/bin/text-generation-server serve m", [], "tgi"),
        ("python3 /usr/local/bin/trtllm-serve m", [], "tensorrt-llm"),
        ("python -m tensorrt_llm.commands.serve m", [], "tensorrt-llm"),
        ("/usr/bin/ollama serve", [], "ollama"),
        ("python rollout.py", [TORCH], "torch"),
        ("python offline.py", [TORCH, "/venv/lib/python3.12/site-packages/vllm/_C.abi3.so"], "vllm"),
        ("python bot.py", ["/venv/lib/python3.12/site-packages/xllamacpp/xllamacpp.abi3.so"], "llama.cpp"),
        ("python -c 'import time'", [], None),
        ("bash -c 'vllm serve m'", [], None),
        ("vim vllm", [], None),
        ("", [], None),
    ],
)
def test_engines_are_recognised(line: str, mapped: list[str], engine: str | None) -> None:
    found = recognise(shlex.split(line), mapped)
    assert (found.name if found else None) == engine


@pytest.mark.parametrize(
    ("title", "engine"),
    [("VLLM::EngineCore", "vllm"), ("VLLM::Worker_TP1", "vllm"), ("sglang::scheduler_TP0", "sglang")],
)
def test_a_worker_with_a_title_is_recognised_without_arguments(title: str, engine: str) -> None:
    found = recognise([title], [])
    assert found is not None
    assert (found.name, found.arguments) == (engine, None)


def fields(line: str, environ: dict[str, str] | None = None) -> dict[str, object]:
    engine = recognise(shlex.split(line), [])
    assert engine is not None
    said = fields_of(engine.name, arguments_of(engine, environ or {}))
    return {f"{section}.{field}": value for (section, field), value in said.items()}


def test_vllm_arguments() -> None:
    assert fields(
        "vllm serve org/m -tp 4 --pipeline-parallel-size=2 --enforce-eager --no-enable-prefix-caching "
        "--seed -1 --kv-cache-dtype fp8 --max-num-batched-tokens 2048 --attention-backend FLASH_ATTN "
        "--port 80 --api-key k "
        """--speculative-config '{"method": "ngram"}' -O3"""
    ) == {
        "model.served": "org/m",
        "parallelism.tensor_parallel_size": 4,
        "parallelism.pipeline_parallel_size": 2,
        "engine.cuda_graphs": False,
        "cache.prefix_cache": False,
        "determinism.engine_seed": -1,
        "engine.kv_cache_dtype": "fp8",
        "engine.max_batched_tokens": 2048,
        "engine.attention_backend": "FLASH_ATTN",
        "engine.speculative_decoding": {"method": "ngram"},
        "engine.optimization_level": 3,
    }


def test_a_switch_does_not_take_the_model_that_follows_it() -> None:
    assert fields("vllm serve --enforce-eager org/m")["model.served"] == "org/m"


def test_sglang_arguments() -> None:
    said = fields(
        "python -m sglang.launch_server --model-path m --tp 2 --chunked-prefill-size -1 "
        "--disable-radix-cache --enable-deterministic-inference --attention-backend fa3 --disable-cuda-graph"
    )
    assert said == {
        "model.served": "m",
        "parallelism.tensor_parallel_size": 2,
        "engine.chunked_prefill": False,
        "engine.prefill_chunk_size": -1,
        "cache.prefix_cache": False,
        "determinism.batch_invariance": "enable_deterministic_inference=true",
        "engine.attention_backend": "fa3",
        "engine.cuda_graphs": False,
    }


def test_llama_arguments_also_come_from_variables_and_the_command_line_wins() -> None:
    environ = {"LLAMA_ARG_UBATCH": "64", "LLAMA_ARG_N_PARALLEL": "8", "LLAMA_API_KEY": "k"}
    said = fields("llama-server -m m.gguf -c 4096 -fa on -ctk q8_0 -np 4 -t 8 --no-cont-batching", environ)
    assert said == {
        "model.served": "m.gguf",
        "engine.max_model_len": 4096,
        "engine.flash_attention": "on",
        "engine.kv_cache_dtype": "q8_0",
        "engine.max_sequences": 4,
        "engine.threads": 8,
        "engine.continuous_batching": False,
        "engine.micro_batch_size": 64,
    }


def test_tgi_arguments_also_come_from_variables() -> None:
    said = fields(
        "text-generation-launcher --num-shard 2", {"MODEL_ID": "m", "QUANTIZE": "fp8", "HF_TOKEN": "t"}
    )
    assert said == {
        "model.served": "m",
        "engine.quantization": "fp8",
        "parallelism.tensor_parallel_size": 2,
    }


@pytest.mark.parametrize(
    "name",
    ["port", "host", "api_key", "ssl_keyfile", "log_level", "disable_log_requests", "uvicorn_log_level"],
)
def test_arguments_that_change_no_number_are_left_out(name: str) -> None:
    assert is_uninteresting(name)


@pytest.mark.parametrize("engine", SETTINGS)
def test_no_argument_that_sets_a_field_is_left_out(engine: str) -> None:
    assert [name for name in SETTINGS[engine] if is_uninteresting(name)] == []


@pytest.mark.parametrize("engine", ALIASES)
def test_aliases_lead_to_arguments_that_mean_something(engine: str) -> None:
    names = {*ALIASES[engine].values(), *SWITCHES.get(engine, ())}
    known = {
        *SETTINGS[engine],
        "config",
        "enable_lora",
        "trust_remote_code",
        "skip_tokenizer_init",
        "mlock",
        "jinja",
    }
    assert names - known - {name.partition(".")[0] for name in known} == set()


def test_every_expected_field_is_set_by_some_engine() -> None:
    places = {place.removeprefix("!") for table in SETTINGS.values() for place in table.values()}
    assert {f"{section}.{field}" for section, field in EXPECTED} <= places


@pytest.mark.parametrize(
    "line", ["--a", "--a=", "--=b", "-", "--", "---", "-1", "--a -1 --b", "x --no-", "--no-a=1"]
)
def test_odd_command_lines_are_read_somehow(line: str) -> None:
    assert isinstance(split("vllm", line.split(" ")), dict)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-cc", '{"mode": 3, "pass_config": {"enable_sp": true}}', "--tensor-parallel-size", "2"],
        ["-cc.mode", "3", "-cc.pass_config.enable_sp", "true", "--tensor_parallel_size=2"],
        ["--compilation-config.mode=3", "-cc", '{"pass_config": {"enable_sp": true}}', "-tp", "2"],
    ],
)
def test_one_setting_in_several_spellings_is_one(arguments: list[str]) -> None:
    found = fields_of("vllm", split("vllm", ["serve", "m", *arguments]))
    assert found == {
        ("model", "served"): "m",
        ("engine", "compilation"): {"mode": 3, "pass_config": {"enable_sp": True}},
        ("parallelism", "sequence_parallel"): True,
        ("parallelism", "tensor_parallel_size"): 2,
    }


def test_a_name_of_many_dots_is_no_deep_table() -> None:
    [(_, value)] = split("vllm", ["--" + "a." * 100_000, "1"]).items()
    assert isinstance(value, dict)
    json.dumps(value)
