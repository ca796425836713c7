"""Messages of a chat as prompts: nothing that a message says becomes a special token."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.seeded import bundle_of
from tests.text.grown import grown
from tests.text.test_agreement import CHATTING, chat_reader, tokenizers
from txport.checkpoints.checkpoint import load_checkpoint
from txport.cli.commands import cli
from txport.errors import BundleError, TextError, UnavailableError, UnsupportedError
from txport.models.names import CHAT_TEMPLATE
from txport.text import chat
from txport.text.chat import ChatReader, chat_line, messages_of, require_options
from txport.text.file import FileTokenizer
from txport.text.origin import MARK, starts
from txport.text.usage import MAX_LENGTH

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


DOUBLING = "{% set n = namespace(a=?) %}{% for b in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set a = range(99999) | list %}{% for b in a %}{% for c in a %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else 1 }}{% endmacro %}{{ f(60) }}",
    ],
)
def test_a_template_takes_bounded_time(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 0.2)
    with pytest.raises(TextError, match="it takes more than"):
        templated(template).prompt(messages_of("Hello"))


def test_all_texts_of_a_prompt_have_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(chat.time, "monotonic", lambda: next(ticks))
    template = "{% for each in range(6) %}{% endfor %}{{ messages[0].content }}"
    assert templated(template).prompt(messages_of("Hello"))
    with pytest.raises(TextError, match="takes more than 10 seconds"):
        templated(template.replace(" }}", " | lower }}")).prompt(messages_of("Hello"))


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 9999999999 }}",
        "{{ 9999999999 * [0] }}",
        "{{ 9 ** 99999999 }}",
        DOUBLING.replace("?", "'a'"),
        DOUBLING.replace("?", "[0]"),
        "{% for a in range(99) %}" + "a" * 99_999 + "{% endfor %}",
    ],
)
def test_a_template_makes_nothing_large_by_operators_or_as_a_prompt(template: str) -> None:
    with pytest.raises(TextError, match="it makes something of the size"):
        templated(template).prompt(messages_of("Hello"))


def test_what_a_template_is_given_has_a_bounded_length() -> None:
    with pytest.raises(TextError, match="a chat may have 4194304 characters, this one has 4194305"):
        messages_of("a" * (MAX_LENGTH + 1))
    with pytest.raises(UnsupportedError, match="options of a template may have 4194304 characters"):
        require_options({"documents": ["a" * MAX_LENGTH]})


def test_templates_have_what_they_have_in_transformers() -> None:
    template = """{%- for each in ['a', 'b'] -%}{{ loop.index ~ each ~ loop.last }}{{ loop.length }}{%- endfor -%}
    {{ [1, 2] | join('-') }}{{ messages | join(',', attribute='role') }}{{ 'a.a' | replace('.', '!') }}
    {{- '%s=%d' % ('x', 3) }}{{ '{} {}'.format(1, 2) }}{{ 'aa'.replace('a', 'b', 1) }}{{ none ~ 1.5 }}{{ nothing }}
    {{- {'b': '<', 'a': 1} | tojson(sort_keys=true) }}{% generation %}{% for each in [1, 2] %}
    {%- if each == 2 %}{% break %}{% endif %}{{ each }}{% endfor %}{% endgeneration %}"""
    found = templated(template).prompt([{"role": "user", "content": "x"}])
    assert found == '1aFalse22bTrue21-2usera!ax=31 2baNone1.5{"a": 1, "b": "<"}1'


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


def tokened(template: str, *tokens: str) -> ChatReader:
    """A reader of this template, whose tokenizer has these special tokens too."""
    reader = templated(template)
    parts = json.loads(reader.inner.content)
    own = parts["added_tokens"]
    own += [{**own[0], "id": reader.inner.size + at, "content": token} for at, token in enumerate(tokens)]
    return dataclasses.replace(reader, inner=FileTokenizer(Path("tokenizer.json"), content=json.dumps(parts)))


THINKING = """{% set said = messages[0].content %}{% set quiet = '/no_think' in said %}
{%- set own = said.replace('/no_think', '').replace('/think', '').rstrip() -%}
<|im_start|>{{ own if own else 'You help.' if quiet else 'You think.' }}<|im_end|>
{%- if quiet %}<think></think>{% endif %}"""


@pytest.mark.parametrize(
    ("said", "prompt"),
    [
        ("/no_think", "<|im_start|>You help.<|im_end|><think></think>"),
        ("/think", "<|im_start|>You think.<|im_end|>"),
        ("Be brief. /no_think", "<|im_start|>Be brief.<|im_end|><think></think>"),
        ("Be brief. /think", "<|im_start|>Be brief.<|im_end|>"),
        ("/no_think Be brief.", "<|im_start|> Be brief.<|im_end|><think></think>"),
        ("Hello", "<|im_start|>Hello<|im_end|>"),
    ],
)
def test_a_message_chooses_what_a_template_writes(said: str, prompt: str) -> None:
    """As in the template of SmolLM3."""
    reader = tokened(THINKING, "<think>", "</think>")
    for role in ("system", "user"):
        assert reader.prompt([{"role": role, "content": said}]).replace(MARK, "") == prompt


WORDS = ("/think", "/no_think", "<", ">", "</", "<th", "ink>", "think>", "<think>", "</think>", "/THINK", "a", " ")


@settings(max_examples=300, deadline=None)
@given(
    said=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map("".join).filter(str.strip), around=st.booleans()
)
def test_what_chooses_makes_no_special_token(said: str, around: bool) -> None:
    template = THINKING.replace("{{ own", "{{ '<' + own + '>' if own") if around else THINKING
    reader = tokened(template, "<think>", "</think>")
    try:
        prompt = reader.prompt([{"role": "user", "content": said}])
    except TextError as error:
        assert "makes the special token" in str(error)  # noqa: PT017 - it may be written or refused
    else:
        assert prompt.count("<think>") == prompt.count("</think>") == ("/no_think" in said)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if '/think' in s %}{% endif %}<{{ s.replace('x', '') }}>", "/think"),
        ("{% if '/think' in s %}{% endif %}<{{ s.replace('x', '') }}", "/think>"),
        ("{% if '[IM]' in s %}{% endif %}{{ s.replace('[IM]', '<think>') }}", "[IM]"),
        ("{% if '[IM]' in s %}{% endif %}{{ s | replace('[IM]', '<think>') }}", "[IM]"),
        ("{% if '[IM]' in s %}{% endif %}{{ s.split('[IM]') | join('<think>') }}", "a[IM]b"),
        ("{% if '<THINK>' in s %}{% endif %}{{ s | lower }}", "<THINK>"),
        ("{% if '>kniht<' in s %}{% endif %}{{ s[::-1] }}", ">kniht<"),
    ],
)
def test_a_template_makes_no_special_token_of_what_it_looks_for(template: str, said: str) -> None:
    reader = tokened("{% set s = messages[0].content %}" + template, "<think>", "</think>")
    with pytest.raises(TextError, match=r"makes the special token '</?think>' of what a message says"):
        reader.prompt(messages_of(said))


CALLING = """{% set rest = messages[1:] %}{% for each in rest %}
{%- if each.tool_calls %}{{ each.tool_calls[0].id }}{% set id = each.tool_calls[0].id %}{% else %}
{%- set id = each.tool_call_id %}{{ each.content }}{% endif %}
{%- if id | length != 9 %}{{ raise_exception('An id must have 9 letters') }}{% endif %}<|im_end|>{% endfor %}"""


def test_a_template_may_ask_for_the_length_of_an_id() -> None:
    """As those of Mistral do, which slice messages."""
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "tool_calls": [{"id": "abcdefghi", "function": {"name": "see"}}]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "It rains"},
    ]
    reader = templated(CALLING)
    assert reader.prompt(messages).replace(MARK, "") == "abcdefghi<|im_end|>It rains<|im_end|>"
    messages[2]["tool_call_id"] = "abc"
    with pytest.raises(TextError, match="An id must have 9 letters"):
        reader.prompt(messages)


def test_a_template_that_takes_no_other_texts_is_refused() -> None:
    template = "{% if messages[0].content != 'Hi you' %}{{ raise_exception('Be polite') }}{% endif %}{{ 'A' | lower }}"
    with pytest.raises(TextError, match=r"makes special tokens of what messages say can't be found out: .*Be polite"):
        templated(template).prompt(messages_of("Hi you"))


@pytest.mark.parametrize("writes", ["t | string", "[t]", "'' ~ t", "t | tojson(ensure_ascii=True)", "t | tojson"])
@pytest.mark.parametrize("more", ["", "| replace('x', 'x')"])
def test_what_a_template_writes_of_an_object_has_no_marks(writes: str, more: str) -> None:
    tokens = ("<|begin_of_text|>", "<|end_header_id|>")
    reader = tokened("{% for t in tools %}{{ (" + writes + ")" + more + " }}{% endfor %}", *tokens)
    tools = [{"name": "find", "required": ["text", "id", "<|im_end|>"], "code": r"'\ufdd0' and \ufdd1 and \\"}]
    prompt = dataclasses.replace(reader, options={"tools": tools}).prompt(messages_of("Hello"))
    found = tools if writes == "[t]" else tools[0]
    assert prompt.replace(MARK, "") == (json.dumps(found) if "tojson" in writes else str(found))
    assert "<|im_end|>" not in prompt
    plain = templated("{{ messages[0].content }}").prompt(messages_of(r"Hello \ufdd0"))
    assert plain.replace(MARK, "") == r"Hello \ufdd0"


def test_an_answer_in_an_object_is_continued() -> None:
    reader = dataclasses.replace(templated("{{ messages | string }}"), continues=None)
    said = [{"role": "assistant", "content": "I am"}]
    assert reader.prompt(said) == "[{'role': 'assistant', 'content': 'I am"


TOKENS = st.lists(st.text("<|a/>", min_size=2, max_size=5), max_size=6).map(tuple)


@settings(max_examples=300, deadline=None)
@given(text=st.text("<|a/> \n", max_size=12), tokens=TOKENS)
def test_marks_are_in_all_tokens_and_where_one_may_be_completed(text: str, tokens: tuple[str, ...]) -> None:
    places = {found.start() + 1 for token in tokens for found in re.finditer(f"(?={re.escape(token)})", text)}
    assert places == {at + 1 for token in tokens for at in starts(text, token)}
    if inner := text.strip():
        start = text.index(inner)
        rests = [token[cut:] for token in tokens for cut in range(1, len(token))]
        begun = [token[:cut] for token in tokens for cut in range(1, len(token))]
        places |= {start for rest in rests if inner.startswith(rest) or rest.startswith(inner)}
        places |= {start + len(inner) for each in begun if inner.endswith(each)}
    marked = [MARK * (at in places) + letter for at, letter in enumerate(text)]
    assert chat._cut(text, tokens, ends=True) == "".join(marked) + MARK * (len(text) in places)


def test_no_expression_is_made_for_each_special_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistral Nemo has 1000."""
    reader = tokened("{{ messages[0].content | lower }}<|im_end|>", *(f"[control_{number}]" for number in range(50)))

    def refuse(*_: object) -> None:
        raise AssertionError("an expression")

    monkeypatch.setattr(re, "finditer", refuse)
    assert reader.prompt(messages_of("hello [control_7]")).replace(MARK, "") == "hello [control_7]<|im_end|>"


