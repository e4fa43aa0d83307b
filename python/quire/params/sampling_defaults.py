"""How tokens are drawn where a request does not say: the same in Python, in the commands and in every dialect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from .sampling import PARAMETERS, SamplingParams

__all__ = ["CHAT_DEFAULTS", "TRUNCATION", "chat_defaults", "most_prompt_tokens"]

_USUAL_ROOM = 512  # tokens of an answer

CHAT_DEFAULTS: Mapping[str, float] = MappingProxyType(
    {name: parameter.chat for name, parameter in PARAMETERS.items() if parameter.chat is not None}
)
"""llama.cpp's numbers: of a chat where neither the request nor the model's file says."""

TRUNCATION: Mapping[str, float] = MappingProxyType(
    {name: getattr(SamplingParams(), name) for name in CHAT_DEFAULTS if name != "temperature"}
)
"""The truncating fields, with the values that turn them off: mirostat truncates by itself."""


def chat_defaults(advised: Mapping[str, object], given: Mapping[str, object] | None = None) -> dict[str, object]:
    """Fields of ``SamplingParams`` for a chat: what the model's file advises, else ``CHAT_DEFAULTS``.

    ``given``: what the request says.  It takes precedence over both and is not part of the result.  With mirostat,
    only truncating stages that the request names are on.
    """
    given = given or {}
    usual: dict[str, object] = {**CHAT_DEFAULTS, **advised}
    if given.get("mirostat", usual.get("mirostat")):
        usual = _without(usual, TRUNCATION)
    stages = given.get("samplers")
    if isinstance(stages, Collection) and not isinstance(stages, str):
        # A stage that the request leaves out has no options, so that leaving it out is no error.
        usual = {name: value for name, value in usual.items() if PARAMETERS[name].stage in ("", *stages)}
    return _without(usual, given)


def _without(values: dict[str, object], names: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in values.items() if name not in names}


def most_prompt_tokens(n_ctx: int, max_tokens: int | None) -> int:
    """Tokens of a prompt that leave room for an answer: an eighth of the context, or less where that is enough."""
    room = min(_USUAL_ROOM if max_tokens is None else max_tokens, n_ctx // 8)
    return n_ctx - max(room, 1)
