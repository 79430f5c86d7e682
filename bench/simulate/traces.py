"""The recorded traces as workloads: WEKA's Claude Code sessions and Mooncake's requests (`data/ORIGIN.md`)."""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.simulate.workload import Call, SessionPlan, ThreadPlan, Workload

DATA = Path(__file__).resolve().parent / "data"
_SESSION_PAGES = 1 << 40  # page numbers of one session; ids of the trace are local to it
_MAX_GAP_MS = 3_600_000.0  # nobody waits longer: recorded breaks of days say nothing about a cache
_WEKA_PAGE_TOKENS = 64
_MOONCAKE_PAGE_TOKENS = 512
Record = TypeVar("Record")


class TraceError(ValueError):
    """A trace cannot be read, or holds nothing that can be sent. The message names the file."""


class _Request(msgspec.Struct, frozen=True):
    """A call `t` seconds after its session or subagent began; with `requests` a subagent. `hr` = (first page, pages, ...)."""

    t: float
    prompt_tokens: int = msgspec.field(name="in", default=0)
    output_tokens: int = msgspec.field(name="out", default=0)
    hr: tuple[int, ...] = ()
    api_time: float = 0.0
    duration_ms: float | None = None
    requests: tuple[_Request, ...] | None = None

    def __post_init__(self) -> None:
        if self.requests is None and self.prompt_tokens < 1:
            raise ValueError("a call wants `in` above 0, a subagent `requests`")
        if len(self.hr) % 2:
            raise ValueError("`hr` wants a count for every first page")

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class _Session(msgspec.Struct, frozen=True):
    id: str
    requests: tuple[_Request, ...]
    tool_tokens: int = 0
    system_tokens: int = 0


class _ChatRequest(msgspec.Struct, frozen=True):
    """Of Mooncake's traces; `timestamp` in ms."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def weka(path: Path | None = None, *, context_tokens: int, share_system: bool = False) -> Workload:
    """Sessions with recorded gaps.

    Ids are local to a session, so sharing between sessions is an assumption: with `share_system` sessions whose tools and
    system prompt have equal sizes share those pages, else nothing is shared. Raises `TraceError` and `OSError`.
    """
    path = path or DATA / "weka_claude_code.jsonl.xz"
    sessions, cut = [], 0
    for number, record in enumerate(_records(path, _Session)):
        base = (number + 1) * _SESSION_PAGES
        shared = _shared_run(record) if share_system else (0, 0)
        plan, left_out = _weka_session(record, base, shared, context_tokens)
        cut += left_out
        if plan.threads:
            sessions.append(plan)
    return Workload("weka", _WEKA_PAGE_TOKENS, _some(sessions, path, context_tokens), cut)


def mooncake(path: Path | None = None, *, kind: str, context_tokens: int) -> Workload:
    """Open loop: every request at its recorded time. Requests that continue an earlier one belong to its thread. Raises
    `TraceError` and `OSError`."""
    path = path or DATA / f"mooncake_{kind}.jsonl.xz"
    threads: dict[int, str] = {}  # last full page of a request -> its thread
    sessions, cut = [], 0
    for number, record in enumerate(_records(path, _ChatRequest)):
        pages = [page + 1 for page in record.hash_ids][: record.input_length // _MOONCAKE_PAGE_TOKENS]
        if record.input_length + record.output_length > context_tokens:
            cut += 1
            continue
        name = next((threads[page] for page in reversed(pages[1:]) if page in threads), f"m{number}")
        if len(pages) > 1:  # the first page is the system prompt that all share
            threads[pages[-1]] = name
        call = Call(record.input_length, max(1, record.output_length), _as_runs(pages))
        sessions.append(SessionPlan(name, (ThreadPlan((call,)),), record.timestamp))
    return Workload(f"mooncake {kind}", _MOONCAKE_PAGE_TOKENS, _some(sessions, path, context_tokens), cut)


def _records(path: Path, kind: type[Record]) -> Iterator[Record]:
    """The lines of a JSON Lines file, or of one compressed by xz."""
    data = path.read_bytes()
    try:
        lines = (lzma.decompress(data) if path.suffix == ".xz" else data).splitlines()
    except lzma.LZMAError as error:
        raise TraceError(f"{path}: {error}") from error
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(lines, 1):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}, line {number}: {error}") from error


def _some(sessions: Sequence[SessionPlan], path: Path, context_tokens: int) -> tuple[SessionPlan, ...]:
    if not sessions:
        raise TraceError(f"{path}: no call in it fits a worker's {context_tokens:,} tokens of context")
    return tuple(sessions)


def _weka_session(record: _Session, base: int, shared: tuple[int, int], context_tokens: int) -> tuple[SessionPlan, int]:
    """The root and its subagents. A recorded gap runs from the end of the call before, subagents included, to the next call."""
    root: list[Call] = []
    children: list[ThreadPlan] = []
    cut, free_s = 0, 0.0
    for request in record.requests:
        gap_ms = min(max(0.0, request.t - free_s) * 1000, _MAX_GAP_MS)
        if request.requests is not None:
            calls, left_out = _weka_calls(request.requests, base, shared, context_tokens)
            cut += left_out
            free_s = max(free_s, request.t + (request.duration_ms or 0.0) / 1000)
            if calls and root:
                children.append(ThreadPlan(tuple(calls), 0, len(root) - 1))
            continue
        free_s = request.t + request.api_time
        if request.tokens > context_tokens:
            cut += 1
            continue
        root.append(_weka_call(request, base, shared, gap_ms))
    threads = (ThreadPlan(tuple(root)), *children) if root else ()
    return SessionPlan(record.id, threads), cut


def _weka_calls(
    requests: Sequence[_Request], base: int, shared: tuple[int, int], context_tokens: int
) -> tuple[list[Call], int]:
    calls, free_s = [], 0.0
    fitting = [request for request in requests if request.tokens <= context_tokens]
    for request in fitting:
        gap_ms = min(max(0.0, request.t - free_s) * 1000, _MAX_GAP_MS)
        free_s = request.t + request.api_time
        calls.append(_weka_call(request, base, shared, gap_ms))
    return calls, len(requests) - len(fitting)


def _weka_call(request: _Request, base: int, shared: tuple[int, int], gap_ms: float) -> Call:
    """The trace numbers a session's pages from 1 on; the first ones are its tools and system prompt."""
    shared_page, shared_pages = shared
    numbers = request.hr
    runs: list[int] = []
    for start, count in zip(numbers[::2], numbers[1::2], strict=True):
        common = max(0, min(start + count, shared_pages + 1) - start)
        if common:
            runs += [shared_page + start, common]
        if count > common:
            runs += [base + start + common, count - common]
    return Call(request.prompt_tokens, max(1, request.output_tokens), tuple(runs), gap_ms)


def _shared_run(record: _Session) -> tuple[int, int]:
    """Pages that stand for this tool and system prompt in every session that has the same sizes: negative, so that no session's
    own pages are meant."""
    tools, system = record.tool_tokens, record.system_tokens
    return -(tools * 100_000 + system + 1) * 10_000, (tools + system) // _WEKA_PAGE_TOKENS


def _as_runs(pages: list[int]) -> tuple[int, ...]:
    runs: list[int] = []
    for page in pages:
        if runs and page == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += [page, 1]
    return tuple(runs)
