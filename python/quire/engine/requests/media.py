"""Images and sounds in conversations: taken out of messages, put back as the model's own tokens and rows."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from ...chat.messages import MediaMark
from ...errors import RequestError, ShapeError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...chat import Messages
    from ...chat.template import Rendering
    from ...media.audio import Samples
    from ...media.decode import Rgb
    from ...media.video import Video
    from ...models.media import Kind
    from ..media import MediaRows

__all__ = ["MediaItems", "Segments", "data_of", "has_media", "without_media"]

Segments: TypeAlias = "Sequence[tuple[str, bool]]"
"""A rendered prompt in parts; True marks text of the template, in which control tokens are parsed."""

# Types of parts in the shapes of OpenAI, Hugging Face and Anthropic, and the keys that hold the item.
_KINDS: Mapping[str, Kind] = {
    "image": "image", "image_url": "image", "input_image": "image",
    "audio": "audio", "audio_url": "audio", "input_audio": "audio",
    "video": "video", "video_url": "video", "input_video": "video",
}  # fmt: skip
_HOLDERS: Mapping[Kind, tuple[str, ...]] = {
    "image": ("image", "image_url", "url", "path", "data", "source"),
    "audio": ("audio", "input_audio", "audio_url", "url", "path", "data"),
    "video": ("video", "video_url", "input_video", "url", "path", "data"),
}


VIDEO_BYTES = 256 << 20


@dataclass
class MediaItems:
    """The images and sounds of one conversation.  Each is known in its text by a mark that no message can contain.

    Attributes:
        rows: The encoded items, in the order of the messages.
        template_texts: What the chat template writes for an item, by its kind.
        mark: Matches a mark; its group is the item's number.
    """

    rows: list[MediaRows] = field(default_factory=list)
    template_texts: Mapping[Kind, str] = field(default_factory=dict)
    nonce: str = field(default_factory=lambda: secrets.token_hex(12))

    @property
    def mark(self) -> re.Pattern[str]:
        return re.compile(f"\ue0d3{self.nonce}-(\\d+)\ue0d3")

    def add(self, rows: MediaRows) -> dict[str, object]:
        """Keep an item; return a part that stands for it, with its mark."""
        self.rows.append(rows)
        kind = rows.kind if rows.kind in self.template_texts else "text"
        return {"type": kind, "text": MediaMark(f"\ue0d3{self.nonce}-{len(self.rows) - 1}\ue0d3")}

    def rendered(self, messages: Messages, render: Callable[[Messages], Rendering]) -> Rendering:
        """Render messages with a mark in place of each item: where the template writes an item, else as text."""
        made = render(messages)
        parts = [part for message in messages for part in _parts(message) if isinstance(part.get("text"), MediaMark)]
        if all(part["type"] == "text" for part in parts):
            return made
        if (marked := self._marked(made.segments, parts)) is not None:
            return replace(made, segments=marked)
        return render([_with_texts(message) for message in messages])

    def _marked(self, segments: Segments, parts: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]] | None:
        """Return segments with marks for the template's placeholders; None unless these show each item once."""
        wanted = [(self.template_texts.get(part["type"]), part["text"]) for part in parts]
        placeholder = re.compile("|".join(re.escape(text) for text in self.template_texts.values()))
        made: list[tuple[str, bool]] = []
        for text, is_template in segments:
            if self.mark.search(text):
                return None
            at = 0
            for found in placeholder.finditer(text) if is_template else ():
                if not wanted or wanted[0][0] != found.group():
                    return None
                made += [(text[at : found.start()], True), (wanted.pop(0)[1], True)]
                at = found.end()
            made.append((text[at:], is_template))
        return None if wanted else made

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


