"""Logits processors that requests choose by name.

The operator registers them: installed packages with entry points of the group ``quire.logits_processors``, and
``logits_processors`` of the engine (``[NAME=]MODULE:OBJECT``).  Each is called with a request's arguments and returns a
function ``f(token_ids, logits) -> logits``.  Requests never bring code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from ..errors import LoadError, RequestError
from ..params.processors import NamedProcessor

if TYPE_CHECKING:
    from ..params.sampling import SamplingParams

__all__ = ["GROUP", "ProcessorRegistry"]

GROUP = "quire.logits_processors"


class ProcessorRegistry:
    """The registered processors of one engine.  Thread-safe."""

    def __init__(self, paths: Sequence[str] = ()) -> None:
        """Load the processors of ``paths``.  LoadError naming one that cannot be loaded."""
        self._lock = threading.Lock()
        self._made: dict[str, Callable[..., Any]] = {}
        self._found: dict[str, EntryPoint] | None = None
        for path in paths:
            name, equals, target = path.rpartition("=")
            module, colon, attribute = target.partition(":")
            if not colon or not module or not attribute or (equals and not name):
                raise LoadError(f"[engine] logits_processors: {path!r:.80} is invalid: expected [NAME=]MODULE:OBJECT")
            self._made[name or attribute.rpartition(".")[2]] = _loaded(EntryPoint(name, target, GROUP))

    def resolved(self, params: SamplingParams) -> SamplingParams:
        """Return parameters with functions in place of names.  RequestError for an unknown name or wrong arguments."""
        if not any(isinstance(each, NamedProcessor) for each in params.logits_processors):
            return params
        return replace(params, logits_processors=[self._function(each) for each in params.logits_processors])

    def _function(self, processor: Any) -> Any:
        if not isinstance(processor, NamedProcessor):
            return processor
        label = f"[logits_processors] {processor.name!r:.80}"
        make = self._maker(processor.name)
        try:
            made = make(**processor.arguments)
        except Exception as error:
            raise RequestError(f"{label} refuses its arguments: {error!r:.200}") from error
        if not callable(made):
            raise RequestError(f"{label} made {type(made).__name__}, which is not callable")
        return made

    def _maker(self, name: str) -> Callable[..., Any]:
        with self._lock:
            if self._found is None:
                self._found = {point.name: point for point in entry_points(group=GROUP)}
            if name not in self._made and name in self._found:
                self._made[name] = _loaded(self._found[name])
            if name not in self._made:
                known = ", ".join(sorted({*self._made, *self._found})) or "none"
                raise RequestError(f"[logits_processors] {name!r:.80} is unknown: registered are {known}")
            return self._made[name]


def _loaded(point: EntryPoint) -> Callable[..., Any]:
    try:
        found = point.load()
    except Exception as error:
        raise LoadError(f"[engine] cannot load the logits processor {point.value!r:.80}: {error!r:.200}") from error
    if not callable(found):
        raise LoadError(f"[engine] the logits processor {point.value!r:.80} is not callable")
    made: Callable[..., Any] = found
    return made
