"""`/generate`, SGLang's native route: text or token ids in, cumulative text and `meta_info` out.

Wire: srt/entrypoints/http_server.py, managers/tokenizer_manager.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_adapters.emulator.reply.plan import ReplyRequest
from engine_adapters.emulator.wire.chat_stream import DONE
from engine_adapters.emulator.wire.errors import BadRequest, openai_error, parse_object
from engine_adapters.emulator.wire.sampling import Sampling, integer, with_overrides
from engine_adapters.emulator.wire.shapes import Generate, check, prompts
from engine_adapters.emulator.wire.usage import details_of
from engine_adapters.emulator.worker.driver import Failure
from engine_adapters.emulator.worker.job import Finish, Job, Step
from engine_adapters.emulator.worker.options import ENGINE_NAME
from engine_adapters.prompt.tokenizer import Tokenizer

_DEFAULT_MAX_TOKENS = 128
_LOGPROB = -0.125


class GenerateDialect:
    head_first = True
    stream_headers = ()

    def __init__(self, sampling: Sampling, tokenizer: Tokenizer, sees_prompt: bool) -> None:
        self._sees_prompt = sees_prompt
        self._sampling = sampling
        self._tokenizer = tokenizer

    def parse(self, body: bytes, headers: Mapping[str, str]) -> GenerateCall:
        request = with_overrides(parse_object(body), headers)
        text, ids = request.get("text"), request.get("input_ids")
        if (text is None) == (ids is None):
            raise BadRequest("Either text, input_ids or input_embeds should be provided.")
        check(request, Generate)
        found = prompts(text, "text") if text is not None else prompts(ids, "input_ids")
        batch = isinstance(text, list) or (isinstance(ids, list) and bool(ids) and isinstance(ids[0], list))
        params = request.get("sampling_params") or {}
        if isinstance(params, list):
            params = params[0] if params else {}
        wish = ReplyRequest(prompt_key=0, max_tokens=0, ignore_eos=bool(params.get("ignore_eos")))
        jobs = self._sampling.jobs(
            request,
            [tuple(self._tokenizer.encode(one)) if isinstance(one, str) else tuple(one) for one in found],
            samples=integer(params, "n", 1) or 1,
            max_tokens=integer(params, "max_new_tokens", _DEFAULT_MAX_TOKENS),
            wish=wish,
        )
        return GenerateCall(request, jobs, batch, self._sees_prompt)

    def refusal(self, error: BadRequest | Failure) -> tuple[int, dict[str, Any]]:
        if isinstance(error, Failure) and error.status != 400:
            return error.status, openai_error(error.status, error.message, str(error.status))
        return error.status, {"error": {"message": error.message}}


class GenerateCall:
    def __init__(self, request: Mapping[str, Any], jobs: tuple[Job, ...], batch: bool, sees_prompt: bool) -> None:
        self.request = request
        self.jobs = jobs
        self.stream = bool(request.get("stream"))
        self.many = batch or len(jobs) > 1
        self.received_s = time.time()
        self.sees_prompt = sees_prompt

    def whole(self, last: Sequence[Step]) -> Any:
        replies = [self.output(step) for step in last]
        return replies if self.many else replies[0]

    def events(self) -> GenerateStream:
        return GenerateStream(self)

    def output(self, step: Step) -> dict[str, Any]:
        """What SGLang's tokenizer manager tells of one sequence so far."""
        reply: dict[str, Any] = {
            "text": step.text,
            "output_ids": list(step.job.plan.token_ids[: step.tokens]),
            "meta_info": self._meta(step),
        }
        if self.many and self.stream:
            reply["index"] = step.job.index
        return reply

    def _meta(self, step: Step) -> dict[str, Any]:
        now = time.time()
        meta: dict[str, Any] = {
            "id": step.job.rid,
            "finish_reason": finish_reason(step.finish),
            "prompt_tokens": step.prompt_tokens,
            "weight_version": "default",
            "num_retractions": 0,
            "forward_entry_time": self.received_s,
            "queue_time": 0.0,
        }
        if self.request.get("return_logprob"):
            meta.update(self._logprobs(step))
        meta.update(reasoning_tokens=0, completion_tokens=step.tokens, cached_tokens=step.cached)
        if step.finish is not None:
            meta["weight_versions"] = [{"version": "default", "start": 0, "end": step.tokens}]
        cached = details_of(step.came_from) if step.cached else None
        meta.update(cached_tokens_details=cached, dp_rank=None)
        if step.finish is not None:
            meta.update(e2e_latency=now - self.received_s, request_received_ts=self.received_s, request_finished_ts=now)
        return {**meta, "engine": ENGINE_NAME}

    def _logprobs(self, step: Step) -> dict[str, Any]:
        spoken = step.job.plan.token_ids[: step.tokens]
        found: dict[str, Any] = {
            "input_token_logprobs": self._input_logprobs(step),
            "output_token_logprobs": [[_LOGPROB, token, None] for token in spoken],
            "output_token_logprobs_length": len(spoken),
        }
        top = int(self.request.get("top_logprobs_num") or 0)
        if top:
            inputs = found["input_token_logprobs"]
            found["input_top_logprobs"] = [None if one[0] is None else [one] * top for one in inputs]
            found["output_top_logprobs"] = [[one] * top for one in found["output_token_logprobs"]]
        return found

    def _input_logprobs(self, step: Step) -> list[list[Any]]:
        """A decode half knows none: a router takes them from the prefill half."""
        start = int(self.request.get("logprob_start_len", -1))
        ids = step.job.prompt_ids
        if start < 0 or not self.sees_prompt:
            return []
        return [[None if start + index == 0 else _LOGPROB, token, None] for index, token in enumerate(ids[start:])]


def finish_reason(finish: Finish | None) -> dict[str, Any] | None:
    if finish is None:
        return None
    if finish.reason == "stop":
        return {"type": "stop", "matched": finish.matched}
    if finish.reason == "length":
        return {"type": "length", "length": finish.length}
    return {"type": "abort", "message": finish.message, "status_code": None, "err_type": None}


class GenerateStream:
    def __init__(self, call: GenerateCall) -> None:
        self._call = call

    def start(self) -> list[bytes]:
        return []

    def step(self, step: Step) -> list[bytes]:
        return [_data(self._call.output(step))]

    def end(self, last: Sequence[Step]) -> list[bytes]:
        return [DONE]

    def failure(self, failure: Failure, last: Sequence[Step]) -> list[bytes]:
        """A failed sequence is one more output whose finish reason is an abort; one that was refused is an error object."""
        if failure.refused:
            error = {"message": failure.message, "type": "invalid_request_error", "code": 400, "retryable": False}
            return [_data({"error": error}), DONE]
        reason = {"type": "abort", "message": failure.message, "status_code": failure.status, "err_type": None}
        step = last[-1] if last else Step(self._call.jobs[0], 0)
        output = self._call.output(msgspec.structs.replace(step, finish=Finish("abort", message=failure.message)))
        output["meta_info"]["finish_reason"] = reason
        return [_data(output), DONE]


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
