"""A fingerprint as a CycloneDX 1.6 ML-BOM (JSON).

The environment is the described component, a platform, with its facts as properties; the model is a
machine-learning-model component with its files and their hashes; Python distributions are libraries. The
format's own Python package has no model card, so the JSON is written here, and tests hold it against the
official schema.
"""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import quote

from ...schemas.fingerprint import Fingerprint
from .facts import Package, as_text, packages, verified_files

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
