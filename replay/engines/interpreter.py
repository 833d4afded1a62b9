"""Whether a Python interpreter has a module, found out without importing it."""

from __future__ import annotations

import subprocess

from ...schemas.errors import EngineFailed

_QUESTION = "import importlib.util as u, sys; sys.exit(0 if u.find_spec(sys.argv[1]) else 3)"
_ANSWER_S = 60.0


def has_module(python: str, module: str, *flags: str) -> bool:
    """Whether an interpreter finds a module.

    Args:
        python: The interpreter.
        module: Dotted name.
        flags: Options of the interpreter.

    Raises:
        EngineFailed: It cannot be run.
    """
    try:
        done = subprocess.run(
            [python, *flags, "-c", _QUESTION, module], capture_output=True, timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not answer"
        raise EngineFailed(f"{python} cannot be run: {reason}", "name an interpreter with --python") from None
    return done.returncode == 0
