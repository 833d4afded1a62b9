"""A program of its own that renders chat templates: JSON on standard input, JSON on standard output.

It runs in a child process with limits on time and memory, because a template is a program that anybody may
have written. It imports nothing of rip, and jinja2 from the module path that it gets.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
from datetime import datetime
from typing import Any

MAX_TEXT = 1_000_000
"""Characters of one rendered conversation; no real one comes near."""
_NOW = datetime(2024, 7, 26, 12, 0, 0)
"""The time that templates see: a constant date."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def main() -> None:
    """Render every template with every conversation of the request."""
    request = json.load(sys.stdin)
    _limit(request["memory_bytes"], request["cpu_seconds"])
    sys.path[:] = request["path"]
    environment = _environment()
    found = {
        name: {case: _rendered(environment, text, values) for case, values in request["cases"].items()}
        for name, text in request["templates"].items()
    }
    json.dump(found, sys.stdout)


def _limit(memory_bytes: int, cpu_seconds: int) -> None:
    try:
        import resource
    except ImportError:  # Windows: the parent's clock has to do
        return
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere the limit is refused or without effect
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _rendered(environment: Any, text: str, values: dict[str, Any]) -> str:
    """The digest of what comes out, or in words why nothing does."""
    random.seed(0)  # jinja2 has a filter that draws
    parts: list[str] = []
    length = 0
    try:
        for part in environment.from_string(text).generate(**values):
            length += len(part)
            if length > MAX_TEXT:
                return f"refused: more than {MAX_TEXT} characters"
            parts.append(part)
    except MemoryError:
        return "refused: out of memory"
    except Exception as error:  # whatever a foreign program raises is what this conversation leads to
        reason = _ADDRESS.sub("", f"{type(error).__name__}: {error}").splitlines()[0]
        return f"refused: {reason[:200]}"
    # A template that prints an object prints where it lies, which is no part of what it says.
    whole = _ADDRESS.sub("", "".join(parts))
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()


def _environment() -> Any:
    """A sandbox with the names and filters that transformers gives to chat templates."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %} … {% endgeneration %}` marks what the assistant says and renders as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(form: str) -> str:
        return _NOW.strftime(form)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # jinja2's own one escapes HTML, which prompts are not.
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment


if __name__ == "__main__":
    main()
