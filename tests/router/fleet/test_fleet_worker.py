"""What a worker takes over from discovery and from reports."""

from __future__ import annotations

import pytest

from costmodel.values import WorkerKey
from engine_adapters.base import EngineInfo, LoadReport
from router.config.load import parse_config
from router.fleet.pool import Pool
from router.fleet.worker import Worker, WorkerState

CONFIG = "pools: [{unified: [{url: 'http://127.0.0.1:9901', name: w}]}]"


@pytest.fixture
def worker() -> Worker:
    config = parse_config(CONFIG, "test", {})
    return Pool(config.pools[0], config).workers["w"]


def info(ranks: int) -> EngineInfo:
    return EngineInfo("sglang", ("m",), page_size=16, dp_size=ranks)


def keys(*ranks: int) -> tuple[WorkerKey, ...]:
    return tuple(WorkerKey("w", rank) for rank in ranks)


def test_more_ranks_get_fresh_ledgers_and_the_old_ones_stay(worker: Worker) -> None:
    first = worker.ranks[0]
    assert worker.discovered(info(3)) == ()
    assert worker.state is WorkerState.READY
    assert worker.keys == keys(0, 1, 2)
    assert worker.ranks[0] is first
    assert worker.ranked == tuple(zip(worker.keys, worker.ranks, strict=True))


def test_fewer_ranks_are_taken_over_and_the_rest_is_told(worker: Worker) -> None:
    worker.discovered(info(4))
    kept, gone = worker.ranks[:2], worker.ranks[3]
    gone.book_decode(1, 100, 0)
    assert worker.discovered(info(2)) == keys(2, 3)
    assert (worker.keys, worker.ranks) == (keys(0, 1), kept)
    assert worker.ranked == tuple(zip(worker.keys, worker.ranks, strict=True))
    assert worker.inflight == 0
    gone.settle_decode(1, 1)  # its turn ends when it ends
    assert gone.inflight == 0
    assert worker.discovered(info(2)) == ()


def test_there_is_always_one_rank(worker: Worker) -> None:
    worker.discovered(info(2))
    assert worker.discovered(info(0)) == keys(1)
    assert worker.keys == keys(0)


@pytest.mark.parametrize("rank", [-9, -1, 2, 10**6])
def test_a_report_of_no_rank_is_nothing(worker: Worker, rank: int) -> None:
    worker.discovered(info(2))
    report = LoadReport(rank, 5, 5, prefill_uncached_tokens_total=0)
    assert not worker.restarted(report)
    worker.reported(report, 1.0)
    assert [ledger.report for ledger in worker.ranks] == [None, None]
