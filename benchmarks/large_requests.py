"""Requests of the maximum size and larger: path, body, and the expected status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

LIMIT = 8 << 20
TEXT = LIMIT - 4096
VALUES = 1 << 20
HELLO = [{"role": "user", "content": "Hello"}]
ROOMY = 0.93


def repeated(item: str, weight: int) -> list[str]:
    """Return as many items as the server accepts, with room for the rest of the body."""
    return [item] * int(VALUES * ROOMY / weight)


def listed(item: str, weight: int) -> str:
    return "[" + ",".join(repeated(item, weight)) + "]"


def keyed(weight: int) -> str:
    return "{" + ",".join(f'"{i:06d}":1' for i in range(int(VALUES * ROOMY / weight))) + "}"


def body(**fields: str) -> bytes:
    """Return a body of fields whose values are JSON text."""
    return ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}").encode()


def chat(content: str, **more: str) -> bytes:
    return body(messages='[{"role":"user","content":' + content + "}]", max_tokens="1", **more)


def quoted(text: str, n: int) -> str:
    return '"' + text * n + '"'


TEXTS = {
    "plain": quoted("word ", TEXT // 5),
    "one character": quoted("a", TEXT),
    "other letters": quoted("中文字符", TEXT // 12),
    "smileys": quoted("😀", TEXT // 4),
    "escapes": quoted(r"\n", TEXT // 2),
    "numbered": quoted(r"\u4e2d", TEXT // 6),
    "quotes": quoted(r"\"", TEXT // 2),
}  # fmt: skip
TOOL = '[{"type":"function","function":{"name":"f","parameters":%s}}]'


def texts() -> Iterator[tuple[str, str, bytes, int]]:
    """Yield requests with one text that fills the body."""
    for name, text in TEXTS.items():
        yield f"chat of {name}", "/v1/chat/completions", chat(text), 400
        yield f"completion of {name}", "/v1/completions", body(prompt=text), 400
        yield f"template of {name}", "/apply-template", chat(text), 200
    for name in ("plain", "other letters", "escapes"):
        yield f"tokens of {name}", "/tokenize", body(content=TEXTS[name]), 0
        yield f"pieces of {name}", "/tokenize", body(content=TEXTS[name], with_pieces="true"), 0
        yield f"messages of {name}", "/v1/messages", chat(TEXTS[name], model='"tiny-chat"'), 400
        yield f"input of {name}", "/v1/responses", body(input=TEXTS[name]), 400
        yield f"embedding of {name}", "/v1/embeddings", body(input=TEXTS[name]), 400
        yield f"gap in {name}", "/infill", body(input_prefix=TEXTS[name], input_suffix='"x"'), 400
        yield (
            f"wrong role of {name}",
            "/v1/messages",
            body(model='"tiny-chat"', max_tokens="1", messages='[{"role":' + TEXTS[name] + "}]"),
            400,
        )
        yield f"wrong choice of {name}", "/v1/chat/completions", chat('"x"', tool_choice=TEXTS[name]), 400
        yield (
            f"wrong form of {name}",
            "/v1/chat/completions",
            chat('"x"', response_format='{"type":' + TEXTS[name] + "}"),
            400,
        )


def counts() -> Iterator[tuple[str, str, bytes, int]]:
    """Yield requests with as many values as the server accepts."""
    ids, lists, objects, words = listed("123", 1), listed("[]", 9), listed("{}", 9), listed('"ab"', 3)
    yield "ids", "/v1/completions", body(prompt=ids), 400
    yield "ids to text", "/detokenize", body(tokens=ids), 0
    yield "ids to embed", "/v1/embeddings", body(input=ids), 400
    yield "ids never to draw", "/v1/completions", body(prompt='"x"', bad_token_ids=ids), 400
    yield "empty messages", "/v1/chat/completions", body(messages=objects), 400
    yield "parts", "/v1/chat/completions", chat(listed('{"type":"text","text":"x"}', 26)), 400
    yield "blocks", "/v1/messages", chat(listed('{"type":"text","text":"x"}', 26), model='"tiny-chat"'), 400
    yield "items", "/v1/responses", body(input=listed('{"role":"user","content":"x"}', 26)), 400
    yield (
        "calls",
        "/v1/chat/completions",
        body(messages='[{"role":"assistant","tool_calls":' + listed('{"id":"x","function":{}}', 33) + "}]"),
        400,
    )
    yield "fields", "/v1/chat/completions", b'{"messages":[],' + keyed(9).encode()[1:], 400
    yield "fields of a message", "/v1/chat/completions", body(messages="[" + keyed(9) + "]"), 400
    yield "values of a template", "/apply-template", chat('"x"', chat_template_kwargs='{"x":' + keyed(9) + "}"), 200
    yield "biases", "/v1/chat/completions", chat('"x"', logit_bias=keyed(9)), 400
    yield "lists in a message", "/v1/chat/completions", chat(lists), 400
    yield "words in a schema", "/v1/chat/completions", chat('"x"', tools=TOOL % ('{"enum":' + words + "}")), 0
    yield "fields in a schema", "/v1/chat/completions", chat('"x"', tools=TOOL % ('{"properties":' + keyed(9) + "}")), 0
    yield "wrong kind of tool", "/v1/chat/completions", chat('"x"', tools='[{"type":' + objects + "}]"), 400
    yield "wrong type of a block", "/v1/messages", chat('[{"type":' + objects + "}]", model='"tiny-chat"'), 400
    yield "wrong type of an item", "/v1/responses", body(input='[{"type":' + ids + "}]"), 400


def excesses() -> Iterator[tuple[str, str, bytes, int]]:
    """Yield requests with more than the server accepts."""
    for name, item in (("objects", "{}"), ("lists", "[]"), ("words", '"a"'), ("numbers", "1"), ("depth", '[{"a":[]}]')):
        many = "[" + ",".join([item] * ((LIMIT - 200) // (len(item) + 1))) + "]"
        yield f"too many {name}", "/v1/chat/completions", body(messages=many), 400
        yield (
            f"enum of too many {name}",
            "/v1/chat/completions",
            chat('"x"', tools=TOOL % ('{"enum":' + many + "}")),
            400,
        )
    yield "nesting", "/v1/completions", b'{"prompt":' + b"[" * 4_000_000, 400
    yield "too large", "/v1/completions", b'{"prompt":"' + b"a" * (2 * LIMIT) + b'"}', 413


def answers() -> Iterator[tuple[str, str, bytes, int]]:
    """Yield small requests with large answers."""
    most: dict[str, Any] = {"max_tokens": 60, "n": 16, "ignore_eos": True, "temperature": 1.0}
    chat_body = {"messages": HELLO, "logprobs": True, "top_logprobs": 20, **most}
    yield "log-probabilities", "/v1/chat/completions", json.dumps(chat_body).encode(), 200
    yield (
        "log-probabilities of old",
        "/v1/completions",
        json.dumps({"prompt": "x", "logprobs": 20, **most}).encode(),
        200,
    )
    llama = {"prompt": "x", "n_predict": 60, "n_probs": 20, "n": 16, "ignore_eos": True}
    yield "log-probabilities of llama.cpp", "/completion", json.dumps(llama).encode(), 200
    echo = {"prompt": "a b c d e f g " * 60, "echo": True, "logprobs": 20, "max_tokens": 1}
    yield "log-probabilities of a prompt", "/v1/completions", json.dumps(echo).encode(), 200
    yield "many vectors", "/v1/embeddings", json.dumps({"input": ["x"] * 2048}).encode(), 200
