"""Messages of a chat as prompts: nothing that a message says becomes a special token."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.architectures.seeded import bundle_of
from tests.tokenizers.grown import grown
from tests.tokenizers.test_agreement import CHATTING, chat_reader, tokenizers
from txport.cli.commands import cli
from txport.errors import BundleError, TextError, UnavailableError, UnsupportedError
from txport.models.checkpoint import load_checkpoint
from txport.models.tokenizers import templates
from txport.models.tokenizers.chat import ChatReader, chat_line, messages_of

READERS = {name: chat_reader(name) for name in CHATTING}
PARTS = [
    *(
        "<s>",
        "</s>",
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<start_of_turn>",
        "<end_of_turn>",
        "<bos>",
        "<eos>",
    ),
    *("<|im_", "start|>", "<", ">", "</", "s>", "|>", "<start_of", "_turn>", "[INST]", "\n", " ", "a", "user", "<unk>"),
]
SAID = st.lists(st.sampled_from(PARTS), max_size=6).map("".join)
CONTROL = {  # tokens that may stand in prompts only where the template has them
    name: {reader.inner.id_of(token) for token in reader._control[0]} for name, reader in READERS.items()
}


def control(name: str, messages: list[dict[str, Any]]) -> list[int]:
    return [id_ for id_ in READERS[name].encode(chat_line(messages)) if id_ in CONTROL[name]]


@pytest.mark.parametrize("name", CHATTING)
@settings(max_examples=60, deadline=None)
@given(said=st.lists(SAID.filter(str.strip), min_size=1, max_size=3))
def test_no_message_writes_a_special_token(name: str, said: list[str]) -> None:
    roles = ["user", "assistant"] * 2
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    neutral = [{**message, "content": "a"} for message in messages]
    assert control(name, messages) == control(name, neutral)


@pytest.mark.parametrize("name", CHATTING)
def test_what_a_message_says_is_all_there(name: str) -> None:
    said = "So <|im_end|> and </s><end_of_turn> are words <"
    ids = READERS[name].encode(said)
    assert said in READERS[name].inner.decode(ids)


def test_a_line_is_what_a_user_says_or_messages() -> None:
    reader = READERS["qwen2"]
    assert reader.encode("Hello") == reader.encode('[{"role": "user", "content": "Hello"}]')
    assert messages_of("[1] is a number") == [{"role": "user", "content": "[1] is a number"}]
    for line in ('[{"role"', '[{"role": "user", "content": "a"}, 3]'):
        with pytest.raises(TextError, match="is not a JSON list of messages"):
            reader.encode(line)
    for line in (
        '[{"content": "a"}]',
        '[{"role": "a b", "content": "a"}]',
        '[{"role": "<|im_end|>"}]',
        '[{"role": 3}]',
    ):
        with pytest.raises(TextError, match='a message must be an object with a "role"'):
            reader.encode(line)
    deep = "[" * 900 + "]" * 900
    with pytest.raises(
        TextError,
        match=r"too many to be read|messages: RecursionError|is not a JSON list",
    ):
        reader.encode(f'[{{"role": "user", "content": {deep}}}]')
    with pytest.raises(TextError, match=r"U\+FDD0"):
        reader.encode("a \ufdd0 b")
    for messages in ("", [], [3], {"role": "user"}, [{"role": "user", "content": {1, 2}}]):
        with pytest.raises(TextError, match=r"messages must be|a message|empty|does not take|no character"):
            reader.encode(chat_line(messages) if messages else chat_line([]))  # type: ignore[arg-type]


def templated(template: str) -> ChatReader:
    reader = READERS["qwen2"]
    return ChatReader(reader.inner, dataclasses.replace(reader.chat, template=template), continues=False)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ search(messages) }}", "it calls 'search', which is not there"),
        ("{{ messages | translate }}", "No filter named 'translate'"),
        ("{{ messages", "can't be used: unexpected end"),
        ("{% include 'x' %}", "no loader"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "is unsafe|has no attribute|not safe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ raise_exception('Nobody may talk') }}", "Nobody may talk"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{{ messages.append(3) }}", "is unsafe|not safe"),
    ],
)
def test_a_template_that_can_not_be_used_is_refused(template: str, message: str) -> None:
    with pytest.raises((BundleError, TextError), match=message) as caught:
        templated(template).encode("Hello")
    assert "\n" not in str(caught.value)


LONG = "{% set a = 'a' * 4000000 %}"
GROWING = "{% set n = namespace(a='a') %}{% for b in range(60) %}? {% endfor %}"


TWICE = "[n.a, n.a]"
USES = [
    *(
        "{{ n.a }}",
        "{{ n.a ~ 1 }}",
        "{{ n.a | string }}",
        "{{ n.a | upper }}",
        "{{ n.a | tojson }}",
        "{{ [n.a] | join }}",
    ),
    *("{{ '%s' % (n.a,) }}", "{{ '%s' | format(n.a) }}", "{{ '{}'.format(n.a) }}", "{{ n.a | replace('a', 'b') }}"),
    *("{{ n.a | indent }}", "{{ 'b' | replace('a', n.a) }}", "{{ n.a | map('string') | list }}", "{{ n.a | format }}"),
]
PILED = [
    *((TWICE, use) for use in USES),
    *((twice, USES[0]) for twice in ("(n.a, n.a)", "{1: n.a, 2: n.a}", "dict(b=n.a, c=n.a).values()")),
    *((twice, USES[0]) for twice in ("dict(b=n.a, c=n.a).items()", "namespace(b=n.a, c=n.a)")),
]


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 9999999999 }}",
        "{{ [0] * 9999999999 }}",
        "{{ messages * 9999999999 }}",
        "{{ 9 ** 99999999 }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ '%(a)9999999999d' % {'a': 1} }}",
        "{{ '%(a(b))9999999999d' % {'a(b)': 1} }}",
        "{{ ('%(a)999d' * 9999) % {'a': 1} }}",
        "{{ '{:>9999999999}'.format('a') }}",
        "{{ 'a'.ljust(9999999999) }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ 'a' | indent(9999999999, first=true) }}",
        "{{ ('a' * 999999) | replace('a', 'a' * 999999) }}",
        "{{ ('a' * 999999).replace('a', 'a' * 999999) }}",
        "{{ range(99999) | join('a' * 999999) }}",
        "{{ ('a' * 999999).join(range(99999) | map('string') | list) }}",
        "{{ messages | tojson(indent=9999999999) }}",
        GROWING.replace("?", "{% set n.a = n.a + n.a %}"),
        GROWING.replace("?", "{% set n.a = n.a ~ n.a %}"),
        GROWING.replace("?", "{% set n.a = [n.a, n.a] | join %}"),
        GROWING.replace("?", "{% set a %}{{ n.a }}{{ n.a }}{% endset %}{% set n.a = a %}"),
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        LONG + "{{ ('%s' * 1000) | format(*([a] * 1000)) }}",
        LONG + "{{ ('%s' * 1000) % ((a,) * 1000) }}",
        LONG + "{{ '%(a)s%(a)s' | format(a=a) }}",
        LONG + "{{ ('{}' * 1000).format(*([a] * 1000)) }}",
        LONG + "{{ ('{0}' * 1000).format(a) }}",
        LONG + "{{ '{a}{a}'.format(a=a) }}",
        LONG + "{{ a }}{{ a }}",
        "{{ ('%999d' * 9999) % ((1,) * 9999) }}",
        *(f"{GROWING.replace('?', '{% set n.a = ' + twice + ' %}')}{use}" for twice, use in PILED),
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else 1 }}{% endmacro %}{{ f(60) }}",
        LONG + "{{ ''.join(([a] * 100) | select) | length }}",
        LONG + "{{ ''.join(([a] * 100) | reverse) | length }}",
        LONG + "{{ ''.join(([a] * 100) | map('trim')) | length }}",
        LONG + "{{ ([(a, a)] * 50) | select | urlencode | length }}",
        "{% set a = 'A' * 4000000 %}{{ ([a] * 100) | sort | length }}",
        "{{ (['\u4e00\u4e00'] * 4000000) | map(attribute=0) | list }}",
        "{% macro f() %}{% endmacro %}{{ f(*((['\u4e00\u4e00'] * 4000000) | map(attribute=0))) }}",
        "{{ ('\u4e00 ' * 2000000) | title }}",
        "{{ '%999999999d' is odd }}",
        "{{ '%999999999d' is divisibleby(3) }}",
    ],
)
def test_a_template_takes_bounded_time_and_memory(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "LONGEST", 0.5)
    tracemalloc.start()
    with pytest.raises((BundleError, TextError), match=r"it (takes|makes)|unsafe|No filter"):
        templated(template).prompt(messages_of("Hello"))
    assert tracemalloc.get_traced_memory()[1] < 3e8
    tracemalloc.stop()


# Lists and tuples that hold one another twice: Python walks through all that they are, without a look at the clock.
SHARED = """{% set n = namespace(a=[1], b=[1], t=(1,), u=(1,)) %}{% for each in range(22) %}
{%- set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% set n.t = (n.t, n.t) %}{% set n.u = (n.u, n.u) %}{% endfor %}"""
CONTAINERS = (
    *("n.a == n.b", "1 < 2 < n.a", "n.a in [n.b]", "{n.t: 1}", "{}[n.t]", "{}.get(n.t)", "{}.fromkeys([n.t])"),
    *("[n.t, n.t] | unique | list", "[n.a, n.b] | sort", "[n.a, n.b] | min", "[n.a, n.b] | max"),
    *("[[n.t], [n.u]] | groupby(0)", "{1: n.a, 2: n.b} | dictsort(by='value')", "[n.a] | select('eq', n.b) | list"),
    *("n.a is eq(n.b)", "n.a is in([n.b])", "n.a is lower", "n.t is filter", "[[n.a]] | selectattr(0, 'in', [n.b])"),
    *("raise_exception(n.a)", "n | attr(n.a)", "[1] | map(n.t) | list", "[{}] | map(attribute=n.t) | list"),
    *("[n.b].index(n.a)", "(n.b,).count(n.a)", "dict([(n.t, 1)])", "{1: n.t}.items() - {1: n.u}.items()"),
    *("{1: n.t}.items().isdisjoint({1: n.u}.items())", "n.a in ([n.b] | select)", "[1] | join(n.a)", "joiner(n.a)"),
    *("('a' * 4000000).rfind('a' * 20000)", "('a' * 2000000).strip('b' * 200000 + 'a')", "1 | round(99999, 'ceil')"),
    *("('a' * 2000000) | trim('b' * 200000 + 'a')", "1 | round(-99999)", "('X' * 4000000) in [['X' * 4000000] * 9]"),
)


@pytest.mark.parametrize("walk", CONTAINERS)
def test_what_python_does_at_once_is_bounded(walk: str) -> None:
    with pytest.raises(TextError, match="it makes or reads something of the size"):
        templated(f"{SHARED}{{{{ ({walk}) | string | length }}}}").prompt(messages_of("Hello"))


def test_what_a_loop_compares_is_bounded() -> None:
    with pytest.raises(TextError, match="it makes or reads something of the size"):
        templated(SHARED + "{% for each in [n.a, n.b] %}{{ loop.changed(each) }}{% endfor %}").prompt(messages_of("a"))


def test_a_format_of_many_percents_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "LONGEST", 0.5)
    assert templated("{{ ('%%' * 20000) % () }}").prompt(messages_of("Hello")) == "%" * 20000


KEEPING = "{% set n = namespace(a='\u4e00' * 100000, b=[0] * 100000, c=2 ** 400000, l=[]) %}"
KEPT = "{% for each in range(99999) %}{% set n.l = [n.l, ?] %}{% endfor %}"
TEXT = "x" * 100_000
KEPT_BY = [
    KEEPING + KEPT.replace("?", what)
    for what in (
        *("n.b + n.b", "n.a + n.a", "n.a ~ n.a", "n.a * 9", "n.b * 9", "n.a[1:]", "n.b[1:]", "n.c - 1", "-n.c"),
        *("n.a.upper()", "n.a | upper", "n.a | list", "n.b | list", "(n.b, n.b) | sum(start=[])", "n.b | sort"),
        *("n.a.split('a')", "n.b | reverse | list", "''.join([n.a] | select)", "''.join([n.a] | reverse)"),
        *("''.join([n.a] | map('trim'))", "{}.fromkeys(range(9999) | select)"),
        *("'%s' % n.a", "n.a | tojson", "n.a | safe", "n.c // 2", "n.a | truncate(9999)", "n.a.partition('a')"),
        "dict.fromkeys(range(9999))",
    )
]
KEPT_BY += [
    f"{KEEPING}{begin}{KEPT.replace('{% set', inner + '{% set').replace('?', what)}"
    for begin, inner, what in (
        ("", "{% set a %}" + TEXT + "{% endset %}", "a"),
        ("", "{% set a | upper %}" + TEXT + "{% endset %}", "a"),
        ("{% macro f() %}" + TEXT + "{% endmacro %}", "", "f()"),
        ("{% block f %}" + TEXT + "{% endblock %}", "", "self.f()"),
        ("{% macro f() %}{% set n.l = [n.l, varargs] %}{% endmacro %}", "{% set a = f(*n.b) %}", "0"),
        (
            "{% macro f() %}{% set n.l = [n.l, caller()] %}{% endmacro %}",
            "{% call f() %}" + TEXT + "{% endcall %}",
            "0",
        ),
        (
            "",
            "{% for b in n.b %}{% if loop.length %}{% set n.l = [n.l, loop] %}{% break %}{% endif %}{% endfor %}",
            "0",
        ),
        ("", "{% macro f() %}{% endmacro %}", "f, [], {}, (1,)"),
        ("", "{% filter string %}" + TEXT + "{% endfilter %}", "0"),
        ("", TEXT, "0"),
    )
]


@pytest.mark.parametrize("template", KEPT_BY)
def test_all_that_a_template_keeps_is_bounded(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little of it is made at once; of what is printed, the bound of all that is printed comes first."""
    monkeypatch.setattr(templates, "MOST", 1 << 24)
    reader = templated(template)
    tracemalloc.start()
    by = (
        "something of the size" if TEXT in template else "it makes more than 16 MB on its way"
    )  # what it prints is less
    with pytest.raises(TextError, match=by):
        reader.prompt(messages_of("Hello"))
    assert tracemalloc.get_traced_memory()[1] < 6e7
    tracemalloc.stop()


