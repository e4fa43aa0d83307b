"""What the blocking and the async front end share."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .config import EngineConfig, Kernels, KvDType, LoadMode, Policy
from .engine import Engine, EngineRequest
from .loader import open_model
from .prompts import Prompts
from .results import Collector

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._native.engine import DecoderStats, Event
    from ..tokenizer import Tokenizer

__all__ = ["FrontEnd", "collector_of"]


class FrontEnd:
    """A model that was opened, with the engine that runs it."""

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        device: str = "cpu",
        n_ctx: int | None = None,
        threads: int = 0,
        cpu_mask: int | None = None,
        kv_dtype: KvDType = "f16",
        n_blocks: int | None = None,
        kernels: Kernels = "auto",
        isa: str | None = None,
        load: LoadMode = "mmap",
        packed_cache: str | os.PathLike[str] | None = None,
        policy: Policy = "fifo",
        max_step_tokens: int = 512,
        max_sequences: int = 32,
    ) -> None:
        self.config = EngineConfig(
            device=device,
            n_ctx=n_ctx,
            threads=threads,
            cpu_mask=cpu_mask,
            kv_dtype=kv_dtype,
            n_blocks=n_blocks,
            kernels=kernels,
            isa=isa,
            load=load,
            packed_cache=None if packed_cache is None else os.fspath(packed_cache),
            policy=policy,
            max_step_tokens=max_step_tokens,
            max_sequences=max_sequences,
        )
        opened = open_model(model, self.config)
        self.model_name, self.architecture = opened.model_name, opened.architecture
        self.n_ctx, self.n_vocab = opened.n_ctx, opened.n_vocab
        # What the model's makers advise; the commands take it, calls that give no parameters do not.
        self.advised_sampling = opened.sampling
        self._prompts = Prompts(opened.tokenizer, opened.n_vocab)
        self._engine = Engine(opened.decoder, opened.n_vocab)
        # Also at the end of the program, and when nobody holds the model any more.
        self._close_engine = weakref.finalize(self, Engine.close, self._engine)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; UnsupportedError for a file without a vocabulary."""
        return self._prompts.tokenizer

    def stats(self) -> DecoderStats:
        """Counters and gauges of the decoder: steps, preemptions, prefix hits, free blocks."""
        return self._engine.stats()

    def _joined_logits(self, events: Sequence[Event]) -> npt.NDArray[np.float32]:
        import numpy as np

        rows = [event.logits for event in events if event.logits is not None]
        return np.concatenate(rows).reshape(-1, self.n_vocab)


def collector_of(request: EngineRequest) -> Collector:
    """What joins the answers to a request."""
    params = request.params
    return Collector(
        request.token_ids,
        request.n,
        logprobs=params is not None and params.logprobs is not None,
        prompt_logprobs=params is not None and params.prompt_logprobs is not None,
    )
