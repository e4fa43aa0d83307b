"""Signatures of the calls that generate, with each declared keyword in place of ``**keywords``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Any

from .chat_options import ChatFields, ChatOptions, RunFields
from .request_fields import RequestFields
from .sampling import PARAMETERS, SamplingParams

__all__ = ["UNPACKED", "keywords_of", "show_keywords"]

UNPACKED = {
    f"Unpack[{kind}]": fields
    for kind, fields in (("RequestFields", RequestFields), ("ChatFields", ChatFields), ("RunFields", RunFields))
}
"""The types of unpacked keywords, as annotations name them."""

_DEFAULTS = {entry.name: entry for entry in (*fields(SamplingParams), *fields(ChatOptions))}
_OF_REQUESTS = {"salt": b"", "priority": 0, "key": ""}


def show_keywords(kind: type) -> None:
    """Let ``help`` and ``inspect.signature`` show every keyword of a class's methods, with its type and default.

    The defaults are those of a call without ``params``, and for chats of a model whose file advises no sampling.
    """
    for method in filter(inspect.isfunction, vars(kind).values()):
        signature = inspect.signature(method)
        named = dict(signature.parameters)
        unpacked = UNPACKED.get(str(named.popitem()[1].annotation)) if named else None
        if unpacked is not None:
            added = [each for each in keywords_of(unpacked) if each.name not in named]
            method.__signature__ = signature.replace(parameters=[*named.values(), *added])  # type: ignore[attr-defined]


def keywords_of(unpacked: type) -> Iterator[inspect.Parameter]:
    """Yield the keywords of a TypedDict, those of sampling last."""
    is_chat = unpacked is not RequestFields
    for name, kind in sorted(
        unpacked.__annotations__.items(), key=lambda item: item[0] in RequestFields.__annotations__
    ):
        default = _OF_REQUESTS[name] if name in _OF_REQUESTS else _default(_DEFAULTS.get(name))
        if is_chat and name in PARAMETERS and PARAMETERS[name].chat is not None:
            default = PARAMETERS[name].chat
        annotation = getattr(kind, "__forward_arg__", kind)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _default(entry: Field[Any] | None) -> object:
    if entry is None:  # the form of the answer
        return None
    return entry.default if entry.default_factory is MISSING else entry.default_factory()