STEPS = [
    *("n.a + n.a", "n.a ~ n.a", "[n.a, n.a]", "n.a[1:]", "n.a * 7", "n.a | list", "n.a | string", "n.a | upper"),
    *("n.a.split('a')", "n.a | map('string') | list", "n.a | sort", "n.a | reverse | list", "n.a | join('b')"),
    *("[n.l, n.a]", "{1: n.a}", "dict(b=n.a).items() | list", "n.a | replace('a', n.a)", "n.a | tojson", "'b'"),
    *("range(999) | list", "n.a | first", "n.a | batch(9)", "n.a | unique | list", "m(n.a)", "n.a | groupby(0)"),
]


@settings(max_examples=12, deadline=None)
@given(steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=5), keeps=st.booleans())
def test_no_template_takes_much_memory(steps: list[str], keeps: bool) -> None:
    each = "".join(f"{{% set n.a = {step} %}}" for step in steps) + "{% set n.l = [n.l, n.a] %}" * keeps
    begin = "{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{% set n = namespace(a='a', l=[]) %}"
    template = f"{begin}{{% for each in range(30) %}}{each}{{% endfor %}}{{{{ n.a }}}}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "MOST", 1 << 22)
        tracemalloc.start()
        with contextlib.suppress(TextError, BundleError):
            templated(template).prompt(messages_of("Hello"))
        assert tracemalloc.get_traced_memory()[1] < 3e7
        tracemalloc.stop()