def has_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether messages have images or sounds."""
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    parts = [part for content in contents if isinstance(content, (list, tuple)) for part in content]
    return any(isinstance(part, Mapping) and str(part.get("type")) in _KINDS for part in parts)


def without_media(
    messages: Messages, items: MediaItems, read: Callable[[Kind, npt.NDArray[Any] | Video | bytes], MediaRows]
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
            kind = _KINDS.get(str(part.get("type"))) if isinstance(part, Mapping) else None
            if kind is None:
                parts.append(part)
            else:
                data = data_of(kind, part, f"messages[{i}].content[{k}]")
                parts.append(items.add(read(kind, data)))
        found.append({**message, "content": parts})
    return found


def _parts(message: Mapping[str, object]) -> Sequence[Mapping[str, Any]]:
    content = message.get("content")
    return [part for part in content if isinstance(part, Mapping)] if isinstance(content, (list, tuple)) else []


def _with_texts(message: Mapping[str, object]) -> Mapping[str, object]:
    """Return a message whose marks are ordinary text."""
    content = message.get("content")
    if not isinstance(content, (list, tuple)):
        return message
    content = [part if isinstance(part, Mapping) else {"type": "text", "text": part} for part in content]
    parts = [{**part, "type": "text"} if isinstance(part.get("text"), MediaMark) else part for part in content]
    return {**message, "content": parts}


@overload
def data_of(kind: Literal["image", "audio"], part: Mapping[str, Any], place: str) -> npt.NDArray[Any]: ...


@overload
def data_of(kind: Kind, part: Mapping[str, Any], place: str) -> npt.NDArray[Any] | Video | bytes: ...


def data_of(kind: Kind, part: Mapping[str, Any], place: str) -> npt.NDArray[Any] | Video | bytes:
    """Return a part's pixels, samples or frames, or the bytes of a video file.

    A path is read: it comes from the program, as servers pass data URLs only.
    """
    held = next((part[name] for name in _HOLDERS[kind] if part.get(name) is not None), None)
    if isinstance(held, Mapping) and "array" not in held:  # {"url": ...} or {"type": "base64", "data": ...}
        held = held.get("url", held.get("data"))
    try:
        if isinstance(held, os.PathLike):
            held = Path(held).read_bytes()
        if held is None:
            raise RequestError(f"no {kind}: give it as '{kind}', or as '{kind}_url' with a data: URL")
        if kind == "video":
            return _video_of(held, part.get("fps"))
        return _image_of(held) if kind == "image" else _samples_of(held)
    except OSError as error:
        name = "" if error.filename is None else f" '{error.filename}'"
        raise RequestError(f"[chat] {place}: cannot read the {kind}{name}: {error.strerror}") from None
    except RequestError as error:
        raise RequestError(f"[chat] {place}: {error}") from None


def _image_of(held: Any) -> Rgb:
    from ...media import decode_data_url, decode_image, to_rgb

    if isinstance(held, str):
        if held[:5].lower() != "data:":
            raise RequestError("the image is not a data: URL (in Python, give a file as a pathlib.Path)")
        held = decode_data_url(held)
    return decode_image(bytes(held)) if isinstance(held, (bytes, bytearray, memoryview)) else to_rgb(held)


def _video_of(held: Any, rate: Any) -> Video | bytes:
    from ...media import decode_data_url
    from ...media.video import FRAME_RATE, MAX_FRAMES, Video, decode_jpegs, video_of

    rate = FRAME_RATE if rate is None else rate
    if isinstance(held, str):
        if held[:5].lower() != "data:":
            raise RequestError("the video is not a data: URL (in Python, give a file as a pathlib.Path)")
        if held[:16].lower() == "data:video/jpeg;":
            return decode_jpegs(held, rate)
        held = decode_data_url(held, max_bytes=VIDEO_BYTES, what="video")
    if isinstance(held, Video):
        return held
    if isinstance(held, (bytes, bytearray, memoryview)):
        return bytes(held)
    if not isinstance(held, (list, tuple)) and getattr(held, "ndim", 0) != 4:
        raise ShapeError(f"unsupported video of type {type(held).__name__}: expected frames, a path or bytes")
    if len(held) > MAX_FRAMES:
        raise RequestError(f"the video has {len(held)} frames: at most {MAX_FRAMES} are accepted")
    files = [Path(frame).read_bytes() if isinstance(frame, os.PathLike) else frame for frame in held]
    return video_of([_image_of(frame) for frame in files], rate)


def _samples_of(held: Any) -> Samples:
    from ...media import decode_data_url
    from ...media.audio import MAX_BYTES, decode_audio, to_samples
    from ...media.decode import decode_base64

    if isinstance(held, str):
        read = decode_data_url if ":" in held[:10] else decode_base64
        held = read(held, max_bytes=MAX_BYTES, what="audio")
    if isinstance(held, (bytes, bytearray, memoryview)):
        return decode_audio(bytes(held))
    if isinstance(held, Mapping):  # as Hugging Face's data sets
        held = held.get("array"), held.get("sampling_rate")
    if not isinstance(held, (tuple, list)) or len(held) != 2:
        raise ShapeError(f"unsupported audio of type {type(held).__name__}: expected bytes or (samples, rate)")
    return to_samples(*held)
