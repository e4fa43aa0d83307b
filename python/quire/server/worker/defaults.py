"""The operator's defaults for requests, set when the server started."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ...params.structured import StructuredOutputsParams

if TYPE_CHECKING:
    from ...engine.engine import Pooling
    from ...engine.requests.prompts import Prompts
    from ...params.sampling import SamplingParams
    from .protocol import JsonObject

__all__ = ["Defaults"]

_LOG = logging.getLogger("quire")


class Defaults:
    """The defaults for one model's requests.  ``given``: ``Open.defaults``; unusable ones are logged and left out."""

    def __init__(self, given: JsonObject, prompts: Prompts) -> None:
        self._params: dict[str, Any] = {name: given[name] for name in ("seed",) if name in given}
        grammar = given.get("grammar")
        self._form = None if grammar is None else StructuredOutputsParams(grammar=grammar)
        self._chat: dict[str, Any] = dict(given.get("chat", {}))
        values = self._chat.pop("template_values", {})
        known = prompts.template_variables if values else ()
        self._values = {name: value for name, value in values.items() if name in known}
        lacking = [name for name in values if name not in self._values]
        if "reasoning_budget" in self._chat and not prompts.limits_reasoning:
            del self._chat["reasoning_budget"]
            lacking.append("reasoning_budget")
        for name in lacking:
            _LOG.warning("[chat] %s has no effect: the model's chat template does not use it", name)
        self._pooling: Pooling | None = given.get("pooling")

    def params(self, given: JsonObject) -> JsonObject:
        """The parameters of a request, as a message has them."""
        return {**self._params, **given}

    def form(self, params: SamplingParams, *, has_tools: bool) -> StructuredOutputsParams | None:
        """The form of an answer to a request that names none; calls of tools have their own."""
        return params.structured_outputs if has_tools else params.structured_outputs or self._form

    def chat(self, options: JsonObject) -> JsonObject:
        """The options of a chat, as a message has them."""
        values = {**self._values, **(options.get("template_values") or {})}
        return {**self._chat, **options, **({"template_values": values} if values else {})}

    def pooling(self, given: Pooling | None) -> Pooling | None:
        """How tokens' vectors become one."""
        return given or self._pooling
