"""A fingerprint, and a recorded request, in the formats that other tools read; and without names of machines.

Nothing is measured and nothing is signed here. The three formats:

- CycloneDX 1.6 ML-BOM (JSON): the environment is the described component, a platform, with its facts as
  properties; the model is a machine-learning-model component with its files and their hashes; Python
  distributions are libraries. The format's own Python package has no model card, so the JSON is written here,
  and tests hold it against the official schema.
- in-toto statement (version 1), for `cosign`, `sigstore` or any other signer: the subjects are the
  fingerprint's own document and the model's files, as far as every byte of them was read.
- OpenTelemetry's GenAI semantic conventions, for a request. Only what the envelope states: a default that an
  engine filled in was not requested.

`hash_ids` replaces what names one card or one machine by a digest: such a fingerprint can be shared and
compared. The same name always gives the same digest, without a key. A UUID cannot be guessed from it; a host
name or a serial number that somebody suspects can be tried.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ..schemas.base import canonical_json
from ..schemas.envelope import Envelope
from ..schemas.fingerprint import Fact, Fingerprint, Section, is_absent_text

MAX_TEXT = 4096
"""Longest value that is written out; of longer ones (a thousand tensors) the digest is."""
_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Package:
    """One installed Python distribution."""

    name: str
    version: str
    record_sha256: str | None = None
    origin: str | None = None
    """Where it was installed from, when that was no index."""


def verified_files(fingerprint: Fingerprint) -> dict[str, str]:
    """File name → SHA-256 of the model's weights and tokenizer files whose every byte was read.

    A weaker digest is never passed on as a hash.
    """
    found: dict[str, str] = {}
    for section in ("model", "tokenizer"):
        reading = fingerprint.get(section, "files")
        if reading is None or not reading.is_verified or not isinstance(reading.value, dict):
            continue
        for name, entry in reading.value.items():
            digest = entry.get("sha256") if isinstance(entry, dict) else entry
            if isinstance(digest, str) and len(digest) == 64 and set(digest) <= _DIGITS:
                found.setdefault(name, digest)
    return found


def packages(fingerprint: Fingerprint) -> Iterator[Package]:
    """Every installed distribution that the fingerprint names, each once."""
    seen: set[str] = set()
    for package in _stated(fingerprint):
        if package.name not in seen:
            seen.add(package.name)
            yield package


def _stated(fingerprint: Fingerprint) -> Iterator[Package]:
    for section in ("frameworks", "kernels"):
        content = fingerprint.sections.get(section)
        for name, reading in (content.facts if content else {}).items():
            value = reading.value
            if isinstance(value, dict) and isinstance(value.get("version"), str):
                yield Package(
                    name.removesuffix(".build"),
                    value["version"],
                    _text_or_none(value.get("record_sha256")),
                    _text_or_none(value.get("direct_url")),
                )
    installed = fingerprint.get("libraries", "installed_packages")
    for name, version in (installed.value if installed and isinstance(installed.value, dict) else {}).items():
        if isinstance(version, str):
            yield Package(name, version)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def as_text(reading: Fact) -> str:
    """A fact as one text: the value, or why there is none."""
    if reading.unavailable is not None:
        return reading.text()
    text = reading.value if isinstance(reading.value, str) else canonical_json(reading.value).decode()
    if len(text) > MAX_TEXT:
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        return f"sha256:{digest} of {len(text)} characters; the fingerprint has them"
    return text


_NAMESPACE = uuid.UUID("6f0b2c1e-6f0a-5d0e-9d0e-72697066696e")
"""Ours: the serial number follows from what the fingerprint says and when it was read."""
_ENVIRONMENT, _MODEL = "environment", "model"
_MODEL_SECTIONS = ("model", "tokenizer", "template", "sampling")


def bill_of_materials(fingerprint: Fingerprint) -> dict[str, Any]:
    """The BOM as JSON values. Only digests over all bytes become hashes; weaker ones stay properties."""
    libraries = [_library(package) for package in packages(fingerprint)]
    model = _model(fingerprint)
    components = ([model] if model else []) + libraries
    seed = f"{fingerprint.root_digest} {fingerprint.created}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(_NAMESPACE, seed).urn,
        "version": 1,
        "metadata": {
            "timestamp": fingerprint.created,
            "tools": {
                "components": [{"type": "application", "name": "rip", "version": fingerprint.tool_version}]
            },
            "component": {
                "type": "platform",
                "bom-ref": _ENVIRONMENT,
                "name": "inference environment",
                "version": fingerprint.root_digest,
                "properties": _properties(
                    fingerprint, [name for name in fingerprint.sections if name not in _MODEL_SECTIONS]
                ),
            },
        },
        "components": components,
        "dependencies": [
            {"ref": _ENVIRONMENT, "dependsOn": [component["bom-ref"] for component in components]}
        ],
    }


def _properties(fingerprint: Fingerprint, sections: list[str]) -> list[dict[str, str]]:
    return [
        {"name": f"rip:{section}.{field}", "value": as_text(reading)}
        for section in sections
        for field, reading in fingerprint.sections[section].facts.items()
    ]


def _model(fingerprint: Fingerprint) -> dict[str, Any] | None:
    identity = fingerprint.get("model", "sha256")
    if identity is None or identity.value is None:
        return None
    files = verified_files(fingerprint)
    volatile = fingerprint.sections["model"].volatile
    name = volatile["name"].text() if "name" in volatile else "model"
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": _MODEL,
        "name": name,
        "version": str(identity.value),
        "modelCard": {
            "modelParameters": _parameters(fingerprint),
            "properties": _properties(
                fingerprint, [section for section in _MODEL_SECTIONS if section in fingerprint.sections]
            ),
        },
        "components": [
            {"type": "file", "bom-ref": f"file:{name}", "name": name, "hashes": [_sha256(digest)]}
            for name, digest in files.items()
        ],
    }
    if list(files.values()).count(str(identity.value)) == 1:  # one weights file: its digest is the model's
        component["hashes"] = [_sha256(str(identity.value))]
    return component


def _parameters(fingerprint: Fingerprint) -> dict[str, str]:
    stated = fingerprint.get("model", "architecture")
    return {"modelArchitecture": str(stated.value)} if stated and stated.value is not None else {}


def _sha256(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest}


def _library(package: Package) -> dict[str, Any]:
    purl = f"pkg:pypi/{quote(package.name, safe='')}@{quote(package.version, safe='')}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
    }
    if package.record_sha256 is not None:
        component["properties"] = [{"name": "rip:record_sha256", "value": package.record_sha256}]
    if package.origin is not None:
        component["externalReferences"] = [
            {"type": "distribution", "url": quote(package.origin, safe=":/@?=&%+")}
        ]
    return component


PREDICATE_TYPE = "urn:rip:fingerprint:1"
"""The identifier of the document's JSON Schema."""


