"""Options of every command that runs an engine: which one, on which model, where, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="DIR|FILE.gguf|HUB-ID",
        help="The model to run; with --url, its files or the name that the server gives it.",
    ),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="hf (transformers in this process), vllm, llama.cpp, … (docs/engines.md), module:Class of "
        "an own one. [default: what serves at --url, else hf]",
    ),
]
Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Run on this server, which runs already.")
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(
        "--api-key-env", metavar="NAME", help="The environment variable that holds the key of --url."
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="FILE",
        help="Start the engine's server with this interpreter, which has it; for hf, rip itself.",
    ),
]
Tap = Annotated[
    Path | None,
    typer.Option(
        "--tap", metavar="DIR", help="The folder RIP_TAP of the vLLM server at --url: observe its layers."
    ),
]
LaneName = Annotated[
    str,
    typer.Option(
        "--lane",
        metavar="NAME|LANE.toml",
        help="Name of this way to run, kept in the trace; or a file that says how (docs/engines.md).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the engine. Repeatable."),
]
