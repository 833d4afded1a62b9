"""A live server by its address: what each engine tells, that nothing is changed, and that no answer harms."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import servers
from fakes.servers import API_KEY, endless, serve, serve_raw
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rip.fingerprint.collect import collect
from rip.fingerprint.drift import drift, not_compared
from rip.fingerprint.present.warnings import list_warnings
from rip.fingerprint.probes.context import Context
from rip.fingerprint.probes.remote_server import probe
from rip.fingerprint.remote import client as bounded_http
from rip.fingerprint.remote.address import Server
from rip.fingerprint.remote.vllm import settings_of
from rip.schemas.errors import BadInput, EngineFailed
from rip.schemas.fingerprint import FLAT_KEYS, SECTIONS, Fingerprint

CHANGING_NOTHING = {"POST /tokenize", "POST /apply-template", "POST /chat_tokenize", "POST /api/show"}
"""The routes that are asked with a body and only compute an answer."""


def ask(answers: servers.Answers, key: str | None = None) -> Fingerprint:
    with serve(answers) as served:
        return collect(server=Server(served.url, key))


def value(found: Fingerprint, place: str) -> object:
    reading = found.get(*place.split(".", 1))
    assert reading is not None, place
    assert reading.unavailable is None, reading.unavailable
    return reading.value


def reason(found: Fingerprint, place: str) -> str:
    reading = found.get(*place.split(".", 1))
    assert reading is not None, place
    assert reading.unavailable is not None, reading.value
    return reading.unavailable


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is long for a test."""
    monkeypatch.setattr(bounded_http, "REQUEST_S", 0.2)
    monkeypatch.setattr(bounded_http, "TOTAL_S", 1.0)


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


DEEP = b"[" * 100_000 + b"]" * 100_000
HOSTILE_PROPS: dict[str, tuple[servers.Answer, str]] = {
    "not JSON": (b"<html>hello</html>", "its answer is not JSON"),
    "not UTF-8": (b'{"build_info": "\xff\xfe"}', "its answer is not UTF-8 text"),
    "nested without end": (DEEP, "its answer is nested more than 64 deep"),
    "nested too deep": (b"[" * 70 + b"]" * 70, "its answer is nested more than 64 deep"),
    "too large": (b'"' + b"a" * (5 << 20) + b'"', "its answer is larger than 4 MiB"),
    "compressed": (
        (200, {"Content-Encoding": "gzip"}, gzip.compress(b"0" * (1 << 20))),
        "it compresses its answer though not asked to",
    ),
    "ends early": (
        (200, {"Content-Length": "1000", "Connection": "close"}, b"{"),
        "it ended its answer early",
    ),
    "an error": (500, "it answers with status 500"),
    "elsewhere": (
        (302, {"Location": "http://192.0.2.1/props"}, b""),
        "it redirects to http://192.0.2.1: give that address with --url",
    ),
    "in a circle": ((302, {"Location": "/props"}, b""), "it redirects in a circle"),
    "many headers": (
        (200, {f"X-{index}": "a" for index in range(200)}, b"{}"),
        "its answer is no proper HTTP",
    ),
}


@pytest.mark.parametrize("name", HOSTILE_PROPS)
def test_a_hostile_answer_is_a_fact(name: str) -> None:
    answer, expected = HOSTILE_PROPS[name]
    found = ask({**servers.LLAMA, "GET /props": answer})
    assert reason(found, "engine.version").startswith(expected)
    assert value(found, "model.vocab_size") == 49152, "the other answers are used"


@pytest.mark.parametrize(
    "answer", [[], {}, None, 7, "x", {"data": 3}, {"data": [1, None, []]}, {"data": [{"id": {"a": 1}}]}]
)
def test_answers_of_another_shape_are_facts(answer: object) -> None:
    for engine in servers.BY_ENGINE:
        shapeless = dict.fromkeys(servers.BY_ENGINE[engine], answer)
        shapeless |= {"GET /v1/models": servers.BY_ENGINE[engine]["GET /v1/models"]}
        found = ask(shapeless)
        assert engine == "tgi" or value(found, "engine.name") == engine
        with pytest.raises(EngineFailed, match=r"does not answer as an inference server|does not speak HTTP"):
            ask(dict.fromkeys(servers.BY_ENGINE[engine], answer))


