"""Versions that GPU libraries state, read in a short-lived Python of its own or where one is already loaded.

It runs as a script too, alone and isolated, so it imports nothing but the standard library: loading the
libraries takes hundreds of megabytes, and a broken one may hang or crash whoever asks it.
"""

import ctypes
import json
import os
import signal
import sys

VERSION_FUNCTIONS: dict[str, tuple[str, str]] = {
    "cudart": ("cudaRuntimeGetVersion", "writes one"),
    "cublaslt": ("cublasLtGetVersion", "returns"),
    "cublas": ("cublasGetProperty", "property"),
    "cudnn": ("cudnnGetVersion", "returns"),
    "nccl": ("ncclGetVersion", "writes one"),
    "nvrtc": ("nvrtcVersion", "writes two"),
    "cuda_driver": ("cuDriverGetVersion", "writes one"),
    "cuda_driver_through_cudart": ("cudaDriverGetVersion", "writes one"),
}
"""Family → function and how it answers. None of them needs a device, a handle or a context."""


def thousands(number: int) -> str:
    """CUDA's own: 12080 is 12.8."""
    return f"{number // 1000}.{number % 1000 // 10}"


def decode_packed_version(number: int) -> str:
    """cuBLAS, cuDNN and NCCL: 120804 is 12.8.4; before cuDNN 9 and NCCL 2.9 it was 8907, 2708."""
    major = number // 10000 if number >= 10000 else number // 1000
    return f"{major}.{number % (10000 if number >= 10000 else 1000) // 100}.{number % 100}"


def read_version(library: ctypes.CDLL, family: str) -> str:
    """The version that a loaded library states.

    Raises:
        AttributeError: It has no such function.
        ValueError: It answered an error, or a number that is no version; the text says which.
    """
    function, kind = VERSION_FUNCTIONS[family]
    call = getattr(library, function)
    if kind == "returns":
        call.restype = ctypes.c_size_t
        return decode_packed_version(_positive(call(), function))
    numbers = [ctypes.c_int(-1) for _ in range({"writes one": 1, "writes two": 2, "property": 3}[kind])]
    if kind == "property":
        errors = [call(which, ctypes.byref(number)) for which, number in enumerate(numbers)]
    else:
        errors = [call(*map(ctypes.byref, numbers))]
    if any(errors):
        raise ValueError(f"{function} answered error {next(filter(None, errors))}")
    if kind != "writes one":
        return ".".join(str(number.value) for number in numbers)
    number = _positive(numbers[0].value, function)
    return decode_packed_version(number) if family == "nccl" else thousands(number)


def _positive(number: int, function: str) -> int:
    if number <= 0:
        # Without a driver, the runtime's answer to cudaDriverGetVersion is "success" and 0.
        meaning = "there is no driver" if "Driver" in function else "that is no version"
        raise ValueError(f"{function} answered {number}: {meaning}")
    return number


def query_version(family: str, path: str, mode: int = ctypes.DEFAULT_MODE) -> dict[str, str]:
    """Load a library and ask it: `{"version": …}`, or `{"reason": …}` where it cannot or does not answer.

    Args:
        family: Of `VERSION_FUNCTIONS`.
        path: Of the library.
        mode: Of dlopen.
    """
    try:
        return {"version": read_version(ctypes.CDLL(path, mode=mode), family)}
    except AttributeError:
        return {"reason": f"it has no function {VERSION_FUNCTIONS[family][0]}"}
    except ValueError as error:
        return {"reason": str(error)}
    except OSError as error:
        # dlerror names the file by its whole path first; what is wrong comes last.
        return {"reason": f"it could not be loaded: {os.path.basename(str(error))[:200]}"}


def main() -> None:
    """Load and ask each `[family, path]` of the first argument (JSON), and print a JSON line for each.

    The second argument is the time for one library in seconds.
    """
    output = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is none of our answer
    for family, path in json.loads(sys.argv[1]):
        signal.alarm(
            int(sys.argv[2])
        )  # its default action ends this process even inside a call that never returns
        print(json.dumps({"family": family, **query_version(family, path)}), file=output)
    os._exit(0)  # past the destructors of the libraries, which are nobody's business here


if __name__ == "__main__":
    main()
