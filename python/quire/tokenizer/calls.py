"""Tokenizer methods with transformers' names."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from quire.errors import RequestError, UnsupportedError

if TYPE_CHECKING:
    from quire.tokenizer.vocabulary import Vocabulary

__all__ = ["Encoding", "TokenizerCalls"]


class Encoding(dict[str, Any]):
    """The result of calling a tokenizer: ``input_ids`` and ``attention_mask``, as items and as attributes."""

    @property
    def input_ids(self) -> Any:
        return self["input_ids"]

    @property
    def attention_mask(self) -> Any:
        return self["attention_mask"]


class TokenizerCalls:
    """The methods of ``Tokenizer`` that have transformers' names."""

    vocabulary: Vocabulary

    @abstractmethod
    def encode(self, text: str | bytes, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Return the ids of a text."""

    @abstractmethod
    def encode_pair(self, first: str, second: str) -> Any:
        """Encode two texts as one."""

    @abstractmethod
    def decode(self, ids: Iterable[int] | int, skip_special: bool = True) -> str:
        """Return the text of ids."""

    def __call__(
        self,
        text: str | Sequence[str],
        text_pair: str | Sequence[str] | None = None,
        *,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
    ) -> Encoding:
        """Return the ids of one or several texts; names of control tokens become these tokens, as in transformers.

        Args:
            text_pair: The second text of a pair, or of each.
            padding: True or "longest" pads to the longest text, "max_length" to ``max_length``.
            truncation: Truncate texts to ``max_length``.
            return_tensors: "np" or "pt" for arrays, None for lists.
        """
        several = not isinstance(text, str)
        if not isinstance(text, str | Sequence):
            raise RequestError(f"[tokenizer] text is {text!r:.40}: give a string or a list of strings")
        texts = list(text) if several else [str(text)]
        pairs: Sequence[str] = () if text_pair is None else [text_pair] if isinstance(text_pair, str) else text_pair
        if pairs and len(pairs) != len(texts):
            raise RequestError(f"[tokenizer] {len(texts)} texts but {len(pairs)} in text_pair")
        if pairs:
            rows = [list(self.encode_pair(*pair).token_ids) for pair in zip(texts, pairs, strict=True)]
        else:
            rows = [self.encode(each, add_special=add_special_tokens, parse_special=True) for each in texts]
        if truncation and max_length is not None:
            rows = [row[:max_length] for row in rows]
        made = self._padded(rows, padding, max_length)
        if return_tensors is not None:
            return Encoding({name: _array(values, return_tensors) for name, values in made.items()})
        return made if several else Encoding({name: values[0] for name, values in made.items()})

    def _padded(self, rows: list[list[int]], padding: bool | str, max_length: int | None) -> Encoding:
        masks = [[1] * len(row) for row in rows]
        if padding and padding != "do_not_pad":
            ids = self.vocabulary.special_ids
            pad = ids.get("pad", ids.get("eos"))
            if pad is None:
                raise UnsupportedError("[tokenizer] cannot pad: the vocabulary has no padding token")
            longest = max(map(len, rows), default=0)
            n = max_length if padding == "max_length" and max_length is not None else longest
            masks = [mask + [0] * (n - len(mask)) for mask in masks]
            rows = [row + [pad] * (n - len(row)) for row in rows]
        return Encoding(input_ids=rows, attention_mask=masks)

    def batch_decode(
        self, sequences: Iterable[Iterable[int]], skip_special: bool = True, *, skip_special_tokens: bool | None = None
    ) -> list[str]:
        """Return the texts of several lists of ids; ``skip_special_tokens`` is ``skip_special`` of ``decode``."""
        skip = skip_special if skip_special_tokens is None else skip_special_tokens
        return [self.decode([int(id) for id in ids], skip) for ids in sequences]

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens by the texts that the vocabulary writes."""
        return {text: id for id, text in enumerate(self.vocabulary.texts)}


def _array(values: list[list[int]], kind: str) -> Any:
    if len({len(row) for row in values}) > 1:
        raise RequestError("[tokenizer] texts of different lengths do not form an array: give padding=True")
    if kind == "np":
        import numpy as np

        return np.array(values, dtype=np.int64)
    if kind == "pt":
        try:
            import torch
        except ImportError:
            raise UnsupportedError("[tokenizer] return_tensors='pt' needs torch, which is not installed") from None
        return torch.tensor(values)
    raise RequestError(f"[tokenizer] return_tensors {kind!r:.40} is unknown: give 'np' or 'pt'")
