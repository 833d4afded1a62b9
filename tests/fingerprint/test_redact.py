"""Secrets are taken out of whatever comes from outside, and what is no secret stays readable."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.fingerprint.collect import PROBES, collect
from rip.fingerprint.fields.known_names import VARIABLES
from rip.fingerprint.probes.pasted_text import from_text
from rip.schemas import redact

SECRET_NAMES = [
    "api_key",
    "--api-key",
    "VLLM_API_KEY",
    "admin_api_key",
    "apiKey",
    "OPENAI_API_KEY",
    "hf_token",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "--hf-token",
    "token",
    "TOKEN",
    "access_token",
    "AWS_SECRET_ACCESS_KEY",
    "password",
    "db_password",
    "MYSQL_PWD",
    "Authorization",
    "private_key",
    "ssl_keyfile_password",
    "X-Api-Key",
    "client_secret",
    "credentials",
    "bearer_token",
    "cookie",
]
PLAIN_NAMES = [
    "max_tokens",
    "max_num_batched_tokens",
    "tokenizer",
    "eos_token",
    "bos_token_id",
    "skip_tokenizer_init",
    "kv_cache_dtype",
    "num_key_value_heads",
    "cache_type_k",
    "ssl_keyfile",
    "max_total_num_tokens",
    "author",
    "keyfile",
    "random_seed",
    "served_model_name",
    "prefix_caching_hash_algo",
    "pad_token",
    "monkey",
    "return_tokens_as_token_ids",
    "key_cache",
    "extra_key",
]
WORD = st.text(st.characters(whitelist_categories=("Ll", "Lu", "Nd")), min_size=8, max_size=40)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_what_a_secret_name_says_is_hidden(name: str) -> None:
    assert redact.is_secret(name)
    assert redact.value({name: "s3cr3t"}) == {name: redact.HIDDEN}


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_other_names_stay(name: str) -> None:
    assert redact.value({name: "something"}) == {name: "something"}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("https://user:pass@host/repo?sig=abc", "https://[redacted]@host/repo?[redacted]"),
        ("s3://AK:SECRET@bucket/x", "s3://[redacted]@bucket/x"),
        ("s3://AK:SEC/RET@bucket/x", "s3://[redacted]@bucket/x"),
        ("https://u:SEC@RET@h/x", "https://[redacted]@h/x"),
        ("/x?api_key=SECRET", "/x?api_key=[redacted]"),
        ("/x?sig=SECRET&a=1", "/x?sig=[redacted]&a=1"),
        ("user:SECRET@h:1", "[redacted]@h:1"),
        ("--at=user:SEC/RET@10.0.0.1:29500", "--at=[redacted]@10.0.0.1:29500"),
        ("http://h:8000/m@main", "http://h:8000/m@main"),
        ("ubuntu:22.04@sha256:0123", "ubuntu:22.04@sha256:0123"),
        ("allreduce:ring;broadcast:^tree", "allreduce:ring;broadcast:^tree"),
        ("using hf_AbCdEfGhIjKlMnOpQrStUv now", "using [redacted] now"),
        ("Authorization: Bearer abc.def-123", "Authorization: [redacted] [redacted]"),
        ("--header Bearer abcdefgh", "--header Bearer [redacted]"),
        ('{"api_key": "two words", "n": 1}', '{"api_key": [redacted], "n": 1}'),
        ("API_KEY='a b c' serve", "API_KEY=[redacted] serve"),
        ("sk-proj-abcdefghijkl", "[redacted]"),
        ("api_key=None", "api_key=None"),
        ("max_tokens=5 eos_token=</s>", "max_tokens=5 eos_token=</s>"),
        ("esc\x1b[31m red\n", "esc\ufffd[31m red\ufffd"),
    ],
)
def test_secrets_inside_a_text(said: str, kept: str) -> None:
    assert redact.text(said) == kept


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["serve", "--api-key", "a", "--port", "1"], ["serve", "--api-key", redact.HIDDEN, "--port", "1"]),
        (["--api-key=a", "-x"], [f"--api-key={redact.HIDDEN}", "-x"]),
        (["--api-key", "a", "b", "-x"], ["--api-key", redact.HIDDEN, redact.HIDDEN, redact.HIDDEN]),
        (
            ["--api-key", "a", "--served-model-name", "m"],
            ["--api-key", redact.HIDDEN, "--served-model-name", "m"],
        ),
        (["--pw", "a"], ["--pw", redact.HIDDEN]),
        (["--dist-init-addr", "u:SECRET@h:1"], ["--dist-init-addr", f"{redact.HIDDEN}@h:1"]),
        (["--pass-config", "x", "--fusion-pass", "y"], ["--pass-config", "x", "--fusion-pass", "y"]),
        (["HF_TOKEN=abc", "run"], [f"HF_TOKEN={redact.HIDDEN}", "run"]),
        (["--max-num-batched-tokens", "2048"], ["--max-num-batched-tokens", "2048"]),
    ],
)
def test_command_lines(given: list[str], kept: list[str]) -> None:
    assert redact.command_line(given) == kept


@given(secret=WORD, before=st.text(max_size=20), after=st.text(max_size=20))
def test_the_key_that_was_given_is_hidden_wherever_it_stands(secret: str, before: str, after: str) -> None:
    said = {"a": [f"{before}{secret}{after}", {f"{secret}{after}": secret}]}
    assert secret not in json.dumps(redact.value(said, (secret,)), ensure_ascii=False)


@given(secret=WORD, sign=st.sampled_from(["=", ": ", " = ", '": "']), around=st.text(" ,;{}\n", max_size=5))
def test_an_assigned_secret_is_hidden_in_any_surroundings(secret: str, sign: str, around: str) -> None:
    assert secret not in redact.text(f"{around}api_key{sign}{secret}{around}")


def test_sizes_are_bounded() -> None:
    assert len(redact.text("a" * 10_000_000)) <= redact.MAX_TEXT + 1
    assert len(redact.value(list(range(100_000)))) == redact.MAX_ITEMS
    deep: object = "bottom"
    for _ in range(50):
        deep = [deep]
    assert "bottom" not in json.dumps(redact.value(deep))


LEAKS = ("s3://AK:SECRET@bucket/x", "https://u:SECRET@h/x?token=SECRET", "/x?api_key=SECRET", "u:SECRET@h")


@pytest.mark.parametrize("said", LEAKS)
def test_no_known_variable_brings_a_secret_into_a_fingerprint(said: str) -> None:
    names = [name for family in VARIABLES.values() for name in family]
    places = ["TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "SGLANG_CACHE_DIR", "TMPDIR"]
    probes = [probe for probe in PROBES if probe.name in ("variables", "kernel_lineage", "nccl_conf")]
    found = collect(environ=dict.fromkeys([*names, *places], said), probes=probes)
    assert "SECRET" not in found.to_json()
    assert redact.HIDDEN in found.sections["determinism"].facts["NCCL_TOPO_FILE"].text()


@pytest.mark.parametrize("said", LEAKS)
def test_no_pasted_text_brings_a_secret_into_a_fingerprint(said: str) -> None:
    lines = f"PyTorch version: 2.9\nVLLM_TUNED_CONFIG_FOLDER={said}\nOS: {said}\nModel name: {said}\n"
    found = from_text(lines.encode())
    assert found is not None
    assert "SECRET" not in found.to_json()
