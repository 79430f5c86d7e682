"""Scaled sessions as chats: what a prompt shares with the session's last one stays, what is new is an answer and a next word.

The text of a page is made up from its id: equal ids give equal text, whatever session they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from bench.simulate.workload import SessionPlan

Message = dict[str, str]

_VOCABULARY = (
    "the build of module tests after commit returns value error path cache index block tier worker queue prompt token page "
    "host should read write check file before each call and keep order when list is empty so that result stays same"
)
_WORDS = _VOCABULARY.split()
_WORDS_A_PAGE = 14  # about 16 tokens of the tiny model
_BLOCK_PAGES = 8  # of one message at most


class Block(NamedTuple):
    """Part of a prompt: who says it, and its pages."""

    role: str
    pages: tuple[int, ...]


def chats(plan: SessionPlan, salt: str) -> list[list[Message]]:
    """The messages of each call of the session's root. `salt` makes another run's text another."""
    found, blocks = [], list[Block]()
    for call in plan.threads[0].calls:
        blocks = grown(blocks, call.pages())
        found.append([{"role": block.role, "content": _text(block.pages, salt)} for block in blocks])
    return found


def grown(before: Sequence[Block], pages: Sequence[int]) -> list[Block]:
    """The blocks of a prompt of `pages`: as many of those `before` as it repeats, then short ones in turn, a user's last."""
    kept, at = list[Block](), 0
    for block in before:
        same = _shared(block.pages, pages[at:])
        if same or not block.pages:
            kept.append(Block(block.role, block.pages[:same]))
        at += same
        if same < len(block.pages):
            break
    shared = 0 if kept else sum(1 for page in pages if page < 0)  # ids of tools and system prompts are negative
    if shared:
        kept.append(Block("system", tuple(pages[:shared])))
    return kept + _said(kept[-1].role if kept else "system", tuple(pages[at + shared :]))


def _said(last: str, pages: tuple[int, ...]) -> list[Block]:
    """What follows a message of `last`."""
    parts = [pages[start : start + _BLOCK_PAGES] for start in range(0, len(pages), _BLOCK_PAGES)] or [()]
    speakers = ("assistant", "user") if last == "user" else ("user", "assistant")
    if speakers[(len(parts) - 1) % 2] == "assistant":
        parts = [*parts[:-1], parts[-1][: len(parts[-1]) // 2], parts[-1][len(parts[-1]) // 2 :]]
    return [Block(speakers[number % 2], part) for number, part in enumerate(parts)]


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    return next(
        (i for i, (one, other) in enumerate(zip(left, right, strict=False)) if one != other), min(len(left), len(right))
    )


def _text(pages: Sequence[int], salt: str) -> str:
    """Never empty: something is said even where no page is new."""
    return " ".join(_words(page, salt) for page in pages) or "go on"


def _words(page: int, salt: str) -> str:
    return " ".join(Random(f"{salt}/{page}").choices(_WORDS, k=_WORDS_A_PAGE))
