"""The fingerprint: facts, digests that hold still, and the flat form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import FLAT_KEYS, Fact, Fingerprint, Section, fact, unavailable

PUBLISHED_KEYS = (
    "model_sha256 tokenizer_sha256 chat_template_sha256 engine_version torch_version cuda_version "
    "cublas_version gpu_name_and_compute_capability attention_backend quantization_method "
    "tensor_parallel_size batch_invariance_flag sampling_contract_version"
)


def sections() -> dict[str, Section]:
    return {
        "cpu": Section(
            facts={"threads": fact(2, "torch"), "isa": fact(["avx2"], "cpuinfo")},
            volatile={"mhz": fact(2000.0, "cpuinfo")},
        ),
        "frameworks": Section(facts={"torch": fact("2.13.0", "importlib.metadata")}),
        "libraries": Section(
            facts={"cublas": unavailable("no GPU", "proc-maps"), "mask": fact(2**64 - 1, "test")}
        ),
    }


def build(changed: dict[str, Section] | None = None, created: str = "2026-07-14T09:30:00Z") -> Fingerprint:
    return Fingerprint.build("0.1.0", created, {**sections(), **(changed or {})})


def test_a_fact_is_a_value_or_a_reason() -> None:
    for raw in (
        {"source": "s"},
        {"source": "s", "value": 1, "unavailable": "x"},
        {"source": "s", "value": None},
    ):
        with pytest.raises(ValueError, match="either a value or a reason"):
            Fact(**raw)
    for falsy in (0, False, "", []):
        assert fact(falsy, "s").value == falsy, "falsy is a value"


def test_digests_are_stable_and_leave_volatile_readings_and_times_out() -> None:
    cpu = sections()["cpu"]
    warmer = cpu.model_copy(
        update={"volatile": {"mhz": fact(3000.0, "cpuinfo"), "celsius": fact(70, "sensor")}}
    )
    assert build({"cpu": warmer}, created="2027-01-01T00:00:00Z").root_digest == build().root_digest


@pytest.mark.parametrize(
    "changed", [fact(4, "torch"), fact("2", "torch"), fact(2, "environment"), unavailable("-", "t")]
)
def test_digests_see_every_change_of_a_fact(changed: Fact) -> None:
    other = build({"cpu": Section(facts={**sections()["cpu"].facts, "threads": changed})})
    assert other.root_digest != build().root_digest
    assert other.sections["cpu"].digest != build().sections["cpu"].digest
    assert other.sections["frameworks"].digest == build().sections["frameworks"].digest


@given(st.permutations(["cpu", "frameworks", "libraries"]))
def test_digests_do_not_depend_on_the_order_of_probes(order: list[str]) -> None:
    shuffled = Fingerprint.build("0.1.0", "t", {name: sections()[name] for name in order})
    assert shuffled.root_digest == build().root_digest
    assert list(shuffled.sections) == ["frameworks", "libraries", "cpu"], "written in one order"


def test_a_fingerprint_survives_a_round_trip_with_its_digests() -> None:
    again = Fingerprint.from_json(build().to_json(), "f.json")
    assert again.to_object() == build().to_object()
    assert Fingerprint.build("0.1.0", again.created, again.sections).root_digest == build().root_digest


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("fact", "sections.cpu: the digest is not that of the facts"),
        ("root", "document: root_digest is not that of"),
    ],
)
def test_a_changed_file_is_noticed(place: str, fault: str) -> None:
    raw: dict[str, Any] = build().to_object()
    if place == "fact":
        raw["sections"]["cpu"]["facts"]["threads"]["value"] = 64
    else:
        raw["root_digest"] = "0" * 64
    with pytest.raises(BadInput) as caught:
        Fingerprint.from_object(raw, "f.json")
    assert fault in caught.value.message


def test_the_flat_form_has_the_thirteen_published_keys() -> None:
    flat = build().flat()
    assert list(flat) == list(FLAT_KEYS)
    assert " ".join(flat) == PUBLISHED_KEYS
    assert flat["torch_version"] == "2.13.0"
    assert flat["cublas_version"] == "unavailable: no GPU"
    assert flat["model_sha256"] == "unavailable: not probed"
    assert None not in flat.values()
