"""Checks a prompt state against the whole prompt, rendered by the plain template and tokenised at once."""

from __future__ import annotations

from array import array

import msgspec

from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.state import PromptState


class Verdict(msgspec.Struct, frozen=True):
    """`tokens`: of the whole prompt; `known`: of the state. `differs_at`: the first token that is different, counted from 0;
    of a state without ids the first token of the first different block. None = the state is right."""

    tokens: int
    known: int
    differs_at: int | None

    @property
    def right(self) -> bool:
        return self.differs_at is None


def verify(state: PromptState, model: PromptModel, body: bytes) -> Verdict:
    """As slow as tokenising anew, which it does. Raises ValueError where the engine answers 400."""
    ids = model.encode(model.render(model.parse(body)))
    known = state.exact_ids
    blocks = state.root.ids(state.root.extend_digests(ids)[1])
    differs_at = _first_difference(ids, known) if known is not None else None
    if differs_at is None and blocks != state.block_ids:
        differs_at = (_first_difference(blocks, state.block_ids) or 0) * state.root.page_size
    if differs_at is None and len(ids) != state.tokens:
        differs_at = min(len(ids), state.tokens)
    return Verdict(len(ids), state.tokens, differs_at)


def _first_difference(left: array[int], right: array[int]) -> int | None:
    if left == right:
        return None
    return next((index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
