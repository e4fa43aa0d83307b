"""Images and sounds in conversations: taken out of messages, put back as the model's own tokens and rows."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...errors import RequestError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...chat import Messages
    from ...media.decode import Rgb
    from ...models.media import Kind
    from ..media import MediaRows

__all__ = ["MediaItems", "Segments", "without_media"]

Segments: TypeAlias = "Sequence[tuple[str, bool]]"
"""A rendered prompt in parts; True marks text of the template, in which control tokens are parsed."""

# Keys of a part that hold the image, in the shapes of OpenAI, Hugging Face and Anthropic.
_HOLDERS = ("image", "image_url", "url", "path", "data", "source")
_TYPES = ("image", "image_url", "input_image")


@dataclass
class MediaItems:
    """The images and sounds of one conversation.  Each is known in its text by a mark that no message can contain.

    Attributes:
        rows: The encoded items, in the order of the messages.
        mark: Matches a mark; its group is the item's number.
    """

    rows: list[MediaRows] = field(default_factory=list)
    nonce: str = field(default_factory=lambda: secrets.token_hex(12))

    @property
    def mark(self) -> re.Pattern[str]:
        return re.compile(f"\ue0d3{self.nonce}-(\\d+)\ue0d3")

    def add(self, rows: MediaRows) -> str:
        """Keep an item; return its mark."""
        self.rows.append(rows)
        return f"\ue0d3{self.nonce}-{len(self.rows) - 1}\ue0d3"

    def written(self, segments: Segments, markup: Callable[[MediaRows], str]) -> list[tuple[str, bool]]:
        """Return a rendered prompt with each item's markup, as text of the template, in place of the marks."""
        made: list[tuple[str, bool]] = []
        for text, is_template in segments:
            at = 0
            for mark in self.mark.finditer(text):
                made += [(text[at : mark.start()], is_template), (markup(self.rows[int(mark.group(1))]), True)]
                at = mark.end()
            made.append((text[at:], is_template))
        return [segment for segment in made if segment[0]]

    def order_in(self, segments: Segments) -> list[MediaRows]:
        """Return the items that a rendered prompt shows, in its order."""
        return [self.rows[int(mark.group(1))] for text, _ in segments for mark in self.mark.finditer(text)]


def without_media(
    messages: Messages, items: MediaItems, read: Callable[[Kind, npt.NDArray[Any]], MediaRows]
) -> Messages:
    """Return the messages with a mark in place of each image or sound, and its rows in ``items``.

    Raises:
        RequestError: An item cannot be decoded, or is of a kind that is not read; the message is named.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        return messages
    found = []
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, (list, tuple)):
            found.append(message)
            continue
        parts = []
        for k, part in enumerate(content):
            if isinstance(part, Mapping) and part.get("type") in _TYPES:
                place = f"messages[{i}].content[{k}]"
                parts.append({"type": "text", "text": items.add(read("image", _image_of(part, place)))})
            else:
                parts.append(part)
        found.append({**message, "content": parts})
    return found


def _image_of(part: Mapping[str, Any], place: str) -> Rgb:
    """Return the pixels of a part.  A path is read: it comes from the program, as servers pass data URLs only."""
    from ...media import decode_data_url, decode_image, to_rgb

    held = next((part[name] for name in _HOLDERS if part.get(name) is not None), None)
    if isinstance(held, Mapping):  # {"url": ...} or {"type": "base64", "data": ...}
        held = held.get("url", held.get("data"))
    try:
        if isinstance(held, str) and held[:5].lower() == "data:":
            return decode_image(decode_data_url(held))
        if isinstance(held, (bytes, bytearray, memoryview)):
            return decode_image(bytes(held))
        if isinstance(held, os.PathLike):
            return decode_image(Path(held).read_bytes())
        if isinstance(held, str):
            raise RequestError("the image is not a data: URL (in Python, give a file as a pathlib.Path)")
        if held is None:
            raise RequestError("no image: give it as 'image', or as 'image_url' with a data: URL")
        return to_rgb(held)
    except OSError as error:
        raise RequestError(f"[chat] {place}: cannot read the image: {error.strerror}") from None
    except RequestError as error:
        raise RequestError(f"[chat] {place}: {error}") from None
