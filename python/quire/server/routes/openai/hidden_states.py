"""The field ``return_hidden_states`` of completions and chats."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from ...failures import ApiError
from ...listener.request_context import RequestContext
from ...worker.engine_client import EngineClient
from ...worker.protocol import Chat, Embed, Generate
from ..answers import ResponseStream
from ..fields import hints_of

__all__ = ["check_rows", "check_states", "with_states"]

MOST_ROWS = 1 << 14
"""Hidden states in one reply: one for each token, layer and choice."""
_FIELD = "return_hidden_states"


def check_states(context: RequestContext[Any], engine: EngineClient, *works: Chat | Generate) -> list[int] | None:
    """Return the layers that a request asks for, None if it does not.  ApiError 400 for what cannot be had."""
    body = context.body
    asked: bool | list[int] = body.return_hidden_states
    if asked is False:
        return None
    taps = engine.info.taps
    if not taps:
        text = "hidden states are not available: start the server with --taps LAYERS"
        raise ApiError(400, "unsupported_parameter", text, _FIELD)
    layers = taps if asked is True else asked
    if missing := sorted(set(layers).difference(taps)):
        text = f"{_FIELD} has layer {missing[0]}, but the server has {', '.join(map(str, taps))} (--taps)"
        raise ApiError(400, "invalid_value", text, _FIELD)
    if not layers:
        raise ApiError(400, "invalid_value", f"{_FIELD} is empty: name one or more layers", _FIELD)
    names = ("adapter", "control_vectors")
    others = [name for name in names if any(work.params.get(name) is not None for work in works)]
    others += ["adapter"] * (context.adapter is not None) + ["stream"] * body.stream
    others += ["prompt_embeds"] * any(isinstance(work, Generate) and bool(work.embeds) for work in works)
    if others:
        raise ApiError(400, "unsupported_parameter", f"{_FIELD} cannot be combined with {others[0]}", _FIELD)
    if any(isinstance(work, Chat) and _has_media(work) for work in works):
        raise ApiError(400, "unsupported_parameter", f"{_FIELD} is for texts without images and sounds", _FIELD)
    return list(layers)


def _has_media(work: Chat) -> bool:
    contents = [message.get("content") for message in work.messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(isinstance(part, dict) and "text" not in str(part.get("type", "text")) for part in parts)


def check_rows(answer: ResponseStream, layers: Sequence[int], n_prompts: int = 1) -> None:
    """Raise ApiError 400 if the hidden states of an answer may be too many for a reply."""
    stream = answer.stream
    assert stream.started is not None
    n_prompt = len(stream.started.prompt_ids or ())
    n_tokens = stream.n_ctx if stream.n_most_new is None else min(stream.n_ctx, n_prompt + stream.n_most_new)
    if (n_rows := n_tokens * len(layers) * stream.n_choices * n_prompts) > MOST_ROWS:
        text = f"{_FIELD} may return {n_rows} states: at most {MOST_ROWS} are allowed (lower max_tokens, n or layers)"
        raise ApiError(400, "invalid_value", text, _FIELD)


async def with_states(
    engine: EngineClient,
    answer: ResponseStream,
    whole: dict[str, Any],
    written: Mapping[int, list[int]],
    layers: list[int],
) -> dict[str, Any]:
    """Add the hidden states of the prompt and each choice to a reply, as little-endian float32 in base64.

    ``written``: the tokens of the choices.
    """
    context, started = answer.context, answer.stream.started
    assert started is not None
    hints = hints_of(context.caller)
    for i, choice in enumerate(whole["choices"]):
        ids = [*(started.prompt_ids or ()), *written.get(i, ())]
        found = await context.ask(engine, Embed(0, ids, None, None, hints, layers=layers))
        data = await context.offload(b64encode, found["vector"])
        choice["hidden_states"] = {
            "layers": layers, "shape": found["shape"], "dtype": "float32", "data": data.decode(),
        }  # fmt: skip
    return whole
