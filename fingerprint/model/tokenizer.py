"""A model's tokenizer as facts: its files, and which tokens have a role, with their ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.base import sha256_of
from ...schemas.fingerprint import Fact, fact, fact_or, unavailable
from ..untrusted.files import read_any_object, read_object
from .ref import VOCABULARY_PATTERNS, ModelRef
from .small_texts import keep_texts
from .weights import VERIFIED

if TYPE_CHECKING:
    from .digest_cache import DigestCache

TOKENIZER_FIELDS = ("sha256", "files", "special_tokens")
TOKENIZER_CONFIG = "tokenizer_config.json"
_MAP, _FAST, _ADDED = "special_tokens_map.json", "tokenizer.json", "added_tokens.json"
_LISTS = ("additional_special_tokens", "extra_special_tokens")
MAX_LISTED = 64
"""Of a list of further special tokens; longer ones are kept as a digest."""
_IDS = "added-token-ids"
_GGUF_ROLES = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token",
    "seperator": "sep_token", "cls": "cls_token", "mask": "mask_token", "eot": "eot_token",
    "eom": "eom_token",
}  # fmt: skip
"""`tokenizer.ggml.<name>_token_id` → role; llama.cpp spells the separator so."""


@dataclass(frozen=True)
class Tokenizer:
    """What was found."""

    facts: dict[str, Fact]
    special_tokens: dict[str, str]
    """Role → token, as a chat template is given them."""


def folder_tokenizer(model: ModelRef, digests: Mapping[Path, str], cache: DigestCache) -> Tokenizer:
    """Facts about the tokenizer files of a folder.

    Args:
        model: A model or adapter folder.
        digests: Hex SHA-256 of each tokenizer file's bytes.
        cache: The ids of added tokens of a tokenizer that was read before.
    """
    if not model.tokenizer_files:
        absent = unavailable(f"the folder has no tokenizer ({', '.join(VOCABULARY_PATTERNS)})", "files")
        return Tokenizer(dict.fromkeys(TOKENIZER_FIELDS, absent), {})
    config = read_object(model.path / TOKENIZER_CONFIG)
    files: dict[str, str] = {}
    for path in model.tokenizer_files:
        if path.name != TOKENIZER_CONFIG:
            files[path.name] = digests[path]
            continue
        # Its template has a digest of its own; without it, the two kinds of change stay apart.
        if isinstance(config, str):
            absent = unavailable(config, TOKENIZER_CONFIG)
            return Tokenizer(dict.fromkeys(TOKENIZER_FIELDS, absent), {})
        files[path.name] = sha256_of(
            {name: value for name, value in config.items() if name != "chat_template"}
        )
    roles = dict(_roles(read_object(model.path / _MAP))) | dict(_roles(config))
    ids = _added_ids(model.path, config, digests, cache) if roles else {}
    return Tokenizer(
        {
            "sha256": fact(sha256_of(files), VERIFIED),
            "files": fact(files, VERIFIED),
            "special_tokens": fact_or(
                _with_ids(roles, ids.get), "tokenizer files", "the tokenizer files give no token a role"
            ),
        },
        {role: token for role, token in roles.items() if isinstance(token, str)},
    )


def tokenizer_texts(folder: Path) -> dict[str, Any]:
    """The small files of a tokenizer, by name, as the text behind `files`; templates are kept elsewhere."""
    found = {name: read_object(folder / name) for name in (TOKENIZER_CONFIG, _MAP)}
    kept = {
        name: {key: value for key, value in content.items() if key != "chat_template"}
        for name, content in found.items()
        if isinstance(content, dict)
    }
    without_ids = {
        name: {key: value for key, value in content.items() if key != "added_tokens_decoder"}
        for name, content in kept.items()
    }
    return keep_texts({"files": kept}) or keep_texts({"files": without_ids})


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Facts about the tokenizer inside a GGUF file."""
    prefix = "tokenizer.ggml."
    tokenizer = {name: value for name, value in metadata.items() if name.startswith(prefix)}
    tokens = tokenizer.get(f"{prefix}tokens")
    if not isinstance(tokens, list):
        absent = unavailable("the file has no tokenizer (tokenizer.ggml.tokens)", "gguf-metadata")
        return Tokenizer(dict.fromkeys(TOKENIZER_FIELDS, absent), {})
    roles: dict[str, str] = {}
    shown: dict[str, Any] = {}
    for name, role in _GGUF_ROLES.items():
        number = tokenizer.get(f"{prefix}{name}_token_id")
        if type(number) is not int:
            continue
        shown[role] = {"id": number}
        if 0 <= number < len(tokens) and isinstance(tokens[number], str):
            roles[role] = tokens[number]
            shown[role]["token"] = tokens[number]
    return Tokenizer(
        {
            "sha256": fact(sha256_of(tokenizer), "gguf-metadata"),
            "files": unavailable("the tokenizer is inside the GGUF file", "gguf-metadata"),
            "special_tokens": fact_or(shown, "gguf-metadata", "the file gives no token a role"),
        },
        roles,
    )


