from __future__ import annotations

import pytest

from exaslurm.core.plan import PortPolicy
from exaslurm.core.ports import MAX_ENGINES, RAY_WORKERS_LAST, block_base, engine_port
from exaslurm.gateway.address import advertised_url
from exaslurm.gateway.listeners import router_ports
from exaslurm.util.loopback import is_loopback


def test_router_ports_are_none_of_any_cell() -> None:
    policy = PortPolicy()
    ports = list(router_ports(policy))
    assert len(ports) >= 20
    assert all(policy.first <= port <= policy.last for port in ports)
    for job in range(100):
        base = block_base(policy, job)
        last = max(base + RAY_WORKERS_LAST, engine_port(base, MAX_ENGINES - 1) + 3)
        assert not set(ports) & set(range(base, last + 1))


def test_small_ranges_have_a_port_too() -> None:
    assert list(router_ports(PortPolicy(first=5000, last=5000, block=500))) == [5000]


@pytest.mark.parametrize(
    ("bind", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("c1", False)],
)
def test_what_is_loopback(bind: str, loopback: bool) -> None:
    assert is_loopback(bind) == loopback


def test_urls() -> None:
    assert advertised_url("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert advertised_url("::1", 80) == "http://[::1]:80"
    assert advertised_url("10.0.0.7", 80) == "http://10.0.0.7:80"
    assert advertised_url("10.0.0.7", 80, tls=True) == "https://10.0.0.7:80"
