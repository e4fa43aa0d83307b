"""vLLM's parameters for requests for vectors or scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..ignored import refuse_set

__all__ = ["PoolingParams"]

_NOT_HERE: Mapping[str, object] = {"step_tag_id": None, "returned_token_ids": None}


@dataclass
class PoolingParams:
    """``use_activation``: scale vectors to length 1 and map scores to 0..1; None: yes.

    ``normalize``, ``activation`` and ``softmax`` are its older names.  ``dimensions``: how much of a vector is kept.
    """

    truncate_prompt_tokens: int | None = None
    dimensions: int | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None

    @property
    def is_activated(self) -> bool:
        """The value of the newest name that is set."""
        given = (self.use_activation, self.activation, self.softmax, self.normalize)
        return next((value for value in given if value is not None), True)

    def check(self, place: str, unused: Mapping[str, Any]) -> None:
        """Check that parameters without effect have a neutral value, listed in ``unused``.  UnsupportedError if not."""
        refuse_set(place, self.__dict__, {**_NOT_HERE, **unused})
