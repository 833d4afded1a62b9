"""vLLM's plugin entry point. It knows when to do nothing: without RIP_TAP it imports only os.

vLLM calls `register` in every process: API server, engine core, workers. Where RIP_TAP is set it arranges
that a worker, once its model is loaded, gets taps (see `worker.py`).
"""

import os


def register() -> None:
    """Arrange for this process's vLLM workers to be observed, if RIP_TAP names a folder."""
    if not os.environ.get("RIP_TAP"):
        return
    import logging

    try:
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        from .worker.start_taps import tap_worker
    except ImportError as error:
        logging.getLogger("vllm.rip_tap").warning("rip observes nothing here: %s", error)
        return
    untapped = WorkerWrapperBase.init_device
    if hasattr(untapped, "rip_tap"):
        return

    def init_device(self):  # type: ignore[no-untyped-def]
        untapped(self)
        tap_worker(self.worker)

    init_device.rip_tap = True  # type: ignore[attr-defined]
    WorkerWrapperBase.init_device = init_device
