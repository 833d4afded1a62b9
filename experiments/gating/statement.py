"""The verdict as an in-toto Statement, which existing signers can sign; rip signs nothing itself.

Statement v1 with the predicate test-result v0.1 (github.com/in-toto/attestation/tree/main/spec). Subjects are
the model's files, named as OpenSSF model signing names its resources: path from the model's folder, SHA-256.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...fingerprint.export import verified_files
from ...schemas.fingerprint import Fingerprint
from ...schemas.gate import Gate
from ..acceptance.inputs import REQUESTS, digest_of
from ..acceptance.store import PLAN
from .bundle_folder import GATE, MANIFEST, POLICY

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
_RESULTS = {"pass": "PASSED", "drift report": "WARNED", "block": "FAILED", "refused": "FAILED"}


def write_statement(folder: Path, gate: Gate, models: Mapping[str, Fingerprint]) -> str:
    """The statement of a bundle, as JSON text.

    Args:
        folder: Of the bundle, with its manifest.
        models: Lane of a candidate → its environment.
    """
    failed = [f"claim/{claim.id}" for claim in gate.claims if claim.state != "holds"]
    failed += [f"change/{one.lane}/{one.change.name}" for one in gate.changed if one.effect == "block"]
    failed += [f"evidence/{kind}" for kind in dict.fromkeys(one.kind for one in gate.refusals)]
    warned = [f"change/{one.lane}/{one.change.name}" for one in gate.changed if one.effect != "block"]
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": _subjects(models) or [_resource(folder, MANIFEST)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "result": _RESULTS[gate.decision],
            "configuration": [_resource(folder, name) for name in (MANIFEST, PLAN, REQUESTS, POLICY, GATE)],
            "passedTests": [f"claim/{claim.id}" for claim in gate.claims if claim.state == "holds"],
            "warnedTests": warned,
            "failedTests": failed,
        },
    }
    return json.dumps(statement, indent=2, ensure_ascii=False) + "\n"


def _resource(folder: Path, name: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": digest_of(folder / name)}}


def _subjects(models: Mapping[str, Fingerprint]) -> list[dict[str, Any]]:
    """The files of which every byte was read; a name that stands for several contents follows its lane."""
    files = [
        (lane, name, digest)
        for lane, model in models.items()
        for name, digest in verified_files(model).items()
    ]
    contents: dict[str, set[str]] = {}
    for _, name, digest in files:
        contents.setdefault(name, set()).add(digest)
    named = {(f"{lane}/{name}" if len(contents[name]) > 1 else name): digest for lane, name, digest in files}
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(named.items())]
