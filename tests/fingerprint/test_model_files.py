"""A model's identity: which fact follows which byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rip.fingerprint.collect import Probe, collect
from rip.fingerprint.drift import drift
from rip.fingerprint.model_ref import resolve
from rip.schemas.base import sha256_of
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import Fact, Fingerprint

MODEL_PROBE = (Probe("model", ".probes.model_files:probe", ("model",), limit_s=None),)


def read(path: Path) -> Fingerprint:
    return collect(resolve(str(path)), probes=MODEL_PROBE)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def reading(found: Fingerprint, section: str, field: str) -> Fact:
    fact = found.get(section, field)
    assert fact is not None
    return fact


def changed_fields(before: Fingerprint, after: Fingerprint) -> set[str]:
    return {f"{change.section}.{change.field}" for change in drift(before, after)}


def test_digests_are_those_that_docs_fingerprint_md_specifies(model_folder: Path) -> None:
    found = read(model_folder)
    weights = (model_folder / "model.safetensors").read_bytes()
    assert reading(found, "model", "sha256") == Fact(value=sha256(weights), source="file-sha256:verified")
    assert reading(found, "model", "files").value == {
        "model.safetensors": {"sha256": sha256(weights), "size": 4096}
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
        ("model.safetensors", b"\x07", b"\x08", {"model.sha256", "model.files"}),
        ("tokenizer.json", b'"a"', b'"b"', {"tokenizer.sha256", "tokenizer.files"}),
        ("tokenizer_config.json", b"</s>", b"</t>", {"tokenizer.sha256", "tokenizer.files"}),
        ("chat_template.jinja", b" }}", b"  }}", {"template.sha256", "template.named"}),
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
    original = Path.open

    def refusing(self: Path, *args: object, **options: object) -> object:
        if self.name == "model.safetensors":
            raise PermissionError(13, "Permission denied")
        return original(self, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refusing)
    with pytest.raises(BadInput, match=r"model\.safetensors could not be read: Permission denied"):
        read(model_folder)


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
    assert changed_fields(found, template) == {*whole_file, "template.sha256", "template.named"}
    tokens = read(write_gguf(tokens=["a", "c"]))
    assert changed_fields(found, tokens) == {*whole_file, "tokenizer.sha256"}
    without = read(write_gguf(template=None))
    assert reading(without, "template", "sha256").unavailable == "the model has no chat template"


def test_a_corrupt_gguf_stops_the_command(write_gguf: Callable[..., Path]) -> None:
    path = write_gguf()
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(BadInput, match="truncated or corrupt"):
        read(path)
