"""The advice of an embedding model's file: prompts before texts, a length limit, how scores are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ...errors import LoadError, RequestError
from ...files.gguf import Metadata

__all__ = ["QUERIES", "TextAdvice", "text_advice"]

# Other programs' names for the two kinds of texts.
QUERIES = ("query", "search_query", "retrieval.query")
_DOCUMENTS = ("document", "passage", "corpus", "search_document", "retrieval.passage")
_NEUTRAL = ("classification", "clustering", "image")  # Cohere's other kinds
_PREFIX = "quire.embedding."
_ACTIVATION = "quire.score.activation"


@dataclass(frozen=True)
class TextAdvice:
    """The texts that go before inputs, by name, and how inputs and scores are treated.

    ``default_prompt``: the name of the prompt for requests that name none.  ``is_score_raw``: a cross-encoder's score
    is not mapped to 0..1.  ``padded_length``: padding fills texts up to so many tokens, and takes part in them.
    """

    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    max_tokens: int | None = None
    is_score_raw: bool = False
    padded_length: int | None = None

    def prompt(self, name: str | None, input_type: str | None = None) -> str:
        """Return the prompt of a name or an input type.  RequestError if it is unknown."""
        if name is not None and input_type is not None:
            raise RequestError("[input_type] input_type cannot be combined with prompt_name: give one")
        if input_type is not None:
            return self._of_type(input_type)
        chosen = self.default_prompt if name is None else name
        if chosen is None:
            return ""
        if chosen not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise RequestError(f"[prompt_name] prompt_name {chosen!r:.80} is unknown: this model has {known}")
        return self.prompts[chosen]

    def _of_type(self, input_type: str) -> str:
        """Return the prompt of an input type; queries and documents without a prompt of their own get none."""
        if input_type in self.prompts:
            return self.prompts[input_type]
        for names in (QUERIES, _DOCUMENTS):
            if input_type in names:
                found = next((name for name in names if name in self.prompts), self.default_prompt)
                return "" if found is None else self.prompts[found]
        if input_type in _NEUTRAL:
            return "" if self.default_prompt is None else self.prompts[self.default_prompt]
        known = ", ".join([*QUERIES, *_DOCUMENTS, *_NEUTRAL, *self.prompts])
        raise RequestError(f"[input_type] input_type {input_type!r:.80} is unknown: expected {known}")


def text_advice(metadata: Metadata) -> TextAdvice:
    """Read the advice of a file.  LoadError if its keys contradict each other."""
    names, prompts = (
        [one.decode(errors="replace") for one in metadata.strings(_PREFIX + key)] if _PREFIX + key in metadata else []
        for key in ("prompt_names", "prompts")
    )
    if len(names) != len(prompts) or len(set(names)) != len(names):
        raise LoadError(
            f"[loader] {len(prompts)} {_PREFIX}prompts for {len(names)} {_PREFIX}prompt_names, which must be distinct"
        )
    default = metadata.text(_PREFIX + "default_prompt", "") or None
    if default is not None and default not in names:
        raise LoadError(f"[loader] {_PREFIX}default_prompt '{default}' is none of the prompts")
    max_tokens = metadata.integer(_PREFIX + "max_tokens", 0) or None
    activation = metadata.text(_ACTIVATION, "sigmoid")
    if activation not in ("identity", "sigmoid"):
        raise LoadError(f"[loader] unknown {_ACTIVATION} '{activation:.80}': expected identity or sigmoid")
    by_name = MappingProxyType(dict(zip(names, prompts, strict=True)))
    arch = metadata.text("general.architecture", "")
    padded = metadata.integer(f"{arch}.padded_length", 0) or None
    return TextAdvice(by_name, default, max_tokens, activation == "identity", padded)
