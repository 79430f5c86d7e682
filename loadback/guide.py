"""How to point clients at a gateway: curl and the agent CLIs, configured as `docs/clients.md` says."""

from __future__ import annotations

import sys
from pathlib import Path

OUTPUT_TOKENS = 8192
KIMI_OUTPUT_TOKENS = 32_768


def client_guide(url: str, model: str, context_tokens: int) -> str:
    """Plain text. Outputs take at most a quarter of the context, so that prompts have room."""
    output, kimi_output = (min(tokens, context_tokens // 4) for tokens in (OUTPUT_TOKENS, KIMI_OUTPUT_TOKENS))
    return f"""\
curl         curl -N {url}/v1/chat/completions -H 'content-type: application/json' \\
               -d '{chat_body(model, stream=True)}'
Kimi Code    ~/.kimi-code/config.toml:
               default_model = "m"
               [providers.loadback]
               type = "kimi"
               base_url = "{url}/v1"
               api_key = "none"
               [models.m]
               provider = "loadback"
               model = "{model}"
               max_context_size = {context_tokens}
               max_output_size = {kimi_output}
Codex        ~/.codex/config.toml, then LOADBACK_KEY=none codex:
               model = "{model}"
               model_provider = "loadback"
               model_context_window = {context_tokens}
               [model_providers.loadback]
               name = "loadback"
               base_url = "{url}/v1"
               env_key = "LOADBACK_KEY"
               wire_api = "responses"
Claude Code  ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY=none ANTHROPIC_MODEL={model} \\
               CLAUDE_CODE_MAX_CONTEXT_TOKENS={context_tokens} claude
opencode     ~/.config/opencode/opencode.json:
               {{"model": "loadback/{model}", "small_model": "loadback/{model}",
                "provider": {{"loadback": {{"npm": "@ai-sdk/openai-compatible",
                 "options": {{"baseURL": "{url}/v1", "apiKey": "none"}},
                 "models": {{"{model}": {{"limit": {{"context": {context_tokens}, "output": {output}}}}}}}}}}}}}
qwen-code    OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=none OPENAI_MODEL={model} qwen --auth-type openai
others       docs/clients.md"""


def watch_guide(url: str, model: str, command: str) -> str:
    return f"""\
decisions    curl '{url}/admin/decisions?limit=5'
workers      curl {url}/admin/workers
one body     echo '{chat_body(model)}' | {command} explain - --url {url}
checks       {command} doctor --url {url}"""


def chat_body(model: str, *, stream: bool = False) -> str:
    streamed = '"stream": true, ' if stream else ""
    return f'{{"model": "{model}", {streamed}"messages": [{{"role": "user", "content": "hello"}}]}}'


def own_command(program: Path, here: Path) -> str:
    """How to call this program again from the folder `here`; `program` is what was called, `sys.argv[0]`."""
    if program.name == "__main__.py":
        return f"{_from(Path(sys.executable), here)} -m loadback"
    return program.name if program.parent == Path() else _from(program, here)


def _from(program: Path, here: Path) -> str:
    absolute = here / program
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