UNREAD: dict[str, tuple[servers.Answers, str, str]] = {
    "wants a key": ({"*": 401}, r"it wants an API key(\n|$)", "--api-key-env NAME"),
    "wants a key elsewhere": ({"*": 403, "GET /v1/models": 404}, r"wants an API key(\n|$)", "--api-key-env"),
    "nothing there": ({}, "no such endpoint", "--url"),
    "fails": ({"*": 500}, "status 500", "log"),
    "a web page": ({"*": "<html>hello</html>"}, "not JSON", "--url"),
    "broken": ({"*": b'{"data": ['}, "not JSON", "--url"),
    "empty": ({"*": {}}, "no list of models", "--url"),
    "no name": ({"*": {"data": [{"id": None}]}}, "no list of models", "--url"),
    "elsewhere": (
        {"*": (301, {"Location": "https://192.0.2.1/ai/v1/models"}, b"")},
        "redirects to https://192.0.2.1/ai",
        "--url https://192.0.2.1/ai",
    ),
    "to nowhere": ({"*": (301, {"Location": "http://[::1"}, b"")}, "an address that is none", "--url"),
    "in a circle": ({"*": (302, {"Location": "/v1/models"}, b"")}, "in a circle", "--url"),
    "huge": ({"*": b'"' + b"a" * (5 << 20) + b'"'}, "larger than 4 MiB", "--url"),
    "compressed": ({"*": (200, {"Content-Encoding": "gzip"}, b"x")}, "compresses its answer", "--url"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_server_that_cannot_be_read_is_an_error_with_its_mend(name: str) -> None:
    answers, why, fix = UNREAD[name]
    with pytest.raises(EngineFailed, match=why) as raised:
        ask(answers)
    assert fix in raised.value.fix


def test_a_wrong_key_is_named_as_such() -> None:
    with pytest.raises(EngineFailed, match="it refuses the API key") as raised:
        ask({"*": 401}, "wrong")
    assert "holds the key of this server" in raised.value.fix


def test_a_server_without_a_model_is_still_one() -> None:
    assert ask({"GET /v1/models": {"object": "list", "data": []}}).sections


def test_a_port_that_speaks_no_http_is_named_as_such() -> None:
    with (
        serve_raw(lambda connection, ended: connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as url,
        pytest.raises(EngineFailed, match="does not speak HTTP"),
    ):
        collect(server=Server(url))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, answer: object) -> object:
    """The same JSON, with any part of it replaced by anything."""
    if draw(st.integers(0, 5)) == 0:
        return draw(JSON)
    if isinstance(answer, dict):
        return {name: draw(damaged(said)) for name, said in answer.items()}
    if isinstance(answer, list):
        return [draw(damaged(said)) for said in answer]
    return answer


@pytest.mark.parametrize("engine", servers.BY_ENGINE)
@given(data=st.data())
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_answer_of_wrong_types_ends_the_reading(engine: str, data: st.DataObject) -> None:
    whole = servers.VLLM_DEVELOPMENT if engine == "vllm" else servers.BY_ENGINE[engine]
    answers = {name: data.draw(damaged(said)) for name, said in whole.items()}

    def answer(asked: bounded_http.Client, method: str, path: str, body: object) -> bounded_http.Reply:
        said = answers.get(f"{method} {path}", ...)
        if said is ...:
            raise bounded_http.NoAnswer("absent", absent=True)
        content = said if isinstance(said, str) and path == "/metrics" else json.dumps(said)
        return bounded_http.Reply(content.encode("utf-8", "replace"), {})

    with pytest.MonkeyPatch.context() as patched, contextlib.suppress(EngineFailed):
        patched.setattr(bounded_http.Client, "_answer", answer)
        patched.setattr(bounded_http.Client, "uses_tls", lambda asked: False)
        context = Context(None, {}, server=Server("http://127.0.0.1:1"))
        found = Fingerprint.build("0", "2026-07-14T09:30:00+00:00", probe(context))
        assert Fingerprint.from_json(found.to_json(), "it") == found
        assert list_warnings(found) == []


@given(st.text(alphabet="ab=,'\"\\()[]{} 01.", max_size=60))
def test_any_text_of_settings_is_taken_apart_or_refused(text: str) -> None:
    settings_of(text)


HOSTILE_SERVERS = {
    "a body without end": endless(b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n[", b"1," * 4096),
    "a body without length": endless(b"HTTP/1.1 200 OK\r\n\r\n[", b"1," * 4096),
    "a byte now and then": endless(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"[", 0.05),
    "a slow body without length": endless(b"HTTP/1.1 200 OK\r\n\r\n", b"[", 0.05),
    "headers now and then": endless(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", 0.05),
    "headers without end": endless(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 100),
    "a header without end": endless(b"HTTP/1.1 200 OK\r\nX: ", b"a" * 4096),
    "chunks without end": endless(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n[\r\n", 0.01
    ),
    "a chunk of no size": endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"zz\r\n"),
    "always to be continued": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "nothing at all": endless(b"", b"", 0.05),
    "no HTTP": endless(b"\x15\x03\x01\x00\x02\x02\x50", b"", 0.05),
}


@pytest.mark.parametrize("name", HOSTILE_SERVERS)
def test_a_server_that_never_ends_is_left_in_bounded_time(name: str, short: None) -> None:
    with serve_raw(HOSTILE_SERVERS[name]) as url, contextlib.suppress(EngineFailed):
        assert reason(collect(server=Server(url)), "engine.name")


def test_a_server_that_hangs_up_is_an_error() -> None:
    with (
        serve_raw(lambda connection, ended: None) as url,
        pytest.raises(EngineFailed, match="without an answer"),
    ):
        collect(server=Server(url))


def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EngineFailed, match="Connection refused"):
        collect(server=Server(f"http://127.0.0.1:{port}"))
    with pytest.raises(EngineFailed, match="no host of that name"):
        collect(server=Server("http://no-such-host.invalid"))


@pytest.fixture
def https_server(tmp_path: Path) -> Iterator[str]:
    """A TLS server with a certificate that nobody has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate of this test")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=localhost"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except (OSError, ssl.SSLError):
                    connection.close()

        threading.Thread(target=accept, daemon=True).start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"


def test_a_certificate_that_is_not_trusted_is_an_error_with_its_mend(https_server: str) -> None:
    with pytest.raises(EngineFailed, match=r"not trusted \(self.signed certificate\).*SSL_CERT_FILE"):
        collect(server=Server(https_server))


def test_http_to_a_tls_port_is_told_to_use_https(https_server: str) -> None:
    with pytest.raises(EngineFailed, match="speaks TLS, not plain HTTP") as raised:
        collect(server=Server(https_server.replace("https:", "http:")))
    assert raised.value.fix == f"--url {https_server}"


def test_https_to_a_plain_server_is_an_error() -> None:
    with serve(servers.VLLM) as served, pytest.raises(EngineFailed, match="is it http"):
        collect(server=Server(served.url.replace("http:", "https:")))


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:8000", "ftp://host/", "http://", "http://host:99999", "http://u:p@host"),
        *("http://ho st/", "file:///etc/passwd", "http://host\r\nX: y", "http://[::1", "http://host#x"),
        "http://host/?a=1",
    ],
)
def test_an_address_that_is_none_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(BadInput):
        collect(server=Server(url))


@pytest.mark.parametrize("suffix", ["/v1", "/v1/", "/"])
def test_the_address_may_be_that_of_the_api(suffix: str) -> None:
    with serve(servers.TGI) as served:
        assert value(collect(server=Server(served.url + suffix)), "engine.name") == "tgi"


def test_an_address_with_a_path_keeps_it() -> None:
    behind = {name.replace(" /", " /replica-3/"): said for name, said in servers.TGI.items()}
    with serve(behind) as served:
        assert value(collect(server=Server(f"{served.url}/replica-3/v1")), "engine.name") == "tgi"


def test_the_server_is_asked_no_more_when_it_falls_silent(short: None) -> None:
    asked: list[str] = []
    with (
        serve_raw(endless(b"", b"", 0.05)) as url,
        pytest.raises(EngineFailed, match="does not answer as an inference"),
    ):
        collect(server=Server(url, on_request=asked.append))
    assert len(asked) == bounded_http.MAX_SILENT


def test_what_only_one_server_tells_is_not_a_change() -> None:
    plain, telling = ask(servers.VLLM), ask(servers.VLLM_DEVELOPMENT)
    places = {(change.section, change.field) for change in drift(plain, telling)}
    assert ("parallelism", "executor") not in places
    assert ("frameworks", "torch") not in places
    assert ("engine", "kv_cache_dtype") in places, "both tell it"
    assert "frameworks.torch" in not_compared(plain, telling)
