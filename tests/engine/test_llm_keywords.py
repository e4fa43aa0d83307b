"""The keywords of ``LLM``'s methods, and their defaults.

Oracles: the same parameters as a ``SamplingParams``; JSON and Pydantic for structured answers.
"""

from __future__ import annotations

import asyncio
import inspect
import pydoc
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from quire.engine import LLM, AsyncLLM
from quire.engine.requests.prompts import Prompts, RequestOptions
from quire.errors import RequestError
from quire.params.chat_options import CHAT_OPTIONS, ChatFields, ChatOptions
from quire.params.request_fields import RequestFields, RequestKeywords
from quire.params.sampling import DEFAULT_SAMPLERS, SamplingParams
from quire.params.sampling_defaults import CHAT_DEFAULTS, chat_defaults

ASKED = [{"role": "user", "content": "What is the capital of France?"}]
STORY = "Once upon a time"
# From the documentation of llama.cpp's server.
LLAMA_CPP = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


def test_the_keywords_are_the_fields() -> None:
    """Every new field of SamplingParams or ChatOptions becomes a keyword."""
    form = {"response_format", "regex", "choice", "grammar"}
    assert set(RequestFields.__annotations__) == {entry.name for entry in fields(SamplingParams)} | form
    own = {name for name, option in CHAT_OPTIONS.items() if option.keyword} | {"salt", "priority", "key"}
    assert set(ChatFields.__annotations__) - set(RequestFields.__annotations__) == own
    for method in (LLM.chat, AsyncLLM.chat, LLM.chat_stream, AsyncLLM.chat_stream):
        assert method.__annotations__["keywords"] == "Unpack[ChatFields]"
    assert [
        name for name, option in CHAT_OPTIONS.items() if option.keyword and f" {name}: " not in LLM.chat.__doc__
    ] == []


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("generate", ("self", "prompts", "params", "salt", "priority", "key", "hidden_states")),
        ("stream", ("self", "prompt", "params", "salt", "priority", "key")),
        ("chat", ("self", "messages", "params")),
        ("chat_stream", ("self", "messages", "params")),
    ],
)
def test_signatures_show_each_keyword_with_its_type_and_default(kind: type, name: str, own: tuple[str, ...]) -> None:
    """Oracles: the types of the dataclasses, and the parameters of a call without keywords."""
    method = getattr(kind, name)
    shown = dict(inspect.signature(method).parameters)
    assert tuple(shown)[: len(own)] == own
    is_chat = name.startswith("chat")
    assert set(shown) == {*own, *(ChatFields if is_chat else RequestFields).__annotations__}
    assert {shown[each].kind for each in set(shown) - set(own)} == {inspect.Parameter.KEYWORD_ONLY}
    assert [p.annotation for p in shown.values()][1:3] == [*method.__annotations__.values()][:2]

    defaults = {each: parameter.default for each, parameter in shown.items() if each not in own[:3]}
    for source in (SamplingParams, ChatOptions, RequestOptions):
        for entry in fields(source):
            if entry.name in defaults:
                assert shown[entry.name].annotation == entry.type
    scheduling = {each: defaults.pop(each) for each in ("salt", "priority", "key")}
    assert RequestOptions(**scheduling) == RequestOptions()
    assert defaults.pop("hidden_states", None) is None
    assert [defaults.pop(each) for each in ("response_format", "regex", "choice", "grammar")] == [None] * 4
    chat = {each: defaults.pop(each) for each, option in CHAT_OPTIONS.items() if option.keyword and each in defaults}
    assert (ChatOptions(**chat), bool(chat)) == (ChatOptions(), is_chat)
    advised = {} if is_chat else None
    assert SamplingParams(**defaults) == RequestKeywords({}).sampling_params(None, advised)


def test_help_shows_the_keywords() -> None:
    text = pydoc.plain(pydoc.render_doc(LLM.chat))
    assert "tool_choice: 'ToolChoice' = 'auto'" in text
    assert "temperature: 'float' = 0.8" in text
    assert "keywords" not in text.partition("\n    ")[0]


