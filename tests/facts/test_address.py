"""The address that the others of the cell use."""

from __future__ import annotations

import socket

import pytest

from exaslurm.errors import PreflightFailed
from exaslurm.facts.address import NodeAddress, choose, interface_addresses, node_address

HOST = {"lo": "127.0.0.1", "eth0": "10.1.0.5", "hsn0": "10.2.0.5", "hsn1": "10.2.1.5"}


def resolve_to(monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
    def getaddrinfo(host: str, *args: object) -> list[tuple[object, ...]]:
        if host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (names[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    ("interface", "expected"),
    [("hsn1", ("10.2.1.5", "hsn1")), ("hsn*", ("10.2.0.5", "hsn0")), ("lo", ("127.0.0.1", "lo")),
     ("[eb]*", ("10.1.0.5", "eth0")), ("loopback", ("127.0.0.1", "lo"))],
)  # fmt: skip
def test_by_interface(interface: str, expected: tuple[str, str]) -> None:
    assert choose(interface, "n1", "", HOST) == NodeAddress(*expected)


def test_a_missing_interface_is_answered_with_those_there_are() -> None:
    with pytest.raises(PreflightFailed, match=r"n1 has no network interface 'ib\*'.*hsn0 10.2.0.5"):
        choose("ib*", "n1", "", HOST)


def test_by_name_with_a_suffix(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, {"n1": "10.1.0.5", "n1-hsn": "10.2.0.5", "n2": "10.9.9.9"})
    assert choose(None, "n1", "", HOST) == NodeAddress("10.1.0.5", "eth0")
    assert choose(None, "n1", "-hsn", HOST) == NodeAddress("10.2.0.5", "hsn0")
    assert choose(None, "n2", "", HOST) == NodeAddress("10.9.9.9", None)
    with pytest.raises(PreflightFailed, match=r"n1\.cluster does not resolve"):
        choose(None, "n1", ".cluster", HOST)


def test_a_name_that_means_the_host_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, {"n1": "127.0.1.1"})
    with pytest.raises(PreflightFailed, match=r"resolves to 127.0.1.1.*eth0 10.1.0.5"):
        choose(None, "n1", "", HOST)
    one = {"lo": "127.0.0.1", "eth0": "10.1.0.5"}
    assert choose(None, "n1", "", one) == NodeAddress("10.1.0.5", "eth0")


def test_this_host() -> None:
    assert interface_addresses()["lo"] == "127.0.0.1"
    assert node_address("loopback", "n1") == NodeAddress("127.0.0.1", "lo")
