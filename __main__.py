"""Where the command `rip` (and `python -m rip`) begins, and where Ctrl-C finds nothing loaded yet."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        print("rip: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
