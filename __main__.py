"""Where the command `rip` (and `python -m rip`) begins, and where Ctrl-C finds nothing loaded yet."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        from .schemas.exit_codes import EXIT_INTERRUPTED

        print("rip: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
