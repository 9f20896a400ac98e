"""Intel's GPUs as the Level Zero library describes them, as JSON on stdout.

Run as a process of its own (``python -m exaslurm.topo.levelzero_probe``): a C library that fails in
its own way then takes nobody with it. It exits with 0 and prints ``null`` where there is no library
or no driver. https://oneapi-src.github.io/level-zero-spec/level-zero/latest/
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import c_char, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

_GPU_ONLY = 1  # ZE_INIT_FLAG_GPU_ONLY
_HEALTHY, _DEGRADED = 1, 2  # ZES_FABRIC_PORT_STATUS


class DeviceProperties(ctypes.Structure):
    """``ze_device_properties_t``."""

    STYPE = 0x3
    _fields_ = [
        ("stype", c_uint32), ("pNext", c_void_p), ("type", c_uint32), ("vendorId", c_uint32),
        ("deviceId", c_uint32), ("flags", c_uint32), ("subdeviceId", c_uint32),
        ("coreClockRate", c_uint32), ("maxMemAllocSize", c_uint64),
        ("maxHardwareContexts", c_uint32), ("maxCommandQueuePriority", c_uint32),
        ("numThreadsPerEU", c_uint32), ("physicalEUSimdWidth", c_uint32),
        ("numEUsPerSubslice", c_uint32), ("numSubslicesPerSlice", c_uint32),
        ("numSlices", c_uint32), ("timerResolution", c_uint64), ("timestampValidBits", c_uint32),
        ("kernelTimestampValidBits", c_uint32), ("uuid", c_uint8 * 16), ("name", c_char * 256),
    ]  # fmt: skip


class PciProperties(ctypes.Structure):
    """``ze_pci_ext_properties_t``."""

    STYPE = 0x10008
    _fields_ = [
        ("stype", c_uint32), ("pNext", c_void_p), ("domain", c_uint32), ("bus", c_uint32),
        ("device", c_uint32), ("function", c_uint32), ("genVersion", c_int32), ("width", c_int32),
        ("maxBandwidth", c_int64),
    ]  # fmt: skip


class MemoryProperties(ctypes.Structure):
    """``ze_device_memory_properties_t``."""

    STYPE = 0x7
    _fields_ = [
        ("stype", c_uint32), ("pNext", c_void_p), ("flags", c_uint32), ("maxClockRate", c_uint32),
        ("maxBusWidth", c_uint32), ("totalSize", c_uint64), ("name", c_char * 256),
    ]  # fmt: skip


class PortId(ctypes.Structure):
    """``zes_fabric_port_id_t``."""

    _fields_ = [("fabricId", c_uint32), ("attachId", c_uint32), ("portNumber", c_uint8)]


class Speed(ctypes.Structure):
    """``zes_fabric_port_speed_t``."""

    _fields_ = [("bitRate", c_int64), ("width", c_int32)]


class PortProperties(ctypes.Structure):
    """``zes_fabric_port_properties_t``."""

    STYPE = 0x6
    _fields_ = [
        ("stype", c_uint32), ("pNext", c_void_p), ("model", c_char * 256),
        ("onSubdevice", c_uint8), ("subdeviceId", c_uint32), ("portId", PortId),
        ("maxRxSpeed", Speed), ("maxTxSpeed", Speed),
    ]  # fmt: skip


class PortState(ctypes.Structure):
    """``zes_fabric_port_state_t``."""

    STYPE = 0x19
    _fields_ = [
        ("stype", c_uint32), ("pNext", c_void_p), ("status", c_uint32),
        ("qualityIssues", c_uint32), ("failureReasons", c_uint32), ("remotePortId", PortId),
        ("rxSpeed", Speed), ("txSpeed", Speed),
    ]  # fmt: skip


def probe() -> list[dict[str, Any]] | None:
    """One entry for each card, in the library's order; None without library, driver or cards."""
    try:
        library = ctypes.CDLL("libze_loader.so.1")
    except OSError:
        return None
    if library.zeInit(_GPU_ONLY) != 0:
        return None
    cards = [
        _card(library, device)
        for driver in _handles(library.zeDriverGet)
        for device in _handles(library.zeDeviceGet, driver)
    ]
    _name_ends(cards)
    return cards or None


def _handles(call: Any, *owner: c_void_p) -> list[c_void_p]:
    """Level Zero's way: ask how many, then ask for them."""
    count = c_uint32(0)
    if call(*owner, ctypes.byref(count), None) != 0 or count.value == 0:
        return []
    found = (c_void_p * count.value)()
    if call(*owner, ctypes.byref(count), found) != 0:
        return []
    return [c_void_p(handle) for handle in found[: count.value]]


def _ask(call: Any, handle: c_void_p, kind: Any) -> Any:
    """A filled structure, None where the driver does not answer."""
    answer = kind()
    answer.stype = kind.STYPE
    return answer if call(handle, ctypes.byref(answer)) == 0 else None


def _card(library: Any, device: c_void_p) -> dict[str, Any]:
    about = _ask(library.zeDeviceGetProperties, device, DeviceProperties)
    pci = _ask(library.zeDevicePciGetPropertiesExt, device, PciProperties)
    tiles = _handles(library.zeDeviceGetSubDevices, device)
    return {
        "name": about.name.decode(errors="replace") if about is not None else None,
        "uuid": bytes(about.uuid).hex() if about is not None else None,
        "pci": (
            f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.{pci.function:x}"
            if pci is not None
            else None
        ),
        "tiles": max(1, len(tiles)),
        "mem_bytes": _memory(library, device),
        "ports": _ports(library, device),
    }


def _memory(library: Any, device: c_void_p) -> int:
    count = c_uint32(0)
    library.zeDeviceGetMemoryProperties(device, ctypes.byref(count), None)
    found = (MemoryProperties * count.value)()
    for part in found:
        part.stype = MemoryProperties.STYPE
    if count.value:
        library.zeDeviceGetMemoryProperties(device, ctypes.byref(count), found)
    return sum(int(part.totalSize) for part in found)


def _ports(library: Any, device: c_void_p) -> list[dict[str, Any]]:
    """Ends of Xe Links that are up. Needs ZES_ENABLE_SYSMAN=1, with which a device of the core
    interface is one of this interface too."""
    found = []
    for port in _handles(library.zesDeviceEnumFabricPorts, device):
        own = _ask(library.zesFabricPortGetProperties, port, PortProperties)
        state = _ask(library.zesFabricPortGetState, port, PortState)
        if own is None or state is None or state.status not in (_HEALTHY, _DEGRADED):
            continue
        found.append({"own": _place(own.portId), "remote": _place(state.remotePortId)})
    return found


def _place(port: PortId) -> list[int]:
    """The card and its part that a port belongs to."""
    return [port.fabricId, port.attachId]


def _name_ends(cards: list[dict[str, Any]]) -> None:
    """``ports`` of each card become ``links``: place of the other card -> number of links. Links
    between tiles of one card do not count."""
    owner = {
        tuple(port["own"]): place for place, card in enumerate(cards) for port in card["ports"]
    }
    for place, card in enumerate(cards):
        links: dict[int, int] = {}
        for port in card.pop("ports"):
            other = owner.get(tuple(port["remote"]))
            if other is not None and other != place:
                links[other] = links.get(other, 0) + 1
        card["links"] = {str(other): count for other, count in sorted(links.items())}


if __name__ == "__main__":
    json.dump(probe(), sys.stdout)
