"""How events are written: to standard error, as text or as JSON lines. Called once by the process that serves.

What libraries log (uvicorn, asyncio) and Python's warnings take the same way, from the level warning up.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import Processor

from router.config.tree import LogConfig


def configure_logs(config: LogConfig) -> None:
    level = logging.getLevelNamesMapping()[config.level.upper()]
    stamped: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    rendered = _rendered(config.json_lines)
    structlog.configure(
        processors=[*stamped, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    named = [structlog.stdlib.add_logger_name, *stamped]
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(max(level, logging.WARNING))
    handler.setFormatter(
        ProcessorFormatter(foreign_pre_chain=named, processors=[ProcessorFormatter.remove_processors_meta, *rendered])
    )
    logging.basicConfig(handlers=[handler], level=handler.level, force=True)
    logging.captureWarnings(True)


def _rendered(json_lines: bool) -> list[Processor]:
    if json_lines:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=False, exception_formatter=plain)]
