"""Secrets are taken out of whatever comes from outside, and what is no secret stays readable."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.fingerprint import redact

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
