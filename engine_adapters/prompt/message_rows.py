"""What a prompt state keeps of each message: where it begins, what was read for it, and the keys by which it is known again."""

from __future__ import annotations

from array import array

import msgspec

from engine_adapters.prompt.chat_body import TalkBody
from engine_adapters.prompt.hasher import Hasher
from engine_adapters.prompt.loop_watch import LoopRun
from engine_adapters.prompt.message_view import LastUser
from engine_adapters.prompt.profile import JsonObject
from engine_adapters.prompt.state import KEY_WORDS, MESSAGE_IS_USERS, PromptState

NO_KEY = bytes(4 * KEY_WORDS)
"""In the place of the key of a message that the template was given otherwise than it is in the body."""


def message_rows(
    chat: TalkBody,
    shaped: list[JsonObject],
    given: list[JsonObject],
    first: int,
    run: LoopRun,
    reach: int,
    hasher: Hasher,
) -> tuple[array[int], array[int]]:
    """Raw keys and rows (see `PromptState`) of the messages from number `first` on.

    `given`: what the template got for `shaped`; only the end may differ. `reach`: the furthest message read for those before.
    """
    keys = chat.keys(hasher, first)
    del keys[len(given) * KEY_WORDS :]
    if given and given[-1] is not shaped[len(given) - 1]:
        keys[-KEY_WORDS:] = array("I", NO_KEY)
    rows = array("I")
    for place, message in enumerate(given):
        index = first + place - run.first
        chars = run.chars[index] if index >= 0 else 0
        reach = max(reach, run.reaches[index] if index >= 0 else 0)
        rows.extend((chars, reach, message.get("role") == "user"))
        rows.frombytes(shape_key(message, hasher))
    return keys, rows


def shape_key(shaped: JsonObject, hasher: Hasher) -> bytes:
    """Raises ValueError for lone surrogates."""
    try:
        return hasher.key(msgspec.json.encode(shaped))
    except UnicodeEncodeError as error:
        raise ValueError(f"a message has lone surrogates, which are no text: {error}") from error


def last_user_of(base: PromptState, first: int, messages: list[JsonObject]) -> LastUser:
    """Among the messages of a state and, from number `first` on, these."""

    def last_user(below: int) -> int:
        for index in range(below - 1, first - 1, -1):
            if messages[index - first].get("role") == "user":
                return index
        return base.messages.last_with(1, MESSAGE_IS_USERS, min(below, first))

    return last_user
