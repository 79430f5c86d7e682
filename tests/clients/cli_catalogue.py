"""The agent CLIs that are tried, each configured as `docs/clients.md` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agent_cli import AgentCli

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"

_KIMI_CONFIG = """\
default_model = "m"

[providers.loadback]
type = "kimi"
base_url = "$URL/v1"
api_key = "none"

[models.m]
provider = "loadback"
model = "tiny-agent"
max_context_size = 262144
max_output_size = 32768
"""


def _kimi_files(provider_type: str) -> Mapping[str, str]:
    url = "$URL" if provider_type == "anthropic" else "$URL/v1"
    text = _KIMI_CONFIG.replace('"kimi"', f'"{provider_type}"').replace("$URL/v1", url)
    return {".kimi-code/config.toml": text}


KIMI = AgentCli(
    "kimi-code",
    CHAT,
    ("kimi", "-p"),
    ("kimi", "-c", "-p"),
    files=_kimi_files("kimi"),
)

_OPENCODE_CONFIG = """\
{
  "model": "loadback/tiny-agent",
  "small_model": "loadback/tiny-agent",
  "provider": {
    "loadback": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "$URL/v1", "apiKey": "none"},
      "models": {"tiny-agent": {"limit": {"context": 262144, "output": 8192}}}
    }
  }
}
"""


def _opencode_files(sdk: str) -> Mapping[str, str]:
    return {".config/opencode/opencode.json": _OPENCODE_CONFIG.replace("@ai-sdk/openai-compatible", sdk)}


OPENCODE = AgentCli(
    "opencode",
    CHAT,
    ("opencode", "run"),
    ("opencode", "run", "-c"),
    files=_opencode_files("@ai-sdk/openai-compatible"),
)


def _qwen(auth_type: str, *words: str) -> tuple[str, ...]:
    return ("qwen", "--auth-type", auth_type, "--approval-mode", "yolo", *words)


QWEN = AgentCli(
    "qwen-code",
    CHAT,
    _qwen("openai"),
    _qwen("openai", "-c"),
    resume_rewrites=True,  # the date moves out of the first message
    env={"OPENAI_BASE_URL": "$URL/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "tiny-agent"},
)

_PI_CONFIG = """\
{
  "providers": {
    "loadback": {
      "baseUrl": "$URL/v1",
      "api": "openai-completions",
      "apiKey": "none",
      "models": [
        {
          "id": "tiny-agent",
          "contextWindow": 262144,
          "maxTokens": 8192,
          "compat": {"sendSessionAffinityHeaders": true}
        }
      ]
    }
  }
}
"""


def _pi_files(api: str) -> Mapping[str, str]:
    url = "$URL" if api == "anthropic-messages" else "$URL/v1"
    return {".pi/agent/models.json": _PI_CONFIG.replace("openai-completions", api).replace("$URL/v1", url)}


PI = AgentCli(
    "pi",
    CHAT,
    ("pi", "--offline", "--provider", "loadback", "--model", "tiny-agent", "-p"),
    ("pi", "--offline", "--provider", "loadback", "--model", "tiny-agent", "-c", "-p"),
    files=_pi_files("openai-completions"),
)

MINI = AgentCli(
    "mini-swe-agent",
    CHAT,
    ("mini", "-m", "openai/tiny-agent", "-y", "--exit-immediately", "-l", "0", "-t"),
    env={
        "OPENAI_API_BASE": "$URL/v1",
        "OPENAI_API_KEY": "none",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
    },
)

_CODEX_CONFIG = """\
model = "tiny-agent"
model_provider = "loadback"
model_context_window = 262144

[model_providers.loadback]
name = "loadback"
base_url = "$URL/v1"
env_key = "LOADBACK_KEY"
wire_api = "responses"
"""

CODEX = AgentCli(
    "codex",
    RESPONSES,
    ("codex", "exec", "--skip-git-repo-check", "-s", "read-only"),
    ("codex", "exec", "--skip-git-repo-check", "-s", "read-only", "resume", "--last"),
    files={".codex/config.toml": _CODEX_CONFIG},
    env={"LOADBACK_KEY": "none"},
)

CLAUDE = AgentCli(
    "claude-code",
    MESSAGES,
    ("claude", "--allowedTools", "Bash(ls:*),Bash(cat:*),Read", "-p"),
    ("claude", "--allowedTools", "Bash(ls:*),Bash(cat:*),Read", "-c", "-p"),
    env={
        "ANTHROPIC_BASE_URL": "$URL",
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": "tiny-agent",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "262144",
    },
)

KIMI_OPENAI = replace(KIMI, name="kimi-code openai", files=_kimi_files("openai"))
KIMI_RESPONSES = replace(KIMI, name="kimi-code openai_responses", path=RESPONSES, files=_kimi_files("openai_responses"))
KIMI_MESSAGES = replace(KIMI, name="kimi-code anthropic", path=MESSAGES, files=_kimi_files("anthropic"))
OPENCODE_RESPONSES = replace(OPENCODE, name="opencode @ai-sdk/openai", path=RESPONSES, files=_opencode_files("@ai-sdk/openai"))
OPENCODE_MESSAGES = replace(
    OPENCODE, name="opencode @ai-sdk/anthropic", path=MESSAGES, files=_opencode_files("@ai-sdk/anthropic")
)
QWEN_RESPONSES = replace(
    QWEN,
    name="qwen-code openai-responses",
    path=RESPONSES,
    command=_qwen("openai-responses"),
    resume=_qwen("openai-responses", "-c"),
)
PI_RESPONSES = replace(PI, name="pi openai-responses", path=RESPONSES, files=_pi_files("openai-responses"))
PI_MESSAGES = replace(PI, name="pi anthropic-messages", path=MESSAGES, files=_pi_files("anthropic-messages"))

EVERY_CLI = (KIMI, OPENCODE, QWEN, PI, MINI, CODEX, CLAUDE)
OTHER_DIALECTS = (
    KIMI_OPENAI,
    KIMI_RESPONSES,
    KIMI_MESSAGES,
    OPENCODE_RESPONSES,
    OPENCODE_MESSAGES,
    QWEN_RESPONSES,
    PI_RESPONSES,
    PI_MESSAGES,
)
