"""The request contract: which values apply and why, and what is refused rather than guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rip.replay.request.contract import (
    ENGINE_DEFAULTS,
    check_prompt,
    redacted_sampling,
    resolve_sampling,
    silent_defaults,
)
from rip.replay.request.findings import SENTENCES, Findings, finding, sentence
from rip.replay.request.identity import (
    check_identity,
    completeness,
    identity_differences,
    runtime_difference,
    runtime_settings,
    unstated_identity,
)
from rip.schemas.envelope import Envelope, Runtime, Sampling, load_envelope
from rip.schemas.errors import BadInput, ContractBroken
from rip.schemas.fingerprint import Fingerprint, Section, fact, unavailable

MODEL, TOKENIZER, TEMPLATE = "a" * 64, "b" * 64, "c" * 64
PUBLISHED = Path(__file__).parent.parent / "golden" / "envelope-published.json"


def envelope(sampling: dict[str, Any] | None = None, **fields: Any) -> Envelope:
    raw = {"request_id": "r1", "prompt_token_ids": [1, 2, 3], "sampling": sampling or {}, **fields}
    return Envelope.from_object(raw, "test")


def environment(**facts: Any) -> Fingerprint:
    sections = {
        "model": {
            "sha256": fact(MODEL, "file-sha256:verified"),
            "quantization_method": fact("none", "config"),
        },
        "tokenizer": {"sha256": fact(TOKENIZER, "file-sha256:verified")},
        "template": {"sha256": fact(TEMPLATE, "file")},
        "engine": {
            "version": fact("5.24.0", "importlib.metadata"),
            "attention_backend": fact("sdpa", "observed"),
            "dtype": fact("bfloat16", "observed"),
        },
        "frameworks": {"torch": fact("2.13.0+cpu", "importlib.metadata")},
        "gpus": {"name_and_compute_capability": unavailable("no driver", "nvml")},
        "parallelism": {"tensor_parallel_size": fact(1, "hf")},
    }
    sections |= facts
    return Fingerprint.build(
        "0.1.0", "2026-07-14T09:00:00Z", {n: Section(facts=f) for n, f in sections.items()}
    )


# Sampling values and where they come from


def test_every_sampling_field_gets_a_value_and_a_source() -> None:
    resolved = resolve_sampling(envelope(), {})
    known = set(Sampling.model_fields) - {"structured_outputs", "logits_processors"}
    assert set(resolved) == known
    assert {name: setting.resolved for name, setting in resolved.items()} == ENGINE_DEFAULTS
    assert {setting.source for setting in resolved.values()} == {"engine default"}


def test_the_envelope_wins_over_the_model_and_the_model_over_the_engine() -> None:
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": 50, "max_new_tokens": 99, "do_sample": False}
    resolved = resolve_sampling(envelope({"top_p": 0.5}), generation)
    told = {
        name: (resolved[name].resolved, resolved[name].source) for name in ("temperature", "top_p", "min_p")
    }
    assert told == {
        "temperature": (0.6, "generation_config"),
        "top_p": (0.5, "envelope"),
        "min_p": (0.0, "engine default"),
    }
    assert (resolved["max_tokens"].resolved, resolved["top_k"].resolved) == (99, 50)
    assert resolved["top_p"].requested == 0.5
    assert resolved["temperature"].requested is None


def test_a_stated_value_equal_to_the_default_is_still_the_envelopes() -> None:
    resolved = resolve_sampling(envelope({"seed": 0, "stop": [], "temperature": 0}), {"temperature": 0.6})
    assert {resolved[name].source for name in ("seed", "stop", "temperature")} == {"envelope"}


def test_stop_takes_a_string_or_a_list() -> None:
    assert resolve_sampling(envelope({"stop": "END"}), {})["stop"].resolved == ["END"]
    assert resolve_sampling(envelope({"stop": ["a", "b"]}), {})["stop"].resolved == ["a", "b"]


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"logits_processors": ["x"]}, "logits_processors"),
        ({"stop": ["a", ""]}, "stop"),
        ({"bad_words": [""]}, "bad_words"),
    ],
)
def test_what_would_change_the_answer_is_refused(sampling: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match=f"sampling.{field}") as refused:
        resolve_sampling(envelope(sampling), {})
    assert refused.value.fix


@pytest.mark.parametrize(("name", "value"), [("temperature", "hot"), ("top_p", 0), ("max_new_tokens", -1)])
def test_a_senseless_generation_config_is_named(name: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"generation_config.json of the model: {name}"):
        resolve_sampling(envelope(), {name: value})
    fields = {"temperature": 0, "top_p": 1, "max_tokens": 3}
    assert resolve_sampling(envelope(fields), {name: value}), (
        "what the envelope states does not ask the model"
    )


def test_silent_defaults_name_value_and_source() -> None:
    sampled = silent_defaults(resolve_sampling(envelope({"seed": 1, "max_tokens": 4}), {"temperature": 0.6}))
    assert sampled is not None
    assert sampled.data["applied"] == {
        "generation_config": {"temperature": 0.6},
        "engine default": {"top_p": 1.0, "top_k": 0, "min_p": 0.0},
    }
    assert sentence(sampled) == (
        "the envelope does not state these fields, so defaults applied: temperature=0.6 (generation_config); "
        "top_p=1.0, top_k=0, min_p=0.0 (engine default)"
    )
    greedy = resolve_sampling(envelope({"temperature": 0, "max_tokens": 4}), {})
    assert silent_defaults(greedy) is None, "a greedy choice asks neither for top_p nor for a seed"


# The prompt


@pytest.mark.parametrize(
    ("prompt", "wanted", "message"),
    [
        ([], 1, "the prompt has no tokens"),
        ([5, 128, 3], 1, "token id 128 in the prompt is outside the vocabulary of 128"),
        ([1] * 30, 3, "30 prompt tokens and 3 to generate exceed the context of 32"),
    ],
)
def test_prompts_that_cannot_run_are_refused(prompt: list[int], wanted: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_prompt(prompt, wanted, vocab_size=128, context_length=32)


def test_a_prompt_that_just_fits_is_taken() -> None:
    check_prompt([127] * 30, 2, vocab_size=128, context_length=32)


# Identity


def test_equal_hashes_pass_however_they_are_written() -> None:
    stated = envelope(
        model_artifact_sha256="sha256:" + MODEL.upper(),
        tokenizer_sha256=TOKENIZER,
        chat_template_sha256=TEMPLATE,
    )
    assert check_identity(stated, environment(), allow_drift=False) == []
    assert identity_differences(stated, environment()) == []


def test_another_model_or_tokenizer_stops_the_replay_or_is_recorded() -> None:
    stated = envelope(
        model_artifact_sha256="d" * 64, tokenizer_sha256="e" * 64, chat_template_sha256=TEMPLATE
    )
    with pytest.raises(ContractBroken) as broken:
        check_identity(stated, environment(), allow_drift=False)
    assert broken.value.message == (
        f"r1: recorded with a different model ({'d' * 12}…, here {'a' * 12}…), "
        f"a different tokenizer ({'e' * 12}…, here {'b' * 12}…)"
    )
    assert "--allow-drift" in broken.value.fix
    [drift] = check_identity(stated, environment(), allow_drift=True)
    assert drift.kind == "identity-drift"
    assert drift.data["fields"]["model"] == {"recorded": "d" * 64, "here": MODEL}
    assert sentence(drift).startswith("drift allowed: recorded with a different model (dddd")
    assert len(identity_differences(stated, environment())) == 2


def test_placeholders_state_nothing() -> None:
    published = load_envelope(PUBLISHED)
    assert check_identity(published, environment(), allow_drift=False) == []
    [said] = unstated_identity([published, envelope(model_artifact_sha256=MODEL)])
    assert "model_artifact_sha256 (1 of 2), tokenizer_sha256, chat_template_sha256" in sentence(said)
    assert unstated_identity([]) == []


def test_a_hash_that_nobody_could_read_is_said_to_be_unchecked() -> None:
    without = environment(tokenizer={"sha256": unavailable("the folder has no tokenizer", "files")})
    stated = envelope(tokenizer_sha256=TOKENIZER)
    [unchecked] = check_identity(stated, without, allow_drift=False)
    assert unchecked.data == {"fields": {"tokenizer_sha256": "the folder has no tokenizer"}}
    assert sentence(unchecked) == "could not be checked: tokenizer_sha256 (the folder has no tokenizer)"
    assert identity_differences(stated, without) != [], "unread is not equal"


# The recorded runtime


def test_a_recorded_runtime_that_differs_is_said() -> None:
    runtime = Runtime(
        engine="vllm",
        engine_version="pinned-version",
        torch_version="2.12.0",
        tensor_parallel_size=1,
        gpu_model="H100",
    )
    said = runtime_difference(runtime, "hf", environment())
    assert said is not None
    assert (
        sentence(said)
        == "recorded with engine=vllm, torch_version=2.12.0, gpu_model=H100; here hf, 2.13.0+cpu, unknown"
    )


def test_an_equal_runtime_is_not_a_finding() -> None:
    runtime = Runtime(engine="hf", dtype="torch.bfloat16", attention_backend="SDPA", quantization="none")
    assert runtime_difference(runtime, "hf", environment()) is None


def test_runtime_settings_keep_what_was_recorded_beside_what_is_here() -> None:
    settings = runtime_settings(Runtime(engine="vllm", torch_version="2.12.0"), "hf", environment())
    assert (settings["engine"].requested, settings["engine"].resolved) == ("vllm", "hf")
    torch = settings["torch_version"]
    assert (torch.requested, torch.observed) == ("2.12.0", "2.13.0+cpu")


# What is missing


def test_completeness_names_what_a_replay_needs() -> None:
    said = " | ".join(map(sentence, completeness(load_envelope(PUBLISHED))))
    assert "model_artifact_sha256, tokenizer_sha256, chat_template_sha256 not stated" in said
    assert "does not state top_k" in said
    assert "engine_version" in said
    whole = envelope(
        {"temperature": 0, "max_tokens": 3},
        model_artifact_sha256=MODEL,
        tokenizer_sha256=TOKENIZER,
        chat_template_sha256=TEMPLATE,
    )
    assert completeness(whole) == []


def test_redaction_of_sampling_is_seen() -> None:
    redacted = envelope({"stop": "END", "temperature": 0}).redacted(keep_token_ids=True)
    assert redacted_sampling(redacted) == ["stop"]
    assert any("redacted: stop" in sentence(said) for said in completeness(redacted))


# Findings


def test_the_same_finding_about_many_requests_is_said_once() -> None:
    findings = Findings()
    findings.add(finding("prompt-truncated"))
    for name in ("r1", "r2", "r3"):
        findings.add(finding("not-repeatable"), name)
    findings.add(finding("tokenized-here"), "r2")
    assert [(one.kind, one.requests) for one in findings.all()] == [
        ("prompt-truncated", []),
        ("not-repeatable", ["r1", "r2", "r3"]),
        ("tokenized-here", ["r2"]),
    ]
    assert sentence(findings.all()[1]).startswith("r1 and 2 more: recorded above")
    assert sentence(findings.all()[2]).startswith("r2: the prompt was")


def test_findings_of_one_kind_about_different_things_stay_apart() -> None:
    findings = Findings()
    findings.add(finding("prefix-cached", tokens=4), "r1")
    findings.add(finding("prefix-cached", tokens=9), "r2")
    assert [one.data for one in findings.all()] == [{"tokens": 4}, {"tokens": 9}]


def test_every_kind_of_finding_has_a_sentence_and_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "formats.md").read_text("utf-8")
    assert all(SENTENCES.values())
    assert [kind for kind in SENTENCES if f"`{kind}`" not in documented] == []
    with pytest.raises(AssertionError):
        finding("no-such-kind")
