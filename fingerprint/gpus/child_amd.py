"""Reads AMD's GPUs through its Python package, in a process of its own: documented calls that only read."""

from __future__ import annotations

from functools import partial
from operator import methodcaller

from .child_protocol import report

# The documented calls, by the field that holds their answer. Ids are strings or numbers, sizes MB.
_CALLS = {
    "asic": "amdsmi_get_gpu_asic_info",
    "uuid": "amdsmi_get_gpu_device_uuid",
    "bdf": "amdsmi_get_gpu_device_bdf",
    "driver": "amdsmi_get_gpu_driver_info",
    "vbios": "amdsmi_get_gpu_vbios_info",
    "vram": "amdsmi_get_gpu_vram_info",
    "compute_partition": "amdsmi_get_gpu_compute_partition",
    "memory_partition": "amdsmi_get_gpu_memory_partition",
}


def main() -> None:
    """One reading a call and GPU."""
    import amdsmi

    if report("init", "", lambda: amdsmi.amdsmi_init() or True) is None:
        return
    handles = amdsmi.amdsmi_get_processor_handles()
    report("count", "", lambda: len(handles))
    for index, handle in enumerate(handles):
        for name, call in _CALLS.items():
            # An older package lacks some, which is a failure of that reading.
            report(name, str(index), partial(methodcaller(call, handle), amdsmi))
    amdsmi.amdsmi_shut_down()
