"""The rendered template: comments do not count, what comes out does, and no template can hang or leak."""

from __future__ import annotations

import hashlib
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from rip.fingerprint.model import template_probe
from rip.fingerprint.model.digest_cache import DigestCache
from rip.fingerprint.model.template_probe import CASES, rendered_facts
from rip.schemas.fingerprint import Fact

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def render(text: str, tokens: dict[str, str] | None = None, name: str = "journal") -> Fact:
    """The digest of what comes out; a journal that no test shares."""
    return rendered_facts({"default": text}, tokens or {}, DigestCache(Path(name)))["rendered"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_comments_do_not_count_and_every_rendered_character_does() -> None:
    before = render(CHATML)
    assert render("{# version 2 #}" + CHATML.replace("{% for", "{%- for")) == before
    after = render(CHATML.replace("assistant\n", "assistant \n"))
    assert after != before
    changed = {case for case in CASES if after.value["default"][case] != before.value["default"][case]}
    assert "user" in changed
    assert "user, no generation prompt" not in changed
    assert "content in parts" not in changed  # refused by both
    assert before.value["default"]["content in parts"].startswith("refused: TypeError: can only concatenate")


def test_special_tokens_and_tools_reach_the_template() -> None:
    text = "{{ bos_token }}{{ tools | length if tools else 'none' }}"
    said = render(text, {"bos_token": "<s>"}).value["default"]
    assert said["user"] == hashlib.sha256(b"<s>none").hexdigest()
    assert said["tools"] == hashlib.sha256(b"<s>1").hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        CHATML,
        "{{ tools | tojson }}{{ messages | tojson(indent=2) }}",
        "{% for m in messages %}{% if m.role == 'tool' %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
        "a\n  {% if 1 %}\nx\n{% endif %}\n",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}",
        "{{ dict(a=1) }}",
        "{{ messages[-1].reasoning_content }}{{ messages[1].reasoning_content }}",
    ],
)
def test_what_comes_out_is_what_transformers_renders(text: str) -> None:
    chat = pytest.importorskip("transformers.utils.chat_template_utils")
    said = render(text, {"bos_token": "<s>"}).value["default"]
    for name, case in CASES.items():
        given = {key: value for key, value in case.items() if key != "messages"}
        try:
            expected, _ = chat.render_jinja_template(
                [case["messages"]], chat_template=text, bos_token="<s>", **given
            )
        except Exception:
            assert said[name].startswith("refused: ")
        else:
            assert said[name] == hashlib.sha256(expected[0].encode()).hexdigest(), name


def test_a_template_may_refuse_a_conversation_and_knows_no_other_day() -> None:
    said = render("{{ raise_exception('no tools') if tools else strftime_now('%d %b %Y') }}").value["default"]
    assert said["tools"] == "refused: TemplateError: no tools"
    assert said["user"] == hashlib.sha256(b"26 Jul 2024").hexdigest()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ 'x' * 10**12 }}", "out of memory"),
        ("{% for a in range(99999) %}{{ 'x' * 100 }}{% endfor %}", "more than 1000000 characters"),
        ("{% for a in range(10**9) %}{% endfor %}", "OverflowError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% include 'etc/passwd' %}", "TypeError"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ messages[9].content }}", "UndefinedError"),
    ],
)
def test_a_template_that_misbehaves_is_refused(text: str, reason: str) -> None:
    assert reason in render(text).value["default"]["user"]


def test_a_template_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_probe, "LIMIT_S", 0.5)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    assert render(loop).unavailable == "no answer in time: a template was not rendered"
    monkeypatch.undo()


def test_addresses_draws_and_sets_do_not_differ_between_runs() -> None:
    text = "{{ raise_exception }}{{ range(999) | random }}{{ messages[0].items }}"
    assert render(text, name="one") == render(text, name="two")
    assert render(text + "!", name="one") != render(text, name="two")


def test_a_template_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = render(CHATML)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "no child wanted")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert render(CHATML) == first
    assert render(CHATML + " ").unavailable == "the child that renders could not be started: no child wanted"


@pytest.mark.parametrize(
    ("version", "reason"),
    [(None, "jinja2 is not installed: pip install"), ("3.1.5", "ways out of its sandbox")],
)
def test_without_a_safe_jinja_the_mend_is_named(
    monkeypatch: pytest.MonkeyPatch, version: str | None, reason: str
) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", installed)
    assert reason in (render(CHATML).unavailable or "")
