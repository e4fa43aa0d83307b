"""Token ids of texts and pairs for encoders and rerankers, truncated on request."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, cast

from ...errors import RequestError, UnsupportedError
from ...tokenizer.vocabulary import Family
from .media_prompts import MARK, is_media_prompt, text_alone
from .prompts import prompt_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...tokenizer import TextPair, Tokenizer
    from ..loading.ranking import RankTemplate
    from ..loading.text_advice import TextAdvice
    from .prompts import Prompt, Prompts

__all__ = ["Pair", "Ranked", "TextKind", "TextOptions", "Texts", "Truncate", "is_pair", "text_list"]

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
Pair: TypeAlias = tuple[str, str]
# A text, or a mapping with one image for models that embed images.
Ranked: TypeAlias = str | Mapping[str, Any]
Truncate: TypeAlias = bool | int
TextKind: TypeAlias = Literal["query", "document"]


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of texts that are embedded or scored.

    Attributes:
        truncate: True cuts to the context, a number to that many tokens; False refuses longer texts.
        prompt_name: The prompt of the model that goes before an embedded text; None: the default, if any.
        input_type: The same by other programs' names (``search_query``, ``passage``), which may have no prompt.
        side: The side that is cut.  The tokens that the vocabulary puts around a text stay.
        kind: How ColBERT reads the text.
    """

    truncate: Truncate = False
    prompt_name: str | None = None
    input_type: str | None = None
    side: Literal["left", "right"] = "right"
    kind: TextKind | None = None


def is_pair(prompt: Prompt | Pair) -> TypeGuard[Pair]:
    """Return whether this is a tuple of two texts."""
    return isinstance(prompt, tuple) and len(prompt) == 2 and all(isinstance(text, str) for text in prompt)


def text_list(prompts: Prompt | Sequence[Prompt | Pair]) -> list[Prompt | Pair]:
    """Return one or several prompts or pairs as a list.  A single tuple of two texts is two prompts."""
    if not isinstance(prompts, list | tuple) or not any(isinstance(item, tuple) for item in prompts):
        return list(prompt_list(cast("Prompt | Sequence[Prompt]", prompts)))
    return list(cast("Sequence[Prompt | Pair]", prompts))


class Texts:
    """Makes the ids of texts and pairs for one model.  Thread-safe."""

    def __init__(self, prompts: Prompts, n_ctx: int, advice: TextAdvice) -> None:
        self._prompts = prompts
        self._advice = advice
        self._n_ctx = n_ctx

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._prompts.tokenizer

    def limit(self, truncate: Truncate) -> int | None:
        """Return how many tokens to keep; None: all.  RequestError for less than one or more than the context."""
        if truncate is True or truncate is False:
            return self._n_ctx if truncate else None
        if not isinstance(truncate, int) or not 1 <= truncate <= self._n_ctx:
            raise RequestError(
                f"[truncate] {truncate!r:.40} is out of range: expected 1 to {self._n_ctx} tokens, True or False"
            )
        return truncate

    def embedded(self, prompt: Prompt, options: TextOptions) -> Prompt:
        """Return the ids of a text to embed, with the model's prompt before it; given ids have it already.

        A prompt with images or sounds stays as it is, besides the model's prompt.  It cannot be truncated.
        """
        if is_media_prompt(prompt) and (text := text_alone(prompt)) is not None:
            prompt = text
        if is_media_prompt(prompt):
            before = self._advice.prompt(options.prompt_name, options.input_type)
            name = "prompt_string" if isinstance(prompt.get("prompt_string"), str) else "prompt"
            return {**prompt, name: before + str(prompt.get(name, MARK))}
        if isinstance(prompt, str):
            if self._advice.padded_length is not None:
                prompt = plain_text(prompt, self._tokenizer.vocabulary.family)
            return self.single(self._advice.prompt(options.prompt_name, options.input_type) + prompt, options)
        if options.prompt_name is not None:
            raise RequestError("[prompt_name] prompt_name needs a text, not token ids")
        return self.single(prompt, options)

    def single(self, prompt: Prompt, options: TextOptions) -> list[int]:
        """Return the ids of a prompt, truncated or filled up with padding."""
        ids = self._cut(prompt, options)
        if self._advice.padded_length is None:
            return ids
        pad = self._tokenizer.vocabulary.special_ids.get("pad")
        if pad is None:
            raise UnsupportedError(
                "[embed] the model reads texts with padding, but its vocabulary has no padding token"
            )
        return ids + [pad] * (self._advice.padded_length - len(ids))

    def _cut(self, prompt: Prompt, options: TextOptions) -> list[int]:
        ids, limit = self._prompts.token_ids(prompt), self.limit(options.truncate)
        if limit is None or len(ids) <= limit:
            return ids
        before, after = self._around() if isinstance(prompt, str) else (0, 0)
        room = _room(limit, before + after)
        body = ids[before : len(ids) - after]
        kept = body[:room] if options.side == "right" else body[len(body) - room :]
        return [*ids[:before], *kept, *ids[len(ids) - after :]]

    def pair(self, first: str, second: str, options: TextOptions) -> TextPair:
        """Return the ids of a pair (see ``Tokenizer.encode_pair``), truncated; the longer text is cut first."""
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
        """Return the ids of a query and a document in a reranker's template, with the document truncated."""
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


def plain_text(text: str, family: Family) -> str:
    """Return a text as SigLIP was trained to read it: lowercase, and with SentencePiece without punctuation."""
    text = text.lower()
    if family is not Family.UNIGRAM:
        return text
    return " ".join(text.translate(_WITHOUT_PUNCTUATION).split())


def _room(limit: int, n_around: int) -> int:
    if limit < n_around:
        raise RequestError(f"[truncate] {limit} tokens are too few: the tokens around a text alone are {n_around}")
    return limit - n_around


def shares(n_one: int, n_other: int, room: int) -> tuple[int, int]:
    """Return how many tokens to keep of two texts that share ``room``; the longer one is cut first."""
    shorter = min(n_one, n_other, room)
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = room - shorter
    return (shorter, longer) if n_one <= n_other else (longer, shorter)
