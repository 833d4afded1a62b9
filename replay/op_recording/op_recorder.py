"""Recording dispatched ops: the inputs and outputs of each, hashed, with the module it ran in.

It knows torch's dispatcher and tensors; which pass is recorded is the choice of rerun.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...schemas.recorded_ops import Op, OpTensor
from ..capture.modules import canonical_name, replace_calls

KEPT_BYTES = 512 << 20
"""Tensors kept of one pass, in all; beyond it only digests are."""
_UNDEFINED = re.compile(r"aten\.(new_)?empty")
"""Ops that return uninitialised memory."""
_MOST_TEXT = 160
"""Characters of an op's arguments."""

Call = Callable[..., Any]


class ModuleStack:
    """Which module is running, followed by replacing the modules' calls.

    Args:
        model: The model.
        base: The module whose path is stripped from names.
    """

    def __init__(self, model: nn.Module, base: nn.Module) -> None:
        paths = {module: path for path, module in model.named_modules()}
        root = paths.get(base, "")
        self._names = {module: _stripped(path, root) for module, path in paths.items()}
        self._running: list[tuple[str, int]] = []
        self._calls: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """Canonical paths of all modules; that of the base is empty."""
        return list(self._names.values())

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Inside this context `current` is known."""
        with replace_calls({module: self._replacement(name) for module, name in self._names.items()}):
            yield

    def _replacement(self, name: str) -> Callable[[Call], Call]:
        def of(call: Call) -> Call:
            def followed(*args: Any, **kwargs: Any) -> Any:
                times = self._calls[name] = self._calls.get(name, -1) + 1
                self._running.append((name, times))
                try:
                    return call(*args, **kwargs)
                finally:
                    self._running.pop()

            return followed

        return of

    def begin(self) -> None:
        """A pass begins: calls are counted anew."""
        self._calls.clear()

    @property
    def current(self) -> tuple[str, int]:
        """Path of the innermost running module, and which of its calls in this pass it is."""
        return self._running[-1] if self._running else ("", 0)


def _stripped(path: str, root: str) -> str:
    if path == root:
        return ""
    return canonical_name(path.removeprefix(f"{root}.") if root else path)


class OpRecorder(TorchDispatchMode):
    """While this mode is on, ops in scope are recorded.

    Args:
        model: Whose parameters and buffers are named.
        base: The module whose path is stripped from names.
        stack: Knows which module runs.
        scope: Pattern for module paths; ops elsewhere only count.
    """

    def __init__(self, model: nn.Module, base: nn.Module, stack: ModuleStack, scope: re.Pattern[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stack, self._scope = stack, scope
        root = {module: path for path, module in model.named_modules()}.get(base, "")
        self._named: dict[int, str] = {}
        for path, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.numel() and not tensor.is_meta:
                self._named.setdefault(tensor.untyped_storage().data_ptr(), _stripped(path, root))
        self._producer: dict[int, int] = {}
        self._count = 0
        self._occurrences: dict[tuple[str, int, str], int] = {}
        self._kept = 0
        self.left_out = 0
        """Bytes of tensors that were not kept, because of `KEPT_BYTES`."""
        self.ops: list[Op] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one op, and record it where it is in scope."""
        kwargs = kwargs or {}
        module, call = self._stack.current
        index, self._count = self._count, self._count + 1
        wanted = self._scope.search(module) is not None
        if wanted:
            arguments = _named_arguments(func, args, kwargs)
            # Before the op runs: it may write into what it takes.
            inputs = tuple(self._describe(name, value) for name, value in _tensors_in(arguments))
            text = _arguments_text(arguments)
        result = func(*args, **kwargs)
        made = list(_tensors_in({"out": result}))
        name = str(func)
        if wanted:
            key = (module, call, name)
            occurrence = self._occurrences[key] = self._occurrences.get(key, -1) + 1
            defined = not _UNDEFINED.match(name)
            outputs = tuple(self._describe(label, tensor, defined) for label, tensor in made)
            self.ops.append(Op(index, module, call, name, occurrence, text, inputs, outputs))
        for _, tensor in made:
            # Memory that was freed and handed out again belongs to the op that wrote it last, too.
            self._producer[_address(tensor)] = index
        return result

    def _describe(self, name: str, tensor: torch.Tensor, defined: bool = True) -> OpTensor:
        address = _address(tensor)
        parameter = self._named.get(address, "")
        raw = _raw(tensor) if defined else None
        keep = raw is not None and not parameter and self._kept + len(raw) <= KEPT_BYTES
        if raw is not None and keep:
            self._kept += len(raw)
        elif raw is not None and not parameter:
            self.left_out += len(raw)
        return OpTensor(
            name=name,
            shape=tuple(tensor.shape),
            stride=tuple(tensor.stride()),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=str(tensor.device),
            storage_offset=int(tensor.storage_offset()),
            digest=b"" if raw is None else _digest(raw),
            parameter=parameter,
            producer=-1 if parameter else self._producer.get(address, -1),
            data=raw if keep else None,
        )


def kernel_hints() -> dict[str, str]:
    """What makes torch choose one kernel or another, as the process has it."""
    hints = {
        "threads": str(torch.get_num_threads()),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": str(torch.backends.mkldnn.enabled),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }
    for name in ("flash", "mem_efficient", "math"):
        hints[f"sdpa_{name}"] = str(getattr(torch.backends.cuda, f"{name}_sdp_enabled")())
    if torch.cuda.is_available():
        hints["tf32"] = str(torch.backends.cuda.matmul.allow_tf32)
        hints["bf16_reduction"] = str(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction)
    return hints


def _named_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _tensors_in(values: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of every tensor among some values, those in lists numbered; the first result: `out`."""
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    yield (name if name == "out" and not index else f"{name}.{index}"), item


def _arguments_text(arguments: Mapping[str, Any]) -> str:
    """Arguments that are no tensors: `dim=[-1], keepdim=True`."""
    items = []
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) or (
            isinstance(value, list | tuple) and any(isinstance(item, torch.Tensor) for item in value)
        ):
            continue
        if value is not None:
            items.append(f"{name}={str(value).removeprefix('torch.')}")
    text = ", ".join(items)
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"


def _address(tensor: torch.Tensor) -> int:
    """Where its memory begins; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and nested tensors have no storage of their own
        return 0


def _raw(tensor: torch.Tensor) -> bytes | None:
    """The elements in logical order; None where there are none to read."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    raw: bytes = raw_bits(tensor.resolve_conj().resolve_neg()) if tensor.numel() else b""
    return raw


def raw_bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements in logical order, whatever its strides."""
    # Not contiguous(): that leaves a single element with any stride as it is.
    plain = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    raw: bytes = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return raw


def _digest(raw: bytes) -> bytes:
    from blake3 import blake3

    return blake3(raw).digest(length=16)
