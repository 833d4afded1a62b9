"""Finding a model: what is accepted, and what is said where nothing usable is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rip.fingerprint.model_ref import resolve
from rip.schemas.errors import BadInput


def test_a_folder_lists_its_weights_and_tokenizer(model_folder: Path) -> None:
    found = resolve(str(model_folder))
    assert (found.kind, found.path, found.gguf_file) == ("folder", model_folder, None)
    assert [path.name for path in found.weight_files] == ["model.safetensors"]
    assert [path.name for path in found.tokenizer_files] == ["tokenizer.json", "tokenizer_config.json"]


def test_shards_come_from_the_index_and_not_from_what_lies_beside(model_folder: Path) -> None:
    (model_folder / "model.safetensors").unlink()
    for name in ("a-1.safetensors", "a-2.safetensors", "consolidated.safetensors"):
        (model_folder / name).write_bytes(b"x")
    index = {"weight_map": {"w": "a-2.safetensors", "v": "a-1.safetensors", "u": "a-1.safetensors"}}
    (model_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    names = [path.name for path in resolve(str(model_folder)).weight_files]
    assert names == ["a-1.safetensors", "a-2.safetensors"]
    (model_folder / "a-2.safetensors").unlink()
    with pytest.raises(BadInput, match=r"1 of 2 weights files are missing, first a-2\.safetensors"):
        resolve(str(model_folder))


def test_an_index_cannot_lead_out_of_its_folder(model_folder: Path, tmp_path: Path) -> None:
    (model_folder / "model.safetensors").unlink()
    (tmp_path / "secret").write_text("x")
    (model_folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "../secret"}}')
    with pytest.raises(BadInput, match="names no file of its own folder"):
        resolve(str(model_folder))


def test_a_hub_id_is_found_in_the_local_cache_through_its_symlinks(
    model_folder: Path, own_cache: Path
) -> None:
    repository = own_cache / "huggingface" / "hub" / "models--org--small"
    snapshot = repository / "snapshots" / "0123abc"
    for folder in (repository / "blobs", snapshot, repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123abc")
    for number, file in enumerate(sorted(model_folder.iterdir())):
        blob = repository / "blobs" / f"{number:064x}"
        file.rename(blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    found = resolve("org/small")
    assert (found.revision, found.name) == ("0123abc", "org/small")
    assert [path.name for path in found.weight_files] == ["model.safetensors"]
    (snapshot / "model.safetensors").resolve().unlink()  # an unfinished download leaves such a link
    with pytest.raises(BadInput, match="no weights"):
        resolve("org/small")


def test_the_parts_of_a_split_gguf_belong_together(tmp_path: Path) -> None:
    for part in (1, 2):
        (tmp_path / f"m-{part:05d}-of-00002.gguf").write_bytes(b"GGUF")
    found = resolve(str(tmp_path / "m-00002-of-00002.gguf"))
    assert found.gguf_file == "m-00001-of-00002.gguf"
    assert len(found.weight_files) == 2
    (tmp_path / "m-00001-of-00002.gguf").unlink()
    with pytest.raises(BadInput, match="1 of 2 parts are missing"):
        resolve(str(tmp_path / "m-00002-of-00002.gguf"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "empty"),
        ("./nowhere", "no such folder or file"),
        ("/no/such/model", "no such folder or file"),
        ("nowhere.gguf", "no such folder or file"),
        ("org/never-fetched", "not in the local Hugging Face cache"),
        ("two words", "no such folder or file"),
        ("x" * 5000, "could not be read: File name too long"),
        ("/dev/null", "neither a folder nor a file"),
    ],
)
def test_a_name_that_leads_nowhere_is_named(name: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        resolve(name)
    assert message in caught.value.message
    assert caught.value.fix


def test_a_folder_without_a_model_says_what_is_missing(model_folder: Path, tmp_path: Path) -> None:
    (model_folder / "model.safetensors").unlink()
    (model_folder / "model.safetensors").mkdir()  # a folder is no weights file
    with pytest.raises(BadInput, match="no weights"):
        resolve(str(model_folder))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BadInput, match=r"no config\.json"):
        resolve(str(empty))
    (empty / "adapter_config.json").write_text("{}")
    with pytest.raises(BadInput, match="a LoRA adapter"):
        resolve(str(empty))
    (empty / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadInput, match="GGUF files") as caught:
        resolve(str(empty))
    assert caught.value.fix.endswith("m.gguf")


def test_a_file_that_is_no_gguf_is_refused(model_folder: Path) -> None:
    with pytest.raises(BadInput, match="not a GGUF file"):
        resolve(str(model_folder / "model.safetensors"))
