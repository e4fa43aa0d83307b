"""The last texts of llama.cpp's slots, for clients that save and restore them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .caller import Caller

__all__ = ["SlotText", "Slots"]


@dataclass(frozen=True)
class SlotText:
    """The tokens of the last request with this ``id_slot``, with its answer."""

    model: str
    token_ids: list[int]


class Slots:
    """Texts by caller and slot.  A slot is only a name: the cache is shared, whatever slot a request asks for."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, int], SlotText] = {}

    def put(self, caller: Caller, slot: int, text: SlotText) -> None:
        """Replace a slot's text."""
        self._texts[caller.name, slot] = text

    def get(self, caller: Caller, slot: int) -> SlotText | None:
        """Return a slot's text; None if it was not used, or erased."""
        return self._texts.get((caller.name, slot))

    def erase(self, caller: Caller, slot: int) -> int:
        """Forget a slot's text and return its number of tokens."""
        text = self._texts.pop((caller.name, slot), None)
        return 0 if text is None else len(text.token_ids)
