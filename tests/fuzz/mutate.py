"""Seeded mutations of foreign text: of its bytes, of its words and numbers, and of JSON as a tree."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any

MAX_BYTES = 1 << 20
"""Of a mutated input; what grows beyond it is cut."""
MAX_MUTATIONS = 6
DEEP = 2000
"""Brackets in a row, beyond what any reader takes."""
LONG = 20_000
"""Repetitions of a short piece."""

NUMBERS = (
    "0", "-0", "-1", "1", "1.5", "1e999", "-1e999", "1e-999", "NaN", "Infinity", "-Infinity", "127", "255",
    "2147483648", "-2147483649", "4294967296", "9007199254740993", "9223372036854775808",
    "-9223372036854775809", "18446744073709551616", "9" * 400, "9" * 5000, "0x10", "1_000", "٣", "00", "1e5",
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "\x1b[31mred", "\n", "\r", "\u2028", "\u202e", "\ufeff", "é", "e\u0301", "𝔸", "\U0010ffff",
    "<script>alert(1)</script>", "</script><script>", "<!--", "]]>", "'\"><script>", "{{7*7}}", "{% raw %}",
    "`|[x](javascript:1)", "${HOME}", "%s%n", "../../etc/passwd", "null", "none", "true", "-", "=", "#", "\\",
    "\\ud800", "rip.verdict/999", "sk-" + "a" * 40, "a" * 300, "İ", "ß", "١٢", "0" * 300,
)  # fmt: skip
BYTES = (
    b"\0",
    b"\xff",
    b"\x80",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\n\n",
)
LENGTHS = (
    0,
    1,
    2,
    7,
    8,
    255,
    256,
    65535,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 64) - 1,
)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**400, 1e308,
    float("nan"), float("inf"), [], {}, [[]], [None], {"": None}, [0] * 300, {"schema": "x"}, "\ud800",
    *TEXTS,
)  # fmt: skip

_TOKEN = re.compile(rb"[A-Za-z_]{1,80}|[0-9.]{1,80}|\"[^\"\n]{0,200}\"|[^\sA-Za-z0-9]|\s")
Mutator = Callable[[Random, bytes, Sequence[bytes]], bytes]


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """An input made from one of the seeds by one to six mutations."""
    content = random.choice(seeds)
    for _ in range(min(1 + int(random.expovariate(1.5)), MAX_MUTATIONS)):
        content = random.choice(MUTATORS)(random, content, seeds)[:MAX_BYTES]
    return content


def mutate_object(random: Random, value: Any) -> Any:
    """The tree with one node replaced, removed, renamed or repeated; what is not on the way is shared."""
    if not isinstance(value, dict | list) or not value or random.random() < 0.15:
        return _replacement(random, value)
    if isinstance(value, list):
        at = random.randrange(len(value))
        kept = list(value)
        match random.randrange(8):
            case 0:
                del kept[at]
            case 1:
                kept.insert(at, random.choice(value))
            case 2:
                kept = kept * random.choice((2, 10))
            case _:
                kept[at] = mutate_object(random, value[at])
        return kept
    key = random.choice(list(value))
    match random.randrange(8):
        case 0:
            return {name: item for name, item in value.items() if name != key}
        case 1:
            return {**value, random.choice(TEXTS) or "x": value[key]}
        case 2:
            return {**value, key: value[random.choice(list(value))]}
        case _:
            return {**value, key: mutate_object(random, value[key])}


def _replacement(random: Random, value: Any) -> Any:
    match random.randrange(6):
        case 0:
            return [value]
        case 1:
            return {"x": value}
        case 2 if isinstance(value, str):
            return value + random.choice(TEXTS)
        case 3 if isinstance(value, int | float):
            return -value
        case _:
            return random.choice(VALUES)


@lru_cache(512)
def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _json(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    """One line, or the whole, as JSON; the bytes where it is none."""
    lines = content.split(b"\n")
    at = random.randrange(len(lines))
    whole = _parsed(content)
    value = whole if whole is not None else _parsed(lines[at])
    if value is None:
        return _word(random, content, seeds)
    written = json.dumps(mutate_object(random, value), ensure_ascii=random.random() < 0.5)
    encoded = written.encode("utf-8", "surrogatepass")
    return encoded if whole is not None else b"\n".join([*lines[:at], encoded, *lines[at + 1 :]])


def _span(random: Random, content: bytes, most: int = 64) -> tuple[int, int]:
    start = random.randrange(len(content) + 1)
    return start, min(len(content), start + random.randrange(1, most))


def _byte(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    changed = bytearray(content or b"x")
    for _ in range(random.choice((1, 1, 4, 32))):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def _insert(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    at = random.randrange(len(content) + 1)
    piece = random.choice(BYTES) if random.random() < 0.4 else random.choice(TEXTS).encode()
    return content[:at] + piece + content[at:]


def _remove(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    start, stop = _span(random, content)
    return content[:start] + content[stop:]


def _truncate(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _repeat(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    start, stop = _span(random, content)
    times = random.choice(
        (2, 3, 50, LONG // (stop - start) if stop > start and random.random() < 0.05 else 5)
    )
    return content[:start] + content[start:stop] * times + content[stop:]


def _splice(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    other = random.choice(seeds)
    start = random.randrange(len(other) + 1)
    return content[: random.randrange(len(content) + 1)] + other[start:]


def _length(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    """A number of four or eight bytes, as binary formats state lengths, near the beginning or anywhere."""
    size = random.choice((4, 8))
    at = random.randrange(min(len(content), 64 if random.random() < 0.5 else 1 << 20) + 1)
    value = random.choice(LENGTHS) % (1 << 8 * size)
    return content[:at] + value.to_bytes(size, random.choice(("little", "big"))) + content[at + size :]


def _word(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    """A word, number, quoted text or sign is replaced, or comes from another place."""
    found = _TOKEN.search(content, random.randrange(len(content) + 1)) or _TOKEN.search(content)
    if found is None:
        return _insert(random, content, seeds)
    token = found[0]
    match random.randrange(4):
        case 0:
            piece = random.choice(NUMBERS).encode()
        case 1:
            piece = (
                json.dumps(random.choice(TEXTS)).encode()
                if token[:1] == b'"'
                else random.choice(TEXTS).encode()
            )
        case 2:
            other = random.choice(seeds)
            start, stop = _span(random, other, 24)
            piece = other[start:stop]
        case _:
            piece = token * random.choice((0, 2, 20))
    return content[: found.start()] + piece + content[found.end() :]


def _nest(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    """Brackets many deep around a place, closed or not."""
    opening, closing = random.choice(
        ((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"<", b">"), (b"{%", b"%}"))
    )
    depth = random.choice((3, 40, 120, DEEP if random.random() < 0.2 else 10))
    start, stop = _span(random, content)
    inside = content[start:stop] if random.random() < 0.5 else b"0"
    closed = closing * depth if random.random() < 0.7 else b""
    return content[:start] + opening * depth + inside + closed + content[stop:]


def _lines(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    """Lines are swapped, repeated, or joined with one of another seed."""
    lines = content.split(b"\n")
    a, b = random.randrange(len(lines)), random.randrange(len(lines))
    lines[a] = random.choice(
        (lines[b], lines[a] + lines[b], random.choice(random.choice(seeds).split(b"\n")))
    )
    return b"\n".join(lines)


MUTATORS: tuple[Mutator, ...] = (
    _json, _json, _json, _word, _word, _byte, _insert, _remove, _truncate, _repeat, _splice, _length, _nest,
    _lines,
)  # fmt: skip
