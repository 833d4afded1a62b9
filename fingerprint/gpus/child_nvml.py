"""Reads the GPUs through NVML, in a process of its own: it knows the calls, their units and their names."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from .child_protocol import as_text, loaded_libraries, report, send

Reader = Callable[[Any, Any], Any]

_ENABLED = {0: "disabled", 1: "enabled"}
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host vgpu", 4: "host vsga"}
_FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_REMOTE_ENDS = {0: "gpu", 1: "ibm npu", 2: "switch"}
_P2P = {
    0: "ok",
    1: "chipset not supported",
    2: "gpu not supported",
    3: "topology not supported",
    4: "disabled by registry key",
    5: "not supported",
}
# As `nvidia-smi topo -m` writes them, from the same board to across the processors' link.
_TOPOLOGY = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def name_of(names: dict[int, str], code: int) -> str:
    """The name of an enumeration's value; one that is new keeps its number."""
    return names.get(code, f"code {code}")


def _pair(names: dict[int, str], modes: list[int]) -> Any:
    """A mode, and the one that waits for a reboot or reset where it differs."""
    current, pending = (name_of(names, mode) for mode in modes)
    return current if current == pending else {"current": current, "pending": pending}


def _cpus(nv: Any, handle: Any) -> str:
    masks = nv.nvmlDeviceGetCpuAffinity(handle, ((os.cpu_count() or 1) + 63) // 64)
    cpus = [64 * index + bit for index, bits in enumerate(masks) for bit in range(64) if bits >> bit & 1]
    starts = [cpu for cpu in cpus if cpu - 1 not in cpus]
    ends = [cpu for cpu in cpus if cpu + 1 not in cpus]
    return ",".join(
        str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)
    )


def _nvlink(nv: Any, handle: Any) -> dict[str, Any]:
    inactive: list[int] = []
    remote: Counter[str] = Counter()
    versions: set[int] = set()
    refusal: Exception | None = None
    for link in range(nv.NVML_NVLINK_MAX_LINKS):
        try:
            active = nv.nvmlDeviceGetNvLinkState(handle, link)
        except nv.NVMLError as error:
            refusal = error
            if error.value == nv.NVML_ERROR_INVALID_ARGUMENT:  # there is no link of this number
                break
            continue
        if active:
            versions.add(nv.nvmlDeviceGetNvLinkVersion(handle, link))
            remote[_remote_end(nv, handle, link)] += 1
        else:
            inactive.append(link)
    if refusal is not None and not remote and not inactive:
        raise refusal
    return {
        "active": sum(remote.values()),
        "inactive_links": inactive,
        "remote": dict(sorted(remote.items())),
        "versions": sorted(versions),
    }


def _remote_end(nv: Any, handle: Any, link: int) -> str:
    try:
        kind = name_of(_REMOTE_ENDS, nv.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))
        return f"{kind} {as_text(nv.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)}"
    except nv.NVMLError as error:
        return f"unknown ({error})"


def _fabric(nv: Any, handle: Any) -> dict[str, Any]:
    info = nv.c_nvmlGpuFabricInfoV_t()
    nv.nvmlDeviceGetGpuFabricInfoV(handle, nv.byref(info))
    known = {"state": name_of(_FABRIC_STATES, info.state)}
    if info.state == nv.NVML_GPU_FABRIC_STATE_COMPLETED:
        cluster = str(uuid.UUID(bytes=bytes(info.clusterUuid)))
        known |= {"status": info.status, "clique": info.cliqueId, "cluster_uuid": cluster}
        known |= {"health_mask": info.healthMask}
    return known


def _processes(nv: Any, handle: Any) -> list[dict[str, Any]]:
    # Memory of a process is not shown to every user, nor on every platform.
    return [
        {"pid": process.pid}
        | ({} if process.usedGpuMemory is None else {"memory_bytes": process.usedGpuMemory})
        for process in nv.nvmlDeviceGetComputeRunningProcesses(handle)
    ]


