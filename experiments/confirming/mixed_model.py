"""A model folder with one kind of A's files and the rest of B's: links, nothing is copied."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ...schemas.findings.statement import Command, Undone
from ...schemas.jsontext import sha256_of

_OF_PROMPTS = (
    "tokenizer",
    r"(tokenizer.*|vocab.*|merges\.txt|special_tokens_map\.json|added_tokens\.json|chat_template.*)",
)
KINDS: dict[str, tuple[str, str]] = {
    "weights": ("weights", r".*\.(safetensors|bin|pt)(\.index\.json)?"),
    "model-config": ("config.json", r"config\.json"),
    "tokenizer": _OF_PROMPTS,
    "prompt": _OF_PROMPTS,
    "prompt-insertion": _OF_PROMPTS,
    "prompt-truncated": _OF_PROMPTS,
    "prompt-clock": _OF_PROMPTS,
}
"""Cause → what of a model folder it is about, and the files of that."""


def with_files_of_a(command: Command, cause: str, run_in: Path, folder: Path) -> Command | None:
    """The same experiment with only the files of A that a cause is about.

    Args:
        command: Undoes the model as a whole.
        run_in: Where paths in it start.
        folder: Of the experiments; the model folder is made there.

    Returns:
        None where the models are no folders.

    Raises:
        OSError: It cannot be made.
    """
    model = next((one for one in command.changes if one.of == "model"), None)
    if model is None or cause not in KINDS:
        return None
    a, b = (run_in / str(path) for path in (model.value, model.was))
    if not a.is_dir() or not b.is_dir():
        return None
    name, pattern = KINDS[cause]
    chosen = [path for path in a.iterdir() if re.fullmatch(pattern, path.name)]
    kept = [path for path in b.iterdir() if not re.fullmatch(pattern, path.name)]
    mixed = folder / f"model-{cause}-{sha256_of([str(a.resolve()), str(b.resolve())])[:12]}"
    shutil.rmtree(mixed, ignore_errors=True)  # only links are in it
    mixed.mkdir(mode=0o700)
    for path in (*chosen, *kept):
        (mixed / path.name).symlink_to(path.resolve())
    at = command.argv.index("--model") + 1
    undone = Undone(of="model", name=name, value=str(mixed), was=model.was)
    argv = [*command.argv[:at], str(mixed), *command.argv[at + 1 :]]
    rest = [one for one in command.changes if one.of != "model"]
    return command.model_copy(update={"argv": argv, "undoes": [*rest, undone]})
