"""A network driver's own counters (``ethtool -S``), by the same call of the kernel.

Ethernet has no counter for "had data and could not send" in /sys; drivers of cards that take part
in flow control count for how long a partner's pause frames held them up (mlx5:
``rx_prio3_pause_duration``, in microseconds,
https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html).
"""

from __future__ import annotations

import ctypes
import fcntl
import re
import socket
import struct

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_SS_STATS = 1
_NAME_BYTES = 32
_MAX_COUNTERS = 100_000

PAUSED = re.compile(r"rx_(prio[0-7]|global)_pause_duration")


def pauses(interface: str) -> dict[str, int]:
    """Microseconds that pause frames held the interface up, by the driver's names; empty where
    the driver does not count them."""
    return {name: value for name, value in counters(interface).items() if PAUSED.fullmatch(name)}


def counters(interface: str) -> dict[str, int]:
    """All counters of the driver; empty where it has none, or there is no such interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            count = _count(sock.fileno(), interface)
            names = _names(sock.fileno(), interface, count)
            # struct ethtool_stats: cmd, n_stats, then the values
            values = ctypes.create_string_buffer(
                struct.pack("=II", _GSTATS, count) + bytes(8 * count), 8 + 8 * count
            )
            _call(sock.fileno(), interface, values)
        except OSError:
            return {}
    _, got = struct.unpack_from("=II", values)
    numbers = struct.unpack_from(f"={min(got, count)}Q", values, 8)
    return dict(zip(names, numbers, strict=False))


def _count(fd: int, interface: str) -> int:
    # struct ethtool_sset_info: cmd, reserved, mask of the sets, then a number for each
    info = ctypes.create_string_buffer(struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0))
    _call(fd, interface, info)
    _, _, mask, count = struct.unpack_from("=IIQI", info)
    return min(count, _MAX_COUNTERS) if mask else 0


def _names(fd: int, interface: str, count: int) -> list[str]:
    # struct ethtool_gstrings: cmd, set, number, then 32 bytes for each
    size = 12 + _NAME_BYTES * count
    strings = ctypes.create_string_buffer(struct.pack("=III", _GSTRINGS, _SS_STATS, count), size)
    _call(fd, interface, strings)
    return [
        strings.raw[at : at + _NAME_BYTES].partition(b"\0")[0].decode("ascii", "replace")
        for at in range(12, size, _NAME_BYTES)
    ]


def _call(fd: int, interface: str, data: ctypes.Array[ctypes.c_char]) -> None:
    # struct ifreq: the name, then a pointer to the structure that begins with a command
    request = struct.pack("16sP16x", interface.encode()[:15], ctypes.addressof(data))
    fcntl.ioctl(fd, _SIOCETHTOOL, request)
