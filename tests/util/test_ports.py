from __future__ import annotations

import socket

from exaslurm.util.ports import first_taken


def test_a_listener_on_any_address_counts() -> None:
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
            assert first_taken([port]) == port
        assert first_taken([port]) is None


def test_the_first_one_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        taken = [one.getsockname()[1], two.getsockname()[1]]
        assert first_taken(taken) == taken[0]


def test_connections_that_wait_out_their_last_minute_do_not_count() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the server's side closes first: it keeps TIME_WAIT
        client.close()
    assert first_taken([port]) is None
