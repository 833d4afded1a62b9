"""Writes the JSON Schema files of `schemas/json/`: `python -m rip.schemas.generate`.

With `--check` it only says whether the files are in step. Field docstrings become descriptions here, from
the source text, so that loading a document does not pay for them.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from . import (
    bundle,
    change,
    check,
    envelope,
    fingerprint,
    gate,
    matrix,
    narrow,
    plan,
    recorded_ops,
    trace,
    verdict,
)
from .base import Document, Record

FOLDER = Path(__file__).parent / "json"

DOCUMENTS: dict[str, type[Document]] = {
    "bundle.json": bundle.Bundle,
    "check.json": check.Check,
    "drift.json": change.Drift,
    "envelope.json": envelope.Envelope,
    "fingerprint.json": fingerprint.Fingerprint,
    "gate.json": gate.Gate,
    "matrix.json": matrix.MatrixVerdict,
    "narrow.json": narrow.Narrow,
    "plan.json": plan.Plan,
    "policy.json": gate.Policy,
    "trace-header.json": trace.TraceHeader,
    "verdict.json": verdict.Verdict,
    "zoom-header.json": recorded_ops.ZoomHeader,
}


class _WithoutTitles(GenerateJsonSchema):
    """Pydantic repeats every field's name as a title; that says nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema(document: type[Document]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one kind of document, as rip reads it."""
    generated = document.model_json_schema(mode="validation", schema_generator=_WithoutTitles)
    descriptions = _field_descriptions()
    for name, described in [(document.__name__, generated), *generated.get("$defs", {}).items()]:
        for field, text in descriptions.get(name, {}).items():
            if field in described.get("properties", {}):
                described["properties"][field]["description"] = text
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{document.schema_name().replace('/', ':').replace('.', ':')}",
        **generated,
    }


def _field_descriptions() -> dict[str, dict[str, str]]:
    return {
        node.name: dict(_described_fields(node))
        for module in sorted(_modules_of_parts(Record))
        for node in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(node, ast.ClassDef)
    }


def _modules_of_parts(record: type[Record]) -> set[str]:
    """Where the documents and their parts are written down: the modules of this package with such classes."""
    found = set().union(*map(_modules_of_parts, record.__subclasses__()))
    return found | ({record.__module__} if record.__module__.startswith(f"{__package__}.") else set())


def _described_fields(node: ast.ClassDef) -> list[tuple[str, str]]:
    described = []
    for field, text in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            described.append((field.target.id, " ".join(text.value.value.split())))
    return described


def stale_files(folder: Path = FOLDER) -> list[str]:
    """Names of the files in `folder` that are missing, not in step with the classes, or of no document."""
    stale = [name for name, text in _texts().items() if not _holds(folder / name, text)]
    extra = [path.name for path in folder.glob("*.json") if path.name not in DOCUMENTS]
    return sorted(stale + extra)


def _texts() -> dict[str, str]:
    return {
        name: json.dumps(json_schema(document), indent=2, ensure_ascii=False) + "\n"
        for name, document in DOCUMENTS.items()
    }


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text("utf-8") == text


def main(arguments: list[str]) -> int:
    """Write the files, or with `--check` compare them. Returns the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m rip.schemas.generate [--check]", file=sys.stderr)
        return 2
    if arguments:
        stale = stale_files()
        if stale:
            print(f"schemas/json is not in step: {', '.join(stale)}\n     fix: make schemas", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        if path.name not in DOCUMENTS:
            path.unlink()
    for name, text in _texts().items():
        (FOLDER / name).write_text(text, "utf-8")
        print(f"Wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