HARMONY = """{%- macro kind(spec) -%}
    {{- kind(spec["items"]) + "[]" if spec.type == "array" else spec.type -}}
{%- endmacro -%}
{%- macro system() -%}
    {%- if effort is not defined %}{% set effort = "medium" %}{% endif %}
    {{- "Date: " + strftime_now("%Y-%m-%d") + "\n" + "Reasoning: " + effort }}
{%- endmacro -%}
<|im_start|>system<|message|>{{ system() }}<|im_end|>
{%- for tool in tools or [] %}{{ tool.function.name }}: {{ kind(tool.function.parameters) }}{% endfor %}
{%- set last = namespace(role="") %}
{%- for message in messages %}<|im_start|>{{ message.role }}<|message|>{{ message.content }}<|im_end|>
{%- set last.role = message.role %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>{{ "assistant after " + last.role }}{% endif %}"""


def test_macros_that_call_themselves_and_namespaces_render() -> None:
    """As in the template of gpt-oss."""
    reader = dataclasses.replace(
        templated(HARMONY),
        options={"tools": [{"function": {"name": "add", "parameters": {"type": "array", "items": {"type": "int"}}}}]},
    )
    prompt = reader.prompt(messages_of("Hello"))
    assert re.fullmatch(
        r"<\|im_start\|>system<\|message\|>Date: \d{4}-\d\d-\d\d\nReasoning: medium<\|im_end\|>add: int\[\]"
        r"<\|im_start\|>user<\|message\|>Hello<\|im_end\|><\|im_start\|>assistant after user",
        prompt,
    )


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


