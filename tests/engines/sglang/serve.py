"""Starts SGLang 0.5.23 on a machine without a GPU, where two libraries that it imports cannot be loaded.

What is absent is declared so that it can be imported, and raises where it is called: every number that the
server returns is made by SGLang's own code.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, NoReturn

import torch

KERNELS = "sgl_kernel"
"""SGLang's CUDA kernels; its native layers run on the CPU."""
IMAGE_OPERATORS = ("nms", "qnms")
"""Operators that torchvision extends while it is imported; its C library, which has them, needs CUDA."""


class AbsentKernels(ModuleType):
    """A module of which every name can be imported and nothing can be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_: object, **__: object) -> NoReturn:
            raise NotImplementedError(f"{KERNELS}.{name} was called and is not installed")

        return absent


def declare_absent() -> torch.library.Library:
    """Make SGLang importable, here and in the processes that it starts, which import this file again."""
    sys.modules[KERNELS] = AbsentKernels(KERNELS)
    operators = torch.library.Library("torchvision", "DEF")
    for name in IMAGE_OPERATORS:
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return operators


os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
DECLARED = declare_absent()
"""Kept: operators last as long as the library that declares them."""

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