def _clocks(nv: Any, handle: Any, read: Reader) -> dict[str, Any]:
    return {"sm": read(handle, nv.NVML_CLOCK_SM), "memory": read(handle, nv.NVML_CLOCK_MEM)}


STABLE: dict[str, Reader] = {
    "name": lambda nv, gpu: nv.nvmlDeviceGetName(gpu),
    "uuid": lambda nv, gpu: nv.nvmlDeviceGetUUID(gpu),
    "serial": lambda nv, gpu: nv.nvmlDeviceGetSerial(gpu),
    "pci_bus_id": lambda nv, gpu: as_text(nv.nvmlDeviceGetPciInfo(gpu).busId),
    "compute_capability": lambda nv, gpu: ".".join(map(str, nv.nvmlDeviceGetCudaComputeCapability(gpu))),
    "memory_total_bytes": lambda nv, gpu: nv.nvmlDeviceGetMemoryInfo(gpu).total,
    "cuda_cores": lambda nv, gpu: nv.nvmlDeviceGetNumGpuCores(gpu),
    "vbios": lambda nv, gpu: nv.nvmlDeviceGetVbiosVersion(gpu),
    "gsp_firmware": lambda nv, gpu: nv.nvmlDeviceGetGspFirmwareVersion(gpu),
    "virtualization": lambda nv, gpu: name_of(_VIRTUALIZATION, nv.nvmlDeviceGetVirtualizationMode(gpu)),
    "mig_mode": lambda nv, gpu: _pair(_ENABLED, nv.nvmlDeviceGetMigMode(gpu)),
    "ecc_mode": lambda nv, gpu: _pair(_ENABLED, nv.nvmlDeviceGetEccMode(gpu)),
    "persistence_mode": lambda nv, gpu: name_of(_ENABLED, nv.nvmlDeviceGetPersistenceMode(gpu)),
    "compute_mode": lambda nv, gpu: name_of(_COMPUTE_MODES, nv.nvmlDeviceGetComputeMode(gpu)),
    "power_limit_w": lambda nv, gpu: nv.nvmlDeviceGetPowerManagementLimit(gpu) / 1000,
    "application_clocks_mhz": lambda nv, gpu: _clocks(nv, gpu, nv.nvmlDeviceGetApplicationsClock),
    "max_clocks_mhz": lambda nv, gpu: _clocks(nv, gpu, nv.nvmlDeviceGetMaxClockInfo),
    "pcie_max_link": lambda nv, gpu: {
        "generation": nv.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
        "width": nv.nvmlDeviceGetMaxPcieLinkWidth(gpu),
    },
    "numa_node": lambda nv, gpu: nv.nvmlDeviceGetNumaNodeId(gpu),
    "cpu_affinity": _cpus,
    "nvlink": _nvlink,
    "fabric": _fabric,
}
VOLATILE: dict[str, Reader] = {
    "clocks_mhz": lambda nv, gpu: _clocks(nv, gpu, nv.nvmlDeviceGetClockInfo),
    "clock_event_reasons": lambda nv, gpu: hex(nv.nvmlDeviceGetCurrentClocksEventReasons(gpu)),
    "performance_state": lambda nv, gpu: f"P{nv.nvmlDeviceGetPerformanceState(gpu)}",
    "temperature_c": lambda nv, gpu: nv.nvmlDeviceGetTemperature(gpu, nv.NVML_TEMPERATURE_GPU),
    "power_w": lambda nv, gpu: nv.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "enforced_power_limit_w": lambda nv, gpu: nv.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "memory_used_bytes": lambda nv, gpu: nv.nvmlDeviceGetMemoryInfo(gpu).used,
    "utilization_percent": lambda nv, gpu: nv.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "pcie_link_width": lambda nv, gpu: nv.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "ecc_uncorrected": lambda nv, gpu: nv.nvmlDeviceGetTotalEccErrors(
        gpu, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_VOLATILE_ECC
    ),
    "processes": _processes,
}


