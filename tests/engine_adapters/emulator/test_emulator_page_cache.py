from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from costmodel.values import Tier
from engine_adapters.emulator.model.page_cache import PageCache
from engine_adapters.emulator.model.page_events import PageEvent, PagesCleared, PagesRemoved, PagesStored
from engine_adapters.emulator.model.page_node import PageNode
from engine_adapters.emulator.model.request import Namespace
from kvtier.hashing.sglang import event_ids

CAPACITY, HOST = 12, 16


def chain(words: Sequence[int]) -> tuple[int, ...]:
    """Chained page hashes: one page a word."""
    return event_ids(words, 1)


def stored(cache: PageCache, words: Sequence[int]) -> PageNode:
    """Room for these pages and the pages themselves, as a request that computed them leaves them."""
    hashes = chain(words)
    assert cache.reserve(len(hashes))
    return cache.insert(hashes, words)[0]


class EventView:
    """What a listener believes from events alone."""

    def __init__(self) -> None:
        self.tiers: dict[Tier, set[int]] = {Tier.L1: set(), Tier.L2: set()}

    def apply(self, events: Sequence[PageEvent]) -> None:
        for event in events:
            if isinstance(event, PagesCleared):
                self.__init__()  # type: ignore[misc]
            elif isinstance(event, PagesRemoved):
                assert self.tiers[event.tier].issuperset(event.hashes)
                self.tiers[event.tier].difference_update(event.hashes)
            elif isinstance(event, PagesStored):
                assert event.parent is None or any(event.parent in known for known in self.tiers.values())
                self.tiers[event.tier].update(event.hashes)


def test_match_finds_the_longest_prefix_and_splits_where_it_ends() -> None:
    cache = PageCache(CAPACITY)
    stored(cache, [1, 2, 3, 4])
    match = cache.match(chain([1, 2, 9]))
    assert (match.device_pages, match.host_pages) == (2, 0)
    assert match.node.hashes == chain([1, 2])
    assert cache.match(chain([1, 2, 3, 4, 5])).device_pages == 4
    assert cache.match(chain([7])).device_pages == 0


def test_a_later_insert_counts_only_what_is_new() -> None:
    cache = PageCache(CAPACITY)
    stored(cache, [1, 2])
    _, new = cache.insert(chain([1, 2, 3]), [1, 2, 3])
    assert new == 1
    assert cache.device_pages == 3


def test_eviction_takes_the_oldest_leaf_first() -> None:
    cache = PageCache(8)
    for words in ([1, 2], [5, 6], [1, 2, 3, 4]):
        cache.insert(chain(words), words)
    cache.match(chain([5, 6]))  # the younger use
    assert cache.reserve(4)
    assert cache.match(chain([5, 6])).device_pages == 2
    assert cache.match(chain([1, 2, 3, 4])).device_pages == 2


def test_locked_pages_stay() -> None:
    cache = PageCache(4)
    node = stored(cache, [1, 2, 3])
    cache.lock(node)
    assert not cache.reserve(2)
    cache.unlock(node)
    assert cache.reserve(2)


def test_backed_up_pages_survive_on_the_host_and_come_back() -> None:
    cache = PageCache(4, HOST)
    node = stored(cache, [1, 2, 3])
    assert cache.begin_backup(node)
    assert cache.end_backup(node) == 3
    assert cache.reserve(4)
    match = cache.match(chain([1, 2, 3]))
    assert (match.device_pages, match.host_pages) == (0, 3)
    cache.lock(match.node)
    assert cache.load_back(match) == 3
    cache.unlock(match.node)
    assert cache.match(chain([1, 2, 3])).device_pages == 3


def test_a_node_split_during_its_backup_is_reported_whole() -> None:
    cache = PageCache(8, HOST)
    node = stored(cache, [1, 2, 3, 4])
    assert cache.begin_backup(node)
    cache.match(chain([1, 2]))
    cache.take_events()
    assert cache.end_backup(node) == 4
    reported = [event for event in cache.take_events() if isinstance(event, PagesStored)]
    assert [event.hashes for event in reported] == [chain([1, 2]), chain([1, 2, 3, 4])[2:]]
    assert [event.tier for event in reported] == [Tier.L2, Tier.L2]


def test_children_are_not_backed_up_before_their_parents() -> None:
    cache = PageCache(8, HOST)
    stored(cache, [1, 2])
    child = stored(cache, [1, 2, 3])
    assert not cache.begin_backup(child)