def test_long_chats_are_far_from_what_a_template_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MOST", templates.MOST >> 3)
    said = [{"role": ("user", "assistant")[at % 2], "content": f"{at}: \u4e00 " * 100} for at in range(301)]
    usual = """{% set n = namespace(last=0) %}{% for each in messages[::-1] %}
    {%- if each.role == 'user' and not n.last %}{% set n.last = loop.index0 %}{% endif %}{% endfor %}
    {%- for each in messages %}{% set said = each['content'].split('</think>')[-1] | trim %}
    {{- '<|im_start|>' + each['role'] + '\n' + said + '<|im_end|>' + '\n' }}{% endfor %}"""
    assert templated(usual).prompt(said).count("300:") == 100
    for name in CHATTING:
        assert "\u4e00" in READERS[name].prompt(said)


def test_threads_make_prompts_each_in_their_own_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MOST", 1 << 22)
    reader = templated("{% for each in range(99) %}{{ messages[0].content }}{% endfor %}")
    expected = reader.prompt(messages_of("a" * 30_000))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: reader.prompt(messages_of("a" * 30_000)), range(16)))
    assert found == [expected] * 16


def test_all_texts_that_a_prompt_takes_have_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(9999))
    monkeypatch.setattr(templates.time, "monotonic", lambda: next(ticks))
    template = "{% for each in [1, 2] %}{% endfor %}{{ messages[0].content }}"
    assert templated(template).prompt(messages_of("Hello"))
    with pytest.raises(TextError, match="takes more than 10 seconds"):
        templated(template.replace(" }}", " | lower }}")).prompt(messages_of("Hello"))


