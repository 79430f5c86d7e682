"""What clients will ask, as plans: sessions of threads of calls. Prompts are runs of page numbers; nothing here has a clock.

Page numbers stand for chained hashes: equal numbers mean equal prefixes. Each source takes care that this holds and that
sessions do not share numbers by accident.
"""

from __future__ import annotations

import msgspec


class Call(msgspec.Struct, frozen=True, gc=False):
    """One LLM call. `runs` = (first page, pages, first page, pages, ...) of the prompt's full pages, in order."""

    prompt_tokens: int
    output_tokens: int
    runs: tuple[int, ...]
    gap_ms: float = 0.0  # between what it waits for and its sending: tools, people

    def pages(self) -> list[int]:
        runs = self.runs
        found: list[int] = []
        for i in range(0, len(runs), 2):
            found.extend(range(runs[i], runs[i] + runs[i + 1]))
        return found


class ThreadPlan(msgspec.Struct, frozen=True):
    """An append-only conversation. A child starts when its parent's call `after` is over, and the parent waits for it."""

    calls: tuple[Call, ...]
    parent: int | None = None  # index within the session
    after: int = 0


class SessionPlan(msgspec.Struct, frozen=True):
    """One agent run; thread 0 is the root. `start_ms` counts in open loop only."""

    name: str
    threads: tuple[ThreadPlan, ...]
    start_ms: float = 0.0

    @property
    def calls(self) -> int:
        return sum(len(thread.calls) for thread in self.threads)


class Workload(msgspec.Struct, frozen=True):
    """Plans with where they come from. `cut` counts what was left out because no worker's context could hold it."""

    name: str
    page_tokens: int
    sessions: tuple[SessionPlan, ...]
    cut_calls: int = 0


def reply_pages(call: Call, following: Call | None, page_tokens: int) -> list[int]:
    """The prompt's pages and, where the thread's next call repeats prompt and reply, the reply's too."""
    pages = call.pages()
    if following is None or not pages:
        return pages
    longer = following.pages()
    if len(longer) <= len(pages) or longer[len(pages) - 1] != pages[-1]:
        return pages
    return longer[: (call.prompt_tokens + call.output_tokens - 1) // page_tokens]
