"""Log probabilities of the prompt, which on a disaggregated pair only the prefill reply has, put back into the decode reply.

Asked for with `echo` and `logprobs` on /v1/completions. Prefill reports the prompt's tokens and the first output token, decode
the output alone (seen on SGLang 0.5.23). The one edit that re-serialises a reply: the lists grow, so there is nothing to cut.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router.dialects.dialect import event_data, split_blocks

_LISTS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
_OUTPUT_TOKENS = 1  # that prefill computed


class PromptLogprobs:
    """The prompt's part of each choice, from the prefill leg's reply (whole or streamed). Each choice is completed once."""

    def __init__(self, prefill_reply: bytes) -> None:
        self._prompts: dict[int, dict[str, list[Any]]] = {}
        for reply in _objects(prefill_reply):
            for index, choice in _choices(reply):
                if isinstance(choice.get("logprobs"), dict):
                    self._prompts.setdefault(index, _prompt_part(choice["logprobs"]))

    def complete(self, reply: bytes) -> bytes:
        """A whole decode reply with the prompt's part in front of every choice's lists; one that is no such reply as it is."""
        parsed = _decode(reply)
        return msgspec.json.encode(parsed) if parsed is not None and self._fill(parsed) else reply

    def complete_events(self, events: bytes) -> bytes:
        """A piece of whole events; the first of each choice is completed."""
        if not self._prompts:
            return events
        return b"".join(self._complete_event(event) + b"\n\n" for event in split_blocks(events))

    def _complete_event(self, event: bytes) -> bytes:
        parsed = _decode(event_data(event) or b"")
        return b"data: " + msgspec.json.encode(parsed) if parsed is not None and self._fill(parsed) else event

    def _fill(self, reply: dict[str, Any]) -> bool:
        filled = False
        for index, choice in _choices(reply):
            logprobs = choice.get("logprobs")
            if not isinstance(logprobs, dict):
                continue
            prompt = self._prompts.pop(index, None)
            if prompt is not None:
                choice["logprobs"] = logprobs | {key: prompt[key] + _list(logprobs, key) for key in prompt}
                filled = True
        return filled


def _prompt_part(logprobs: dict[str, Any]) -> dict[str, list[Any]]:
    return {key: logprobs[key][:-_OUTPUT_TOKENS] for key in _LISTS if isinstance(logprobs.get(key), list)}


def _list(logprobs: dict[str, Any], key: str) -> list[Any]:
    value = logprobs.get(key)
    return value if isinstance(value, list) else []


def _choices(reply: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    choices = reply.get("choices")
    found = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    return [(choice.get("index", 0), choice) for choice in found if isinstance(choice.get("index", 0), int)]


def _objects(reply: bytes) -> list[dict[str, Any]]:
    texts = [reply] if reply.lstrip().startswith(b"{") else [event_data(event) or b"" for event in split_blocks(reply)]
    return [parsed for text in texts if (parsed := _decode(text)) is not None]


def _decode(text: bytes) -> dict[str, Any] | None:
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None
