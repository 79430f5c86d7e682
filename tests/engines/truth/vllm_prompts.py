"""Runs in vLLM's own environment: the token ids that its rendering code makes of chat bodies, without a server or a model.

Usage: python vllm_prompts.py < requests.jsonl > ids.jsonl. A line in is `{"model_dir": ..., "path": "/v1/chat/completions" or
"/tokenize", "body": {...}}`; a line out is `{"ids": [...]}` or `{"error": "..."}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"

from vllm.config import ModelConfig, ObservabilityConfig, ParallelConfig
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest
from vllm.renderers import renderer_from_config
from vllm.renderers.online_renderer import OnlineRenderer, ResponsesRenderResult

LONGEST = 4_000_000


def renderer(model_dir: str) -> OnlineRenderer:
    config = ModelConfig(model=model_dir, max_model_len=LONGEST)
    vllm_config: Any = SimpleNamespace(
        model_config=config, parallel_config=ParallelConfig(), observability_config=ObservabilityConfig()
    )
    return OnlineRenderer(
        model_config=config,
        renderer=renderer_from_config(vllm_config),
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        enable_auto_tools=True,
        tool_parser="hermes",
    )


async def prompt_ids(online: OnlineRenderer, path: str, body: dict[str, Any]) -> list[int]:
    if path == "/tokenize":
        asked = TokenizeChatRequest(**body)
        tools = None if asked.tools is None else [tool.model_dump() for tool in asked.tools]
        rendered = await online.preprocess_chat(
            asked,
            asked.messages,
            default_template=None,
            default_template_content_format="auto",
            default_template_kwargs={},
            tool_dicts=tools,
        )
    elif path == "/v1/messages":
        merges = AnthropicServingMessages._should_merge_inline_system(online)
        chat = AnthropicServingMessages.to_chat_completion_request(AnthropicMessagesRequest(**body), merge_inline_system=merges)
        rendered = await online.render_chat(chat)
    elif path == "/v1/responses":
        answer = await online.render_responses(ResponsesRequest(**body))
        if not isinstance(answer, ResponsesRenderResult):
            raise ValueError(answer.error.message)
        return list(answer.engine_input["prompt_token_ids"])
    else:
        rendered = await online.render_chat(ChatCompletionRequest(**body))
    if not isinstance(rendered, tuple):
        raise ValueError(rendered.error.message)  # noqa: TRY004
    return list(rendered[1][0]["prompt_token_ids"])


async def main() -> None:
    renderers: dict[str, OnlineRenderer] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        online = renderers.get(asked["model_dir"])
        if online is None:
            online = renderers[asked["model_dir"]] = renderer(asked["model_dir"])
        try:
            answer: dict[str, Any] = {"ids": await prompt_ids(online, asked["path"], asked["body"])}
        except Exception as error:  # noqa: BLE001  # whatever the engine's code raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
