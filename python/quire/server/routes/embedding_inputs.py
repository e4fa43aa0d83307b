"""Inputs to embed: texts, token ids, and texts with images in the forms of vLLM, Cohere and Jina."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ..failures import ApiError
from .fields import Id, Text
from .texts import MAX_TEXTS

__all__ = [
    "Conversation",
    "InputObject",
    "InputPart",
    "Inputs",
    "Messages",
    "Mixed",
    "input_of",
    "inputs_of",
    "prompts_of",
    "shown_parts",
]

Messages: TypeAlias = Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]


class ImageUrl(msgspec.Struct, forbid_unknown_fields=True):
    """An image as a data: URL, or a URL that the operator allows."""

    url: Text
    detail: str | None = None


class InputPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of an input: a text or an image.  Images are data: URLs, base64, or URLs that the operator allows."""

    text: Text | None = None
    type: Literal["text", "input_text", "image_url", "image"] | None = None
    image_url: Text | ImageUrl | None = None
    image: Text | None = None


class InputObject(InputPart, forbid_unknown_fields=True):
    """An input object: llama.cpp's ``content`` or ``prompt_string``, Jina's ``text`` or ``image``."""

    content: Text | Annotated[list[InputPart], Meta(max_length=4096)] | None = None
    prompt_string: Text | None = None


Mixture: TypeAlias = Annotated[list[Text | Id], Meta(max_length=1 << 22)]
Inputs: TypeAlias = Text | InputObject | Annotated[list[Text | Id | Mixture | InputObject], Meta(max_length=1 << 22)]


@dataclass(frozen=True)
class Conversation:
    """An input that the model's chat template lays out.  ``begins_answer``: with the beginning of an answer."""

    messages: list[dict[str, Any]]
    begins_answer: bool = False


Mixed: TypeAlias = str | list[int | str] | Conversation


def inputs_of(given: Inputs | None, messages: list[dict[str, Any]] | None, begins_answer: bool) -> list[Mixed]:
    """Return the inputs of a body that may have a conversation.  ApiError 400 unless it has one of both."""
    if messages is not None and given is None:
        return [Conversation(messages, begins_answer)]
    if given is None or messages is not None:
        raise ApiError(400, "invalid_value", "give either input or messages", "input")
    return prompts_of(given, "input")


def prompts_of(given: Any, field: str) -> list[Mixed]:
    """Split the field into inputs.

    A list that contains token ids is a single input, whose other parts are texts.  Any other list has one input per
    item. ApiError 400 for mixed or too many inputs.
    """
    if isinstance(given, str | InputObject):
        return [input_of(given, field)]
    if any(isinstance(item, int) for item in given):
        if any(not isinstance(item, int | str) for item in given):
            text = f"{field} mixes token ids with whole inputs"
            raise ApiError(400, "invalid_value", text, field)
        return [given]
    if len(given) > MAX_TEXTS:
        text = f"{field} has {len(given)} entries: at most {MAX_TEXTS} are allowed"
        raise ApiError(400, "invalid_value", text, field)
    return [item if isinstance(item, list) else input_of(item, field) for item in given]


def input_of(given: str | InputObject, field: str) -> str | Conversation:
    """Return the text or the conversation of an input.  ApiError 400 for an object without either."""
    if isinstance(given, str):
        return given
    content = given.content if given.content is not None else given.prompt_string
    if content is None:
        return shown_parts([given], field)
    return content if isinstance(content, str) else shown_parts(content, field)


def shown_parts(parts: list[InputPart] | list[InputObject], field: str) -> str | Conversation:
    """Return the joined texts, or with an image a user's message.  ApiError 400 for a part without either."""
    if not parts:
        raise ApiError(400, "invalid_value", f"an object in {field} has no content: give a text or an image", field)
    made: list[dict[str, Any]] = []
    for part in parts:
        image = part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url or part.image
        if (part.text is None) == (image is None):
            raise ApiError(400, "invalid_value", f"an object in {field} has no content: give a text or an image", field)
        if image is None:
            made.append({"type": "text", "text": part.text})
            continue
        url = image if ":" in image[:8] else f"data:image/png;base64,{image}"
        made.append({"type": "image_url", "image_url": {"url": url}})
    if all(part["type"] == "text" for part in made):
        return "".join(part["text"] for part in made)
    return Conversation([{"role": "user", "content": made}])
