"""What the makers of a model of texts say: what goes before them, how much of them is read, how scores are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ...errors import LoadError, RequestError
from ...files.gguf import Metadata

__all__ = ["TextAdvice", "text_advice"]

# What others call the two kinds of texts.
_QUERIES = ("query", "search_query", "retrieval.query")
_DOCUMENTS = ("document", "passage", "corpus", "search_document", "retrieval.passage")
_PREFIX = "quire.embedding."
_ACTIVATION = "quire.score.activation"


@dataclass(frozen=True)
class TextAdvice:
    """``prompts`` go before texts, by name; ``default_prompt``: the name of the one where none is asked for.

    ``is_score_raw``: a cross-encoder's score is shown as it is, and not brought to 0 to 1.
    """

    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    max_tokens: int | None = None
    is_score_raw: bool = False

    def prompt(self, name: str | None, input_type: str | None = None) -> str:
        """RequestError for a name that is not there, or a type that is not known."""
        if name is not None and input_type is not None:
            raise RequestError("[input_type] input_type must not come with prompt_name but does")
        if input_type is not None:
            return self._of_type(input_type)
        chosen = self.default_prompt if name is None else name
        if chosen is None:
            return ""
        if chosen not in self.prompts:
            known = ", ".join(self.prompts) or "absent"
            raise RequestError(f"[prompt_name] prompt_name must be {known} for this model but is {chosen!r:.80}")
        return self.prompts[chosen]

    def _of_type(self, input_type: str) -> str:
        """Queries and documents are put as they are where the makers have no prompt for them."""
        if input_type in self.prompts:
            return self.prompts[input_type]
        for names in (_QUERIES, _DOCUMENTS):
            if input_type in names:
                found = next((name for name in names if name in self.prompts), self.default_prompt)
                return "" if found is None else self.prompts[found]
        known = ", ".join([*_QUERIES, *_DOCUMENTS, *self.prompts])
        raise RequestError(f"[input_type] input_type must be one of {known} but is {input_type!r:.80}")


def text_advice(metadata: Metadata) -> TextAdvice:
    """Of the file's keys.  LoadError where they do not fit together."""
    names, prompts = (
        [one.decode(errors="replace") for one in metadata.strings(_PREFIX + key)] if _PREFIX + key in metadata else []
        for key in ("prompt_names", "prompts")
    )
    if len(names) != len(prompts) or len(set(names)) != len(names):
        raise LoadError(f"[loader] {_PREFIX}prompts must be one for each of {_PREFIX}prompt_names but are not")
    default = metadata.text(_PREFIX + "default_prompt", "") or None
    if default is not None and default not in names:
        raise LoadError(f"[loader] {_PREFIX}default_prompt must be one of the prompts but is '{default}'")
    max_tokens = metadata.integer(_PREFIX + "max_tokens", 0) or None
    activation = metadata.text(_ACTIVATION, "sigmoid")
    if activation not in ("identity", "sigmoid"):
        raise LoadError(f"[loader] {_ACTIVATION} must be identity or sigmoid but is '{activation:.80}'")
    by_name = MappingProxyType(dict(zip(names, prompts, strict=True)))
    return TextAdvice(by_name, default, max_tokens, activation == "identity")
