"""One agent CLI as a user runs it: its files, environment and commands. `$URL` stands for the gateway's address."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".venv-clients"
# A test neither changes what is installed nor tells anybody that it ran.
_SWITCHED_OFF = {
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "KIMI_CODE_NO_AUTO_UPDATE": "1",
    "KIMI_DISABLE_TELEMETRY": "1",
    "QWEN_TELEMETRY_ENABLED": "false",
}


@dataclass(frozen=True, slots=True)
class AgentCli:
    """`files` lie under the home folder. The prompt is the last word of `command` and of `resume`."""

    name: str
    path: str  # the route it calls
    command: tuple[str, ...]
    resume: tuple[str, ...] | None = None  # continues the last session of the workspace
    resume_rewrites: bool = False  # the resumed history is another than the one before
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CliRun:
    status: int
    output: str


class CliHome:
    """A fresh home folder and a workspace with a few files."""

    def __init__(self, cli: AgentCli, folder: Path, url: str) -> None:
        self._cli = cli
        self._url = url
        self._home = folder / "home"
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True)
        (self.workspace / "README.md").write_text("# A small project\n\nIt holds one script.\n")
        (self.workspace / "hello.py").write_text('print("hello")\n')
        for name, text in cli.files.items():
            file = self._home / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("$URL", url))
        self._home.mkdir(exist_ok=True)

    async def run(self, prompt: str, *, resumed: bool = False, limit_s: float = 120.0) -> CliRun:
        """Raises `TimeoutError` beyond `limit_s`; whatever the CLI started is ended with it."""
        words = self._cli.resume if resumed else self._cli.command
        assert words is not None
        process = await asyncio.create_subprocess_exec(
            *words,
            prompt,
            cwd=self.workspace,
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(limit_s):
                output, _ = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        assert process.returncode is not None
        return CliRun(process.returncode, output.decode(errors="replace"))

    def _environment(self) -> dict[str, str]:
        """Nothing of the caller's: no proxies, keys or settings."""
        path = f"{INSTALLED}/node_modules/.bin:{INSTALLED}/bin:/usr/local/bin:/usr/bin:/bin"
        fixed = {"HOME": str(self._home), "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb"}
        return fixed | _SWITCHED_OFF | {name: text.replace("$URL", self._url) for name, text in self._cli.env.items()}
