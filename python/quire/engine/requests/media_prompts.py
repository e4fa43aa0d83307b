"""Raw prompts with images and sounds: text in which marks or the model's own placeholders stand for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from ...errors import RequestError
from .media import data_of

if TYPE_CHECKING:
    from ...media.pixels import Floats
    from ...models.media import Kind
    from ...tokenizer import Tokenizer
    from ..media import MediaInput, MediaRows, PromptMedia

__all__ = ["MARK", "around_image", "encoded_prompt", "image_vector", "is_media_prompt", "prompt_of_parts", "text_alone"]

MARK = "<__media__>"
"""Llama.cpp's mark for an image or a sound in a raw prompt."""

_KEYS: Mapping[str, Kind] = {
    "images": "image", "image": "image", "audios": "audio", "audio": "audio", "videos": "video", "video": "video",
}  # fmt: skip
_TEXTS = ("prompt", "prompt_string")


def is_media_prompt(prompt: object) -> TypeGuard[Mapping[str, Any]]:
    """Return True for a mapping with a text and images or sounds, with these alone, or with embeddings."""
    if not isinstance(prompt, Mapping):
        return False
    if prompt.get("prompt_embeds") is not None:
        return True
    return any(isinstance(prompt.get(name), str) for name in _TEXTS) or any(
        prompt.get(name) is not None for name in _KEYS
    )


def text_alone(prompt: Mapping[str, Any]) -> str | None:
    """Return the text of a prompt that has nothing else."""
    names = [name for name, value in prompt.items() if name != "mark" and value is not None]
    return str(prompt[names[0]]) if len(names) == 1 and names[0] in _TEXTS else None