def test_a_node_keeps_the_tokens_of_its_own_pages_only() -> None:
    cache = PageCache(8, page_tokens=2)
    tokens = list(range(100, 108))
    hashes = event_ids(tokens, 2)
    cache.insert(hashes[:2], tokens[:4])
    cache.insert(hashes, tokens)
    cache.match(hashes[:3])  # splits what came last
    told = [event for event in cache.take_events() if isinstance(event, PagesStored)]
    assert [list(event.tokens or ()) for event in told] == [tokens[:4], tokens[4:]]
    last = cache.match(hashes).node
    assert (list(last.tokens or ()), last.first_page) == (tokens[4:], 1)


def test_namespaces_do_not_share() -> None:
    cache = PageCache(CAPACITY)
    tenant = Namespace(cache_salt="tenant")
    cache.insert(chain([1, 2]), [1, 2], tenant)
    assert cache.match(chain([1, 2])).device_pages == 0
    assert cache.match(chain([1, 2]), tenant).device_pages == 2
    assert [event.cache_salt for event in cache.take_events() if isinstance(event, PagesStored)] == ["tenant"]


@settings(max_examples=30, stateful_step_count=30, deadline=None)
class CacheMachine(RuleBasedStateMachine):
    """Any order of use keeps capacity, locks and what listeners believe in step with what the tree holds."""

    nodes = Bundle("nodes")

    def __init__(self) -> None:
        super().__init__()
        self.cache = PageCache(CAPACITY, HOST)
        self.view = EventView()
        self.locked: list[tuple[PageNode, tuple[int, ...]]] = []
        self.writing: list[PageNode] = []

    @rule(words=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def put(self, words: list[int]) -> None:
        hashes = chain(words)
        known = self.cache.match(hashes)
        self.cache.lock(known.device_node)
        if self.cache.reserve(len(hashes) - known.device_pages):
            self.cache.insert(hashes, words)
        self.cache.unlock(known.device_node)

    @rule(words=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def hold(self, words: list[int]) -> None:
        match = self.cache.match(chain(words))
        self.cache.lock(match.device_node)
        self.locked.append((match.device_node, chain(words)[: match.device_pages]))

    @precondition(lambda self: self.locked)
    @rule()
    def let_go(self) -> None:
        self.cache.unlock(self.locked.pop(0)[0])

    @rule(pages=st.integers(1, CAPACITY))
    def make_room(self, pages: int) -> None:
        promised = self.cache.reserve(pages)
        assert promised == (self.cache.free_pages >= pages)

    @rule()
    def write_to_host(self) -> None:
        for node in self.cache.to_backup:
            if self.cache.begin_backup(node):
                self.writing.append(node)
        self.cache.to_backup.clear()

    @precondition(lambda self: self.writing)
    @rule()
    def written(self) -> None:
        self.cache.end_backup(self.writing.pop(0))

    @rule(words=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def restore(self, words: list[int]) -> None:
        match = self.cache.match(chain(words))
        self.cache.lock(match.node)
        if match.host_pages and self.cache.reserve(match.host_pages):
            assert self.cache.load_back(match) == match.host_pages
            assert self.cache.match(chain(words)).device_pages == match.device_pages + match.host_pages
        self.cache.unlock(match.node)

    @invariant()
    def capacities_hold(self) -> None:
        assert 0 <= self.cache.device_pages <= CAPACITY
        assert 0 <= self.cache.host_pages <= HOST
        assert 0 <= self.cache.locked_pages <= self.cache.device_pages

    @invariant()
    def listeners_know_what_is_there(self) -> None:
        self.view.apply(self.cache.take_events())
        assert len(self.view.tiers[Tier.L1]) == self.cache.device_pages
        writing = sum(len(part.hashes) for node in self.writing for part in node.backup or ())
        assert len(self.view.tiers[Tier.L2]) == self.cache.host_pages - writing

    @invariant()
    def held_pages_are_on_the_device(self) -> None:
        for _, hashes in self.locked:
            assert self.view.tiers[Tier.L1].issuperset(hashes)


TestCacheMachine = CacheMachine.TestCase


@pytest.mark.parametrize("pages", [1, 5, CAPACITY])
def test_clear_forgets_everything(pages: int) -> None:
    cache = PageCache(CAPACITY, HOST)
    stored(cache, list(range(pages)))
    cache.take_events()
    cache.clear()
    assert cache.take_events() == [PagesCleared()]
    assert cache.free_pages == CAPACITY
    assert cache.match(chain(range(pages))).device_pages == 0
