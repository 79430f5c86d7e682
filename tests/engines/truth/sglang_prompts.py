"""Runs in SGLang's own environment: the token ids that its serving code makes of chat bodies, without a server or a model.

Usage: python sglang_prompts.py MODEL_DIR < bodies.jsonl > ids.jsonl. Each line in is one request as
`{"path": "/v1/chat/completions", "body": {...}}`; each line out is `{"ids": [...]}` or `{"error": "..."}`.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from sglang.srt.parser.template_manager import TemplateManager
from sglang.srt.runtime_context import publish
from sglang.srt.server_args import prepare_server_args
from sglang.srt.utils.hf_transformers_utils import get_tokenizer

FLAGS = [
    "--device",
    "cpu",
    "--attention-backend",
    "torch_native",
    "--sampling-backend",
    "pytorch",
    "--tool-call-parser",
    "qwen25",
]


def serving(model_dir: str) -> OpenAIServingChat:
    args = prepare_server_args(["--model-path", model_dir, "--served-model-name", "tiny-agent", *FLAGS])
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
    return OpenAIServingChat(manager, templates)


def prompt_ids(chat: OpenAIServingChat, path: str, body: dict[str, Any]) -> list[int]:
    if path == "/v1/chat/completions":
        request = ChatCompletionRequest(**body)
    else:
        request = AnthropicServing(chat)._convert_to_chat_completion_request(AnthropicMessagesRequest(**body))
    if (refusal := chat._validate_request(request)) is not None:
        raise ValueError(refusal)
    internal, _ = chat._convert_to_internal_request(request)
    return list(internal.input_ids)


def main() -> None:
    chat = serving(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer: dict[str, Any] = {"ids": prompt_ids(chat, asked["path"], asked["body"])}
        except Exception as error:  # noqa: BLE001  # whatever the engine's code raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
