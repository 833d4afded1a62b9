"""The weights of a model: tensors and shards, how much of them was read, and what a cache claims."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.checkpoints import SMALL, reshard, write_safetensors
from fakes.model_readings import (
    FILE,
    SMALL_TENSORS_CHANGED,
    TENSORS,
    WEIGHTS,
    changed_fields,
    read,
    reading,
    sha256,
)
from rip.fingerprint.drift import compare, drift, not_compared
from rip.fingerprint.model import digest_cache as cache_module
from rip.fingerprint.model import read_and_hash
from rip.fingerprint.present.drift_sentences import headline, list_notes
from rip.fingerprint.present.warnings import list_warnings
from rip.schemas.choices import Strength
from rip.schemas.fingerprint import CLAIMED_REMARK, Fact


@pytest.fixture
def model_folder(model_folder: Path) -> Path:
    """The same folder with weights that are a checkpoint."""
    write_safetensors(model_folder / WEIGHTS, SMALL, {"format": "pt"})
    return model_folder


def test_a_changed_tensor_is_named(model_folder: Path) -> None:
    before = read(model_folder)
    content = {**SMALL, "model.layers.1.weight": ("F16", [4], b"\x00\x3d" * 4)}
    write_safetensors(model_folder / WEIGHTS, content, {"format": "pt"})
    change = next(one for one in drift(before, read(model_folder)) if one.field == "tensors")
    assert change.before is not None
    assert change.after is not None
    told = {name for name, said in change.after.value.items() if change.before.value[name] != said}
    assert told == {"model.layers.1.weight"}


def test_another_sharding_changes_files_and_nothing_else(model_folder: Path) -> None:
    before = read(model_folder)
    (model_folder / WEIGHTS).unlink()
    reshard(SMALL, model_folder, 3)
    after = read(model_folder)
    assert changed_fields(before, after) == {*FILE, "model.weights_metadata_sha256"}


def test_a_tensor_that_stands_twice_is_no_tensor(model_folder: Path) -> None:
    (model_folder / WEIGHTS).unlink()
    for number in (1, 2):
        write_safetensors(model_folder / f"model-{number}.safetensors", SMALL)
    for fast in (False, True):
        found = read(model_folder, fast=fast)
        assert "stands in two files" in (reading(found, "model", "tensors_root").unavailable or "")
        assert reading(found, "model", "sha256").value
    assert reading(read(model_folder, "sampled"), "model", "sampled_root").unavailable


@pytest.mark.parametrize("strength", ["verified", "sampled", "claimed"])
def test_weights_that_contradict_their_header_have_no_tensors(model_folder: Path, strength: Strength) -> None:
    content = (model_folder / WEIGHTS).read_bytes()
    (model_folder / WEIGHTS).write_bytes(content[:-1])  # a download that broke off
    found = read(model_folder, strength)
    for name in ("tensors_root", "sampled_root", "layout_sha256"):
        absent = reading(found, "model", name)
        assert "cut off" in (absent.unavailable or "") or absent.source == "strength:claimed"
    assert (reading(found, "model", "sha256").value is not None) is (strength == "verified")


def test_pickled_weights_are_hashed_and_not_opened(model_folder: Path) -> None:
    (model_folder / WEIGHTS).rename(model_folder / "pytorch_model.bin")
    for fast in (False, True):
        found = read(model_folder, fast=fast)
        assert reading(found, "model", "sha256").value
        assert "pickled tensors are not read" in (reading(found, "model", "tensors").unavailable or "")


def test_fast_leaves_out_the_files_and_tells_the_same_of_tensors(model_folder: Path) -> None:
    whole, fast = read(model_folder), read(model_folder, fast=True)
    assert changed_fields(whole, fast) == set()
    assert set(not_compared(whole, fast)) == {
        *FILE,
        "model.contradicted_claims",
        "model.sampled_tensors",  # told on neither side: tensors say more
    }
    assert reading(fast, "model", "sha256").source == "strength:verified"
    content = (model_folder / WEIGHTS).read_bytes()
    (model_folder / WEIGHTS).write_bytes(content[:-1] + b"\x3d")
    assert changed_fields(whole, read(model_folder, fast=True)) == {*TENSORS, "model.sampled_root"}


# Strengths -----------------------------------------------------------------------------------------------


@pytest.fixture
def snapshot(model_folder: Path, own_cache: Path) -> Path:
    """The model in a Hugging Face cache, weights under their SHA-256 and the rest under git's digests."""
    repository = own_cache / "huggingface" / "hub" / "models--org--small"
    snapshot = repository / "snapshots" / "0123abc"
    for folder in (repository / "blobs", snapshot, repository / "refs", repository / "snapshots" / "4567def"):
        folder.mkdir(parents=True)
    for ref in ("main", "v1"):
        (repository / "refs" / ref).write_text("0123abc")
    for file in sorted(model_folder.iterdir()):
        name = sha256(file.read_bytes())
        blob = repository / "blobs" / (name if file.name == WEIGHTS else name[:40])
        file.rename(blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


def test_a_claim_of_the_hub_cache_is_the_digest_and_says_so(snapshot: Path) -> None:
    claimed, verified = read(snapshot, "claimed"), read(snapshot)
    for name in ("sha256", "files"):
        assert reading(claimed, "model", name).value == reading(verified, "model", name).value
        assert reading(claimed, "model", name).source == "hub-blob-name:claimed"
    assert claimed.flat()["model_sha256"] == f"{sha256((snapshot / WEIGHTS).read_bytes())} {CLAIMED_REMARK}"
    unread = {
        name for name, fact in claimed.sections["model"].facts.items() if fact.source == "strength:claimed"
    }
    assert unread == {"tensors_root", "tensors", "sampled_root", "sampled_tensors", "contradicted_claims"}
    assert changed_fields(claimed, verified) == set()
    assert set(not_compared(claimed, verified)) == {f"model.{name}" for name in unread}
    volatile = claimed.sections["model"].volatile
    assert [volatile[name].value for name in ("revision", "refs", "other_revisions")] == [
        "0123abc",
        ["main", "v1"],
        ["4567def"],
    ]


def test_a_blob_rewritten_under_its_old_name_is_found_by_reading(snapshot: Path) -> None:
    blob = (snapshot / WEIGHTS).resolve()
    before = read(snapshot)
    assert reading(before, "model", "contradicted_claims").value == {}
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    after = read(snapshot)
    assert reading(after, "model", "contradicted_claims").value == {
        WEIGHTS: {"claimed": blob.name, "read": sha256(content), "by": "hub-blob-name:claimed"}
    }
    assert changed_fields(before, after) == {*SMALL_TENSORS_CHANGED, "model.contradicted_claims"}
    claimed = read(snapshot, "claimed")
    assert reading(claimed, "model", "sha256").value == blob.name  # what a claim is worth


def test_where_no_weight_was_read_everything_says_so(snapshot: Path) -> None:
    before = read(snapshot, "claimed")
    blob = (snapshot / WEIGHTS).resolve()
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    after, sampled = read(snapshot, "claimed"), read(snapshot, "sampled")
    found = compare(before, after)
    assert found.claimed == ["base", "now"]
    assert headline(found) == "no change (no weight was read)"
    assert any("no weight was read of either side" in note for note in list_notes(found))
    assert any("no weight was read" in warning for warning in list_warnings(after))
    assert not any("no weight" in warning for warning in list_warnings(sampled))
    assert compare(sampled, sampled).claimed is None


@pytest.mark.parametrize("change", [lambda content: content + b"x", lambda content: content[:-1]])
def test_a_claim_for_a_file_of_another_size_than_its_header_says_is_none(
    snapshot: Path, change: Callable[[bytes], bytes]
) -> None:
    blob = (snapshot / WEIGHTS).resolve()
    blob.write_bytes(change(blob.read_bytes()))
    found = reading(read(snapshot, "claimed"), "model", "sha256")
    assert found.value is None
    assert f"{WEIGHTS} is claimed to be {blob.name[:12]}…, but" in (found.unavailable or "")
    assert found.source == "hub-blob-name:claimed"  # a finding, not a reading that was left out


def test_a_download_into_a_folder_claims_while_the_file_is_as_old(model_folder: Path) -> None:
    weights = model_folder / WEIGHTS
    digest = sha256(weights.read_bytes())
    record = model_folder / ".cache" / "huggingface" / "download" / f"{WEIGHTS}.metadata"
    record.parent.mkdir(parents=True)
    record.write_text(f"0123abc\n{digest}\n{weights.stat().st_mtime}\n")
    found = read(model_folder, "claimed")
    assert reading(found, "model", "sha256") == Fact(value=digest, source="hub-download-record:claimed")
    (record.parent / "abc.incomplete").write_bytes(b"")
    os.utime(weights, (weights.stat().st_atime, weights.stat().st_mtime + 60))
    found = read(model_folder, "claimed")
    assert "nothing claims a digest" in (reading(found, "model", "sha256").unavailable or "")
    assert found.sections["model"].volatile["unfinished_downloads"].value == ["abc.incomplete"]


def test_a_sample_can_be_held_against_a_whole_reading(model_folder: Path) -> None:
    verified, sampled = read(model_folder), read(model_folder, "sampled")
    root = reading(sampled, "model", "sampled_root")
    assert root.value == reading(verified, "model", "sampled_root").value
    assert root.source.endswith(":sampled")
    assert set(reading(sampled, "model", "sampled_tensors").value) == set(SMALL)


def test_a_second_run_reads_no_weights(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(read_and_hash, "CACHE_FROM_BYTES", 1)
    first, second = read(model_folder), read(model_folder)
    cached = [found.sections["model"].volatile["cached"].value for found in (first, second)]
    assert cached == [False, True]
    assert first.root_digest == second.root_digest
