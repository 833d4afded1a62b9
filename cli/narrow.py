"""`rip narrow`: run mixtures of two lanes until it is known which settings turn a divergence on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import BadInput, EngineFailed, OutputFailed
from .exit_codes import EXIT_FAILS, EXIT_HOLDS, EXIT_NOTHING_COMPARED
from .lane_options import ApiKeyEnv, EngineName, Model, Python, Settings, Url

if TYPE_CHECKING:
    from rich.console import Console

    from ..diverge.narrow.search import On
    from ..schemas.narrow import Narrow, NarrowLevel, NarrowObservation
    from .lane import Chosen
    from .narrow_lanes import Mixture

LEVELS = ("token", "bitwise")
CAPTURES = ("tokens", "sites")
HELP = """Two lanes differ in several settings and answer differently: find the settings that are to blame.

Runs the requests under mixtures of the two lanes, each in a process of its own, and keeps every trace. The
result is the smallest set of settings that turns the divergence on: it is turned on by them alone, and goes
away when any one of them is taken back.

\b
Examples:
  rip narrow set.jsonl --good monday.toml --bad tuesday.toml -o narrowed
  rip narrow set.jsonl --model ./SmolLM2 --vary dtype=float32:bfloat16 --vary threads=2:1 \\
      --vary neighbours=:7 -o narrowed
  rip narrow set.jsonl --model ./SmolLM2 --set dtype=bfloat16 --vary attention=sdpa:eager \\
      --vary env.ATEN_CPU_CAPABILITY=:avx2 --require bitwise -o narrowed
  rip narrow set.jsonl --good vllm.toml --vary env.OMP_NUM_THREADS=2:1 --repeat 8 -o narrowed

\b
What can differ: settings (--set), environment variables (env.NAME), model, url, neighbours, and python: the
interpreter that starts the server or, for engines in rip's own process, that runs rip itself.

The same command again goes on where an interrupted one stopped. How it searches: docs/narrow.md.