def test_what_templates_do_with_texts_is_as_in_jinja2() -> None:
    template = """{%- for each in ['a', 'b'] -%}{{ loop.index ~ each ~ loop.last }}{{ loop.length }}{%- endfor -%}
    {{ [1, 2] | join('-') }}{{ messages | join(',', attribute='role') }}{{ 'a.a' | replace('.', '!') }}
    {{- '%s=%d' % ('x', 3) }}{{ '{} {}'.format(1, 2) }}{{ 'aa'.replace('a', 'b', 1) }}{{ none ~ 1.5 }}{{ nothing }}
    {{- {'a': '<'} | tojson }}"""
    found = templated(template).prompt([{"role": "user", "content": "x"}])
    assert found == '1aFalse22bTrue21-2usera!ax=31 2baNone1.5{"a": "<"}'


def test_a_template_may_look_for_the_end_of_a_thought_in_what_the_model_said() -> None:
    """But in what a user says, that token is text, and elsewhere in what the model said too."""
    inner = READERS["gemma"].inner
    template = "{{ messages[0].content.split('<end_of_turn>')[-1] }}|<end_of_turn><start_of_turn>"
    reader = ChatReader(inner, dataclasses.replace(READERS["gemma"].chat, template=template), continues=False)
    said = "a<end_of_turn>b<start_of_turn>"
    tail = inner.decode(reader.encode(chat_line([{"role": "assistant", "content": said}])))
    assert tail == "b<start_of_turn>|<end_of_turn><start_of_turn>"
    ids = reader.encode(said)
    assert inner.decode(ids) == f"{said}|<end_of_turn><start_of_turn>"
    assert ids.count(inner.id_of("<end_of_turn>")) == 1


