"""Turn the structured-output parameters of a request into the text of a grammar for llguidance."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import RequestError, UnsupportedError
from ..params.structured import StructuredOutputsParams
from .frame import ANY_TOKENS, Frame, FrameWriter, lark_string
from .gbnf import gbnf_to_lark, is_gbnf
from .schema import enforceable

__all__ = ["DEFAULT_WHITESPACE", "WHITESPACE_AFTER", "GrammarSource", "grammar_source", "json_body", "lark_regex"]

WHITESPACE_AFTER = r"/[ \n\r\t]{1,8}/"
DEFAULT_WHITESPACE = r"[ \n\r\t]{1,32}"
# Without \uXXXX there is only one way to write a key, so a free key cannot repeat a declared one in disguise.
JSON_ESCAPES = 'nrbtf\\"'
MAX_TAME = 4096
MAX_PLAIN, MAX_PLAIN_KEYS = 128 * 1024, 2500  # enough for a thousand properties with their types
_COUNTED = ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum",
            "exclusiveMaximum")  # fmt: skip
_MULTIPLY = ("pattern", "patternProperties", "format", "anyOf", "oneOf", "allOf", "$ref", "multipleOf")
# Strings, regular expressions and comments of Lark are skipped as a whole.
_LARK_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?![/*])(?:[^/\\\n]|\\.)+/|//[^\n]*|#[^\n]*|%(?:json|lark)\b')


@dataclass(frozen=True)
class GrammarSource:
    """A grammar as text and the frame around it, either of which may be absent.  The key of caches.

    ``triggers``: the grammar begins with one of these texts, and any other text may come before.  ``notes`` names
    places in JSON Schemas that are not enforced.
    """

    body: str | None
    frame: Frame | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    triggers: tuple[str, ...] = ()

    @property
    def is_tame(self) -> bool:
        """True for a small schema without keywords that multiply the work: even a hostile one compiles fast."""
        if self.frame is not None or self.triggers or self.body is None or len(self.body) > MAX_TAME:
            return False
        return self._is_schema_without(_MULTIPLY)

    @property
    def is_plain(self) -> bool:
        """True if compiling takes a few tenths of a second at most: tame, or large without multiplying and counting."""
        if self.is_tame:
            return True
        if self.frame is not None or self.triggers or self.body is None or len(self.body) > MAX_PLAIN:
            return False
        return self.body.count('":') <= MAX_PLAIN_KEYS and self._is_schema_without((*_MULTIPLY, *_COUNTED))

    def _is_schema_without(self, keywords: tuple[str, ...]) -> bool:
        body = self.body or ""
        return '{"json_schema"' in body and not any(f'"{keyword}"' in body for keyword in keywords)

    @property
    def digest(self) -> bytes:
        """A short name of the grammar."""
        return hashlib.blake2b(
            repr((self.body, self.frame, self.triggers)).encode("utf-8", "surrogatepass"), digest_size=16
        ).digest()

    @property
    def size(self) -> int:
        """The length in characters."""
        return len(self.body or "") + len(self.frame.lark if self.frame is not None else "")


def grammar_source(params: StructuredOutputsParams) -> GrammarSource:
    """Return the grammar that enforces the parameters.

    Raises:
        UnsupportedError: Something cannot be enforced; the message names it.
        RequestError: Something is malformed.
    """
    notes: tuple[str, ...] = ()
    if params.json is not None or params.json_object:
        schema = {"type": "object"} if params.json_object else json.loads(str(params.json))
        enforced = enforceable(schema)
        notes, body = enforced.notes, json_body(enforced.schema, _whitespace(params))
    elif params.regex is not None:
        body = {"lark_grammar": f"start: {lark_regex(params.regex)}\n"}
    elif params.choice is not None:
        # A single terminal, because any number of strings in it costs as much as one.
        strings = " | ".join(lark_string(text) for text in params.choice)
        body = {"lark_grammar": f"start: CHOICE\nCHOICE: {strings}\n"}
    else:
        assert params.grammar is not None
        notes, lark = _lark(params.grammar)
        body = {"lark_grammar": lark}
    frame = None if params.after is None else _after(params.after)
    return GrammarSource(json.dumps(body, ensure_ascii=False), frame, notes, tuple(params.triggers))


def _after(trigger: str) -> Frame:
    writer = FrameWriter()
    writer.rule("start", f"{writer.mark(trigger, before=ANY_TOKENS)} WS? @body")
    writer.rule("WS", WHITESPACE_AFTER)
    return writer.frame()


def json_body(schema: object, whitespace: str | None = DEFAULT_WHITESPACE) -> dict[str, object]:
    """Return a grammar of the JSON texts that a checked schema allows; ``whitespace`` None means none at all."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    assert isinstance(schema, Mapping)
    options: dict[str, object] = {"json_allowed_escapes": JSON_ESCAPES, "whitespace_flexible": False}
    if whitespace is not None:
        options["whitespace_pattern"] = whitespace
    return {"json_schema": {**schema, "x-guidance": options}}


def _whitespace(params: StructuredOutputsParams) -> str | None:
    if params.disable_any_whitespace:
        return None
    return params.whitespace_pattern or DEFAULT_WHITESPACE


def lark_regex(pattern: str) -> str:
    """Write a regular expression between slashes, on one line."""
    text, position = [], 0
    for found in re.finditer(r"\\(.)|/|\n|\r", pattern, re.DOTALL):
        text.append(pattern[position : found.start()])
        text.append({"/": r"\/", "\n": r"\n", "\r": r"\r"}.get(found.group(), found.group().replace("\n", r"n")))
        position = found.end()
    return "/" + "".join([*text, pattern[position:]]) + "/"


def _lark(grammar: str) -> tuple[tuple[str, ...], str]:
    """Return notes and Lark.  GBNF is translated; the schemas inside Lark are read like those of requests."""
    if is_gbnf(grammar):
        return (), gbnf_to_lark(grammar)
    position, parts, notes = 0, [], dict[str, None]()
    while (found := _LARK_TOKEN.search(grammar, position)) is not None:
        parts.append(grammar[position : found.end()])
        position = found.end()
        if found.group() == "%lark":
            raise UnsupportedError("[grammar] %lark inside a grammar is unsupported")
        if found.group() == "%json":
            start = re.compile(r"\s*").match(grammar, position)
            assert start is not None
            try:
                schema, position = json.JSONDecoder().raw_decode(grammar, start.end())
            except (ValueError, RecursionError) as error:
                raise RequestError("[grammar] no JSON Schema follows %json") from error
            enforced = enforceable(schema)
            notes.update(dict.fromkeys(enforced.notes))
            parts.append(" " + json.dumps(enforced.schema))
    return tuple(notes), "".join([*parts, grammar[position:]])
