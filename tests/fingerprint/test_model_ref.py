"""Finding a model: what is accepted, and what is said where nothing usable is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rip.fingerprint.model.ref import resolve
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
    with pytest.raises(BadInput, match="leads nowhere"):
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
    with pytest.raises(BadInput, match="no regular file"):
        resolve(str(model_folder))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BadInput, match=r"no config\.json"):
        resolve(str(empty))
    (empty / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadInput, match="GGUF files") as caught:
        resolve(str(empty))
    assert caught.value.fix.endswith("m.gguf")


def test_an_adapter_is_a_model_only_where_one_will_do(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    for accept in (False, True):
        with pytest.raises(BadInput, match="a LoRA adapter without weights"):
            resolve(str(tmp_path), accept_adapter=accept)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(BadInput, match="a LoRA adapter, not a model"):
        resolve(str(tmp_path))
    found = resolve(str(tmp_path), accept_adapter=True)
    assert (found.kind, [path.name for path in found.weight_files]) == (
        "adapter",
        ["adapter_model.safetensors"],
    )


def test_adapters_beside_a_model_are_no_weights_of_it(model_folder: Path) -> None:
    (model_folder / "model.safetensors").rename(model_folder / "weights.safetensors")
    for folder in (model_folder, model_folder / "style"):
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(b"x")
    found = resolve(str(model_folder))
    assert [path.name for path in found.weight_files] == ["weights.safetensors"]
    assert found.adapters == (model_folder, model_folder / "style")


def test_shards_without_an_index_say_how_many_belong_together(model_folder: Path) -> None:
    (model_folder / "model.safetensors").rename(model_folder / "model-00001-of-00002.safetensors")
    with pytest.raises(BadInput, match=r"1 of 2 weights files are missing, first model-00002-of-00002\."):
        resolve(str(model_folder))
    (model_folder / "model-00002-of-00002.safetensors").write_bytes(b"x")
    assert len(resolve(str(model_folder)).weight_files) == 2


def test_a_revision_is_a_branch_a_tag_or_a_commit(model_folder: Path, own_cache: Path) -> None:
    repository = own_cache / "huggingface" / "hub" / "models--org--small"
    (repository / "refs" / "pr").mkdir(parents=True)
    (repository / "refs" / "v1").write_text("0123abc\n")
    (repository / "snapshots").mkdir()
    model_folder.rename(repository / "snapshots" / "0123abc")
    for name in ("org/small@v1", "org/small@0123abc", str(repository / "snapshots" / "0123abc")):
        assert resolve(name).revision == "0123abc"
    for name in ("org/small", "org/small@v2", "org/small@pr"):
        with pytest.raises(BadInput, match="not in the local Hugging Face cache"):
            resolve(name)


def test_an_unfinished_download_is_named(model_folder: Path) -> None:
    (model_folder / "model.safetensors").unlink()
    downloads = model_folder / ".cache" / "huggingface" / "download"
    downloads.mkdir(parents=True)
    (downloads / "abc.incomplete").write_bytes(b"")
    with pytest.raises(BadInput, match=r"no weights .*; unfinished downloads: 1"):
        resolve(str(model_folder))


def test_a_file_that_is_no_gguf_is_refused(model_folder: Path) -> None:
    with pytest.raises(BadInput, match="not a GGUF file"):
        resolve(str(model_folder / "model.safetensors"))


def test_mistrals_own_layout_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(BadInput, match=r"no config\.json"):
        resolve(str(tmp_path))
    for name in ("tekken.json", "consolidated.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    found = resolve(str(tmp_path))
    assert [path.name for path in found.weight_files] == ["consolidated.safetensors"]
    assert [path.name for path in found.tokenizer_files] == ["tekken.json"]
    assert found.folder == tmp_path


def test_numbered_consolidated_files_say_which_is_missing(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    (tmp_path / "consolidated-00002-of-00002.safetensors").write_bytes(b"x")
    with pytest.raises(BadInput, match=r"1 of 2 weights files are missing, first consolidated-00001"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_git_lfs_pointer_is_refused_by_name(model_folder: Path, name: str) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 5000000000\n"
    (model_folder / name).write_text(pointer)
    with pytest.raises(BadInput, match=rf"{name} is a git-lfs pointer .* of 5,000,000,000 bytes") as caught:
        resolve(str(model_folder))
    assert caught.value.fix.startswith("run git lfs pull")


def test_a_gguf_that_is_a_pointer_is_refused_so_too(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(BadInput, match="a git-lfs pointer"):
        resolve(str(tmp_path / "m.gguf"))
