"""Options that several commands share: which engine runs, on which model, where, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .completion import engine_names, setting_keys


def model_option(help: str) -> Any:
    """The option `--model` of a command that reads the files of a model."""
    return typer.Option(metavar="DIR|FILE.gguf|HUB-ID", help=help)


Model = Annotated[
    str | None, model_option("The model to run; with --url, its files or the name that the server gives it.")
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="hf (transformers in this process), vllm, llama.cpp, … (docs/engines.md), or module:Class of "
        "your own. [default: what the server at --url reports, else hf]",
        autocompletion=engine_names,
    ),
]
Url = Annotated[str | None, typer.Option(metavar="URL", help="Run on this server, which must be running.")]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The environment variable that holds the API key for --url."),
]
Python = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Start the engine's server with this interpreter; for hf, run rip with it. "
        "[default: the one that runs rip]",
    ),
]
Tap = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="The RIP_TAP folder of the vLLM server at --url, to observe its layers."
    ),
]
LaneName = Annotated[
    str,
    typer.Option(
        "--lane",
        metavar="NAME|LANE.toml",
        help="Name of the lane in the trace, or a lane file, which says how to run (docs/engines.md).",
    ),
]
AllowDrift = Annotated[
    bool,
    typer.Option(
        "--allow-drift", help="Run although an envelope names a different model, tokenizer or chat template."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of the engine. Repeatable.",
        autocompletion=setting_keys,
    ),
]
