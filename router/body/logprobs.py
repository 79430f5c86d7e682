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
            for choice in reply.get("choices") or []:
                if isinstance(choice.get("logprobs"), dict):
                    self._prompts.setdefault(choice.get("index", 0), _prompt_part(choice["logprobs"]))

    def complete(self, reply: bytes) -> bytes:
        """A whole decode reply with the prompt's part in front of every choice's lists."""
        parsed = msgspec.json.decode(reply)
        return msgspec.json.encode(parsed) if self._fill(parsed) else reply

    def complete_events(self, events: bytes) -> bytes:
        """A piece of whole events; the first of each choice is completed."""
        if not self._prompts:
            return events
        return b"".join(self._complete_event(event) + b"\n\n" for event in split_blocks(events))

    def _complete_event(self, event: bytes) -> bytes:
        data = event_data(event)
        if data is None or not data.startswith(b"{"):
            return event
        parsed = msgspec.json.decode(data)
        return b"data: " + msgspec.json.encode(parsed) if self._fill(parsed) else event

    def _fill(self, reply: dict[str, Any]) -> bool:
        filled = False
        for choice in reply.get("choices") or []:
            logprobs = choice.get("logprobs")
            prompt = self._prompts.pop(choice.get("index", 0), None) if isinstance(logprobs, dict) else None
            if prompt is not None:
                choice["logprobs"] = logprobs | {key: prompt[key] + (logprobs.get(key) or []) for key in prompt}
                filled = True
        return filled


def _prompt_part(logprobs: dict[str, Any]) -> dict[str, list[Any]]:
    return {key: logprobs[key][:-_OUTPUT_TOKENS] for key in _LISTS if isinstance(logprobs.get(key), list)}


def _objects(reply: bytes) -> list[dict[str, Any]]:
    if reply.lstrip().startswith(b"{"):
        return [msgspec.json.decode(reply)]
    found = (event_data(event) for event in split_blocks(reply))
    return [msgspec.json.decode(data) for data in found if data is not None and data.startswith(b"{")]
