"""`loadback sglang-plugin`: what an SGLang server needs to use this host's agent: an archive to import, and flags."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from engine_adapters.sglang_storage.plugin import storage_flags, write_plugin
from loadback.terminal import say


def sglang_plugin(
    out: Annotated[Path, typer.Argument(metavar="FILE.zip", help="Where to write the archive.")],
    socket: Annotated[str, typer.Option(help="The agent's `socket`.")] = "/run/loadback/agent.sock",
    worker: Annotated[str, typer.Option(help="The server's name at the gateway, for restore cuts.")] = "",
) -> None:
    """Write the storage class for SGLang's PYTHONPATH and say with which flags to start a server.

    The archive needs nothing of this project's environment, and msgspec and xxhash in the engine's.

    [bold]Examples[/bold]

      loadback sglang-plugin /opt/loadback_sglang.zip

      loadback sglang-plugin ./plugin.zip --socket /tmp/agent.sock --worker p0
    """
    folder_is_new = not out.parent.exists()
    try:
        write_plugin(out)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {out}: {error.strerror}; name a file in a folder of yours") from error
    say(f"wrote {out}{f', and made the folder {out.parent} for it' if folder_is_new else ''}")
    flags = " ".join(map(shlex.quote, storage_flags(socket, **({"worker": worker} if worker else {}))))
    print(f"PYTHONPATH={shlex.quote(str(out.resolve()))} python -m sglang.launch_server ... --enable-hierarchical-cache \\")
    print(f"  --hicache-mem-layout page_first_direct --hicache-io-backend direct --hicache-write-policy write_through {flags}")
