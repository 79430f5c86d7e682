"""Asks an engine's own code, in its own environment, for the token ids of request bodies."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_adapters.launch.environments import engine_bin
from engine_adapters.launch.sglang import variables as sglang_variables

SCRIPTS = Path(__file__).parent
DEADLINE_S = 900.0
_QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def engine_ids(engine: str, asked: Sequence[tuple[Path, str, dict[str, Any]]]) -> list[list[int] | None]:
    """`asked`: model folder, path and body of each request. None where the engine refuses."""
    lines = [json.dumps({"model_dir": str(folder), "path": path, "body": body}) for folder, path, body in asked]
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    own = sglang_variables() if engine == "sglang" else {}
    done = subprocess.run(
        [engine_bin(engine) / "python", SCRIPTS / f"{engine}_prompts.py"],
        input="\n".join(lines),
        env=kept | _QUIET | own,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(lines), done.stderr[-3000:]
    return [answer.get("ids") for answer in answers]
