"""A document of every released version is kept forever and must load; one from the future is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from rip.experiments.batch_check.sentences import verdict_sentence
from rip.experiments.settings_search.sentences import difference_in_words, run_rows
from rip.schemas.base import Document
from rip.schemas.change import Drift
from rip.schemas.check import Check
from rip.schemas.envelope import Context, Envelope, Expected, load_envelope
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import Fingerprint
from rip.schemas.narrow import Narrow
from rip.schemas.verdict import Verdict

GOLDEN = Path(__file__).parent.parent / "golden"
KINDS: dict[str, type[Document]] = {
    "check": Check,
    "drift": Drift,
    "envelope": Envelope,
    "fingerprint": Fingerprint,
    "narrow": Narrow,
    "verdict": Verdict,
}

# The identity of a golden document may never change: other people's records refer to it.
IDENTITIES = {
    "check-v1": "d5fb7f39554b3258bcf68ac4273fe9c0005d2e74b0b822d172dae3e9c72b3aff",
    "check-v2": "d5fb7f39554b3258bcf68ac4273fe9c0005d2e74b0b822d172dae3e9c72b3aff",
    "drift-v1": "79c915b77f08979769982110cd98103a0a57cdebd1b068e698670be77118dde1",
    "envelope-published": "2de26507568daade7b17b8190c29cc258e1d39a961a9c81cb69023be1a403c66",
    "envelope-v1": "7becfadf4dcccb8e9fac863333162e5ce1f70c0e26fddf3e2c9b3652becad2f3",
    "envelope-v1-recorded": "3622dfc747a2a4df764438982f9874c222e268b00bfdf5c8bffcdfe9fa0b2749",
    "fingerprint-v1": "17fc99eb16717e72f8f6bcda71942d0e2c6ffe243fe965074ef992f21702d650",
    "narrow-v1": "123952bb622d0c4e615a8424ace94888ad8af24aa5f144200d7803142de31dec",
    "narrow-v2": "33859408b97c2be8a1527d7437c1ebd3ca866f02c26837830f007384f09680ca",
    "verdict-v1": "d601ff48efc4833ea19ff36fedf0fa5fc1f9ae2631a55424e7f3dd57bef5fcd5",
    "verdict-v2": "a20e1707b282ff58b81fcb2c03f2c13e5a02dc15ad405571f8fb9396880c52e8",
    "verdict-v3": "8638341397c2d92aafa4e229ed165a08460bc7613814720cbb67a0687f2637c0",
}


def golden(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    return value


@pytest.mark.parametrize("name", IDENTITIES)
def test_released_documents_load_and_keep_their_identity(name: str) -> None:
    kind = KINDS[name.split("-")[0]]
    loaded = kind.from_json((GOLDEN / f"{name}.json").read_bytes(), name)
    assert loaded.sha256() == IDENTITIES[name]
    assert loaded.unknown_fields() == []
    assert kind.from_json(loaded.to_json(), name) == loaded


@pytest.mark.parametrize(
    "name", ["check-v2", "drift-v1", "envelope-v1", "fingerprint-v1", "narrow-v2", "verdict-v3"]
)
def test_nothing_is_dropped_or_added(name: str) -> None:
    assert KINDS[name.split("-")[0]].from_object(golden(name), name).to_object() == golden(name)


def test_a_verdict_of_version_1_keeps_what_it_said() -> None:
    old, new = golden("verdict-v1"), Verdict.from_object(golden("verdict-v1"), "verdict-v1").to_object()
    assert new["schema"] == "rip.verdict/3"
    for name, level in old["levels"].items():
        assert new["levels"][name]["state"] == level["state"]
        if "where" in level:
            assert new["levels"][name]["where"]["text"] == level["where"]
        reasons = [level["why"]] if "why" in level else []
        assert [one["text"] for one in new["levels"][name]["why"]] == reasons
    for before, after in zip(old["causes"], new["causes"], strict=True):
        assert [one["text"] for one in after["evidence"]] == before["evidence"]
        assert [one["text"] for one in after["missing"]] == before["missing"]
        assert after["confirm"]["text"] == before["confirm"]
        assert (after["id"], after["label"]) == (before["id"], before["label"])
    assert [one["text"] for one in new["not_seen"]] == old["not_seen"]


def test_a_search_of_version_1_keeps_what_it_said() -> None:
    old, new = golden("narrow-v1"), Narrow.from_object(golden("narrow-v1"), "narrow-v1")
    assert (new.digest, new.digests) == (old["asked"], None)
    assert new.sentence == old["sentence"]
    assert [shlex.join(command) for command in new.commands] == old["commands"]
    assert [one.undecided for one in new.found] == [one["unjudged"] for one in old["found"]]
    for before, after in zip(old["configurations"], new.configurations, strict=True):
        for run, read in zip(before["observations"], after.observations, strict=True):
            words = {level: difference_in_words(found) for level, found in read.first.items()}
            assert words == run["where"]
            assert (read.failure.message if read.failure else None) == run.get("why")
    data = Narrow.from_object(golden("narrow-v2"), "narrow-v2")
    assert [run_rows(one) for one in (new, data)] == [run_rows(new)] * 2, "the data say the same"


def test_a_check_of_version_1_keeps_what_it_said() -> None:
    new = Check.from_object(golden("check-v1"), "check-v1")
    assert new == Check.from_object(golden("check-v2"), "check-v2")
    assert verdict_sentence(new) == new.sentence == golden("check-v1")["verdict"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("check-v1", {"claim": 7}),
        ("narrow-v1", {"commands": ["rip 'unclosed"]}),
        ("narrow-v1", {"configurations": [{}]}),
        ("verdict-v2", {"zoom": {}}),
    ],
)
def test_a_damaged_document_of_an_old_version_is_refused(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="are missing or of a wrong type"):
        KINDS[name.split("-")[0]].from_object({**golden(name), **change}, name)


def test_every_field_of_this_version_is_in_the_golden_envelope() -> None:
    recorded = golden("envelope-v1-recorded")
    written = {**recorded, **golden("envelope-v1")}
    assert set(Expected.model_fields) <= set(recorded["expected"])
    assert set(Context.model_fields) <= set(recorded["context"])
    for part, record in [
        ("", Envelope),
        *((name, Envelope.model_fields[name].annotation) for name in ("sampling", "runtime")),
    ]:
        fields = set(record.model_fields) - {"redactions"}  # type: ignore[union-attr]
        assert fields <= set(written[part] if part else written)


def test_the_published_envelope_loads_unchanged() -> None:
    loaded = load_envelope(GOLDEN / "envelope-published.json")
    assert loaded.to_object() == {"schema": "rip.envelope/1", **golden("envelope-published")}
    assert loaded.prompt_token_ids == [128000, 2028, 374]
    assert loaded.sampling.seed == 42
    assert Envelope.from_object(loaded.to_object(), "again") == loaded


@pytest.mark.parametrize("kind", KINDS)
def test_documents_from_the_future_are_refused(kind: str) -> None:
    with pytest.raises(BadInput, match="written by a newer rip") as caught:
        KINDS[kind].from_object(golden(f"{kind}-from-the-future"), kind)
    assert caught.value.exit_code == 2
    assert "upgrade rip" in caught.value.fix


@pytest.mark.parametrize("kind", KINDS)
def test_fields_of_a_later_minor_form_are_kept(kind: str) -> None:
    raw = {**golden(f"{kind}-from-the-future"), "schema": KINDS[kind].schema_name()}
    loaded = KINDS[kind].from_object(raw, kind)
    assert loaded.unknown_fields() == ["a_field_of_tomorrow"]
    assert loaded.to_object() == raw


def test_every_golden_document_is_tested() -> None:
    listed = {f"{name}.json" for name in IDENTITIES} | {f"{kind}-from-the-future.json" for kind in KINDS}
    assert {path.name for path in GOLDEN.glob("*.json")} == listed