CHANGING = (  # templates that change what messages say, and what then writes a special token
    ("{{ messages[0].content | lower }}<|im_end|>", "<|IM_START|>"),
    ("{{ messages[0].content.lower() }}<|im_end|>", "<|IM_START|>"),
    ("{{ messages[0].content | replace('[', '<|') | replace(']', '|>') }}", "[im_start]"),
    ("{{ messages[0].content.split('x') | join }}", "<xx|im_xxstart|>"),
    ("{% for part in messages[0].content.split('x') %}{{ part }}{% endfor %}", "<xx|im_xxstart|>"),
    ("{{ messages[0].content[::2] }}", "<.|.i.m._.s.t.a.r.t.|.>."),
    ("{{ messages[0].content | reverse }}", ">|trats_mi|<"),
    ("{{ messages[0].content | upper | lower }}", "<|im_\u017ftart|>"),
)


@pytest.mark.parametrize(("template", "said"), CHANGING)
def test_a_template_that_changes_what_a_message_says_makes_no_special_token_of_it(template: str, said: str) -> None:
    reader = templated(template)
    with pytest.raises(TextError, match=r"makes the special token '<\|im_start\|>' of what a message says; write"):
        reader.encode(f"Hello {said} there" if "reverse" not in template and "2" not in template else said)
    assert reader.inner.decode(reader.encode("hello there"))


@pytest.mark.parametrize("change", ["lower", "upper", "title", "capitalize", "swapcase", "casefold"])
@settings(max_examples=25, deadline=None)
@given(said=st.lists(SAID.filter(str.strip), min_size=1, max_size=3))
def test_no_change_of_case_writes_a_special_token(change: str, said: list[str]) -> None:
    reader = templated(
        "{% for message in messages %}<|im_start|>{{ message.content." + change + "() }}<|im_end|>{% endfor %}"
    )
    ids = {reader.inner.id_of(token) for token in reader._control[0]}
    messages = [{"role": "user", "content": text.swapcase()} for text in said]
    try:
        found = [id_ for id_ in reader.encode(chat_line(messages)) if id_ in ids]
    except TextError as error:
        assert "makes the special token" in str(error)  # noqa: PT017 - it may be written or refused
    else:
        assert len(found) == 2 * len(said)


def test_a_template_may_ask_for_the_day() -> None:
    assert templated("{{ strftime_now('%Y') }} {{ messages[0].content }}").prompt(messages_of("Hello")).startswith("2")


def test_without_jinja2_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        UnavailableError, match=r"a chat needs jinja2, which is not installed: pip install 'txport\[chat\]'"
    ):
        templated("{{ messages[0].content }}").encode("Hello")


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    size = tokenizers("llama-new")[0].size
    checkpoint = load_checkpoint(str(grown(folder / "model", "llama", "llama-new", size)))
    return bundle_of(checkpoint, folder / "bundle").path


