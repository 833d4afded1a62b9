"""Exports: a CycloneDX BOM that its official schema accepts, an in-toto statement, OpenTelemetry names."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
from rip.fingerprint.export import (
    PREDICATE_TYPE,
    bill_of_materials,
    export,
    in_toto_statement,
    otel_attributes,
)
from rip.schemas.envelope import Envelope
from rip.schemas.fingerprint import Fact, Fingerprint, Section, fact, unavailable

WEIGHTS, VOCABULARY = "ab" * 32, "cd" * 32
VERIFIED = "file-sha256:verified"


def fingerprint(source: str = VERIFIED, with_model: bool = True, **more: dict[str, Fact]) -> Fingerprint:
    sections = {
        "engine": Section(facts={"version": unavailable("not installed", "importlib.metadata")}),
        "frameworks": Section(
            facts={
                "torch": fact("2.13.0+cpu", "importlib.metadata"),
                "torch.build": fact(
                    {"version": "2.13.0+cpu", "record_sha256": "ef" * 32}, "importlib.metadata"
                ),
                "accelerate": fact(
                    {"version": "1.0", "direct_url": "https://example.org/a b@c<d>"}, "importlib.metadata"
                ),
                "python": fact("3.11.7", "sys.version"),
            }
        ),
        "kernels": Section(facts={"triton": unavailable("not installed", "importlib.metadata")}),
        "libraries": Section(
            facts={"installed_packages": fact({"nvidia-cublas": "13.1.0.3"}, "importlib.metadata")}
        ),
        **{name: Section(facts=facts) for name, facts in more.items()},
    }
    if with_model:
        sections["model"] = Section(
            facts={
                "sha256": fact(WEIGHTS, source),
                "files": fact({"model.safetensors": {"sha256": WEIGHTS, "size": 7}}, source),
                "architecture": fact("LlamaForCausalLM", "config.json"),
                "tensors": fact({f"layers.{index}": "ab" * 32 for index in range(500)}, source),
            },
            volatile={"name": fact("SmolLM2", "argument")},
        )
        sections["tokenizer"] = Section(facts={"files": fact({"tokenizer.json": VOCABULARY}, source)})
    return Fingerprint.build("0.1.0", "2026-07-14T09:30:00+00:00", sections)


def faults_of(bom: dict[str, Any]) -> str | None:
    """What the official JSON schema of CycloneDX 1.6 says against a BOM, or None."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bom))
    return None if fault is None else str(fault)


@pytest.mark.parametrize("with_model", [True, False])
def test_the_official_schema_accepts_the_bom(with_model: bool) -> None:
    assert faults_of(bill_of_materials(fingerprint(with_model=with_model))) is None


def test_the_official_schema_is_really_asked() -> None:
    bom = bill_of_materials(fingerprint())
    bom["components"][0]["hashes"] = [{"alg": "SHA-256", "content": "no digest"}]
    assert faults_of(bom) is not None


def test_the_bom_names_model_files_hashes_and_packages() -> None:
    bom = bill_of_materials(fingerprint())
    model, *libraries = bom["components"]
    assert (model["type"], model["name"], model["version"]) == ("machine-learning-model", "SmolLM2", WEIGHTS)
    assert model["hashes"] == [{"alg": "SHA-256", "content": WEIGHTS}]
    files = {file["name"]: file["hashes"][0]["content"] for file in model["components"]}
    assert files == {"model.safetensors": WEIGHTS, "tokenizer.json": VOCABULARY}
    assert model["modelCard"]["modelParameters"]["modelArchitecture"] == "LlamaForCausalLM"
    purls = {library["purl"] for library in libraries}
    assert purls == {
        "pkg:pypi/torch@2.13.0%2Bcpu",
        "pkg:pypi/accelerate@1.0",
        "pkg:pypi/nvidia-cublas@13.1.0.3",
    }
    references = {component["bom-ref"] for component in bom["components"]}
    assert set(bom["dependencies"][0]["dependsOn"]) == references


def test_every_fact_is_a_property_and_long_ones_are_named_by_digest() -> None:
    bom = bill_of_materials(fingerprint())
    stated = {entry["name"]: entry["value"] for entry in bom["metadata"]["component"]["properties"]}
    assert stated["rip:engine.version"] == "unavailable: not installed"
    assert stated["rip:frameworks.python"] == "3.11.7"
    card = {entry["name"]: entry["value"] for entry in bom["components"][0]["modelCard"]["properties"]}
    assert re.fullmatch(r"sha256:[0-9a-f]{64} of \d+ characters; .*", card["rip:model.tensors"])


@pytest.mark.parametrize("source", ["file-sha256:claimed", "file-sha256:sampled"])
def test_a_digest_that_is_only_claimed_is_no_hash(source: str) -> None:
    claimed = fingerprint(source)
    model = bill_of_materials(claimed)["components"][0]
    assert "hashes" not in model
    assert model["components"] == []
    assert faults_of(bill_of_materials(claimed)) is None
    assert [one["name"] for one in in_toto_statement(claimed, b"x", "f.json")["subject"]] == ["f.json"]


def test_the_same_fingerprint_makes_the_same_bom() -> None:
    assert bill_of_materials(fingerprint()) == bill_of_materials(fingerprint())
    assert bill_of_materials(fingerprint()) != bill_of_materials(fingerprint("file-sha256:claimed"))


def test_the_statement_names_the_document_and_the_files() -> None:
    read = fingerprint()
    document = read.to_json().encode()
    made = json.loads(export(read, "in-toto", document, "base.json"))
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == PREDICATE_TYPE
    assert made["subject"] == [
        {"name": "base.json", "digest": {"sha256": hashlib.sha256(document).hexdigest()}},
        {"name": "model.safetensors", "digest": {"sha256": WEIGHTS}},
        {"name": "tokenizer.json", "digest": {"sha256": VOCABULARY}},
    ]
    assert made["predicate"]["rootDigest"] == read.root_digest
    assert made["predicate"]["keys"]["model_sha256"] == WEIGHTS


def test_a_request_has_opentelemetry_names_for_what_it_states() -> None:
    text = """{"request_id": "r", "messages": [{"role": "user", "content": "hi"}], "model": "smol",
    "sampling": {"temperature": 0.7, "top_p": 0.95, "max_tokens": 256, "seed": 42, "stop": "END", "n": 2},
    "expected": {"finish_reason": "stop"}}"""
    assert otel_attributes(Envelope.from_json(text, "it")) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "smol",
        "gen_ai.request.temperature": 0.7,
        "gen_ai.request.top_p": 0.95,
        "gen_ai.request.max_tokens": 256,
        "gen_ai.request.seed": 42,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.request.choice.count": 2,
        "gen_ai.response.finish_reasons": ["stop"],
    }


def test_a_silent_request_states_nothing_of_its_sampling() -> None:
    silent = Envelope.from_json('{"request_id": "r", "prompt_token_ids": [1]}', "it")
    assert otel_attributes(silent) == {"gen_ai.operation.name": "text_completion"}