def in_toto_statement(fingerprint: Fingerprint, document: bytes, name: str) -> dict[str, Any]:
    """The statement as JSON values.

    Args:
        fingerprint: What is stated.
        document: The bytes of its document: what `sha256sum` of the file says is what the statement says.
        name: What to call the document.
    """
    files = verified_files(fingerprint)
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            _subject(name, hashlib.sha256(document).hexdigest()),
            *(_subject(file, digest) for file, digest in files.items()),
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "tool": {"name": "rip", "version": fingerprint.tool_version},
            "created": fingerprint.created,
            "rootDigest": fingerprint.root_digest,
            "sections": {section: content.digest for section, content in fingerprint.sections.items()},
            "keys": fingerprint.flat(),
        },
    }


def _subject(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256}}


_NAMING = ("uuid", "serial", "hostname")
"""Fields, and entries of a field's value, that end so hold such names."""
_UUID_IN_TEXT = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_ID_DIGITS = 16
"""64 bits: two cards of a fleet do not meet by chance."""
_DIGEST = re.compile(rf"sha256:[0-9a-f]{{{_ID_DIGITS}}}")


def hash_ids(fingerprint: Fingerprint) -> Fingerprint:
    """The same fingerprint with every GPU UUID, serial number and host name replaced by a digest.

    Its own digests are computed anew. One that was hashed before stays as it is.
    """
    sections = {
        name: Section(
            facts={field: _of_fact(field, fact) for field, fact in section.facts.items()},
            volatile={field: _of_fact(field, fact) for field, fact in section.volatile.items()},
            texts=None if section.texts is None else _of_value(section.texts, False),
        )
        for name, section in fingerprint.sections.items()
    }
    return Fingerprint.build(fingerprint.tool_version, fingerprint.created, sections)


def without_texts(fingerprint: Fingerprint) -> Fingerprint:
    """The same fingerprint, with the same digests, without the small texts behind them."""
    sections = {
        name: section.model_copy(update={"texts": None}) for name, section in fingerprint.sections.items()
    }
    return fingerprint.model_copy(update={"sections": sections})


def _of_fact(field: str, fact: Fact) -> Fact:
    if fact.unavailable is not None:
        return fact.model_copy(update={"unavailable": _of_text(fact.unavailable)})
    return fact.model_copy(update={"value": _of_value(fact.value, field.endswith(_NAMING))})


def _of_value(value: Any, naming: bool) -> Any:
    if isinstance(value, dict):
        return {
            _of_text(key): _of_value(item, naming or str(key).endswith(_NAMING))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_of_value(item, naming) for item in value]
    if not isinstance(value, str):
        return value
    named = naming and not is_absent_text(value) and not _DIGEST.fullmatch(value)
    return _digest(value) if named else _of_text(value)


def _of_text(text: str) -> str:
    return _UUID_IN_TEXT.sub(lambda found: _digest(found[0]), text)


def _digest(name: str) -> str:
    return f"sha256:{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:_ID_DIGITS]}"


def otel_attributes(envelope: Envelope) -> dict[str, Any]:
    """Attribute name → value of one request, and of the response that was recorded with it."""
    sampling = envelope.sampling
    stop = sampling.stop_strings() if sampling else []
    found: dict[str, Any] = {"gen_ai.operation.name": "chat" if envelope.messages else "text_completion"}
    if sampling is not None:
        found |= {
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.stop_sequences": stop or None,
            "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
            "gen_ai.request.presence_penalty": sampling.presence_penalty,
            "gen_ai.request.choice.count": sampling.n,
        }
    model = (envelope.model_extra or {}).get("model")
    found["gen_ai.request.model"] = model if isinstance(model, str) else None
    if envelope.expected is not None and envelope.expected.finish_reason is not None:
        found["gen_ai.response.finish_reasons"] = [envelope.expected.finish_reason]
    return {name: value for name, value in found.items() if value is not None}


FORMATS: dict[str, Callable[[Fingerprint, bytes, str], dict[str, Any]]] = {
    "cyclonedx": lambda fingerprint, document, name: bill_of_materials(fingerprint),
    "in-toto": in_toto_statement,
}
"""Name on the command line → what makes it of a fingerprint, its document's bytes and their name."""


def export(fingerprint: Fingerprint, kind: str, document: bytes, name: str) -> str:
    """A fingerprint as JSON text in another format.

    Args:
        fingerprint: What to export.
        kind: One of `FORMATS`.
        document: The bytes of its own document, which a statement names by digest.
        name: What to call that document.
    """
    return json.dumps(FORMATS[kind](fingerprint, document, name), indent=2, ensure_ascii=False) + "\n"