def main() -> None:
    """Everything that NVML reports of the machine, its GPUs, their slices and how they are connected."""
    import pynvml as nv

    initialized = report("init", "", lambda: nv.nvmlInit() or True)
    report("nvml_version", "", nv.nvmlSystemGetNVMLVersion)
    report("libraries", "", lambda: loaded_libraries("libnvidia-ml.so"))
    count = (report("count", "", nv.nvmlDeviceGetCount) if initialized else None) or 0
    if not initialized:
        return
    report("driver_version", "", nv.nvmlSystemGetDriverVersion)
    report("cuda_version", "", nv.nvmlSystemGetCudaDriverVersion)
    handles = {}
    for index in range(count):
        if (handle := _handle(nv, index)) is not None:
            handles[str(index)] = handle
    for key, handle in handles.items():
        for name, read in (STABLE | VOLATILE).items():
            report(name, key, partial(read, nv, handle))
        _report_slices(nv, key, handle)
    _report_pairs(nv, handles)
    nv.nvmlShutdown()


def _handle(nv: Any, index: int) -> Any:
    send("reading", "handle", str(index))
    try:
        return nv.nvmlDeviceGetHandleByIndex(index)
    except nv.NVMLError as error:  # lost, or not for this user: the others are still read
        send("error", "handle", str(index), error.value, "", str(error))
        return None


def _report_slices(nv: Any, key: str, gpu: Any) -> None:
    """The MIG slices of a GPU. `nvmlDeviceGetAttributes_v2` answers for slices only."""
    try:
        if nv.nvmlDeviceGetMigMode(gpu)[0] != nv.NVML_DEVICE_MIG_ENABLE:
            return
        count = nv.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except nv.NVMLError:
        return  # reported as `mig_mode`
    for index in range(count):
        try:
            slice_ = nv.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except nv.NVMLError as error:
            if error.value != nv.NVML_ERROR_NOT_FOUND:  # no slice at this index
                send("error", "mig_slices", f"{key}/{index}", error.value, "", str(error))
            continue
        report("mig_slices", f"{key}/{index}", partial(_slice, nv, slice_))
        report("mig_uuid", f"{key}/{index}", partial(nv.nvmlDeviceGetUUID, slice_))


def _slice(nv: Any, slice_: Any) -> dict[str, Any]:
    attributes = nv.nvmlDeviceGetAttributes_v2(slice_)
    return {
        "name": nv.nvmlDeviceGetName(slice_),
        "sm_count": attributes.multiprocessorCount,
        "memory_mib": attributes.memorySizeMB,
        "gpu_slices": attributes.gpuInstanceSliceCount,
        "compute_slices": attributes.computeInstanceSliceCount,
        "gpu_instance": nv.nvmlDeviceGetGpuInstanceId(slice_),
        "compute_instance": nv.nvmlDeviceGetComputeInstanceId(slice_),
    }


def _report_pairs(nv: Any, handles: dict[str, Any]) -> None:
    for first, one in handles.items():
        for second, other in handles.items():
            if int(first) < int(second):
                key = f"{first}-{second}"
                report("topology", key, partial(_ancestor, nv, one, other))
                report("p2p", key, partial(_peers, nv, one, other))


def _ancestor(nv: Any, one: Any, other: Any) -> str:
    return name_of(_TOPOLOGY, nv.nvmlDeviceGetTopologyCommonAncestor(one, other))


def _peers(nv: Any, one: Any, other: Any) -> str:
    # Numbers, because pynvml 13 defines NVML_P2P_CAPS_INDEX_READ as a tuple by mistake.
    capabilities = {"read": 0, "nvlink": nv.NVML_P2P_CAPS_INDEX_NVLINK}
    return ", ".join(
        f"{name} {name_of(_P2P, nv.nvmlDeviceGetP2PStatus(one, other, index))}"
        for name, index in capabilities.items()
    )
