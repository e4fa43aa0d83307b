"""Texts and pairs of texts, as encoders and rerankers read them; what is too long is cut where that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard, cast

from ...errors import RequestError
from .prompts import prompt_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...tokenizer import TextPair, Tokenizer
    from ..loading.ranking import RankTemplate
    from ..loading.text_advice import TextAdvice
    from .prompts import Prompt, Prompts

__all__ = ["Pair", "TextOptions", "Texts", "Truncate", "is_pair", "text_list"]

Pair: TypeAlias = tuple[str, str]
Truncate: TypeAlias = bool | int


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """``truncate``: True cuts what is longer than the context, a number what has more tokens; False refuses it.
    ``prompt_name``: which of the makers' prompts goes before a text that is embedded; None: the default, if any.
    ``input_type``: the same by the words of others (``search_query``, ``passage``), which may have no prompt.
    ``side``: where tokens are left out; those that the vocabulary puts around a text stay.
    """

    truncate: Truncate = False
    prompt_name: str | None = None
    input_type: str | None = None
    side: Literal["left", "right"] = "right"


def is_pair(prompt: Prompt | Pair) -> TypeGuard[Pair]:
    """Whether these are two texts, and no ids."""
    return isinstance(prompt, tuple) and len(prompt) == 2 and all(isinstance(text, str) for text in prompt)


def text_list(prompts: Prompt | Sequence[Prompt | Pair]) -> list[Prompt | Pair]:
    """One prompt or several, and pairs among them, as a list.  A tuple of two texts by itself is two prompts."""
    if not isinstance(prompts, list | tuple) or not any(isinstance(item, tuple) for item in prompts):
        return list(prompt_list(cast("Prompt | Sequence[Prompt]", prompts)))
    return list(cast("Sequence[Prompt | Pair]", prompts))


class Texts:
    """The ids of texts and pairs for one model.  Thread-safe."""

    def __init__(self, prompts: Prompts, n_ctx: int, advice: TextAdvice) -> None:
        self._prompts = prompts
        self._advice = advice
        self._n_ctx = n_ctx

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._prompts.tokenizer

    def limit(self, truncate: Truncate) -> int | None:
        """How many tokens are kept; None: all.  RequestError for fewer than one and for more than the context."""
        if truncate is True or truncate is False:
            return self._n_ctx if truncate else None
        if not isinstance(truncate, int) or not 1 <= truncate <= self._n_ctx:
            raise RequestError(
                f"[truncate] the number of tokens that are kept must be 1 to {self._n_ctx} but is {truncate!r:.40}"
            )
        return truncate

    def embedded(self, prompt: Prompt, options: TextOptions) -> list[int]:
        """The ids of a text that is embedded, with what the makers put before it; ids have it already."""
        if isinstance(prompt, str):
            return self.single(self._advice.prompt(options.prompt_name, options.input_type) + prompt, options)
        if options.prompt_name is not None:
            raise RequestError("[prompt_name] a prompt must be text to have one put before it but is ids")
        return self.single(prompt, options)

    def single(self, prompt: Prompt, options: TextOptions) -> list[int]:
        """The ids of a prompt, of as many as are kept."""
        ids, limit = self._prompts.token_ids(prompt), self.limit(options.truncate)
        if limit is None or len(ids) <= limit:
            return ids
        before, after = self._around() if isinstance(prompt, str) else (0, 0)
        room = _room(limit, before + after)
        body = ids[before : len(ids) - after]
        kept = body[:room] if options.side == "right" else body[len(body) - room :]
        return [*ids[:before], *kept, *ids[len(ids) - after :]]

    def pair(self, first: str, second: str, options: TextOptions) -> TextPair:
        """The ids of two texts in one prompt, see ``Tokenizer.encode_pair``; the longer one loses tokens first."""
        pair = self._tokenizer.encode_pair(first, second)
        limit = self.limit(options.truncate)
        if limit is None or len(pair.token_ids) <= limit:
            return pair
        one, other = (self._tokenizer.encode(text, add_special=False) for text in (first, second))
        room = _room(limit, len(pair.token_ids) - len(one) - len(other))
        n_one, n_other = shares(len(one), len(other), room)
        if options.side == "right":
            return self._tokenizer.join_pair(one[:n_one], other[:n_other])
        return self._tokenizer.join_pair(one[len(one) - n_one :], other[len(other) - n_other :])

    def judged(self, template: RankTemplate, pair: Pair, instruction: str | None, options: TextOptions) -> list[int]:
        """The ids of a query and a document in a reranker's template; the document loses tokens where that is asked."""
        segments = template.segments(*pair, instruction)
        ids, limit = self._tokenizer.encode_segments(segments), self.limit(options.truncate)
        if limit is None or len(ids) <= limit:
            return ids
        before, document, after = template.around_document(segments)
        head, tail = self._tokenizer.encode_segments(before), self._tokenizer.encode_segments(after)
        body = self._tokenizer.encode_segments([document])
        room = _room(limit, len(head) + len(tail))
        return [*head, *(body[:room] if options.side == "right" else body[max(0, len(body) - room) :]), *tail]

    def _around(self) -> tuple[int, int]:
        vocabulary = self._tokenizer.vocabulary
        return len(vocabulary.prefix_ids), len(vocabulary.suffix_ids)


def _room(limit: int, n_around: int) -> int:
    if limit < n_around:
        raise RequestError(
            f"[truncate] what is kept must have room for the {n_around} tokens around a text but is {limit} tokens"
        )
    return limit - n_around


def shares(n_one: int, n_other: int, room: int) -> tuple[int, int]:
    """How much is kept of two texts that have room together for fewer tokens than they have: the longer loses first."""
    shorter = min(n_one, n_other, room)
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = room - shorter
    return (shorter, longer) if n_one <= n_other else (longer, shorter)
