"""`python -m bench.tiers.raw_sender BYTES`: sends so many bytes for every byte it gets, over plain TCP."""

from __future__ import annotations

import socket
import sys

from kvtier.pool.dram_pool import DramPool


def main(size: int) -> None:
    """Says its port, serves one connection, ends with it. Sends from memory of the kind that agents have."""
    data = DramPool.create(size).view(0, size)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while peer.recv(1):
                peer.sendall(data)


if __name__ == "__main__":
    main(int(sys.argv[1]))
