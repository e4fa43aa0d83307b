"""Named entities: the classes of a text's tokens, joined as transformers' token-classification pipeline joins them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, get_args

from ...errors import RequestError
from ...tokenizer.spans import spans_of
from ...tokenizer.vocabulary import Family, TokenKind
from ...tokenizer.word_pieces import SPACE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...tokenizer import Tokenizer

__all__ = ["Aggregation", "Entity", "Tagger", "check_aggregation"]

Aggregation: TypeAlias = Literal["none", "simple", "first", "average", "max"]
# The published WordPiece decoder removes spaces around marks.
_CLEANED = (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 's", "'s")


class Entity(TypedDict, total=False):
    """A span of a text and its class: ``entity`` of one token, or ``entity_group`` of a group of tokens."""

    entity: str
    entity_group: str
    score: float
    index: int  # position of a single token in the prompt
    word: str
    start: int
    end: int


@dataclass(frozen=True)
class _Token:
    """One token, or one word: its probabilities, ids and characters."""

    scores: npt.NDArray[np.float32]
    index: int
    ids: tuple[int, ...]
    start: int
    end: int
    is_inner: bool  # continues a word


def check_aggregation(found: str) -> None:
    """Raise RequestError for an unknown aggregation."""
    if found not in get_args(Aggregation):
        expected = ", ".join(get_args(Aggregation))
        raise RequestError(f"[tag] aggregation {found!r:.40} is unknown: expected {expected}")


class Tagger:
    """Joins the classes of tokens into entities, for one model."""

    def __init__(self, tokenizer: Tokenizer, labels: Sequence[str], aggregation: Aggregation) -> None:
        self._tokenizer, self._labels, self._aggregation = tokenizer, labels, aggregation
        self._is_words = tokenizer.vocabulary.family is Family.WORD_PIECE

    def entities(
        self, text: str, ids: Sequence[int], scores: npt.NDArray[np.float32], ignored: Sequence[str]
    ) -> list[Entity]:
        """Return the entities of a text.

        Args:
            text: The text.
            ids: The prompt: the text's tokens with those around it.
            scores: Class scores ``[n_tokens, n_classes]`` of the prompt.
            ignored: Classes to leave out.
        """
        import numpy as np

        exact = np.exp(scores - scores.max(axis=-1, keepdims=True))
        tokens = list(self._tokens(text, ids, exact / exact.sum(axis=-1, keepdims=True)))
        if self._aggregation == "none":
            made = [self._single(text, token) for token in tokens]
        else:
            words = tokens if self._aggregation == "simple" else [self._word(group) for group in _by_word(tokens)]
            made = [self._group(text, group) for group in self._groups(words)]
        return [one for one in made if one.get("entity", one.get("entity_group")) not in ignored]

    def _tokens(self, text: str, ids: Sequence[int], scores: npt.NDArray[np.float32]) -> Iterator[_Token]:
        vocabulary = self._tokenizer.vocabulary
        before, after = len(vocabulary.prefix_ids), len(vocabulary.suffix_ids)
        inner = ids[before : len(ids) - after]
        for i, (id, (start, end)) in enumerate(zip(inner, spans_of(self._tokenizer, text, inner), strict=True)):
            index = before + i
            yield _Token(scores[index], index, (id,), start, end, self._is_inner(id, text, start))

    def _is_inner(self, id: int, text: str, start: int) -> bool:
        """Return whether a token continues a word; without word pieces, whether no space precedes it."""
        if self._is_unknown(id):
            return False
        if self._is_words:
            return not self._tokenizer.token_text(id).startswith(SPACE)
        return start > 0 and " " not in text[start - 1 : start + 1]

    def _is_unknown(self, id: int) -> bool:
        return self._tokenizer.vocabulary.kinds[id] == TokenKind.UNKNOWN

    def _single(self, text: str, token: _Token) -> Entity:
        best = int(token.scores.argmax())
        return Entity(
            entity=self._label(best),
            score=float(token.scores[best]),
            index=token.index,
            word=text[token.start : token.end] if self._is_unknown(token.ids[0]) else self._written(token.ids[0]),
            start=token.start,
            end=token.end,
        )

    def _written(self, id: int) -> str:
        """Return a token as its published vocabulary writes it."""
        text = self._tokenizer.token_text(id)
        if not self._is_words or self._tokenizer.is_control(id):
            return text
        return text[1:] if text.startswith(SPACE) else text if text.startswith("##") else f"##{text}"

    def _label(self, i: int) -> str:
        return self._labels[i] if i < len(self._labels) else f"LABEL_{i}"

    def _word(self, group: Sequence[_Token]) -> _Token:
        """Join the tokens of a word, which gets one class."""
        import numpy as np

        if self._aggregation == "first":
            scores = group[0].scores
        elif self._aggregation == "max":
            scores = max(group, key=lambda token: float(token.scores.max())).scores
        else:
            scores = np.stack([token.scores for token in group]).mean(axis=0)
        ids = tuple(id for token in group for id in token.ids)
        return _Token(scores, group[0].index, ids, group[0].start, group[-1].end, is_inner=False)

    def _groups(self, tokens: Sequence[_Token]) -> Iterator[list[_Token]]:
        """Yield neighbours of one class; ``B-`` begins another group."""
        group: list[_Token] = []
        last = ""
        for token in tokens:
            label = self._label(int(token.scores.argmax()))
            if group and (label.startswith("B-") or _tag(label) != last):
                yield group
                group = []
            group.append(token)
            last = _tag(label)
        if group:
            yield group

    def _group(self, text: str, group: Sequence[_Token]) -> Entity:
        best = [int(token.scores.argmax()) for token in group]
        scores = [float(token.scores[i]) for token, i in zip(group, best, strict=True)]
        ids = [id for token in group for id in token.ids]
        start, end = group[0].start, group[-1].end
        return Entity(
            entity_group=self._label(best[0]).split("-", 1)[-1],
            score=sum(scores) / len(scores),
            word=text[start:end] if any(self._is_unknown(id) for id in ids) else self._shown(ids),
            start=start,
            end=end,
        )

    def _shown(self, ids: Sequence[int]) -> str:
        shown = self._tokenizer.decode(ids)
        if not self._is_words:
            return shown
        for old, new in _CLEANED:
            shown = shown.replace(old, new)
        # The published decoder keeps the mark of a first token that continues a word.
        return self._written(ids[0])[:2] + shown if self._written(ids[0]).startswith("##") else shown


def _tag(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _by_word(tokens: Sequence[_Token]) -> Iterator[list[_Token]]:
    group: list[_Token] = []
    for token in tokens:
        if group and not token.is_inner:
            yield group
            group = []
        group.append(token)
    if group:
        yield group
