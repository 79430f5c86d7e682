"""`python -m kvtier.agent CONFIG.yaml`: one node agent."""

from __future__ import annotations

import sys
from pathlib import Path

from kvtier.agent.config import ConfigError, load_config
from kvtier.agent.process import run_agent


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        config = load_config(Path(arguments[0]))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return run_agent(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
