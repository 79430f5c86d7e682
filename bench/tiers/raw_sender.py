"""`python -m bench.tiers.raw_sender BYTES`: sends so many bytes for every byte it gets, over plain TCP."""

from __future__ import annotations

import mmap
import socket
import sys


def main(size: int) -> None:
    """Says its port, serves one connection, ends with it."""
    data = memoryview(mmap.mmap(-1, size))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while peer.recv(1):
                peer.sendall(data)


if __name__ == "__main__":
    main(int(sys.argv[1]))
