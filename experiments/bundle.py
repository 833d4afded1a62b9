"""`rip bundle` and `rip verify`: what a release review asks for in one folder, and whether it is intact."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..schemas.bundle import Artifact, Bundle
from ..schemas.errors import BadInput
from ..schemas.files import check_output, report_disk_errors, write_private
from ..schemas.gate import Gate, load_policy
from .gate import GateRequest, baseline_file, candidate_environments, decide_gate

if TYPE_CHECKING:
    from ..schemas.matrix import MatrixVerdict
    from .acceptance.store import Store
    from .gating.bundle_folder import Fault

ARTIFACTS: tuple[Artifact, ...] = ("requests", "claims", "evidence", "cost", "fingerprints", "policy")
COST = "cost.json"


@dataclass(frozen=True)
class Checked:
    """What `rip verify` found.

    Attributes:
        faults: None: the bundle is intact.
        gate: The decision in it, made again from its ledger and policy; None: a file is damaged.
    """

    faults: list[Fault]
    gate: Gate | None = None


def make_bundle(request: GateRequest, out: Path, traces: bool = True) -> Bundle:
    """Pack the evidence of a plan, its policy and what that decides.

    Args:
        out: The folder to make; files in it have mode 0600.
        traces: False: leave them out.

    Raises:
        BadInput: The evidence or the policy cannot be used.
        OutputFailed: There is something of that name, or no room.
    """
    from .acceptance.store import open_store
    from .gating.bundle_folder import MANIFEST, STATEMENT, is_bundle, packed_file

    check_output(out, force=False)
    if is_bundle(request.evidence):
        raise BadInput(f"{request.evidence} is a bundle already", "name the folder of rip matrix run")
    now = datetime.now(UTC)
    gate = decide_gate(request, now)
    store = open_store(request.evidence)
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with report_disk_errors(out):
            unfinished.mkdir(mode=0o700)
            files = {name: (source, artifact) for name, source, artifact in _sources(request, store, traces)}
            for name, (source, _) in files.items():
                _copy(source, unfinished / name)
        made = _write_made(unfinished, request, store, gate)
        artifacts = {**{name: artifact for name, (_, artifact) in files.items()}, **made}
        manifest = Bundle(
            tool_version=__version__,
            created=gate.created,
            files=[packed_file(unfinished, unfinished / name, artifacts[name]) for name in sorted(artifacts)],
            absent=[each for each in ARTIFACTS if each not in artifacts.values()],
            traces=traces,
        )
        write_private(unfinished / MANIFEST, manifest.to_json())
        write_private(unfinished / STATEMENT, _statement(unfinished, gate))
        with report_disk_errors(out):
            unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return manifest


def _sources(request: GateRequest, store: Store, traces: bool) -> Iterator[tuple[str, Path, Artifact]]:
    """(name in the bundle, source, artifact) of every file that is copied.

    Raises:
        BadInput: The ledger names a trace that is not there.
    """
    from .acceptance.store import CELLS, LEDGER, LOGS, PLAN, PLANNED
    from .gating.bundle_folder import POLICY

    folder = store.folder
    for path in sorted([*folder.glob("requests*.jsonl"), *folder.glob("neighbours-*.jsonl")]):
        yield path.name, path, "requests"
    for name in (PLAN, PLANNED):
        yield name, folder / name, "claims"
    if (folder / LEDGER).is_file():
        yield LEDGER, folder / LEDGER, "evidence"
    if (folder / COST).is_file():
        yield COST, folder / COST, "cost"
    for path in sorted([*(folder / CELLS).rglob("*"), *(folder / LOGS).rglob("*")]):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix(), path, "evidence"
    for run in store.runs.values():
        if traces and run.trace is not None:
            if not store.trace(run).is_file():
                raise BadInput(
                    f"{store.trace(run)} is in the ledger and not in the folder",
                    "restore it, or leave the traces out with --no-traces",
                )
            yield store.trace(run).relative_to(folder).as_posix(), store.trace(run), "evidence"
    assert request.policy is not None
    yield POLICY, request.policy, "policy"


def _write_made(folder: Path, request: GateRequest, store: Store, gate: Gate) -> dict[str, Artifact]:
    """Write what the bundle has beyond the folder of the plan: verdict, decision, fingerprints."""
    from .gating.bundle_folder import BASELINE, ENVIRONMENT, GATE
    from .gating.environments import FINGERPRINTS, Environments, fingerprint_file, read_environment
    from .matrix import VERDICT, show_matrix

    write_private(folder / VERDICT, show_matrix(request.evidence).verdict.to_json())
    write_private(folder / GATE, gate.to_json())
    environments = Environments(store)
    made: dict[str, Artifact] = {VERDICT: "evidence", GATE: "evidence"}
    (folder / FINGERPRINTS).mkdir(mode=0o700)
    for key in environments.configurations():
        found = environments.fingerprint(key)
        if found is None:
            continue
        path = fingerprint_file(folder, key)
        write_private(path, found.to_json())
        made[path.relative_to(folder).as_posix()] = "fingerprints"
    assert request.policy is not None
    baseline = baseline_file(load_policy(request.policy), request.policy.parent)
    for name, source in ((BASELINE, baseline), (ENVIRONMENT, request.environment)):
        if source is not None:
            write_private(folder / name, read_environment(source).to_json())
            made[name] = "fingerprints"
    return made


def _copy(source: Path, target: Path) -> None:
    """A private copy of a file.

    Raises:
        OutputFailed: There is no room.
        BadInput: The source cannot be read.
    """
    import os

    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        content = source.open("rb")
    except OSError as error:
        raise BadInput(f"{source} cannot be read: {error.strerror}", "check the file") from None
    with content, os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
        shutil.copyfileobj(content, copy, 1 << 20)


def _statement(folder: Path, gate: Gate) -> str:
    from .gating.statement import write_statement

    return write_statement(folder, gate, candidate_environments(folder))


def verify_bundle(folder: Path) -> Checked:
    """Check a bundle offline: each file against the manifest, the manifest against the statement,
    the verdict against the ledger, the decision against the policy.

    Raises:
        BadInput: It is no bundle.
    """
    from ..schemas.matrix import MatrixVerdict
    from .gating.bundle_folder import (
        ENVIRONMENT,
        GATE,
        MANIFEST,
        STATEMENT,
        Fault,
        find_faults,
        is_bundle,
        read_manifest,
    )
    from .matrix import VERDICT, show_matrix

    try:
        manifest = read_manifest(folder)
    except BadInput:
        if not is_bundle(folder):
            raise
        return Checked([Fault("unreadable", MANIFEST)])
    faults = list(find_faults(folder, manifest))
    if faults:
        return Checked(faults)
    kept = Gate.from_json((folder / GATE).read_bytes(), GATE)
    environment = folder / ENVIRONMENT if (folder / ENVIRONMENT).exists() else None
    gate = decide_gate(GateRequest(folder, None, environment), datetime.fromisoformat(manifest.created))
    kept_verdict = MatrixVerdict.from_json((folder / VERDICT).read_bytes(), VERDICT)
    again = {
        STATEMENT: _statement(folder, kept).encode() == (folder / STATEMENT).read_bytes(),
        GATE: _decided(kept) == _decided(gate),
        VERDICT: _judged(kept_verdict) == _judged(show_matrix(folder).verdict),
    }
    return Checked(
        [Fault("not what the evidence says", name) for name, same in again.items() if not same], gate
    )


def _judged(verdict: MatrixVerdict) -> object:
    """What a verdict says, without when, by which rip, and against which table of dimensions."""
    cards = {"__all__": {"card"}}
    return verdict.model_dump(
        exclude={"created": True, "tool_version": True, "not_covered": True, "claims": cards}
    )


def _decided(gate: Gate) -> object:
    """What a gate decides, without by which rip and in which words of its rules."""
    changed = [(one.lane, one.change.name, one.action, one.effect) for one in gate.changed]
    return gate.decision, gate.policy, gate.evidence, gate.claims, gate.refusals, changed