def test_a_message_that_spells_a_special_token_is_plain_text_and_said(chatting: Path) -> None:
    run = ["run", str(chatting), "--chat", "--max-new-tokens", "2"]
    note = "txport: 1 text spells special tokens (<s>), which are read as plain characters; "
    note += "in a chat, the template alone writes the tokens\n"
    for line in ("a <s> b", json.dumps([{"role": "user", "content": "a <s> b"}])):
        assert note in CliRunner().invoke(cli, [*run, line]).stderr
    assert note not in CliRunner().invoke(cli, [*run, "a b"]).stderr


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


def test_chats_with_tools_have_the_template_of_tools() -> None:
    reader = templated("{{ messages[0].content }}")
    reader = dataclasses.replace(reader, chat=dataclasses.replace(reader.chat, tool_use="{{ tools | length }} tools"))
    asked = messages_of("Hello")
    assert reader.prompt(asked) == dataclasses.replace(reader, options={"tools": None}).prompt(asked) == "Hello"
    for tools in ([], [{"name": "see"}]):
        given = dataclasses.replace(reader, options={"tools": tools})
        given.require_read()
        assert given.prompt(asked) == f"{len(tools)} tools"


def test_a_template_gets_no_nulls_and_every_name_of_a_reasoning() -> None:
    """As transformers 5 gives them; an answer of OpenAI's API has nulls."""
    reader = templated(
        "{% for each in messages %}{% if 'tool_calls' in each %}{{ each.tool_calls | length }}{% endif %}"
        "{{ each.content }} {{ each.thinking }} {{ each.reasoning_content }};{% endfor %}"
    )
    said = [{"role": "assistant", "content": "Hi", "tool_calls": None}, {"role": "user", "content": None}]
    assert dataclasses.replace(reader, continues=False).prompt(said) == "Hi  ;  ;"
    for name in ("reasoning_content", "thinking", "reasoning"):
        message = {"role": "assistant", "content": "Hi", name: "so"}
        assert dataclasses.replace(reader, continues=False).prompt([message]) == "Hi so so;"


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


