import asyncio

import pytest

from router.admission import Admission
from router.errors import QueueFull, QueueTimeout


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_permits_are_a_limit_and_come_back():
    admission = Admission(limit=1, queue_limit=4, timeout_s=5)
    await admission.acquire(0)
    waiting = asyncio.create_task(admission.acquire(0))
    await settle()
    assert (admission.running, admission.waiting) == (1, 1)
    admission.release()
    await waiting
    assert (admission.running, admission.waiting) == (1, 0)
    admission.release()
    assert admission.running == 0


async def test_the_older_session_goes_first_whenever_its_call_came():
    admission = Admission(limit=1, queue_limit=4, timeout_s=5)
    await admission.acquire(0)
    order: list[str] = []

    async def call(name: str, session_ms: float) -> None:
        await admission.acquire(session_ms)
        order.append(name)
        admission.release()

    tasks = []
    for name, session_ms in (("young", 30), ("old", 10), ("middle", 20)):
        tasks.append(asyncio.create_task(call(name, session_ms)))
        await settle()
    admission.release()
    await asyncio.gather(*tasks)
    assert order == ["old", "middle", "young"]
    assert admission.running == 0


async def test_a_full_queue_refuses_with_retry_after():
    admission = Admission(limit=1, queue_limit=1, timeout_s=5)
    await admission.acquire(0)
    waiting = asyncio.create_task(admission.acquire(0))
    await settle()
    with pytest.raises(QueueFull) as refused:
        await admission.acquire(0)
    assert refused.value.status == 429
    assert refused.value.retry_after_s
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_waiting_has_a_deadline():
    admission = Admission(limit=1, queue_limit=1, timeout_s=0.01)
    await admission.acquire(0)
    with pytest.raises(QueueTimeout):
        await admission.acquire(0)
    assert (admission.running, admission.waiting) == (1, 0)


async def test_a_caller_that_left_after_it_was_granted_gives_the_permit_back():
    admission = Admission(limit=1, queue_limit=4, timeout_s=5)
    await admission.acquire(0)
    waiting = asyncio.create_task(admission.acquire(0))
    await settle()
    admission.release()  # grants
    waiting.cancel()  # before the waiter runs
    await asyncio.gather(waiting, return_exceptions=True)
    assert admission.running == 0
    assert admission.try_acquire()


async def test_those_who_gave_up_do_not_pile_up():
    admission = Admission(limit=1, queue_limit=10, timeout_s=5)
    await admission.acquire(0)
    for _ in range(200):
        waiting = asyncio.create_task(admission.acquire(0))
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert len(admission._queue) <= 17