def _roles(config: dict[str, Any] | str) -> Iterator[tuple[str, str | list[str]]]:
    """Role → token or tokens, of a tokenizer_config.json or special_tokens_map.json."""
    if isinstance(config, str):
        return
    for role, value in config.items():
        if role in _LISTS:
            if isinstance(value, dict):
                yield from ((str(name), text) for name, token in value.items() if (text := _text(token)))
            elif isinstance(value, list):
                yield role, [text for token in value if (text := _text(token))]
        elif role.endswith("_token") and (text := _text(value)):
            yield role, text


def _text(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    # Half a character, which JSON can hold and a fingerprint cannot, is written out.
    return content.encode("utf-8", "backslashreplace").decode() if isinstance(content, str) else None


def _with_ids(roles: Mapping[str, str | list[str]], id_of: Callable[[str], int | None]) -> dict[str, Any]:
    def shown(token: str) -> dict[str, Any]:
        number = id_of(token)
        return {"token": token} if number is None else {"token": token, "id": number}

    return {
        role: shown(value)
        if isinstance(value, str)
        else [shown(token) for token in value]
        if len(value) <= MAX_LISTED
        else {"count": len(value), "sha256": sha256_of([shown(token) for token in value])}
        for role, value in sorted(roles.items())
    }


def _added_ids(
    folder: Path, config: dict[str, Any] | str, digests: Mapping[Path, str], cache: DigestCache
) -> dict[str, int]:
    """Token → id, of the tokens that stand outside the vocabulary proper; special ones do."""
    found: dict[str, int] = {}
    added = read_object(folder / _ADDED)
    if isinstance(added, dict):
        found |= {token: number for token, number in added.items() if type(number) is int}
    decoder = config.get("added_tokens_decoder") if isinstance(config, dict) else None
    if isinstance(decoder, dict):
        found |= {
            text: int(number)
            for number, token in decoder.items()
            if number.isdigit() and (text := _text(token))
        }
    fast = folder / _FAST
    if fast in digests:
        found |= _ids_in(fast, digests[fast], cache)
    return found


def _ids_in(path: Path, sha256: str, cache: DigestCache) -> dict[str, int]:
    # Reading JSON of some tens of megabytes takes longer than all else a second run does.
    known = cache.recall(sha256, _IDS)
    if known is None:
        content = read_any_object(path)
        added = content.get("added_tokens") if isinstance(content, dict) else None
        found = {
            text: token["id"]
            for token in (added if isinstance(added, list) else [])
            if isinstance(token, dict) and type(token.get("id")) is int and (text := _text(token))
        }
        known = json.dumps(found)
        cache.keep(sha256, _IDS, known)
    ids: dict[str, int] = json.loads(known)
    return ids