@pytest.fixture(scope="module")
def switching(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose template reads `enable_thinking` and `tools`."""
    folder = tmp_path_factory.mktemp("switching")
    grown(folder / "model", "llama", "llama-new", tokenizers("llama-new")[0].size)
    (folder / "model" / CHAT_TEMPLATE).write_text(SWITCHED)
    return bundle_of(load_checkpoint(str(folder / "model")), folder / "bundle").path


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ("enable_thinking=false", {"enable_thinking": False}),
        ("enable_thinking=False", {"enable_thinking": False}),
        ("enable_thinking=True", {}),
        ("thinking=None", {}),
        ('tools=[{"name": "add"}]', {"tools": [{"name": "add"}]}),
        ("documents=[]", {}),
    ],
)
def test_commands_give_variables_to_a_template(written: str, options: dict[str, Any], switching: Path) -> None:
    run = ["run", str(switching), "--max-new-tokens", "4", "--chat", "--json", "Hello"]
    said = json.loads(CliRunner().invoke(cli, [*run, "--template-option", written]).stdout)
    model = txport.load(switching)
    plain = model.reading_chats().tokenizer.source
    prompt = dataclasses.replace(plain, options=options).encode("Hello")
    assert said["hypotheses"][0]["tokens"] == [*model.search([prompt], max_new_tokens=4)[0][0].tokens]
    assert (prompt == plain.encode("Hello")) == (options == {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--template-option", "a=1"], "--template-option needs --chat"),
        (["--chat", "--template-option", "a"], "must be NAME=VALUE, got 'a'"),
        (["--chat", "--template-option", "messages=[]"], "a template has no option 'messages'"),
        (["--chat", "--template-option", "thinking=1"], "'thinking'; its options: documents, enable_thinking, tools"),
        (["--chat", "--template-option", "tools=[1"], "--template-option tools has a value that is not JSON"),
        (["--chat", "--parse-special"], "remove --parse-special"),
    ],
)
def test_options_that_no_template_reads_are_refused(options: list[str], message: str, switching: Path) -> None:
    assert message in str(CliRunner().invoke(cli, ["run", str(switching), "Hello", *options]).exception)


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
