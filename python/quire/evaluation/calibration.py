"""The calibration text for measurements: a file, or text that the model generates itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._native.engine import Request, SamplingParams
from ..engine.loading.loader import open_reader
from ..errors import RequestError
from ..files.gguf import GGUFReader
from .chunks import chunks_of
from .scorer import Scorer

__all__ = ["CHUNK_TOKENS", "Calibration", "calibration_from", "calibration_written"]

CHUNK_TOKENS = 512
_MOST_CHUNKS = 64  # for importance; trials use fewer


@dataclass(frozen=True)
class Calibration:
    """A calibration text: ``rows`` of tokens of equal length, and ``name``, which identifies their source."""

    rows: list[list[int]]
    name: str


def _chunk_tokens(reader: GGUFReader) -> int:
    """Return the usual chunk length, or the model's training context if that is shorter."""
    architecture = reader.metadata.text("general.architecture")
    return min(CHUNK_TOKENS, reader.metadata.integer(f"{architecture}.context_length", low=8))


def calibration_from(path: Path, reader: GGUFReader, *, parse_special: bool = False) -> Calibration:
    """Cut a file into chunks.  Raises RequestError for less than two chunks."""
    from ..tokenizer import Tokenizer

    content = path.read_bytes()
    tokenizer = Tokenizer.from_gguf(Path(reader.path))
    n_ctx = _chunk_tokens(reader)
    rows = chunks_of(tokenizer, content, n_ctx, parse_special=parse_special, most=_MOST_CHUNKS)
    return Calibration(rows, f"{path.name} sha256:{hashlib.sha256(content).hexdigest()}")


def calibration_written(reader: GGUFReader, options: Mapping[str, Any], n_chunks: int) -> Calibration:
    """Generate a text with the model, sampled from its full distribution.

    Raises:
        RequestError: The model has no token to start or end a text with.
    """
    n_ctx = _chunk_tokens(reader)
    opened = open_reader(reader, Path(os.fspath(reader.path)), Scorer.sized({**options, "kernels": "stock"}, n_ctx))
    with Scorer(opened) as scorer:
        vocabulary = scorer.tokenizer.vocabulary
        first = [*vocabulary.prefix_ids[:1], *sorted(scorer.tokenizer.eog_ids)][:1]
        if not first:
            raise RequestError("[calibration] the model has no token to start a text with: give a text")
        rows = []
        for seed in range(n_chunks):
            params = SamplingParams()
            params.temperature, params.seed = 1.0, seed
            params.max_tokens, params.ignore_eos = n_ctx - 1, True
            rows.append([*first, *_written(scorer, Request(first, params))])
    return Calibration(rows, f"written by the model, seeds 0 to {n_chunks - 1}")


def _written(scorer: Scorer, request: Request) -> list[int]:
    decoder, ids = scorer.opened.decoder, []
    decoder.submit(request)
    while True:
        for event in decoder.wait(1.0):
            ids += event.token_ids
            if event.kind == "error":
                raise RequestError(event.error)
            if event.kind == "finish":
                return ids
