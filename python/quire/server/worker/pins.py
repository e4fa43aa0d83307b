"""The pins of sessions, by the sessions' names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...engine.requests.prompts import RequestOptions
from ...errors import CapacityError
from ...params.sampling import SamplingParams

if TYPE_CHECKING:
    from ...engine.engine import Engine, EngineRequest
    from ...engine.requests.chat import ChatRequest
    from ...engine.requests.prompts import Prompts

__all__ = ["Pins"]


class Pins:
    """Pins what the cache has of histories.  ``drafted``: as for ``Questions``."""

    def __init__(
        self, engine: Engine, prompts: Prompts, drafted: Callable[[list[dict[str, Any]], dict[str, Any]], ChatRequest]
    ) -> None:
        self._engine, self._prompts, self._drafted = engine, prompts, drafted
        self._lock = threading.Lock()
        self._pins: dict[str, tuple[int, int]] = {}  # ids and tokens

    def verbs(self) -> Mapping[str, Callable[..., object]]:
        """Return the verbs of ``wire.Ask``."""
        return {"pin": self._pin, "unpin": self._unpin}

    def _pin(
        self,
        name: str,
        history: dict[str, Any],
        options: dict[str, Any],
        salt: bytes,
        adapter: list[tuple[str, float]] | None = None,
    ) -> object:
        """Pin a history in place of what was pinned by this name.  CapacityError without room for a new pin."""
        request = self.request(history, options, salt)
        if adapter is not None:
            request = replace(request, params=replace(request.params or SamplingParams(), adapter=adapter))
        with self._lock:
            before = self._pins.get(name)
            try:
                self._pins[name] = self._engine.pin(request)
            except CapacityError:
                if before is None:
                    raise
                return {"n_tokens": before[1]}
            if before is not None:
                self._engine.unpin(before[0])
            return {"n_tokens": self._pins[name][1]}

    def request(self, history: dict[str, Any], options: dict[str, Any], salt: bytes) -> EngineRequest:
        """Return a request whose prompt is a history: a raw ``prompt``, ``token_ids`` or ``messages``."""
        if "token_ids" in history:
            return self._prompts.draft(history["token_ids"], None, RequestOptions(salt=salt))
        if "messages" in history:
            shown = {**options, "add_generation_prompt": False}
            return replace(self._drafted(history["messages"], shown).engine, salt=salt, form=None)
        return self._prompts.draft(history["prompt"], None, RequestOptions(salt=salt))

    def _unpin(self, name: str) -> object:
        with self._lock:
            pin = self._pins.pop(name, None)
        if pin is not None:
            self._engine.unpin(pin[0])
        return {}
