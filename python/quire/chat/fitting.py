"""Find the plan and form for a template and a conversation: the first that loses no text.

A sample with the conversation's outline is rendered with one plan after another (``turns.py``), each in the forms that
the template accepts (``forms.py``).  Results are kept, so a conversation that continues in the same way is not tried
again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from quire.chat.forms import Form, Forms, Tools
from quire.chat.outlines import Outline, n_lost, outline_of, sample_of, sample_tools
from quire.chat.turns import Chat, TurnPlan, plans
from quire.errors import CapacityError, RequestError

__all__ = ["Fit", "Fitting"]

MAX_KEPT = 512
# CPU seconds for all samples of one outline.
MAX_SECONDS = 0.4

_Key: TypeAlias = tuple[tuple[Outline, ...], bool, bool]


@dataclass(frozen=True)
class Fit:
    """The changes to conversations of one outline.  ``form`` None: the first that the template accepts."""

    plan: TurnPlan
    form: Form | None = None


class Fitting:
    """Finds fits for one template.  Thread-safe."""

    def __init__(self, source: str, forms: Forms, probe: Callable[[Chat, Tools, bool], str]) -> None:
        """Create a finder.

        ``probe`` renders a conversation, with or without the beginning of an answer.  It raises QuireError if the
        template refuses.
        """
        self._source = source
        self._forms = forms
        self._probe = probe
        self._kept: OrderedDict[_Key, Fit] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, chat: Chat, has_tools: bool, begins: bool) -> Fit:
        """Return the fit of a conversation.  ``begins``: the prompt ends with the beginning of an answer."""
        key = outline_of(chat), has_tools, begins
        with self._lock:
            fit = self._kept.get(key)
            if fit is not None:
                self._kept.move_to_end(key)
                return fit
        try:
            fit = self._found(*key)
        except CapacityError:  # not kept: a busy machine may be at fault
            return Fit(TurnPlan())
        with self._lock:
            self._kept[key] = fit
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return fit

    def _found(self, outline: tuple[Outline, ...], has_tools: bool, begins: bool) -> Fit:
        sample, words = sample_of(outline)
        tools = sample_tools() if has_tools else self._forms.without_tools
        best: tuple[int, Fit] | None = None
        until = time.thread_time() + MAX_SECONDS
        for plan, chat in self._planned(sample):
            for form in self._forms.of(chat):
                if time.thread_time() > until:
                    if best is None:
                        raise CapacityError("[chat template] no sample was rendered in time")
                    return best[1]
                shown = form.of(chat)
                try:
                    rendering = self._probe(shown, tools, begins)
                except RequestError:
                    continue
                lost = n_lost(rendering, words) + self._n_nulls(rendering, shown)
                if lost == 0:
                    return Fit(plan, form)
                if best is None or lost < best[0]:
                    best = lost, Fit(plan, form)
        return Fit(TurnPlan()) if best is None else best[1]

    def _n_nulls(self, rendering: str, chat: Chat) -> int:
        """Return how often a rendering shows Python's ``None`` instead of content."""
        has_nulls = any("content" in message and message["content"] is None for message in chat)
        return rendering.count("None") if has_nulls and "None" not in self._source else 0

    def _planned(self, sample: Chat) -> Iterator[tuple[TurnPlan, Chat]]:
        """Yield the plans that change a sample differently, skipping roles and calls unknown to the template."""
        tried: list[Chat] = []
        for plan in plans():
            chat = plan.of(sample)
            roles = {message["role"] for message in chat}
            has_calls = any(message.get("tool_calls") for message in chat)
            if ("developer" in roles and "developer" not in self._source) or (
                has_calls and "tool_calls" not in self._source
            ):
                continue
            if chat not in tried:
                tried.append(chat)
                yield plan, chat
