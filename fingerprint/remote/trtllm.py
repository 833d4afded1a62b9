"""What a TensorRT-LLM server reports (written for 1.0): version and settings.

`/metrics` and `/perf_metrics` are never read: reading them empties them for whoever collects them.
"""

from __future__ import annotations

from .server_reading import ServerReading, part, table

_INFO = "/server_info"


def read(reading: ServerReading) -> None:
    """Ask everything that changes nothing."""
    version = reading.ask("/version", "engine.version")
    reading.add("engine.version", part(version, "version"), "/version")
    info = table(reading.ask(_INFO, "engine.arguments"))
    reading.add_settings("tensorrt-llm", info, _INFO)
    reading.add_arguments(info, _INFO)
