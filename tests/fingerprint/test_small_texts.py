"""What a change of a small text shows: the key or the lines, never two digests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rip.fingerprint.collect import Probe, collect
from rip.fingerprint.drift import drift
from rip.fingerprint.export import without_texts
from rip.fingerprint.model.ref import resolve
from rip.fingerprint.model.small_texts import differing_keys, differing_lines
from rip.fingerprint.present.warnings import list_warnings
from rip.schemas.change import Change, KeyChange
from rip.schemas.fingerprint import Fingerprint

MODEL_PROBE = (Probe("model", ".probes.model_files:probe", ("model",), limit_s=None),)


def read(path: Path) -> Fingerprint:
    return collect(resolve(str(path), accept_adapter=True), probes=MODEL_PROBE)


def edit(path: Path, **entries: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def changes(before: Fingerprint, after: Fingerprint) -> dict[str, Change]:
    return {change.name: change for change in drift(before, after)}


def test_a_changed_config_names_the_key_and_both_values(model_folder: Path) -> None:
    edit(model_folder / "config.json", rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})
    before = read(model_folder)
    edit(model_folder / "config.json", rope_parameters={"rope_theta": 500000.0, "rope_type": "default"})
    found = changes(before, read(model_folder))["model.config_sha256"]
    assert found.keys == [KeyChange(key="rope_parameters.rope_theta", before="10000.0", after="500000.0")]
    assert (found.before_text, found.after_text) == (
        "rope_parameters.rope_theta: 10000.0",
        "rope_parameters.rope_theta: 500000.0",
    )


def test_a_changed_template_shows_its_lines(model_folder: Path) -> None:
    template = model_folder / "chat_template.jinja"
    template.write_text("{% for m in messages %}\n{{ m.content }}\n{% endfor %}\n")
    before = read(model_folder)
    template.write_text("{% for m in messages %}\n{{ m.content | trim }}\n{% endfor %}\n")
    assert changes(before, read(model_folder))["template.sha256"].diff == [
        " {% for m in messages %}",
        "-{{ m.content }}",
        "+{{ m.content | trim }}",
        " {% endfor %}",
    ]


def test_a_template_of_one_line_shows_the_tag_that_differs() -> None:
    tags = [f"{{% if x == {number} %}}a{{% endif %}}" for number in range(30)]
    other = [*tags[:17], tags[17].replace("a", "b"), *tags[18:]]
    shown = differing_lines("".join(tags), "".join(other))
    assert [line for line in shown if line[0] in "-+"] == ["-a{% endif %}", "+b{% endif %}"]


def test_a_changed_tokenizer_config_and_a_changed_vocabulary_are_told_apart(model_folder: Path) -> None:
    before = read(model_folder)
    edit(model_folder / "tokenizer_config.json", padding_side="left")
    (model_folder / "tokenizer.json").write_text("{}")
    keys = changes(before, read(model_folder))["tokenizer.sha256"].keys or []
    assert {key.key for key in keys} == {"tokenizer.json", "tokenizer_config.json.padding_side"}


def test_a_changed_adapter_names_the_entry(model_folder: Path) -> None:
    adapter = model_folder / "lora"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 8, "use_rslora": True}))
    before = read(model_folder)
    edit(adapter / "adapter_config.json", use_rslora=False)
    found = changes(before, read(model_folder))["model.adapters"]
    assert found.keys == [KeyChange(key="lora.use_rslora", before="true", after="false")]


def test_a_gguf_names_the_metadata_that_changed(write_gguf: Callable[..., Path]) -> None:
    before = read(write_gguf())
    after = read(write_gguf(template="{{ messages }}!", name="n.gguf"))
    assert changes(before, after)["template.sha256"].diff == ["-{{ messages }}", "+{{ messages }}!"]


def test_without_texts_the_digests_are_the_same_and_a_change_says_only_that_it_is_one(
    model_folder: Path,
) -> None:
    whole = read(model_folder)
    bare = without_texts(whole)
    assert bare.root_digest == whole.root_digest
    assert all(section.texts is None for section in bare.sections.values())
    assert drift(bare, whole) == []
    edit(model_folder / "config.json", vocab_size=7)
    assert changes(bare, read(model_folder))["model.config_sha256"].keys is None


def test_secrets_and_long_texts_are_not_kept(model_folder: Path) -> None:
    edit(model_folder / "config.json", token="hf_" + "a" * 34, note="see https://me:pw@host/x")
    (model_folder / "chat_template.jinja").write_text("x" * 100_000)
    found = read(model_folder)
    assert not {"hf_aaa", "me:pw"} & {word for word in ("hf_aaa", "me:pw") if word in found.to_json()}
    assert found.sections["template"].texts is None
    assert len(found.to_json()) < 100_000


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": None}, {}, [("a", "null", None)]),
        ({"a": 1}, {"a": True}, [("a", "1", "true")]),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, [("a[1].b", "2", "3")]),
        ({"a": [1]}, {"a": [1, 2]}, [("a", "[1]", "[1, 2]")]),
        ({"a": {}}, {"a": {"b": 1}}, [("a.b", None, "1")]),
        ({"a": 1.0}, {"a": 1}, []),
    ],
)
def test_entries_that_differ(
    before: object, after: object, expected: list[tuple[str, str | None, str | None]]
) -> None:
    assert [(one.key, one.before, one.after) for one in differing_keys(before, after)] == expected


@pytest.mark.parametrize(
    ("template", "warns"),
    [
        ("Today is {{ strftime_now('%d %b %Y') }}.", True),
        ("{% set date = strftime_now('%d') %}{{ date }}", True),
        ("{# strftime_now is not used #}{{ messages }}", False),
        ("the text strftime_now is no code", False),
    ],
)
def test_a_template_that_reads_the_clock_is_warned_about(
    model_folder: Path, template: str, warns: bool
) -> None:
    (model_folder / "chat_template.jinja").write_text(template)
    assert any("reads the clock" in warning for warning in list_warnings(read(model_folder))) is warns
