"""One inference exchange, whatever its dialect: fault or reply, streamed or whole, and what happens when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from engine_adapters.emulator.wire.call import Call, Dialect, EventStream
from engine_adapters.emulator.wire.errors import BadRequest, unsupported_media_type
from engine_adapters.emulator.wire.http import Exchange
from engine_adapters.emulator.worker.driver import Failure
from engine_adapters.emulator.worker.faults import Fault, FaultKind
from engine_adapters.emulator.worker.job import Step
from engine_adapters.emulator.worker.worker import Worker

_LARGE_BODY_BYTES = 65_536  # larger ones are tokenized off the loop
_STATUS_FAULTS = {FaultKind.E500: 500, FaultKind.E503: 503, FaultKind.E429: 429, FaultKind.E400: 400}


async def serve_inference(worker: Worker, dialect: Dialect, exchange: Exchange) -> None:
    """Answer one call. The client's leaving aborts its requests at once."""
    body = await exchange.body()
    worker.journal.arrived(exchange.path, exchange.headers, body)
    work = asyncio.ensure_future(_answer(worker, dialect, exchange, body))
    gone = asyncio.ensure_future(exchange.gone())
    aborted = True
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            aborted = work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)
        worker.journal.left(aborted=aborted)


async def _answer(worker: Worker, dialect: Dialect, exchange: Exchange, body: bytes) -> bool:
    """Whether the call was aborted rather than answered."""
    fault = worker.faults.take()
    if fault is not None and await _fail_early(fault, dialect, exchange):
        return True
    try:
        headers = dict(exchange.headers)
        if headers.get("content-type", "").lower().split(";")[0].strip() != "application/json":
            raise unsupported_media_type()
        large = len(body) > _LARGE_BODY_BYTES
        call = await asyncio.to_thread(dialect.parse, body, headers) if large else dialect.parse(body, headers)
        if call.stream:
            return await _stream(worker, dialect, call, exchange, fault)
        return await _whole(worker, call, exchange, fault)
    except (BadRequest, Failure) as error:
        await exchange.json(*dialect.refusal(error))
    return False


async def _fail_early(fault: Fault, dialect: Dialect, exchange: Exchange) -> bool:
    """Do what a fault does before the reply begins; False when the reply is still to come."""
    if fault.delay_ms:
        await asyncio.sleep(fault.delay_ms / 1000.0)
    if fault.kind is FaultKind.DROP:
        exchange.close()
        return True
    if fault.kind is FaultKind.HANG:
        await asyncio.Event().wait()
    status = _STATUS_FAULTS.get(fault.kind)
    if status is None:
        return False
    await exchange.json(status, dialect.refusal(Failure(status, f"injected fault {fault.kind}"))[1])
    return True


async def _whole(worker: Worker, call: Call, exchange: Exchange, fault: Fault | None) -> bool:
    if fault is not None and fault.kind is FaultKind.SSE_ERROR:
        raise Failure(500, "injected fault sse_error")
    last: dict[int, Step] = {}
    async with aclosing(worker.run(call.jobs)) as steps:
        async for step in steps:
            last[step.job.index] = step
    reply = call.whole(_in_order(last))
    if fault is not None and fault.kind is FaultKind.MIDCUT:
        await exchange.cut_json(200, reply)
        return True
    await exchange.json(200, reply)
    return any(step.finish is not None and step.finish.reason == "abort" for step in last.values())


async def _stream(worker: Worker, dialect: Dialect, call: Call, exchange: Exchange, fault: Fault | None) -> bool:
    """The 200 waits for the first event unless the dialect sends it at once; failures after it are events."""
    events = call.events()
    last: dict[int, Step] = {}
    if dialect.head_first:
        await exchange.start_events(dialect.stream_headers)
        for event in events.start():
            await exchange.event(event)
    sent = 0
    async with aclosing(_event_bytes(worker, dialect, call, events, last)) as chunks:
        async for chunk in chunks:
            if not exchange.started:
                await exchange.start_events(dialect.stream_headers)
            if fault is not None and sent >= fault.after_events and await _fail_late(fault, events, exchange, _in_order(last)):
                return True
            await exchange.event(chunk)
            sent += 1
    await exchange.end()
    return any(step.finish is not None and step.finish.reason == "abort" for step in last.values())


async def _event_bytes(
    worker: Worker, dialect: Dialect, call: Call, events: EventStream, last: dict[int, Step]
) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(worker.run(call.jobs)) as steps:
            async for step in steps:
                last[step.job.index] = step
                for event in events.step(step):
                    yield event
        closing = events.end(_in_order(last))
    except Failure as failure:
        if failure.refused and not dialect.head_first:
            raise
        closing = events.failure(failure, [last.get(job.index) or Step(job, 0) for job in call.jobs])
    for event in closing:
        yield event


async def _fail_late(fault: Fault, events: EventStream, exchange: Exchange, last: Sequence[Step]) -> bool:
    if fault.kind is FaultKind.MIDCUT:
        exchange.close()
        return True
    if fault.kind is FaultKind.SSE_ERROR:
        for event in events.failure(Failure(500, "injected fault sse_error"), last):
            await exchange.event(event)
        await exchange.end()
        return True
    return False


def _in_order(last: dict[int, Step]) -> list[Step]:
    return [last[index] for index in sorted(last)]
