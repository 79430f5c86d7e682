from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from engine_adapters.emulator.worker.options import DEFAULT_MODEL_FOLDER
from engine_adapters.prompt.template import PromptTemplate, TemplateRefusal, special_tokens_of

TURN = [{"role": "user", "content": "hé <b>"}]
PARTS = "{% for message in messages %}{% for part in message['content'] %}{{ part.text }}{% endfor %}{% endfor %}"


def test_json_keeps_its_characters_and_spaces() -> None:
    template = PromptTemplate("{{ messages | tojson }}")
    assert template.render(TURN) == '[{"role": "user", "content": "hé <b>"}]'


def test_blocks_are_trimmed_as_transformers_trims_them() -> None:
    template = PromptTemplate("  {% if true %}\nx\n  {% endif %}\ny")
    assert template.render(TURN) == "x\ny"


def test_special_tokens_variables_and_the_date_are_there() -> None:
    template = PromptTemplate(
        "{{ bos_token }}{{ mood }}{{ strftime_now('%Y') }}", {"bos_token": "<s>"}, now=lambda: datetime(2031, 2, 3, tzinfo=UTC)
    )
    assert template.render(TURN, variables={"mood": "calm"}) == "<s>calm2031"


def test_generation_marks_render_as_their_content() -> None:
    assert PromptTemplate("{% generation %}said{% endgeneration %}").render(TURN) == "said"


def test_a_template_that_refuses_says_why() -> None:
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        PromptTemplate("{{ raise_exception('roles must alternate') }}").render(TURN)


@pytest.mark.parametrize("source", ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}"])
def test_a_template_is_kept_in_its_sandbox(source: str) -> None:
    with pytest.raises(TemplateRefusal):
        PromptTemplate(source).render(TURN)


@pytest.mark.parametrize(
    ("source", "content_format"),
    [
        ("{{ messages[0].content }}", "string"),
        (PARTS, "openai"),
        ("{% for m in messages %}{% for c in m.content[1:] %}{{ c }}{% endfor %}{% endfor %}", "openai"),
        ("{% for c in other.content %}{% endfor %}", "string"),
        ("{# image #}{{ messages }}", "openai"),
    ],
)
def test_the_content_format_is_read_from_the_template(source: str, content_format: str) -> None:
    assert PromptTemplate(source).content_format == content_format


@pytest.mark.parametrize(
    ("source", "inline"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", True),
        ("{{ messages[0].content }}", False),
        ("{% for m in messages[1:] %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{% endfor %}", False),
    ],
)
def test_inline_system_messages_are_probed(source: str, inline: bool) -> None:
    assert PromptTemplate(source).inline_system is inline


def test_a_model_folder_gives_its_template(tmp_path: Path) -> None:
    assert PromptTemplate.from_folder(DEFAULT_MODEL_FOLDER).render(TURN).startswith("<|im_start|>user\n")
    named = '[{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]'
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {named}}}')
    assert PromptTemplate.from_folder(tmp_path).render(TURN) == "d"
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="no chat template"):
        PromptTemplate.from_folder(tmp_path)


def test_special_tokens_come_as_text_or_object() -> None:
    config = {"eos_token": {"content": "</s>"}, "bos_token": "<s>", "pad_token": None, "other": "x"}
    assert special_tokens_of(config) == {"eos_token": "</s>", "bos_token": "<s>"}