@pytest.mark.parametrize(
    ("advised", "given", "expected"),
    [
        ({}, {}, LLAMA_CPP),
        ({"temperature": 0.6, "top_k": 20}, {}, {**LLAMA_CPP, "temperature": 0.6, "top_k": 20}),
        # A value that switches a stage off is advice, too.
        ({"temperature": 1.0, "top_k": 0}, {}, {**LLAMA_CPP, "temperature": 1.0, "top_k": 0}),
        ({"temperature": 0.6}, {"temperature": 0.1}, {"top_k": 40, "top_p": 0.95, "min_p": 0.05}),
        ({"repetition_penalty": 1.5}, {}, {**LLAMA_CPP, "repetition_penalty": 1.5}),
        ({}, {"mirostat": 2}, {"temperature": 0.8}),
        ({"mirostat": 2}, {}, {"temperature": 0.8, "mirostat": 2}),
        ({"mirostat": 2}, {"mirostat": 0}, LLAMA_CPP),
        ({}, {"samplers": ["top_k"]}, {"top_k": 40}),
    ],
)
def test_defaults_advice_and_keywords_of_a_chat(
    advised: dict[str, Any], given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert chat_defaults(advised, given) == expected
    params = SamplingParams(**{**expected, **given})
    assert RequestKeywords(given).sampling_params(None, advised) == params
    assert dict(CHAT_DEFAULTS) == LLAMA_CPP


def test_whole_params_are_used_as_given() -> None:
    whole = SamplingParams(max_tokens=3)
    assert RequestKeywords({}).sampling_params(whole, {"temperature": 0.5}) == whole
    assert RequestKeywords({"top_k": 7}).sampling_params(whole, {"temperature": 0.5}) == SamplingParams(
        max_tokens=3, top_k=7
    )
    assert RequestKeywords({"top_k": 7}).sampling_params(None) == SamplingParams(top_k=7)
    assert whole.samplers == DEFAULT_SAMPLERS


def test_a_chat_takes_the_files_advice(llm: LLM) -> None:
    """The package's model advises greedy sampling."""
    greedy = SamplingParams(temperature=0.0, top_k=40, top_p=0.95, min_p=0.05, max_tokens=8)
    assert llm.chat(ASKED, max_tokens=8).token_ids == llm.chat(ASKED, greedy).token_ids
    prompts = Prompts(llm.tokenizer, llm.n_vocab, llm.advised_sampling)
    params = prompts.chat_draft(ASKED, None, RequestOptions(), ChatOptions()).engine.params
    assert params is not None
    # Without tools, marks of calls are banned.
    assert replace(params, bad_token_ids=()) == SamplingParams(temperature=0.0, top_k=40, top_p=0.95, min_p=0.05)
    # Raw text is continued with the model's own distribution.
    assert prompts.draft(STORY, None, RequestOptions()).params == SamplingParams()


def test_keywords_are_parameters(llm: LLM) -> None:
    params = SamplingParams(max_tokens=6, temperature=0.9, seed=3, logprobs=1)
    expected = llm.generate(STORY, params)[0]
    (found,) = llm.generate(STORY, max_tokens=6, temperature=0.9, seed=3, logprobs=1)
    assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)
    (found,) = llm.generate(STORY, SamplingParams(max_tokens=2, temperature=0.9), max_tokens=6, seed=3, logprobs=1)
    assert found.token_ids == expected.token_ids
    assert "".join(d.text for d in llm.stream(STORY, max_tokens=6, temperature=0.9, seed=3)) == expected.text
    several = llm.generate([STORY, STORY], [SamplingParams(seed=3), SamplingParams(seed=4)], max_tokens=4)
    assert [len(result.token_ids) for result in several] == [4, 4]
    answer = "".join(d.content for d in llm.chat_stream(ASKED, max_tokens=12, temperature=0.0))
    assert answer == llm.chat(ASKED, max_tokens=12, temperature=0.0).message.content