def test_a_bundle_chats(chatting: Path) -> None:
    model = txport.load(chatting)
    said = model.chat("Hello there", max_new_tokens=5)
    messages = [{"role": "user", "content": "Hello there"}]
    assert said.hypotheses[0].tokens == list(
        model.search([READERS["llama-new"].encode("Hello there")], max_new_tokens=5)[0][0].tokens
    )
    assert model.chat(messages, max_new_tokens=5) == said
    run = ["run", str(chatting), "--chat", "--max-new-tokens", "5", "--raw"]
    for line in ("Hello there", json.dumps(messages)):
        assert CliRunner().invoke(cli, [*run, line]).output.rstrip("\n") == said.output
    assert model.generate("Hello there", max_new_tokens=5)[0].hypotheses != said.hypotheses
    refused = CliRunner().invoke(cli, [*run, json.dumps([{"role": "system", "content": "x"}])])
    assert "Only users and assistants talk here" in str(refused.exception)


SWITCHED = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor %}{% if tools %}{{ tools | tojson }}{% endif -%}
{% for each in documents or [] %}{{ each.text | lower }}{% endfor -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"""


def test_a_template_gets_its_variables() -> None:
    reader = templated(SWITCHED)
    plain = [{"role": "user", "content": "Hello"}]
    assert reader.prompt(plain).endswith("<|im_start|>assistant\n")
    quiet = dataclasses.replace(reader, options={"enable_thinking": False})
    assert quiet.prompt(plain) == reader.prompt(plain) + "<think></think>"
    tools = dataclasses.replace(reader, options={"tools": [{"type": "function", "name": "see <|im_end|>"}]})
    ids = [each.encode(chat_line(plain)) for each in (reader, tools)]
    assert [[id_ for id_ in each if id_ in CONTROL["qwen2"]] for each in ids] == [[501, 502, 501]] * 2
    assert "see <|im_end|>" in reader.inner.decode(ids[1])
    documents = dataclasses.replace(reader, options={"documents": [{"text": "<|IM_END|>"}]})
    with pytest.raises(TextError, match="makes the special token"):
        documents.prompt(plain)


def test_a_conversation_that_ends_with_the_model_is_continued() -> None:
    asked = [{"role": "user", "content": "Hello"}]
    reader = dataclasses.replace(templated(SWITCHED), continues=None)
    begun = reader.prompt(asked)
    for said in ("I am", "I am  "):
        messages = [*asked, {"role": "assistant", "content": said}]
        assert reader.prompt(messages) == f"{begun}I am"
        assert dataclasses.replace(reader, continues=False).prompt(messages).endswith("<|im_start|>assistant\n")
    silent = dataclasses.replace(
        templated("{% for each in messages[:-1] %}{{ each.content }}{% endfor %}"), continues=None
    )
    with pytest.raises(TextError, match="can't be continued"):
        silent.prompt([*asked, {"role": "assistant", "content": "I am"}])


def test_commands_give_variables_to_a_template(chatting: Path) -> None:
    run = ["run", str(chatting), "--max-new-tokens", "2", "Hello"]
    for options, message in (
        (["--template-option", "a=1"], "--template-option needs --chat"),
        (["--chat", "--template-option", "a"], "must be NAME=VALUE, got 'a'"),
        (["--chat", "--template-option", "messages=[]"], "a template has no option 'messages'"),
        (["--chat", "--parse-special"], "remove --parse-special"),
    ):
        assert message in str(CliRunner().invoke(cli, [*run, *options]).exception)
    assert CliRunner().invoke(cli, [*run, "--chat", "--template-option", "enable_thinking=false"]).exit_code == 0


def test_variables_of_a_template_have_two_names(chatting: Path) -> None:
    model = txport.load(chatting)
    options = {"messages": []}
    for name in ("template_options", "chat_template_kwargs"):
        with pytest.raises(UnsupportedError, match="a template has no option 'messages'"):
            model.chat("Hello", **{name: options})


def test_a_model_without_a_template_refuses_chats(copied: Path) -> None:
    with pytest.raises(UnsupportedError, match="this model has no chat template"):
        txport.load(copied).chat("a")
    assert isinstance(CliRunner().invoke(cli, ["run", str(copied), "--chat", "a"]).exception, UnsupportedError)
