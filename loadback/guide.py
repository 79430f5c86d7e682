"""How to point clients at a gateway: curl and the agent CLIs, each with its own configuration."""

from __future__ import annotations


def client_guide(url: str, model: str, context_tokens: int) -> str:
    """Plain text; `docs/clients.md` has the same at length."""
    return f"""\
curl         curl -N {url}/v1/chat/completions -H 'content-type: application/json' \\
               -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "hello"}}]}}'
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
               max_output_size = {context_tokens // 4}
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
opencode     opencode.json:
               {{"model": "loadback/{model}", "provider": {{"loadback": {{"npm": "@ai-sdk/openai-compatible",
                "options": {{"baseURL": "{url}/v1", "apiKey": "none"}}, "models": {{"{model}": {{}}}}}}}}}}
qwen-code    OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=none OPENAI_MODEL={model} qwen --auth-type openai"""


def watch_guide(url: str) -> str:
    return f"""\
decisions    curl {url}/admin/decisions?limit=5
workers      curl {url}/admin/workers
one body     loadback explain --url {url} BODY.json
checks       loadback doctor --url {url}"""