def test_keywords_of_the_async_front_end(llm: LLM) -> None:
    async def ask() -> tuple[Any, Any]:
        model = AsyncLLM(threads=1, n_ctx=128, kv_dtype="f32")
        try:
            one = await model.chat(ASKED, temperature=0.0, max_tokens=8)
            return one, await model.chat([ASKED, ASKED], temperature=0.0, max_tokens=8)
        finally:
            await model.close()

    one, several = asyncio.run(ask())
    assert one.text == llm.chat(ASKED, temperature=0.0, max_tokens=8).text
    assert [result.text for result in several] == [one.text] * 2


@pytest.mark.parametrize(
    ("method", "keyword", "nearest"),
    [
        ("generate", "temprature", "temperature"),
        ("generate", "max_new_tokens", "max_tokens"),
        ("generate", "tools", None),
        ("stream", "topk", "top_k"),
        ("chat", "tool", "tools"),
        ("chat", "repeat_penalty", "repetition_penalty"),
        ("chat", "chat_template_kwargs", "template_values"),
        ("chat_stream", "guided_regex", "regex"),
        ("chat", "xyzzy", None),
    ],
)
@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_a_wrong_keyword_names_the_method_and_the_nearest(
    llm: LLM, kind: type, method: str, keyword: str, nearest: str | None
) -> None:
    def call() -> object:
        found = getattr(kind, method)(llm, STORY, **{keyword: 1})
        return asyncio.run(found) if inspect.iscoroutine(found) else found

    with pytest.raises(TypeError) as error:
        call()
    said = str(error.value)
    assert said.startswith(f"{kind.__name__}.{method}() got an unexpected keyword argument {keyword!r}")
    assert said.endswith(f"did you mean {nearest!r}?") == (nearest is not None)


def test_a_list_of_conversations_has_a_list_of_results(llm: LLM) -> None:
    other = [{"role": "user", "content": "Who are you?"}]
    results = llm.chat([ASKED, other], temperature=0.0, max_tokens=12)
    alone = [llm.chat(one, temperature=0.0, max_tokens=12).text for one in (ASKED, other)]
    assert [result.text for result in results] == alone
    each = llm.chat([ASKED, other], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)])
    assert [len(result.token_ids) for result in each] == [1, 2]
    with pytest.raises(RequestError, match="1 entries for 2 prompts"):
        llm.chat([ASKED, other], [SamplingParams()])
    for wrong in ([], "text", [[]], [1]):
        with pytest.raises(RequestError, match=r"\[chat\]"):
            llm.chat(wrong)  # type: ignore[call-overload]


def test_minus_one_is_none() -> None:
    assert SamplingParams(top_k=-1, seed=-1) == SamplingParams(top_k=0, seed=None)
    for wrong in ({"top_k": -2}, {"seed": -2}, {"top_k": -1.0}):
        with pytest.raises(RequestError):
            SamplingParams(**wrong)  # type: ignore[arg-type]


SCHEMA = {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip


def _pydantic() -> Any:
    pydantic = pytest.importorskip("pydantic", reason="needs pydantic")
    from typing import Literal

    return pydantic.create_model("Place", city=(Literal["Paris", "Rome"], ...))


@pytest.mark.parametrize("form", [lambda: SCHEMA, _pydantic], ids=["schema", "pydantic"])
def test_a_bare_schema_or_a_class_is_a_form(llm: LLM, form: Callable[[], Any]) -> None:
    import json

    answer = llm.chat(ASKED, response_format=form(), max_tokens=32).message.content
    assert json.loads(answer or "")["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("wrong", [{}, {"type": "xml"}, {"city": "Paris"}, 3, "text"])
def test_an_invalid_form_is_rejected(llm: LLM, wrong: Any) -> None:
    from quire.errors import QuireError

    with pytest.raises(QuireError, match=r"\[response_format\]"):
        llm.chat(ASKED, response_format=wrong)
