"""Questions about a model's texts, answered at once: ids, pieces, prompts, and facts about its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.loading.loader import packaged_model
from ...errors import RequestError

if TYPE_CHECKING:
    from ...engine.requests.chat import ChatRequest
    from ...tokenizer import Tokenizer

__all__ = ["Questions"]

# Limits of an answer.  More is of no use to a model, and would block the listener.
_MOST_SHOWN_IDS, _MOST_SHOWN_BYTES = 1 << 20, 16 << 20


class Questions:
    """Answers the questions of ``wire.Ask`` by their verb.

    ``shown`` has the bytes of each token.  ``drafted`` builds a request from a chat's messages and options.  ``path``
    is the model's file, None for the package's.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        shown: Sequence[bytes],
        drafted: Callable[[list[dict[str, Any]], dict[str, Any]], ChatRequest],
        path: str | None,
    ) -> None:
        self._tokenizer, self._shown, self._drafted, self._path = tokenizer, shown, drafted, path
        self._verbs: dict[str, Callable[..., object]] = {
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "render": self._render,
            "count": self._count,
            "infill": self._infill,
            "describe": self._describe,
        }

    def add(self, verbs: Mapping[str, Callable[..., object]]) -> None:
        """Answer more verbs."""
        self._verbs.update(verbs)

    def answer(self, verb: str, values: dict[str, Any]) -> object:
        """Answer a question.  QuireError for invalid values."""
        return self._verbs[verb](**values)

    def _tokenize(self, text: str, add_special: bool, parse_special: bool, pieces: bool) -> object:
        ids = _shown_ids(self._tokenizer.encode(text, add_special, parse_special))
        if not pieces:
            return {"tokens": ids}
        shown = self._shown
        whole = self._tokenizer.decode_bytes
        return {"tokens": [{"id": id_, "piece": _piece(shown[id_] or whole(id_, False))} for id_ in ids]}

    def _detokenize(self, tokens: list[int], pieces: bool = False, name: str = "text") -> object:
        self._check_ids(tokens)
        if (n := sum(map(len, map(self._shown.__getitem__, tokens)))) > _MOST_SHOWN_BYTES:
            raise RequestError(f"[tokens] tokens are {n} bytes of text: at most {_MOST_SHOWN_BYTES} are allowed")
        answer: dict[str, object] = {name: self._tokenizer.decode(tokens, skip_special=False)}
        if pieces:
            answer["pieces"] = [self._tokenizer.decode_bytes([id_], False) for id_ in tokens]
        return answer

    def _check_ids(self, tokens: list[int]) -> None:
        n_vocab = self._tokenizer.n_vocab
        for id_ in tokens:
            if not 0 <= id_ < n_vocab:
                raise RequestError(f"[tokens] token id {id_} is out of range: expected 0 to {n_vocab - 1}")

    def _render(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> object:
        chat = self._drafted(messages, options)
        return {"prompt": chat.prompt, "ignored": chat.ignored}

    def _count(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> object:
        chat = self._drafted(messages, options)
        return {"n_tokens": len(chat.engine.token_ids), "ignored": chat.ignored}

    def _infill(self, prefix: str, suffix: str, beginning: str, extra: list[tuple[str, str]]) -> object:
        from ...engine.requests.infill import infill_tokens

        return {"tokens": _shown_ids(infill_tokens(self._tokenizer, prefix, suffix, beginning, extra))}

    def _describe(self) -> object:
        from .model_file import abilities, describe

        path = packaged_model() if self._path is None else Path(self._path)
        return {"abilities": abilities(self._tokenizer), "file": describe(path)}


def _shown_ids(ids: list[int]) -> list[int]:
    """Return ids for an answer.  RequestError if there are too many."""
    if len(ids) > _MOST_SHOWN_IDS:
        raise RequestError(f"[tokens] content has {len(ids)} tokens: at most {_MOST_SHOWN_IDS} are allowed")
    return ids


def _piece(shown: bytes) -> str | list[int]:
    """Return a token's text, or its bytes if it ends within a character."""
    try:
        return shown.decode()
    except UnicodeDecodeError:
        return list(shown)
