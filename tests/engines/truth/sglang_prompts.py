"""Runs in SGLang's own environment: the token ids that its serving code makes of request bodies, without a server or a model.

Usage: python sglang_prompts.py < requests.jsonl > ids.jsonl. A line in is `{"model_dir": ..., "path": ..., "body": {...}}`, of
chat completions, responses or messages; a line out is `{"ids": [...]}` or `{"error": "..."}`.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from types import SimpleNamespace
from typing import Any

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, ResponsesRequest
from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
from sglang.srt.parser.template_manager import TemplateManager
from sglang.srt.runtime_context import publish
from sglang.srt.server_args import prepare_server_args
from sglang.srt.utils.hf_transformers_utils import get_tokenizer

FLAGS = shlex.split(
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --tool-call-parser qwen25"
    " --reasoning-parser qwen3 --served-model-name tiny-agent"
)


def serving(model_dir: str) -> OpenAIServingResponses:
    args = prepare_server_args(["--model-path", model_dir, *FLAGS])
    publish(args, role="test")
    manager: Any = SimpleNamespace(
        server_args=args,
        tokenizer=get_tokenizer(model_dir),
        model_config=ModelConfig.from_server_args(args),
        model_path=model_dir,
        served_model_name="tiny-agent",
        config_value=lambda name: getattr(args, name),
        processor=None,
    )
    templates = TemplateManager()
    templates.initialize_templates(manager, model_dir)
    return OpenAIServingResponses(manager, templates)  # which is a chat's, too


def prompt_ids(chat: OpenAIServingResponses, path: str, body: dict[str, Any]) -> list[int]:
    if path == "/v1/responses":
        asked = ResponsesRequest(**body)
        _, _, (prompt,), _ = asyncio.run(chat._make_request(asked, None, chat.tokenizer_manager.tokenizer))
        return list(prompt)
    if path == "/v1/chat/completions":
        request = ChatCompletionRequest(**body)
    else:
        request = AnthropicServing(chat)._convert_to_chat_completion_request(AnthropicMessagesRequest(**body))
    if (refusal := chat._validate_request(request)) is not None:
        raise ValueError(refusal)
    internal, _ = chat._convert_to_internal_request(request)
    return list(internal.input_ids)


def main() -> None:
    servings: dict[str, OpenAIServingResponses] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        chat = servings.get(asked["model_dir"])
        if chat is None:
            chat = servings[asked["model_dir"]] = serving(asked["model_dir"])
        try:
            answer: dict[str, Any] = {"ids": prompt_ids(chat, asked["path"], asked["body"])}
        except Exception as error:  # noqa: BLE001  # whatever the engine's code raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
