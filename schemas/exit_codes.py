"""What the process returns: the exit codes of every command."""

from __future__ import annotations

EXIT_HOLDS = 0
"""The claim holds (by default: tokens equal)."""


EXIT_FAILS = 1
"""It does not."""


EXIT_NO_WORK = 2
"""The command could not do its work."""


EXIT_NOTHING_COMPARED = 3
"""Nothing could be compared. Never a pass."""


EXIT_INTERRUPTED = 130
"""The user stopped the command."""
