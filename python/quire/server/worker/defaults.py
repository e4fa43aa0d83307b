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
    """The defaults for requests to one model, from ``Open.defaults``.  Unusable ones are logged and left out."""

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
        """Return a request's parameters with the defaults, in the format of messages."""
        return {**self._params, **given}

    def form(self, params: SamplingParams, *, has_tools: bool) -> StructuredOutputsParams | None:
        """Return the form of the answer, by default the operator's; tool calls have a form of their own."""
        return params.structured_outputs if has_tools else params.structured_outputs or self._form

    def chat(self, options: JsonObject) -> JsonObject:
        """Return a chat's options with the defaults, in the format of messages."""
        values = {**self._values, **(options.get("template_values") or {})}
        return {**self._chat, **options, **({"template_values": values} if values else {})}

    def pooling(self, given: Pooling | None) -> Pooling | None:
        """Return the pooling of a request, by default the operator's."""
        return given or self._pooling
