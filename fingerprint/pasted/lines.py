"""The lines of a pasted text without what a container, journald or a quotation put before them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

MAX_LINE = 32_768
"""Characters that are read of one line; the longest real ones, of configurations, have a few thousand."""
MAX_LINES = 50_000
_ROUNDS = 6
"""A line may stand in several wrappings."""
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_DATE = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_LEVEL = r"(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR)"
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # journald, short and with ISO times
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,64} [\w.@/-]{1,64}(?:\[\d{1,8}\])?: ",
        rf"{_DATE} \S{{1,64}} [\w.@/-]{{1,64}}\[\d{{1,8}}\]: ",
        # docker logs -t, containerd and CRI-O, docker compose, kubectl logs --prefix
        rf"{_DATE}\s{{1,4}}(?:std(?:out|err) [FP] )?",
        r"[\w.-]{1,64}\s{1,32}\| ",
        r"\[(?:pod|[\w-]{1,40})/[\w./-]{1,120}\] ",
        # vLLM's processes and logger; SGLang; Text Generation Inference; TensorRT-LLM; llama-server
        r"\([A-Za-z]\w{0,40} [^()]{0,80}\bpid=\d{1,9}[^()]{0,80}\)\s{1,4}",
        rf"{_LEVEL} \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w./]{{1,80}}:\d{{1,6}}\]|[\w./]{{1,80}}:\d{{1,6}}\]?) ",
        rf"\[{_DATE}(?: [A-Z]{{2,4}}\d{{1,4}}){{0,5}}\] ",
        r"text_generation_(?:launcher|router)[\w:]{0,60}: ",
        r"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] ",
        r"\[T(?:RT|ensorRT)-LLM\]\s?(?:\[[A-Z]{1,7}\])? ?",
        r"\d{1,3}\.\d\d\.\d{3}\.\d{3} [A-Z] ",
        rf"{_LEVEL}:?\s{{1,8}}",
        r">\s?",
    )
)
"""What may stand before a line; every repetition is bounded, so that no line takes long."""


def plain_lines(content: bytes) -> Iterator[str]:
    """The lines of a text that are not empty, without their wrapping; long ones are cut.

    Args:
        content: A file's bytes.
    """
    for line in content.decode("utf-8", "replace").splitlines()[:MAX_LINES]:
        stripped = _unwrapped(_COLOUR.sub("", _of_json(line)[:MAX_LINE]).strip())
        if stripped:
            yield stripped


def is_json_log(content: bytes) -> bool:
    """Whether it is what Docker's json-file driver writes, one object a line."""
    return content.lstrip()[:7] == b'{"log":'


def _of_json(line: str) -> str:
    if not line.startswith('{"log":'):
        return line
    try:
        return str(json.loads(line[: 2 * MAX_LINE])["log"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return line


def _unwrapped(line: str) -> str:
    for _ in range(_ROUNDS):
        match = next((found for prefix in _PREFIXES if (found := prefix.match(line))), None)
        if match is None:
            break
        line = line[match.end() :].strip()
    return line.rstrip("\\")
