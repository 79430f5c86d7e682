"""`python -m bench.tiers.raw_sender BYTES PAGES`: sends another of so many pages for every byte it gets, over plain TCP."""

from __future__ import annotations

import mmap
import socket
import sys
from itertools import cycle


def main(size: int, count: int) -> None:
    """Says its port, serves one connection, ends with it."""
    pages = cycle([memoryview(mmap.mmap(-1, size)) for _ in range(count)])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while peer.recv(1):
                peer.sendall(next(pages))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