Exit code 0: found; 1: the lanes do not diverge; 3: too noisy to tell with so few repeats.
"""


def narrow(
    requests: Annotated[
        Path, typer.Argument(metavar="ENVELOPE.json|SET.jsonl|TRACE.parquet", help="What to run.")
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Where the traces and the result go.")
    ],
    good: Annotated[
        str | None,
        typer.Option(
            "--good", metavar="LANE.toml", help="The lane that is as wanted. [default: the options]"
        ),
    ] = None,
    bad: Annotated[
        str | None,
        typer.Option("--bad", metavar="LANE.toml", help="The other lane. [default: the good one]"),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=GOOD:BAD",
            help="A setting that differs; an empty value leaves it unstated. Repeatable.",
        ),
    ] = None,
    model: Model = None,
    engine: EngineName = None,
    url: Url = None,
    api_key_env: ApiKeyEnv = None,
    python: Python = None,
    settings: Settings = None,
    require: Annotated[
        str,
        typer.Option("--require", metavar="|".join(LEVELS), help="Level whose loss counts as a divergence."),
    ] = "token",
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat",
            metavar="N",
            min=1,
            max=1000,
            help="Where outcomes are noisy: run a mixture up to N times, until its outcome is decided.",
        ),
    ] = 1,
    capture: Annotated[
        str | None,
        typer.Option("--capture", metavar="|".join(CAPTURES), help="As of rip replay. [default: sites]"),
    ] = None,
    allow_drift: Annotated[
        bool,
        typer.Option(
            "--allow-drift", help="Run although the envelope names another model, tokenizer or template."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start anew, over what the folder holds.")] = False,
) -> None:
    from ..diverge.narrow.summary import print_narrow
    from ..replay.capture.lock import OutputLock
    from .console import stderr_console
    from .lane import Chosen
    from .narrow_lanes import Mixture, prepare
    from .narrow_runs import RESULT

    for option, value, choices in (("--require", require, LEVELS), ("--capture", capture, (None, *CAPTURES))):
        if value not in choices:
            known = ", ".join(choice for choice in choices if choice)
            raise BadInput(f"{option} {value}: no such choice", f"choose one of: {known}")
    given = Chosen("narrow", engine, model, url, api_key_env, python, None, tuple(settings or ()))
    lanes = _lanes(given, good, bad, vary or [])
    mixture = Mixture.of(*(prepare(lane, capture) for lane in lanes))
    options = [str(requests), *(["--capture", capture] if capture else [])]
    options += ["--allow-drift"] if allow_drift and "model" not in mixture.names else []
    console = stderr_console()
    new = _new(requests, mixture, options, require, repeat)  # type: ignore[arg-type]
    _make_folder(out)
    with OutputLock(out / RESULT, force=True):
        result = _search(console, _begun(out, new, force), mixture, options, out)
    print_narrow(console, result)
    console.print(f"Wrote {out}", markup=False)
    if as_json:
        print(result.to_json(), end="")
    codes = {"no divergence": EXIT_FAILS, "noise": EXIT_NOTHING_COMPARED}
    raise typer.Exit(codes.get(result.state, EXIT_HOLDS))


narrow.__doc__ = HELP


def _lanes(given: Chosen, good: str | None, bad: str | None, varied: list[str]) -> tuple[Chosen, Chosen]:
    """Both lanes: from their files, with the options and with what is varied on top."""
    from .lane import LANE_SUFFIX, choose
    from .narrow_lanes import parse_vary, vary

    for option, path in (("--good", good), ("--bad", bad)):
        if path is not None and not path.endswith(LANE_SUFFIX):
            raise BadInput(f"{option} {path}: not a lane file", "its name ends in .toml: see docs/engines.md")
    pairs = parse_vary(varied)
    base = choose(good, given) if good else given
    other = choose(bad, given) if bad else base
    return (
        vary(base, [(name, value) for name, value, _ in pairs]),
        vary(other, [(name, value) for name, _, value in pairs]),
    )


def _new(requests: Path, mixture: Mixture, options: list[str], level: NarrowLevel, repeat: int) -> Narrow:
    """A search that has not begun."""
    from .. import __version__
    from ..schemas.base import sha256_of
    from ..schemas.narrow import Narrow
    from .narrow_lanes import content_digest

    identity = {
        "rip": __version__,
        "requests": content_digest(requests),
        "options": options[1:],
        **mixture.identity(),
    }
    return Narrow(
        tool_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        asked=sha256_of(identity),
        requests=str(requests),
        engine=mixture.good.engine,
        level=level,
        repeat=repeat,
        state="unfinished",
        varied=mixture.varied(),
        configurations=[],
    )


def _make_folder(out: Path) -> None:
    """Make the folder, if it is not there.

    Raises:
        OutputFailed: It cannot be made.
    """
    try:
        out.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise OutputFailed(
            f"{out} cannot be used: {error.strerror}", "name a folder whose parent exists with -o"
        ) from None


def _begun(out: Path, new: Narrow, force: bool) -> Narrow:
    """The search that the folder holds, if it is this one; else the new one.

    Raises:
        OutputFailed: The folder holds something else, and `force` is off.
    """
    from ..schemas.narrow import Narrow
    from .narrow_runs import RESULT

    path = out / RESULT
    if not path.exists():
        if any(one.name != f".{RESULT}.lock" for one in out.iterdir()) and not force:
            raise OutputFailed(f"{out} is not empty", "choose another folder, or use it with --force")
        return new
    if force:
        return new
    earlier = Narrow.from_json(path.read_bytes(), str(path))
    if earlier.asked != new.asked:
        raise OutputFailed(
            f"{out} holds another search: its requests, lanes or options differ",
            "choose another folder, or start anew with --force",
        )
    return earlier.model_copy(update={"level": new.level, "repeat": new.repeat})


def _search(console: Console, begun: Narrow, mixture: Mixture, options: list[str], out: Path) -> Narrow:
    """Run what is not known yet, and write the result.

    Raises:
        EngineFailed: A lane cannot be run at all.
    """
    from ..diverge.narrow.ledger import Ledger
    from ..diverge.narrow.search import narrow as search
    from .console import printable, progress_bar, tell, write_private
    from .narrow_runs import RESULT, Runs

    ledger = Ledger(begun, out)
    if ledger.finished_runs:
        tell(console, f"going on after {ledger.finished_runs} runs that {out} holds")
    with progress_bar(console) as bar:
        task = bar.add_task("", total=None, note="")
        made: list[int] = [0, 0]

        def watch(on: On, done: int, most: int) -> None:
            made[:] = [done + 1, most - 1]
            description = printable(f"run {done + 1}: {ledger.name(on)}")
            bar.update(task, description=description, note=f"at most {most} more for one set")

        def done(on: On, index: int, run: NarrowObservation) -> None:
            tell(console, _told(ledger.name(on), run, begun.level, index, *made))

        runs = Runs(mixture, options, out, ledger, begun.level, done)
        finding = search(mixture.names, runs, begun.repeat, watch)
    if finding.failed is not None:
        _refuse(ledger.name(finding.failed), finding.failed, ledger.known, runs.log)
    result = ledger.document(finding)
    result = result.model_copy(update={"commands": _commands(result, mixture, options, out)})
    write_private(out / RESULT, result.to_json())
    return result


def _told(name: str, run: NarrowObservation, level: NarrowLevel, index: int, number: int, most: int) -> str:
    """One line a run: `run 5: with-dtype diverges: request q1, step 28 (3.1 s; at most …)`."""
    again = f", run {index + 1} of it" if index else ""
    if level not in run.diverges:
        came = f" failed: {run.why}"
    elif run.diverges[level]:
        came = f" diverges: {run.where.get(level, '')}"
    else:
        came = " is the reference" if name == "good" and not index else " is the same"
    return f"run {number}: {name}{again}{came} ({run.seconds:.1f} s; at most {most} more for one set)"


def _refuse(
    name: str,
    on: On,
    known: Callable[[On, int], NarrowObservation | None],
    log: Callable[[On, int], Path],
) -> None:
    """Say why a lane could not be run.

    Raises:
        EngineFailed: Always.
    """
    index = 0
    while (run := known(on, index)) is not None and run.why is None:
        index += 1
    why = run.why if run is not None else "it did not end"
    raise EngineFailed(
        f"the {name} lane cannot be run: {why}", f"mend it; what it said is in {log(on, index)}"
    )


def _commands(result: Narrow, mixture: Mixture, options: list[str], out: Path) -> list[str]:
    """What compares the two deciding runs, and what runs them again."""
    import shlex

    if not result.found:
        return []
    found = result.found[0]
    traces = [str(out / f"{name}.parquet") for name in ("good", found.configuration)]
    again = ("good-again.parquet", "bad-again.parquet")
    runs = [
        mixture.run(on, [*options, "-o", trace], shown=True).line()
        for on, trace in zip(([], found.settings), again, strict=True)
    ]
    level = [] if result.level == "token" else ["--require", result.level]
    compare, compare_again = (shlex.join(["rip", "diverge", *pair, *level]) for pair in (traces, again))
    return [compare, *runs, compare_again]
