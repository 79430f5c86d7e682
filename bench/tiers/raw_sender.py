"""`python -m bench.tiers.raw_sender PAGE_BYTES PAGES`: sends so many pages for every byte it gets, over plain TCP.

Page by page: one send of 128 MiB is a third slower.
"""

from __future__ import annotations

import socket
import sys

from kvtier.pool.dram_pool import DramPool


def main(page_bytes: int, pages: int) -> None:
    """Says its port, serves one connection, ends with it. Sends from memory of the kind that agents have."""
    pool = DramPool.create(page_bytes * pages)
    views = [pool.view(page * page_bytes, page_bytes) for page in range(pages)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while peer.recv(1):
                for view in views:
                    peer.sendall(view)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
