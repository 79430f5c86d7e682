"""A template run from any message prints what it prints from the beginning, or says that it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.nodes import Name

from engine_adapters.prompt.loop_run import LoopTemplate
from engine_adapters.prompt.loop_source import NotLoopWise, rewrite
from engine_adapters.prompt.loop_watch import NEVER, Changed, LoopRun
from engine_adapters.prompt.message_view import LazyMessages
from engine_adapters.prompt.scan_idioms import LOOK
from engine_adapters.prompt.template import PromptTemplate, TemplateRefusal, new_environment

Messages = list[dict[str, Any]]

GENERATION = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
GOOD = {
    "plain": "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "loop": "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ m.role }};{% endfor %}",
    "neighbours": (
        "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}"
        "{{ loop.nextitem.role if loop.nextitem is defined else '-' }}{{ m.content }};{% endfor %}"
    ),
    "indices": (
        "{% for m in messages %}{{ messages[loop.index0 - 1].role if not loop.first }}"
        "{{ messages[loop.index0 + 1].role if not loop.last }};{% endfor %}"
    ),
    "sliced": (
        "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set messages = messages[1:] %}{% endif %}"
        "[{{ s | default('none') }}]{% for m in messages %}{{ loop.index0 }}{{ messages[loop.index0].content }};{% endfor %}"
    ),
    "counter": (
        "{% set ns = namespace(n=0, text='') %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}"
        "{% set ns.text = m.role %}{% endif %}{{ ns.n }}{{ ns.text }}{{ m.content }};{% endfor %}{{ ns.n }}"
    ),
    "inner": "{% for m in messages %}{% for c in m.content %}{{ loop.index }}{{ c }}{% endfor %}{{ loop.index }};{% endfor %}",
    "macro": (
        "{% macro show(m) %}({{ m.role }}{{ messages[0].role }}){% endmacro %}"
        "{% for m in messages %}{{ show(m) }}{{ m.content }}{% endfor %}"
    ),
    "first": "{% set first = messages[0].content %}{% for m in messages %}{{ first }}|{{ m.content }};{% endfor %}",
    "dated": "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "tail": "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages | length }}{{ messages[-1].role }}",
    "glm": (
        "{% set ns = namespace(place=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.place = loop.index0 %}"
        "{% endif %}{% endfor %}{% for m in messages %}{{ m.content if loop.index0 > ns.place else 'old' }};{% endfor %}"
    ),
}
WHOLE_ONLY = {  # what an iteration prints depends on messages behind it
    "length": "{% for m in messages %}{{ loop.length }}{{ loop.revindex }}{{ m.content }}{% endfor %}",
    "counted": "{% for m in messages %}{{ messages | length }}{{ m.content }}{% endfor %}",
    "last": "{% for m in messages %}{{ messages[-1].content }}{{ m.content }}{% endfor %}",
    "searched": "{% for m in messages %}{{ messages | selectattr('role', 'eq', 'user') | list | length }}{% endfor %}",
    "clock": "{% for m in messages %}{{ strftime_now('%Y') }}{{ m.content }}{% endfor %}",
}
REFUSED = {
    "two": "{% for m in messages %}{{ m.role }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "none": "{{ messages[0].content }}",
    "cycle": "{% for m in messages %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "changed": "{% for m in messages %}{{ loop.changed(m.role) }}{% endfor %}",
    "whole variable": "{% for m in messages %}{{ loop }}{% endfor %}",
    "condition": "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
    "else": "{% for m in messages %}{{ m.content }}{% else %}empty{% endfor %}",
    "nested": "{% if messages %}{% for m in messages %}{{ m.content }}{% endfor %}{% endif %}",
}

roles = st.sampled_from(["user", "assistant", "tool"])
message = st.builds(lambda role, content: {"role": role, "content": content}, roles, st.text("ab<>", max_size=4))
talks = st.builds(
    lambda system, rest: [*system, *rest],
    st.lists(st.just({"role": "system", "content": "rules"}), max_size=1),
    st.lists(message, min_size=1, max_size=8),
)


class Made:
    def __init__(self, source: str, now: str = "2026-11-30") -> None:
        self.plain = PromptTemplate(source + GENERATION, {"bos_token": "<s>"}, lambda: datetime.fromisoformat(now))
        self.loop = LoopTemplate(self.plain)

    def text(self, messages: Messages) -> str:
        return self.plain.render(messages)

    def run(self, messages: Sequence[Mapping[str, Any]], **further: Any) -> LoopRun:
        return self.loop.run(messages, None, add_generation_prompt=True, variables={}, **further)

    def starts(self, run: LoopRun, common: int) -> list[int]:
        """Messages from which another conversation with `common` messages in common may be begun."""
        found = []
        for place in range(len(run.chars)):
            if run.first + place >= common or (place and run.reaches[place - 1] >= common):
                break
            found.append(run.first + place)
        return found


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
@settings(deadline=None, max_examples=40)
@given(talk=talks, further=st.lists(message, min_size=1, max_size=4))
def test_a_run_from_the_middle_goes_on_with_the_whole(name: str, talk: Messages, further: Messages) -> None:
    made = Made(GOOD[name])
    before = made.run(talk)
    assert before.text == made.text(talk)
    longer = talk + further
    whole = made.run(longer)
    assert whole.text == made.text(longer)
    assert before.trace is not None
    for start in made.starts(before, len(talk)):
        chars = before.chars[start - before.first]
        lazy = LazyMessages(start, longer[start:], lambda index: None, lambda index: longer[index])
        try:
            run = made.run(lazy, start=start, start_chars=chars, before=before.trace)
        except Changed:
            assert name == "glm"  # a later question changes how what precedes it is printed
            continue
        assert before.text[:chars] + run.text == whole.text
        assert run.trace == whole.trace
        assert run.chars == whole.chars[start - whole.first :]


@pytest.mark.parametrize("name", WHOLE_ONLY)
def test_what_looks_at_the_end_is_never_begun_in_the_middle(name: str) -> None:
    made = Made(WHOLE_ONLY[name])
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    run = made.run(talk)
    assert run.text == made.text(talk)
    assert set(run.reaches) == {NEVER}


@pytest.mark.parametrize("name", REFUSED)
def test_a_shape_that_cannot_be_resumed_is_refused(name: str) -> None:
    with pytest.raises(NotLoopWise):
        Made(REFUSED[name])


@pytest.mark.parametrize(
    "source",
    [
        "{% set mine = messages | selectattr('role', 'eq', 'user') | list %}{% for m in mine %}{{ m.content }}{% endfor %}",
        "{% set mine = messages[:-1] %}{% for m in mine %}{{ m.content }}{% endfor %}",
    ],
)
def test_a_loop_over_another_list_is_refused_when_it_runs(source: str) -> None:
    with pytest.raises(NotLoopWise):
        Made(source).run([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% if m.content == 'stop' %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
        "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [m.role] %}{{ ns.all }}{% endfor %}",
    ],
)
def test_what_cannot_be_put_back_leaves_no_trace(source: str) -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "user", "content": "stop"}, {"role": "user", "content": "b"}]
    made = Made(source)
    run = made.run(talk)
    assert run.text == made.text(talk)
    assert run.trace is None


def test_a_head_that_prints_otherwise_is_a_change() -> None:
    source = GOOD["dated"]
    talk: Messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    before = Made(source).run(talk)
    with pytest.raises(Changed):
        Made(source, "2027-01-01").run(talk, start=1, start_chars=before.chars[1], before=before.trace)


def test_a_list_that_templates_handle_unusually_is_refused_and_left_to_the_plain_one() -> None:
    made = Made("{{ messages | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(TemplateRefusal):
        made.run([{"role": "user", "content": "a"}])


LOOK_BACK = (
    "{% set ns = namespace(asked=FLAG, place=messages|length - 1) %}{% for message in messages[::-1] %}"
    "{% set index = (messages|length - 1) - loop.index0 %}"
    "{% if ns.asked and message.role == 'user' and message.content is string and not("
    "message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}"
    "{% set ns.asked = false %}{% set ns.place = index %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ loop.index0 > ns.place }}{{ ns.asked }}{{ m.content }};{% endfor %}"
)


@pytest.mark.slow
@settings(deadline=None)
@given(talk=talks, flag=st.booleans())
def test_the_look_for_the_last_question_is_the_loop_that_it_replaces(talk: Messages, flag: bool) -> None:
    answers = [{"role": "user", "content": "<tool_response>x</tool_response>"}, {"role": "user", "content": [1]}]
    made = Made(LOOK_BACK.replace("FLAG", str(flag).lower()))
    for messages in (talk, talk + answers, answers):
        assert made.run(messages).text == made.text(messages)


@pytest.mark.parametrize(
    ("source", "replaced"),
    [
        (LOOK_BACK, True),
        (GOOD["glm"], True),
        (LOOK_BACK.replace("'user'", "'tool'"), False),
        (LOOK_BACK.replace("[::-1]", ""), False),
        ("{% set messages = messages[1:] %}" + LOOK_BACK, False),
    ],
)
def test_only_the_known_loops_are_replaced(source: str, replaced: bool) -> None:
    parsed = new_environment(datetime.now).parse(source)
    rewrite(parsed)
    assert any(name.name == LOOK for name in parsed.find_all(Name)) is replaced
