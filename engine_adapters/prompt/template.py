"""A model's Jinja chat template, rendered in the sandbox and with the filters that HF transformers gives it.

It turns messages and tools that are already in the template's shape into prompt text. What shape that is differs by engine and
is settled before (see `sglang_chat`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

ContentFormat = Literal["string", "openai"]

_MEDIA_WORDS = ("image", "audio", "video", "vision")
_SPECIAL_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TemplateRefusal(ValueError):
    """The template raised or could not render the messages: the client's fault, a 400 on an engine."""


class PromptTemplate:
    """One compiled template. `now` feeds `strftime_now`, which some templates use for today's date. `sorts_tools`: the model's
    own code sorts the keys of tools before it renders them, as Kimi's does."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, now: Callable[[], datetime] | None = None
    ) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        self.sorts_tools = False
        self.now = now or datetime.now
        self._environment = new_environment(self.now)
        self._template = self._environment.from_string(source)
        self.content_format = self._detect_content_format()
        self.inline_system = self._detect_inline_system()

    @classmethod
    def from_folder(cls, folder: Path) -> PromptTemplate:
        """Read `chat_template.jinja` or the template inside `tokenizer_config.json`. ValueError when there is neither, or when
        the model's own code gives its template what is not known here."""
        config_path = folder / "tokenizer_config.json"
        config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.exists() else {}
        source = _source(folder, config)
        if source is None:
            raise ValueError(f"{folder} has no chat template (chat_template.jinja or one in tokenizer_config.json)")
        template = cls(source, special_tokens_of(config))
        template.sorts_tools = _sorts_tools(folder)
        return template

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text. Raises TemplateRefusal."""
        values = {"documents": None, **self.special_tokens, **(variables or {})}
        try:
            return self._template.render(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **values)
        except (jinja2.TemplateError, TypeError) as error:
            raise TemplateRefusal(str(error)) from error

    def _detect_inline_system(self) -> bool:
        """Whether a system message in mid-conversation appears in the prompt, instead of being refused or dropped."""
        mark = "__inline_system_mark__"
        turns = [("system", "t"), ("user", "t"), ("system", mark), ("user", "t")]
        try:
            text = self._template.render(
                messages=[{"role": role, "content": content} for role, content in turns], add_generation_prompt=False
            )
        except (jinja2.TemplateError, TypeError, ValueError):
            return False
        return mark in text

    def _detect_content_format(self) -> ContentFormat:
        """Whether the template iterates over content parts ("openai") or wants one string; SGLang's and vLLM's rule."""
        if any(word in self.source for word in _MEDIA_WORDS):
            return "openai"
        for loop in self._environment.parse(self.source).find_all(jinja2.nodes.For):
            if any(_reads(loop.iter, name, "content") for name in ("message", "msg", "m")):
                return "openai"
        return "string"


def parse_template(source: str) -> jinja2.nodes.Template:
    """Raises jinja2.TemplateError."""
    return new_environment(datetime.now).parse(source)


def _sorts_tools(folder: Path) -> bool:
    """Looks into Kimi's tokenizer code, which is never run."""
    file = folder / "tokenization_kimi.py"
    code = file.read_text(encoding="utf-8") if file.exists() else ""
    if "encode_tools_to_typescript_style" in code:
        raise ValueError(f"{file} writes tools as TypeScript, which is not known here: leave prompt.model_dir out")
    return "deep_sort_dict(tools)" in code


def sorted_deeply(value: Any) -> Any:
    """The same JSON with the keys of every object in order."""
    if isinstance(value, dict):
        return {key: sorted_deeply(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [sorted_deeply(item) for item in value]
    return value


def _source(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):  # several named templates
        source = next((item["template"] for item in source if item.get("name") == "default"), None)
    return source if isinstance(source, str) else None


def special_tokens_of(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """The named special tokens of a `tokenizer_config.json`; templates may print them."""
    found: dict[str, str] = {}
    for key in _SPECIAL_TOKEN_KEYS:
        value = tokenizer_config.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[key] = value
    return found


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what the model said; it renders as its content."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def new_environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """The sandbox in which transformers compiles chat templates, with its filters and functions."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _reads(node: jinja2.nodes.Node | None, variable: str, key: str) -> bool:
    """Whether `node` is `variable[key]` or `variable.key`, perhaps filtered or sliced."""
    if isinstance(node, jinja2.nodes.Filter | jinja2.nodes.Test):
        return _reads(node.node, variable, key)
    if isinstance(node, jinja2.nodes.Getitem):
        if isinstance(node.arg, jinja2.nodes.Slice):
            return _reads(node.node, variable, key)
        return _names(node.node, variable) and isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == key
    if isinstance(node, jinja2.nodes.Getattr):
        return _names(node.node, variable) and node.attr == key
    return False


def _names(node: jinja2.nodes.Node, variable: str) -> bool:
    return isinstance(node, jinja2.nodes.Name) and node.ctx == "load" and node.name == variable
