"""`rip narrow`: run mixtures of two lanes until it is known which settings turn a divergence on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import BadInput, EngineFailed
from .exit_codes import EXIT_FAILS, EXIT_HOLDS, EXIT_NOTHING_COMPARED
from .lane_options import ApiKeyEnv, EngineName, Model, Python, Settings, Url

if TYPE_CHECKING:
    from rich.console import Console

    from ..experiments.narrow.mixtures import Mixture
    from ..experiments.narrow.search import On
    from ..experiments.narrow.two_lanes import Side
    from ..schemas.narrow import Narrow, NarrowLevel, NarrowObservation

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

All values are checked before the first run. The same command again goes on where an interrupted one stopped.
How it searches: docs/narrow.md.

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
    from ..experiments.lanes.resolve import Chosen
    from ..experiments.narrow.mixtures import Mixture, prepare
    from ..experiments.narrow.resume import RESULT, begun, make_folder, new_search
    from ..experiments.narrow.summary import print_narrow
    from ..experiments.narrow.two_lanes import check_requests, sides
    from ..schemas.output_lock import OutputLock
    from .console import stderr_console

    for option, value, choices in (("--require", require, LEVELS), ("--capture", capture, (None, *CAPTURES))):
        if value not in choices:
            known = ", ".join(choice for choice in choices if choice)
            raise BadInput(f"{option} {value}: no such choice", f"choose one of: {known}")
    check_requests(requests)
    given = Chosen("narrow", engine, model, url, api_key_env, python, None, tuple(settings or ()))
    lanes = sides(given, good, bad, vary or [])
    mixture = Mixture.of(*(prepare(lane, capture) for lane in lanes))
    options = [str(requests), *(["--capture", capture] if capture else [])]
    options += ["--allow-drift"] if allow_drift and "model" not in mixture.names else []
    console = stderr_console()
    new = new_search(requests, mixture, options, require, repeat)  # type: ignore[arg-type]
    _check(console, lanes, begun(out, new, force)[0], out)
    make_folder(out)
    with OutputLock(out / RESULT, force=True):
        result = _search(console, begun(out, new, force), mixture, lanes, options, out)
    print_narrow(console, result)
    console.print(f"Wrote {out}", markup=False)
    if as_json:
        print(result.to_json(), end="")
    codes = {"no divergence": EXIT_FAILS, "noise": EXIT_NOTHING_COMPARED}
    raise typer.Exit(codes.get(result.state, EXIT_HOLDS))


narrow.__doc__ = HELP


def _check(console: Console, lanes: tuple[Side, Side], known: Narrow, out: Path) -> None:
    """Check all values of the lanes that have not run yet.

    Raises:
        BadInput, EngineFailed: One cannot be used.
    """
    from ..experiments.narrow.ledger import Ledger
    from ..experiments.narrow.mixtures import check
    from ..experiments.narrow.search import GOOD
    from .console import progress_bar

    ledger = Ledger(known, out)
    with progress_bar(console) as bar:
        for lane, on in zip(lanes, (GOOD, ledger.all_on), strict=True):
            if not ledger.runs_of(on):
                bar.add_task(f"checking the {lane.name} lane", total=None, note="")
                check(lane)


def _search(
    console: Console,
    begun: tuple[Narrow, str],
    mixture: Mixture,
    lanes: tuple[Side, Side],
    options: list[str],
    out: Path,
) -> Narrow:
    """Run what is not known yet, and write the result.

    Raises:
        EngineFailed: A lane cannot be run at all.
    """
    from ..experiments.narrow.ledger import Ledger
    from ..experiments.narrow.resume import RESULT
    from ..experiments.narrow.runs import Runs
    from ..experiments.narrow.search import narrow as search
    from ..schemas.files import write_private
    from .console import printable, progress_bar, tell

    document, note = begun
    if note:
        tell(console, note)
    ledger = Ledger(document, out)
    write_private(out / RESULT, ledger.document().to_json())  # so that the folder is known from the first run
    with progress_bar(console) as bar:
        task = bar.add_task("", total=None, note="")
        made: list[int] = [0, 0]

        def watch(on: On, done: int, most: int) -> None:
            made[:] = [done + 1, most - 1]
            description = printable(f"run {done + 1}: {ledger.name(on)}")
            bar.update(task, description=description, note=f"at most {most} more for one set")

        def done(on: On, index: int, run: NarrowObservation) -> None:
            tell(console, _told(ledger.name(on), run, document.level, index, *made))

        runs = Runs(mixture, options, out, ledger, document.level, done)
        finding = search(mixture.names, runs, document.repeat, watch)
    if finding.failed is not None:
        _refuse(lanes[bool(finding.failed)], finding.failed, ledger.known, runs.log)
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
    lane: Side,
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
    why = lane.as_typed(run.why or "") if run is not None else "it did not end"
    kept = "; the good lane's runs are kept" if on else ""
    of_run = log(on, index)
    of_server = of_run.with_suffix(".parquet.server.log")
    said = [of_run, *([of_server] if of_server.exists() else [])]
    raise EngineFailed(
        f"the {lane.name} lane cannot be run: {why}",
        f"mend it and give the command again{kept}; what it said is in {' and '.join(map(str, said))}",
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
