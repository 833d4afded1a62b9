"""What a chat template makes of a fixed set of conversations, as digests: comments and layout do not count.

A child process renders, for no longer than a limit; the result is kept under a digest of everything that went
in. It imports neither jinja2 nor transformers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.base import sha256_of
from ...schemas.fingerprint import NO_ANSWER, Fact, fact, unavailable
from ..untrusted.patience import patience

if TYPE_CHECKING:
    from .digest_cache import DigestCache

PROBE = "template-probe/1"
"""Its number changes with the conversations, the constant date, or how they are rendered."""
LIMIT_S = 10.0
MEMORY_BYTES = 1024**3
OLDEST_JINJA = (3, 1, 6)
"""Older ones have known ways out of the sandbox."""
_MEND = "pip install 'rip-forensics[report]'"
_KIND = "rendered"
MAX_TEMPLATE = 1_000_000
"""Characters of a template that are searched."""
_TAG = re.compile(r"\{[{%][^{}]{0,20000}")
"""What is code in a template: not its text and, as it opens otherwise, not its comments."""
_CLOCK = re.compile(r"\bstrftime_now\b|\bnow\(\)|\butcnow\b")

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather of a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "City, country"},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["place"],
            },
        },
    }
]
_SYSTEM = {"role": "system", "content": "You answer in one sentence."}
_HELLO = {"role": "user", "content": "Hello, who are you?"}
_ANSWER = {"role": "assistant", "content": "I am a language model."}
_AGAIN = {"role": "user", "content": 'And what is 2 < 3 & "4"?\n\n  Zwölf, 中文, 🙂  '}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"place": "Oslo, Norway", "unit": "C"}},
        }
    ],
}
_RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": '{"degrees": 7}'}
_THOUGHT = {"thinking": "The user greets me.", **_ANSWER, "reasoning_content": "The user greets me."}
_PARTS = {"role": "user", "content": [{"type": "text", "text": "Hello, who are you?"}]}

CASES: dict[str, dict[str, Any]] = {
    "user": {"messages": [_HELLO], "add_generation_prompt": True},
    "user, no generation prompt": {"messages": [_HELLO], "add_generation_prompt": False},
    "system": {"messages": [_SYSTEM, _HELLO], "add_generation_prompt": True},
    "turns": {"messages": [_SYSTEM, _HELLO, _ANSWER, _AGAIN], "add_generation_prompt": True},
    "answered": {"messages": [_HELLO, _ANSWER], "add_generation_prompt": False},
    "answer continued": {"messages": [_HELLO, _ANSWER], "add_generation_prompt": True},
    "tools": {"messages": [_SYSTEM, _HELLO], "tools": _TOOLS, "add_generation_prompt": True},
    "tool called": {
        "messages": [_HELLO, _CALL, _RESULT], "tools": _TOOLS, "add_generation_prompt": True
    },
    "reasoned": {"messages": [_HELLO, _THOUGHT, _AGAIN], "add_generation_prompt": True},
    "no thinking": {"messages": [_HELLO], "add_generation_prompt": True, "enable_thinking": False},
    "content in parts": {"messages": [_PARTS], "add_generation_prompt": True},
}  # fmt: skip
"""Name → what the template is given, beside the special tokens."""


def rendered_facts(
    templates: Mapping[str, str], special_tokens: Mapping[str, str], cache: DigestCache
) -> dict[str, Fact]:
    """`rendered_sha256` and `rendered` (template → conversation → digest), or why they are not there.

    Args:
        templates: Name → text, at least one.
        special_tokens: Role, such as `bos_token` → token, which templates may refer to.
        cache: Results of earlier runs.
    """
    jinja, reason = _usable_jinja()
    if reason:
        return _absent(reason)
    cases = {
        name: {"tools": None, "documents": None, **case, **special_tokens} for name, case in CASES.items()
    }
    request = {"templates": dict(templates), "cases": cases}
    key = hashlib.sha256(json.dumps([PROBE, jinja, request]).encode()).hexdigest()
    known = cache.recall(key, _KIND)
    if known is None:
        known, reason = _render(request)
        if known is None:
            return _absent(reason)
        cache.keep(key, _KIND, known)
    rendered = json.loads(known)
    source = f"{PROBE} (jinja2 {jinja})"
    return {"rendered_sha256": fact(sha256_of(rendered), source), "rendered": fact(rendered, source)}


def reads_clock(template: str) -> bool:
    """Whether a template asks for the time: the same messages are another prompt on another day."""
    code = "".join(_TAG.findall(template[:MAX_TEMPLATE]))
    return _CLOCK.search(code) is not None


def _absent(reason: str) -> dict[str, Fact]:
    return dict.fromkeys(("rendered_sha256", "rendered"), unavailable(reason, PROBE))


def _render(request: dict[str, Any]) -> tuple[str | None, str]:
    """The child's answer, or None and why there is none."""
    limits = {"memory_bytes": MEMORY_BYTES, "cpu_seconds": max(1, round(LIMIT_S))}
    program = Path(__file__).with_name("template_render.py")
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-P", "-B", str(program)],
            input=json.dumps({**request, **limits, "path": sys.path}).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=patience(LIMIT_S),
            env=_environment(),
        )
    except subprocess.TimeoutExpired:
        return None, f"{NO_ANSWER}: a template was not rendered"
    except OSError as error:
        return None, f"the child that renders could not be started: {error.strerror}"
    if done.returncode in (-signal.SIGKILL, -signal.SIGXCPU):  # by its limit of processor time
        return None, f"{NO_ANSWER}: a template was not rendered"
    if done.returncode != 0:
        return None, f"rendering was ended by a limit, or jinja2 does not work (exit code {done.returncode})"
    return done.stdout.decode(), ""


def _usable_jinja() -> tuple[str, str]:
    """The version of jinja2, and why it cannot be used (empty where it can)."""
    if not sys.executable:
        return "", "there is no Python program to render with"
    try:
        found = metadata.version("jinja2")
    except metadata.PackageNotFoundError:
        return "", f"jinja2 is not installed: {_MEND}"
    numbers = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    if numbers < OLDEST_JINJA:
        return "", f"jinja2 {found} has known ways out of its sandbox: pip install 'jinja2>=3.1.6'"
    return found, ""


def _environment() -> dict[str, str]:
    """Nothing that the child does not need: a template is a foreign program. A fixed order of sets."""
    needed = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
    return {"PYTHONHASHSEED": "0"} | {name: os.environ[name] for name in needed if name in os.environ}
