"""The envelope: what is accepted, how it is identified, and what redaction leaves."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.schemas.base import sha256_of
from rip.schemas.envelope import Envelope, is_placeholder
from rip.schemas.errors import BadInput

BASE = {"request_id": "r", "prompt_token_ids": [1, 2, 3]}


def load(**fields: object) -> Envelope:
    return Envelope.from_object({**BASE, **fields}, "e.json")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"request_id": 7}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"prompt_token_ids": [1, -1]}, "prompt_token_ids.1"),
        ({"prompt_token_ids": [2**31]}, "prompt_token_ids.0"),
        ({"prompt_token_ids": [2**64]}, "prompt_token_ids.0"),
        ({"prompt_token_ids": [1.0]}, "prompt_token_ids.0"),
        ({"prompt_token_ids": ["1"]}, "prompt_token_ids.0"),
        ({"prompt_token_ids": "1 2"}, "prompt_token_ids"),
        ({"sampling": {"temperature": "0.7"}}, "sampling.temperature"),
        ({"sampling": {"temperature": -0.1}}, "sampling.temperature"),
        ({"sampling": {"temperature": "Infinity"}}, "sampling.temperature"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p"),
        ({"sampling": {"top_k": -2}}, "sampling.top_k"),
        ({"sampling": {"top_k": True}}, "sampling.top_k"),
        ({"sampling": {"seed": 1.5}}, "sampling.seed"),
        ({"sampling": {"seed": "42"}}, "sampling.seed"),
        ({"sampling": {"seed": 2**64}}, "sampling.seed"),
        ({"sampling": {"seed": str(-(2**63) - 1)}}, "sampling.seed"),
        ({"sampling": {"seed_scope": "global"}}, "sampling.seed_scope"),
        ({"sampling": {"stop": 5}}, "sampling.stop"),
        ({"sampling": {"logit_bias": {"the": 1.0}}}, "sampling.logit_bias.the"),
        ({"sampling": [1]}, "sampling"),
        ({"expected": {"logprobs": ["-inf"]}}, "expected.logprobs.0"),
        ({"claim": {"level": "exact"}}, "claim.level"),
        ({"runtime": "vllm"}, "runtime"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(**fields)
    assert caught.value.message.startswith(f"e.json: {place}")
    assert "docs/formats.md" in caught.value.fix


def test_a_request_must_ask_something() -> None:
    with pytest.raises(BadInput, match="one of prompt_token_ids, prompt_text or messages must be given"):
        Envelope.from_object({"request_id": "r", "messages": []}, "e.json")
    for asked in ({"prompt_text": "Hi"}, {"messages": [{"role": "user", "content": "Hi"}]}):
        Envelope.from_object({"request_id": "r", **asked}, "e.json")


@pytest.mark.parametrize("seed", [0, -1, 2**53 - 1, 2**53, 2**63, 2**64 - 1, -(2**63)])
def test_every_64_bit_seed_survives_exactly(seed: int) -> None:
    as_number, as_text = load(sampling={"seed": seed}), load(sampling={"seed": seed}).to_json()
    assert Envelope.from_json(as_text, "w").sampling.seed == seed
    assert Envelope.from_json(as_text, "w").sha256() == as_number.sha256()
    assert (f'"{seed}"' in as_text) == (abs(seed) >= 2**53), "a string where a JSON number would be rounded"


def test_a_silent_field_stays_silent() -> None:
    assert load().to_object() == {"schema": "rip.envelope/1", **BASE, "sampling": {}, "runtime": {}}
    assert load(sampling={"top_k": None}).sha256() == load().sha256(), "null says as little as nothing"
    assert load(sampling={"top_k": -1}).sha256() != load().sha256(), "but -1 was said"


@given(st.permutations(list({**BASE, "sampling": {}, "logprobs": 5, "unknown": [1.5]}.items())))
def test_identity_does_not_depend_on_key_order(items: list[tuple[str, Any]]) -> None:
    assert Envelope.from_object(dict(items), "w").sha256() == load(logprobs=5, unknown=[1.5]).sha256()


def test_stop_strings_have_one_form() -> None:
    assert load().sampling.stop_strings() == []
    assert load(sampling={"stop": "."}).sampling.stop_strings() == ["."]
    assert load(sampling={"stop": [".", ";"]}).sampling.stop_strings() == [".", ";"]


def test_placeholders_of_the_published_example() -> None:
    assert all(is_placeholder(value) for value in ("...", "", "pinned-version", "pinned-backend"))
    assert not any(is_placeholder(value) for value in (None, "none", "0.32.0", "5af571cb"))


TEXT_EVERYWHERE = {
    "request_id": "r",
    "prompt_text": "SECRET",
    "messages": [{"role": "user", "content": "SECRET"}],
    "tools": [{"name": "SECRET"}],
    "prompt_token_ids": [70001, 70002],
    "sampling": {
        "temperature": 0.5,
        "stop": ["SECRET"],
        "bad_words": ["SECRET"],
        "structured_outputs": {"choice": ["SECRET"]},
        "logits_processors": ["SECRET"],
        "guided_regex": "SECRET",
        "stop_token_ids": [70003],
        "allowed_token_ids": [70004],
        "logit_bias": {"70005": 1.0},
    },
    "runtime": {"engine": "vllm", "note": "SECRET"},
    "expected": {"text": "SECRET", "reasoning": "SECRET", "token_ids": [70006], "finish_reason": "stop"},
    "claim": {"level": "token", "remark": "SECRET"},
    "context": {"replica_id": "replica-3", "user": {"name": "SECRET"}},
    "metadata": {"SECRET": "SECRET"},
    "sampling.stop": "SECRET",
}


@pytest.mark.parametrize("keep_token_ids", [True, False])
def test_redaction_leaves_no_text_behind(keep_token_ids: bool) -> None:
    original = Envelope.from_object(TEXT_EVERYWHERE, "e.json")
    written = original.redacted(keep_token_ids).to_json()
    assert "SECRET" not in written
    assert ("7000" in written) == keep_token_ids
    again = Envelope.from_json(written, "w")
    assert again.unknown_fields() == []
    assert (again.request_id, again.runtime.engine, again.sampling.temperature) == ("r", "vllm", 0.5)
    assert again.context
    assert again.context.replica_id == "replica-3"
    assert again.prompt_token_ids == ([70001, 70002] if keep_token_ids else None)


def test_redaction_keeps_digests_that_can_be_checked() -> None:
    digests = Envelope.from_object(TEXT_EVERYWHERE, "e.json").redacted(keep_token_ids=False).redactions
    assert digests
    assert digests["prompt_text"] == hashlib.sha256(b"SECRET").hexdigest()
    assert digests["expected.text"] == digests["prompt_text"]
    assert digests["prompt_token_ids"] == hashlib.sha256(b"[70001,70002]").hexdigest()
    assert digests["messages"] == sha256_of(TEXT_EVERYWHERE["messages"])


def test_redacting_twice_changes_nothing_more() -> None:
    original = Envelope.from_object(TEXT_EVERYWHERE, "e.json")
    with_ids = original.redacted(keep_token_ids=True)
    assert with_ids.redacted(keep_token_ids=True) == with_ids
    assert (
        with_ids.redacted(keep_token_ids=False).sha256() == original.redacted(keep_token_ids=False).sha256()
    )
    assert json.loads(original.to_json()) == original.to_object(), "and the original is untouched"
    assert original.prompt_text == "SECRET"
