"""Settings of the `hf` engine: where the value that applies comes from."""

from __future__ import annotations

from typing import Any

import pytest
from rip.replay.engines.hf.settings import SETTINGS, parse_settings, resolve_settings
from rip.schemas.envelope import Runtime


def applied(
    name: str, given: dict[str, Any], runtime: Runtime, model_dtype: str | None = "bfloat16"
) -> tuple[Any, ...]:
    setting = resolve_settings(given, runtime, model_dtype)[name]
    return setting.requested, setting.resolved, setting.source


def test_every_setting_resolves_to_a_value_with_a_source() -> None:
    resolved = resolve_settings({}, Runtime(), None)
    assert set(resolved) == set(SETTINGS)
    assert all(setting.source for setting in resolved.values())


def test_the_lane_wins_over_the_envelope_and_the_envelope_over_the_model() -> None:
    recorded = Runtime(dtype="float16", attention_backend="eager")
    assert applied("dtype", {"dtype": "float32"}, recorded) == ("float32", "float32", "lane")
    assert applied("dtype", {}, recorded) == ("float16", "float16", "envelope")
    assert applied("dtype", {}, Runtime()) == (None, "bfloat16", "model config")
    assert applied("dtype", {}, Runtime(), None) == (None, "float32", "engine default")
    assert applied("attention", {}, recorded) == ("eager", "eager", "envelope")


@pytest.mark.parametrize("name", ["FLASH_ATTN", "pinned-backend"])
def test_a_backend_of_another_engine_is_remembered_and_not_passed_on(name: str) -> None:
    assert applied("attention", {}, Runtime(attention_backend=name)) == (name, None, "engine default")


def test_texts_become_values_and_the_last_of_a_key_applies() -> None:
    pairs = ["threads=1", "threads=2", "prefill_chunk=0", "deterministic=true", "device=cpu"]
    assert parse_settings(pairs) == {
        "threads": 2,
        "prefill_chunk": 0,
        "deterministic": "true",
        "device": "cpu",
    }
