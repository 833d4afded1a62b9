"""The server of xllamacpp as a program of its own: `llama_child.py MODEL.gguf --port N --parameters JSON`.

A parameter that llama.cpp cannot take ends the process, which is why it is not rip's own. The file is run by
path, in an interpreter that may not have rip: it imports nothing of it.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Callable

PARAMETERS: dict[str, Callable[[str], object]] = {
    "n_ctx": int,
    "n_batch": int,
    "n_ubatch": int,
    "n_parallel": int,
    "n_gpu_layers": int,
    "threads": int,
    "threads_batch": int,
    "flash_attn": {"auto": -1, "off": 0, "on": 1}.__getitem__,
}
"""Settings of the server → how their text is read."""


def serve(model: str, port: int, parameters: dict[str, str]) -> None:
    """Serve until the process gets SIGTERM."""
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path = model
    wanted.hostnames = ["127.0.0.1"]
    wanted.port = port
    wanted.endpoint_props = True
    for name, text in parameters.items():
        value = PARAMETERS[name](text)
        if name == "threads":
            wanted.cpuparams.n_threads = value
        elif name == "threads_batch":
            wanted.cpuparams_batch.n_threads = value
        elif name == "flash_attn":
            wanted.flash_attn_type = value
        else:
            setattr(wanted, name, value)
    server = xllamacpp.Server(wanted)
    print("listening on", server.listening_address, flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parameters", type=json.loads, default={})
    arguments = parser.parse_args()
    serve(arguments.model, arguments.port, arguments.parameters)
