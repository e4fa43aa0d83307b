"""llama-cpp-python's grammars."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ...params.structured import StructuredOutputsParams

__all__ = ["LlamaGrammar"]


class LlamaGrammar:
    """The form of an answer: a grammar in GBNF, or a JSON Schema."""

    def __init__(self, form: StructuredOutputsParams) -> None:
        self.form = form

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """Make a grammar from GBNF.  If it is invalid, its first use raises RequestError."""
        return cls(StructuredOutputsParams(grammar=grammar))

    @classmethod
    def from_file(cls, file: str | os.PathLike[str], verbose: bool = True) -> LlamaGrammar:
        """Make a grammar from a file of GBNF."""
        return cls(StructuredOutputsParams(grammar=Path(file).read_text(encoding="utf-8")))

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """Make a grammar from the text of a JSON Schema; an empty one stands for any object."""
        if json.loads(json_schema) == {}:
            return cls(StructuredOutputsParams(json_object=True))
        return cls(StructuredOutputsParams(json=json_schema))
