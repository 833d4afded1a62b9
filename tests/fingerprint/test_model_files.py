"""A model's identity: which fact follows which byte."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.checkpoints import SMALL, reshard, write_safetensors
from fakes.model_readings import (
    FILE,
    SMALL_TENSORS_CHANGED,
    WEIGHTS,
    changed_fields,
    read,
    reading,
    sha256,
)
from rip.fingerprint.present.warnings import list_warnings
from rip.schemas.base import sha256_of
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import Fact, Fingerprint


@pytest.fixture
def model_folder(model_folder: Path) -> Path:
    """The same folder with weights that are a checkpoint."""
    write_safetensors(model_folder / WEIGHTS, SMALL, {"format": "pt"})
    return model_folder


def test_digests_are_those_that_docs_fingerprint_md_specifies(model_folder: Path) -> None:
    found = read(model_folder)
    weights = (model_folder / "model.safetensors").read_bytes()
    assert reading(found, "model", "sha256") == Fact(value=sha256(weights), source="file-sha256:verified")
    assert reading(found, "model", "files").value == {
        "model.safetensors": {"sha256": sha256(weights), "size": len(weights)}
    }
    assert reading(found, "model", "config_sha256").value == sha256_of(
        {"vocab_size": 49152, "dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]}
    )
    files = {
        "tokenizer.json": sha256((model_folder / "tokenizer.json").read_bytes()),
        "tokenizer_config.json": sha256_of({"eos_token": "</s>", "model_max_length": 10**30}),
    }
    assert reading(found, "tokenizer", "sha256").value == sha256_of(files)
    assert reading(found, "template", "sha256").value == sha256(b"{{ messages }}\n")
    assert reading(found, "sampling", "model_defaults").value == {"temperature": 0.6, "top_p": 0.9}
    stated = {
        name: reading(found, "model", name).value for name in ("quantization_method", "dtype", "architecture")
    }
    assert stated == {"quantization_method": "none", "dtype": "bfloat16", "architecture": "LlamaForCausalLM"}


def test_the_digest_does_not_depend_on_where_the_model_lies(model_folder: Path, tmp_path: Path) -> None:
    before = read(model_folder)
    moved = model_folder.rename(tmp_path / "elsewhere")
    assert read(moved).root_digest == before.root_digest


def test_several_weights_files_have_one_digest_over_their_names(model_folder: Path) -> None:
    weights = (model_folder / "model.safetensors").read_bytes()
    (model_folder / "model.safetensors").unlink()
    for number, part in enumerate((weights[:100], weights[100:]), start=1):
        (model_folder / f"model-{number}.safetensors").write_bytes(part)
    assert reading(read(model_folder), "model", "sha256").value == sha256_of(
        {"model-1.safetensors": sha256(weights[:100]), "model-2.safetensors": sha256(weights[100:])}
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "fields"),
    [
        (WEIGHTS, b"\x07\x08", b"\x07\x09", SMALL_TENSORS_CHANGED),
        (WEIGHTS, b"layers.1.w", b"layers.2.w", {*SMALL_TENSORS_CHANGED, "model.layout_sha256"}),
        (WEIGHTS, b"[2, 8]", b"[8, 2]", {*SMALL_TENSORS_CHANGED, "model.layout_sha256"}),
        (
            WEIGHTS,
            b'"BF16"',
            b'"U16" ',
            {*SMALL_TENSORS_CHANGED, "model.layout_sha256", "model.tensor_dtypes"},
        ),
        (WEIGHTS, b'"format": "pt"', b'"format": "np"', {*FILE, "model.weights_metadata_sha256"}),
        ("tokenizer.json", b'"a"', b'"b"', {"tokenizer.sha256", "tokenizer.files"}),
        (
            "tokenizer_config.json",
            b"</s>",
            b"</t>",
            {"tokenizer.sha256", "tokenizer.files", "tokenizer.special_tokens"},
        ),
        ("chat_template.jinja", b" }}", b"  }}", {"template.sha256", "template.named"}),
        (
            "chat_template.jinja",
            b" }}",
            b" }} ",
            {"template.sha256", "template.named", "template.rendered_sha256", "template.rendered"},
        ),
        ("config.json", b"49152", b"49153", {"model.config_sha256", "model.vocab_size"}),
        ("config.json", b"bfloat16", b"float16", {"model.config_sha256", "model.dtype"}),
        (
            "generation_config.json",
            b"0.9",
            b"0.8",
            {"model.generation_config_sha256", "sampling.model_defaults"},
        ),
    ],
)
def test_one_changed_byte_changes_these_facts_and_no_other(
    model_folder: Path, file: str, old: bytes, new: bytes, fields: set[str]
) -> None:
    before = read(model_folder)
    content = (model_folder / file).read_bytes()
    assert old in content
    (model_folder / file).write_bytes(content.replace(old, new, 1))
    assert changed_fields(before, read(model_folder)) == fields


def test_layout_of_a_json_file_is_no_change(model_folder: Path) -> None:
    before = read(model_folder)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        content = json.loads((model_folder / name).read_text())
        (model_folder / name).write_text(json.dumps(dict(reversed(content.items())), indent=4))
    assert read(model_folder).root_digest == before.root_digest


def test_a_template_has_one_digest_wherever_it_is_kept(model_folder: Path) -> None:
    before = read(model_folder)
    text = (model_folder / "chat_template.jinja").read_text()
    (model_folder / "chat_template.jinja").unlink()
    config = json.loads((model_folder / "tokenizer_config.json").read_text())
    (model_folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": text}))
    after = read(model_folder)
    assert changed_fields(before, after) == set()
    assert reading(after, "template", "sha256").source == "tokenizer_config.json"


def test_named_templates_are_told_apart(model_folder: Path) -> None:
    (model_folder / "chat_template.jinja").unlink()
    entries = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (model_folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": entries}))
    found = read(model_folder)
    assert reading(found, "template", "sha256").value == sha256(b"a")
    assert reading(found, "template", "named").value == {"default": sha256(b"a"), "tool_use": sha256(b"b")}


def test_what_a_model_lacks_is_unavailable_with_a_reason(model_folder: Path) -> None:
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        (model_folder / name).unlink()
    (model_folder / "config.json").write_text("{")
    found = read(model_folder)
    reasons = {
        ("tokenizer", "sha256"): "the folder has no tokenizer",
        ("template", "sha256"): "the model has no chat template",
        ("sampling", "model_defaults"): "the folder has no generation_config.json",
        ("model", "config_sha256"): "config.json is not JSON",
        ("model", "dtype"): "config.json is not JSON",
    }
    for (section, field), reason in reasons.items():
        assert (reading(found, section, field).unavailable or "").startswith(reason)
    assert reading(found, "model", "sha256").value


def test_a_config_that_only_python_calls_json_is_still_read(model_folder: Path) -> None:
    (model_folder / "config.json").write_text(
        '{"time_step_limit": [0.0, Infinity], "torch_dtype": "float16"}'
    )
    found = read(model_folder)
    assert reading(found, "model", "dtype").value == "float16"
    assert reading(found, "model", "config_sha256").value
    assert Fingerprint.from_json(found.to_json(), "it").root_digest == found.root_digest


def test_an_unreadable_weights_file_stops_the_command(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.open

    def refusing(path: Path, *args: int) -> int:
        if Path(path).name == WEIGHTS:
            raise PermissionError(13, "Permission denied")
        return original(path, *args)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(BadInput, match=r"model\.safetensors could not be read: Permission denied"):
        read(model_folder)


# Beside the weights --------------------------------------------------------------------------------------

ADAPTER = {"base_model_name_or_path": "org/base", "peft_type": "LORA", "r": 8, "lora_alpha": 16}


def add_adapter(folder: Path, content: bytes = b"\x01" * 8) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER))
    write_safetensors(folder / "adapter_model.safetensors", {"lora_A.weight": ("F32", [2], content)})


def test_adapters_in_a_model_folder_are_told_apart(model_folder: Path) -> None:
    plain = read(model_folder)
    assert reading(plain, "model", "adapters").value == {}
    add_adapter(model_folder / "style")
    found = read(model_folder)
    assert changed_fields(plain, found) == {"model.adapters"}
    weights = sha256((model_folder / "style" / "adapter_model.safetensors").read_bytes())
    assert reading(found, "model", "adapters").value == {
        "style": {
            "config_sha256": sha256_of(ADAPTER),
            "base": "org/base",
            "peft_type": "LORA",
            "r": 8,
            "lora_alpha": 16,
            "adapter_model.safetensors": weights,
        }
    }
    add_adapter(model_folder / "style", content=b"\x02" * 8)
    assert changed_fields(found, read(model_folder)) == {"model.adapters"}
    for strength in ("sampled", "claimed"):
        unread = reading(read(model_folder, strength), "model", "adapters")  # type: ignore[arg-type]
        assert unread.source == f"strength:{strength}"
    add_adapter(model_folder)  # transformers loads such a one with the model, unasked
    assert set(reading(read(model_folder), "model", "adapters").value) == {".", "style"}


def test_an_adapter_alone_names_its_base(tmp_path: Path) -> None:
    add_adapter(tmp_path / "style")
    found = read(tmp_path / "style")
    assert reading(found, "model", "adapters").value["."]["base"] == "org/base"
    assert reading(found, "model", "architecture").unavailable == (
        "an adapter; its base model has it: org/base"
    )
    assert set(reading(found, "model", "tensors").value) == {"lora_A.weight"}
    assert reading(found, "model", "sha256").value == sha256(
        (tmp_path / "style" / "adapter_model.safetensors").read_bytes()
    )


@pytest.mark.parametrize(
    ("file", "content", "method"),
    [
        ("config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ("config.json", {"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, "modelopt NVFP4"),
        ("quantize_config.json", {"bits": 4}, "gptq"),
    ],
)
def test_quantization_is_read_where_its_tool_wrote_it(
    model_folder: Path, file: str, content: dict[str, object], method: str
) -> None:
    (model_folder / file).write_text(json.dumps(content))
    found = read(model_folder)
    assert reading(found, "model", "quantization_method").value == method
    digest = reading(found, "model", "quantization_config_sha256").value
    text = json.dumps(content).replace("4", "8").replace("fp8", "fp9")
    (model_folder / file).write_text(text)
    assert reading(read(model_folder), "model", "quantization_config_sha256").value != digest


def test_special_tokens_have_their_ids_wherever_these_are_kept(model_folder: Path) -> None:
    config = {
        "bos_token": {"content": "<s>", "special": True},
        "eos_token": "</s>",
        "pad_token": None,
        "additional_special_tokens": ["<x>", "<unknown>"],
        "added_tokens_decoder": {"7": {"content": "<s>"}},
    }
    (model_folder / "tokenizer_config.json").write_text(json.dumps(config))
    (model_folder / "added_tokens.json").write_text('{"<x>": 9}')
    tokenizer = {"added_tokens": [{"id": 2, "content": "</s>", "special": True}], "model": {"vocab": {}}}
    (model_folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert reading(read(model_folder), "tokenizer", "special_tokens").value == {
        "bos_token": {"token": "<s>", "id": 7},
        "eos_token": {"token": "</s>", "id": 2},
        "additional_special_tokens": [{"token": "<x>", "id": 9}, {"token": "<unknown>"}],
    }


def test_code_that_comes_with_a_model_is_part_of_it(model_folder: Path) -> None:
    before = read(model_folder)
    (model_folder / "modeling_small.py").write_text("x = 1\n")
    assert changed_fields(before, read(model_folder)) == {"model.code"}


@pytest.mark.parametrize(
    "name",
    [
        "generation_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "quantize_config.json",
        "x.py",
    ],
)
def test_a_pipe_in_the_folder_holds_nothing_up(model_folder: Path, name: str) -> None:
    (model_folder / "chat_template.jinja").unlink()
    (model_folder / name).unlink(missing_ok=True)
    os.mkfifo(model_folder / name)
    os.mkfifo(model_folder / "pipe.safetensors")
    (model_folder / "loop.model").symlink_to("loop.model")
    (model_folder / "again").symlink_to(model_folder)
    assert reading(read(model_folder), "model", "sha256").value


def test_text_that_no_fingerprint_can_hold_is_a_reason(model_folder: Path) -> None:
    (model_folder / "generation_config.json").write_text('{"stop": "\\ud800"}')
    deep = '{"a":' * 900 + "1" + "}" * 900
    (model_folder / "config.json").write_text(deep)
    (model_folder / "tokenizer_config.json").write_text('{"eos_token": "\\ud800"}')
    found = read(model_folder)
    for section, name in (
        ("sampling", "model_defaults"),
        ("model", "config_sha256"),
        ("tokenizer", "sha256"),
    ):
        assert "no canonical form" in (reading(found, section, name).unavailable or "")
    assert Fingerprint.from_json(found.to_json(), "it").root_digest == found.root_digest


# GGUF ----------------------------------------------------------------------------------------------------


def test_a_gguf_carries_all_of_it_in_one_file(write_gguf: Callable[..., Path]) -> None:
    path = write_gguf()
    found = read(path)
    assert reading(found, "model", "sha256").value == sha256(path.read_bytes())
    assert reading(found, "model", "quantization_method").value == "Q4_1"
    assert reading(found, "model", "architecture").value == "llama"
    assert reading(found, "template", "sha256").value == sha256(b"{{ messages }}")
    assert reading(found, "tokenizer", "sha256").value == sha256_of(
        {
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.tokens": ["a", "b"],
            "tokenizer.ggml.token_type": [1, 2, 3],
            "tokenizer.ggml.scores": [0.5, -1.25],
        }
    )
    whole_file = {"model.sha256", "model.files"}
    template = read(write_gguf(template="{{ x }}"))
    rendered = {"template.rendered_sha256", "template.rendered"}
    assert changed_fields(found, template) == {*whole_file, "template.sha256", "template.named", *rendered}
    tokens = read(write_gguf(tokens=["a", "c"]))
    assert changed_fields(found, tokens) == {*whole_file, "tokenizer.sha256"}
    without = read(write_gguf(template=None))
    assert reading(without, "template", "sha256").unavailable == "the model has no chat template"


def test_a_corrupt_gguf_stops_the_command(write_gguf: Callable[..., Path]) -> None:
    path = write_gguf()
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(BadInput, match="truncated or corrupt"):
        read(path)


def promise(folder: Path, **files: str) -> None:
    """Change what the weights index promises."""
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": json.loads(index.read_text())["weight_map"] | files}))


def test_a_tensor_that_is_not_where_the_index_promises_it_is_named(model_folder: Path) -> None:
    (model_folder / WEIGHTS).unlink()
    first, second = (path.name for path in reshard(SMALL, model_folder, 2))
    whole = read(model_folder)
    assert whole.get("model", "contradicted_index") is None
    weight_map = json.loads((model_folder / "model.safetensors.index.json").read_text())["weight_map"]
    moved = next(name for name, file in weight_map.items() if file == second)
    promise(model_folder, **{moved: first, "gone.weight": first})
    found = read(model_folder)
    assert reading(found, "model", "contradicted_index").value == {
        "gone.weight": {"promised": first, "found": "in no file"},
        moved: {"promised": first, "found": second},
    }
    assert f"the index promises {moved} in {first}, which lacks it; found: {second}" in list_warnings(found)
    assert changed_fields(whole, found) == {"model.contradicted_index"}


def test_mistrals_own_layout_is_described(model_folder: Path) -> None:
    (model_folder / "config.json").unlink()
    (model_folder / WEIGHTS).rename(model_folder / "consolidated.safetensors")
    params = {"dim": 16, "vocab_size": 32, "max_seq_len": 99, "quantization": {"qformat_weight": "fp8_e4m3"}}
    (model_folder / "params.json").write_text(json.dumps(params))
    found = read(model_folder)
    assert reading(found, "model", "config_sha256").value == sha256_of(params)
    assert [reading(found, "model", name).value for name in ("vocab_size", "context_length")] == [32, 99]
    assert reading(found, "model", "quantization_method").value == "fp8_e4m3"
    assert reading(found, "model", "tensors_root").value is not None
