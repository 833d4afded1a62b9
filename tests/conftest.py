"""What all tests share: hypothesis without time limits, and the same examples on every run in CI."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("rip", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("rip")