def prompt_of_parts(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the texts and images of messages as a prompt, for a model that has no chat template."""
    contents = [message.get("content") for message in messages]
    parts = [
        {"type": "text", "text": part} if isinstance(part, str) else part
        for content in contents
        for part in (content if isinstance(content, list) else [content or ""])
    ]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    images = [
        data_of("image", part, "messages")
        for part in parts
        if isinstance(part, Mapping) and "image" in str(part.get("type"))
    ]
    return {"prompt": "\n".join(text for text in texts if isinstance(text, str)), "images": images}


def image_vector(prompt: Mapping[str, Any], media: MediaInput) -> Floats | None:
    """Return the vector of an image, for a model with separate encoders of texts and images; None for a text.

    RequestError for several images, and for an image with a text.
    """
    item = _lone_item(prompt)
    if item is None:
        return None
    kind, held, place = item
    vector: Floats = media.read(kind, data_of(kind, {kind: held}, place)).rows[0]
    return vector


def around_image(prompt: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the image of a prompt in ``text``, which has the model's placeholder.

    RequestError for several images, and for an image with a text.
    """
    item = _lone_item(prompt)
    if item is None:
        raise RequestError("[embed] the prompt has no image")
    kind, held, _ = item
    return {"prompt": text, kind: held}


def _lone_item(prompt: Mapping[str, Any]) -> tuple[Kind, Any, str] | None:
    """Return the image of a prompt without text; None if it has none.  RequestError for more than that."""
    given = _items_of(prompt)
    if not given:
        return None
    text = next((str(prompt[name]) for name in _TEXTS if isinstance(prompt.get(name), str)), "")
    if len(given) > 1 or text.replace(str(prompt.get("mark", MARK)), "").strip():
        raise RequestError("[embed] the model embeds a text or an image: give one of them in each prompt")
    return given[0]


def encoded_prompt(
    prompt: Mapping[str, Any], media: MediaInput | None, tokenizer: Tokenizer, n_ctx: int | None
) -> tuple[list[int], PromptMedia | None]:
    """Return the ids of a raw prompt, and the images and sounds in it.

    Args:
        prompt: ``prompt``, and ``images``, ``audios``, vLLM's ``multi_modal_data`` or llama.cpp's ``multimodal_data``
            (base64).  ``mark`` replaces ``MARK``.
        media: The model's encoders.
        tokenizer: The model's tokenizer.
        n_ctx: Most tokens of all images and sounds together.

    Raises:
        RequestError: A key is unknown, an item cannot be read, or the text has not one place for each.
        CapacityError: The images and sounds take too many tokens.
    """
    text = next((str(prompt[name]) for name in _TEXTS if isinstance(prompt.get(name), str)), MARK)
    names = [name for name, value in prompt.items() if name not in (*_TEXTS, "mark") and value is not None]
    if names and media is None:
        raise RequestError("[prompt] the model reads text only: it has no encoder of images or sounds")
    given = _items_of(prompt)
    if media is None or not given:
        return tokenizer.encode(text, add_special=True, parse_special=True), None
    rows: list[MediaRows] = []
    for kind, held, place in given:
        room = None if n_ctx is None else n_ctx - sum(len(item.rows) for item in rows)
        rows.append(media.read(kind, data_of(kind, {kind: held}, place), room))
    placed, order = _placed(text, rows, media, str(prompt.get("mark", MARK)))
    return media.expanded(tokenizer.encode(placed, add_special=True, parse_special=True), order)


def _items_of(prompt: Mapping[str, Any]) -> list[tuple[Kind, Any, str]]:
    """Return each item with its kind and its place in the prompt."""
    found: list[tuple[Kind, Any, str]] = []
    for name, value in prompt.items():
        if name in _TEXTS or name == "mark" or value is None:
            continue
        if name == "multi_modal_data" and isinstance(value, Mapping):
            found += _items_of({f"{key}": each for key, each in value.items()} | {"prompt": ""})
        elif name == "multimodal_data":
            found += [(*_kind_and_bytes(each, f"{name}[{i}]"), f"{name}[{i}]") for i, each in enumerate(value)]
        elif name in _KEYS:
            several = value if isinstance(value, list) and not _is_frames(_KEYS[name], value) else [value]
            found += [(_KEYS[name], each, f"{name}[{i}]") for i, each in enumerate(several)]
        else:
            raise RequestError(
                f"[prompt] unknown key {name!r:.40} of a prompt: expected prompt, images, audios, videos or "
                "multi_modal_data"
            )
    return found


def _is_frames(kind: Kind, items: list[Any]) -> bool:
    """Return whether a list holds the frames of one video, and not several videos."""
    # PIL images have a size of two numbers.
    n_axes = [item.ndim if hasattr(item, "ndim") else len(getattr(item, "size", ())) for item in items]
    return kind == "video" and bool(items) and all(n in (2, 3) for n in n_axes)


def _kind_and_bytes(item: object, place: str) -> tuple[Kind, bytes]:
    from ...media.audio.decode import MAX_BYTES, is_audio
    from ...media.decode import decode_base64

    if not isinstance(item, str):
        raise RequestError(f"[prompt] {place}: expected base64")
    try:
        data = decode_base64(item, max_bytes=MAX_BYTES, what="file")
    except RequestError as error:
        raise RequestError(f"[prompt] {place}: {error}") from None
    return ("audio" if is_audio(data) else "image"), data


def _placed(text: str, items: Sequence[MediaRows], media: MediaInput, mark: str) -> tuple[str, list[MediaRows]]:
    """Return the text with each item's markup in its place, and the items in the order of the text."""
    parts = text.split(mark)
    if len(parts) - 1 == len(items):
        marked = [part + media.written(item) for part, item in zip(parts, items, strict=False)]
        return "".join([*marked, parts[-1]]), list(items)
    if len(parts) > 1:
        raise RequestError(f"[prompt] the prompt has {len(parts) - 1} marks for {len(items)} images or sounds")
    return _in_placeholders(text, items, media)


def _in_placeholders(text: str, items: Sequence[MediaRows], media: MediaInput) -> tuple[str, list[MediaRows]]:
    """Put items in the place of the model's own placeholders, with the text that may surround one."""
    waiting = {kind: [item for item in items if item.kind == kind] for kind in media.encoders}
    order: list[MediaRows] = []
    patterns = []
    for kind, found in waiting.items():
        if found:
            before, after = media.surroundings(found[0])
            pad = re.escape(media.placeholder(kind))
            patterns.append(f"(?P<{kind}>(?:{re.escape(before)})?{pad}(?:{re.escape(after)})?)")

    def put(found: re.Match[str]) -> str:
        kind = found.lastgroup
        if kind is None or not waiting[kind]:  # type: ignore[index]
            return found[0]
        item = waiting[kind].pop(0)  # type: ignore[index]
        order.append(item)
        return media.written(item)

    placed = re.sub("|".join(patterns), put, text)
    if len(order) != len(items):
        raise RequestError(
            f"[prompt] the prompt has places for {len(order)} of {len(items)} images or sounds: write {MARK} for each"
        )
    return placed, order
