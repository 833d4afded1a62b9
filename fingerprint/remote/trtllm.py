"""What a TensorRT-LLM server reports (written for 1.0): version and settings.

`/metrics` and `/perf_metrics` are never read: reading them empties them for whoever collects them.
"""

from __future__ import annotations

from ..engine_arguments.command_line import is_uninteresting
from .server_reading import ServerReading, part, table

_INFO = "/server_info"


def read(reading: ServerReading) -> None:
    """Ask everything that changes nothing."""
    version = reading.ask("/version", "engine.version")
    reading.add("engine.version", part(version, "version"), "/version")
    info = table(reading.ask(_INFO, "engine.arguments"))
    reading.add_settings("tensorrt-llm", info, _INFO)
    kept = {
        name: value
        for name, value in sorted(info.items())
        if value is not None and not is_uninteresting(name)
    }
    reading.add("engine.arguments", kept or None, _INFO)
