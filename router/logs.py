"""How events are written: structlog to standard error, as text or as JSON lines. Called once by the process that serves."""

from __future__ import annotations

import logging
import sys

import structlog

from router.config.tree import LogConfig


def configure_logs(config: LogConfig) -> None:
    renderer = structlog.processors.JSONRenderer() if config.json_lines else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[config.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
