"""One request inside the engine model: where it stands and which pages it holds."""

from __future__ import annotations

from enum import Enum, auto

from engine_adapters.emulator.model.page_cache import PageCache
from engine_adapters.emulator.model.page_node import PageNode
from engine_adapters.emulator.model.request import Cached, EngineRequest


class Stage(Enum):
    BOOTSTRAP = auto()  # prefill: waits for its decode partner
    PREALLOC = auto()  # decode: waits for room
    RECEIVING = auto()  # decode: waits for the partner's KV
    WAITING = auto()
    PREFILLING = auto()  # in the running batch, or between two chunks
    RUNNING = auto()  # decodes
    SENDING = auto()  # prefill: KV is on its way
    GONE = auto()


class LiveRequest:
    """`computed` tokens of prompt + output have KV.

    `tree_pages` of their pages lie in the cache tree down to `node`, which is locked; `private_pages` are this request's own.
    """

    __slots__ = (
        "cached",
        "computed",
        "fetched",
        "fetching",
        "node",
        "output",
        "peer_resident",
        "pending_new",
        "private_pages",
        "request",
        "stage",
        "submitted_ms",
        "tree_pages",
    )

    def __init__(self, request: EngineRequest, stage: Stage, now_ms: float) -> None:
        self.request = request
        self.stage = stage
        self.submitted_ms = now_ms
        self.output = 0
        self.computed = 0
        self.fetching = False  # a shared pool is being read for it; others go ahead meanwhile
        self.fetched = 0  # tokens that came from there
        self.pending_new = 0  # tokens of the chunk being computed now
        self.cached = Cached()
        self.node: PageNode | None = None
        self.tree_pages = 0
        self.private_pages = 0
        self.peer_resident = 0  # tokens of the prompt that the decode partner already holds

    @property
    def fill_tokens(self) -> int:
        """Tokens whose KV must exist before the next token: the prompt and, after a retraction, what was said so far."""
        return self.request.prompt_tokens + self.output

    def hold(self, cache: PageCache, node: PageNode, pages: int) -> None:
        """Use the tree down to `node` instead of the part held before."""
        cache.lock(node)
        if self.node is not None:
            cache.unlock(self.node)
        self.node, self.tree_pages = node, pages

    def grow(self, cache: PageCache, tokens: int, page_tokens: int) -> bool:
        """Own pages for `tokens` tokens in all; False when the device is full of used pages."""
        need = -(-tokens // page_tokens) - self.tree_pages - self.private_pages
        if need <= 0:
            return True
        if not cache.reserve(need):
            return False
        cache.private_pages += need
        self.private_pages += need
        return True

    def commit(self, cache: PageCache, tokens: int, page_tokens: int) -> None:
        """Move the full pages of the first `tokens` tokens from private to the tree, where later requests find them."""
        request = self.request
        pages = min(tokens // page_tokens, len(request.pages))
        if pages <= self.tree_pages:
            return
        moved = min(pages - self.tree_pages, self.private_pages)
        cache.private_pages -= moved
        self.private_pages -= moved
        node, _ = cache.insert(request.pages[:pages], request.tokens, request.namespace)
        self.hold(cache, node, pages)

    def release(self, cache: PageCache) -> None:
        """Give everything back; what lies in the tree stays cached."""
        if self.node is not None:
            cache.unlock(self.node)
        cache.private_pages -= self.private_pages
        self.node, self.tree_pages, self.private_pages = None, 0, 0
