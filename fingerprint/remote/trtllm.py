"""What a TensorRT-LLM server tells (written for 1.0): version and settings.

`/metrics` and `/perf_metrics` are never read: reading them empties them for whoever collects them.
"""

from __future__ import annotations

from ..engine_arguments.command_line import is_uninteresting
from .client import Client, NoAnswer
from .server_facts import Told, part, table

_INFO = "/server_info"


def read(client: Client, told: Told) -> None:
    """Ask everything that changes nothing."""
    try:
        told.say("engine", "version", part(client.get("/version").json(), "version"), "/version")
    except NoAnswer as reason:
        told.lacks("engine", "version", str(reason), "/version")
    try:
        info = table(client.get(_INFO).json())
    except NoAnswer as reason:
        told.lacks("engine", "arguments", str(reason), _INFO)
        return
    told.say_all("tensorrt-llm", info, _INFO)
    kept = {
        name: said for name, said in sorted(info.items()) if said is not None and not is_uninteresting(name)
    }
    told.say("engine", "arguments", kept or None, _INFO)
