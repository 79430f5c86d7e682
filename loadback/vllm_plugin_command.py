"""`loadback vllm-plugin`: what a vLLM server needs to use this host's agent: an archive to import, and flags."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from engine_adapters.vllm_storage.plugin import connector_flags, write_plugin
from loadback.terminal import say


def vllm_plugin(
    out: Annotated[Path, typer.Argument(metavar="FILE.zip", help="Where to write the archive.")],
    socket: Annotated[str, typer.Option(help="The agent's `socket`.")] = "/run/loadback/agent.sock",
    worker: Annotated[str, typer.Option(help="The server's name at the gateway, for restore cuts.")] = "",
) -> None:
    """Write the KV connector for vLLM's PYTHONPATH and say with which flags to start a server.

    The archive needs nothing of this project's environment, and xxhash in the engine's beside what vLLM brings.

    [bold]Examples[/bold]

      loadback vllm-plugin /opt/loadback_vllm.zip

      loadback vllm-plugin ./plugin.zip --socket /tmp/agent.sock --worker u0
    """
    folder_is_new = not out.parent.exists()
    try:
        write_plugin(out)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {out}: {error.strerror}; name a file in a folder of yours") from error
    say(f"wrote {out}{f', and made the folder {out.parent} for it' if folder_is_new else ''}")
    flags = " ".join(map(shlex.quote, connector_flags(socket, **({"worker": worker} if worker else {}))))
    print(f"PYTHONPATH={shlex.quote(str(out.resolve()))} vllm serve ... --enable-prefix-caching {flags}")
