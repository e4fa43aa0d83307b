"""Check if Quire can run a model file, what is missing if not, and how much memory it needs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import QuireError

if TYPE_CHECKING:
    from .._native.kv import CacheGroup
    from ..files.gguf import GGUFReader
    from ..params.engine_options import CacheDType, KvDType

__all__ = ["DEFAULT_N_CTX", "Memory", "Verdict", "opened", "verdict_of"]

BLOCK_TOKENS = 32
DEFAULT_N_CTX = 4096


@dataclass(frozen=True)
class Memory:
    """Bytes of memory for a context of ``n_ctx`` tokens, by use.

    ``stock_operations`` are the model's operations that run on ggml's operators for lack of a kernel of Quire's own.
    """

    n_ctx: int
    kv_dtype: CacheDType
    weights_bytes: int
    cache_bytes: int
    compute_bytes: int
    stock_operations: list[str]

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.compute_bytes


@dataclass(frozen=True)
class Verdict:
    """The answer to "does it run?"  ``reasons`` lists what is missing, and is empty if it runs.

    ``chat_refusal`` is the reason if a model that runs cannot use its own chat template.
    """

    reasons: list[str] = field(default_factory=list)
    memory: Memory | None = None
    chat_refusal: str = ""


@contextmanager
def opened(path: Path) -> Iterator[tuple[GGUFReader | None, str]]:
    """Open a GGUF file, or a checkpoint folder as the GGUF file it would convert to, with zeros as data.

    Yields None and the reason for a folder that cannot be converted.  LoadError if there is no model file at all.
    """
    from ..files.gguf import GGUFReader
    from ..files.ollama import open_model_file

    if not path.is_dir():
        yield open_model_file(path), ""
        return
    from ..checkpoints.conversion import CheckpointReader
    from ..checkpoints.reading import checkpoint_dtype

    dtype = checkpoint_dtype(path)
    with tempfile.TemporaryDirectory(prefix="quire-") as scratch:
        try:
            checkpoint = CheckpointReader(path, Path(scratch), dtype)
        except QuireError as error:
            yield None, str(error)
            return
        with checkpoint:
            yield GGUFReader(checkpoint.path), ""


def verdict_of(reader: GGUFReader, n_ctx: int | None, kv_dtype: KvDType) -> Verdict:
    """Check everything that opening the model checks, except for its weights."""
    from ..engine.loading.sampling_advice import advised_sampling
    from ..tokenizer import Tokenizer

    reasons, memory = [], None
    try:
        memory = memory_of(reader, n_ctx, kv_dtype)
    except QuireError as error:
        reasons.append(str(error))
    if "tokenizer.ggml.model" in reader.metadata:
        reasons += _refusal(lambda: Tokenizer.from_gguf(reader.path))
    reasons += _refusal(lambda: advised_sampling(reader.metadata))
    return Verdict(reasons, memory, "".join(_refusal(lambda: _template(reader))))


def _refusal(tried: Callable[[], object]) -> list[str]:
    """Return the message that a call raises, in a list; an empty list if it succeeds."""
    try:
        tried()
    except QuireError as error:
        return [str(error)]
    return []


def _template(reader: GGUFReader) -> None:
    from ..chat import ChatTemplate

    key = "tokenizer.chat_template"
    if key in reader.metadata:
        ChatTemplate(reader.metadata.text(key))


def memory_of(reader: GGUFReader, n_ctx: int | None, wanted: KvDType) -> Memory:
    """Compute the memory on the CPU: weights, the cache blocks of one sequence, and the buffers of a step."""
    from .._native.core import find_device
    from .._native.graph import Executor
    from .._native.kernels import KernelSet
    from .._native.kv import CacheLayout
    from ..engine.loading.kernel_choice import cache_dtype
    from ..models import load_model

    model = load_model(reader)
    kv_dtype = cache_dtype(wanted, KernelSet())
    n_ctx = n_ctx or min(model.config.n_ctx_train, DEFAULT_N_CTX)
    layout = CacheLayout(model.cache, kv_dtype)
    executor = Executor(
        model.trace(n_ctx), find_device("cpu"), n_blocks=2, n_states=2, threads=1, kv_dtype=kv_dtype, repack="no"
    )
    return Memory(
        n_ctx=n_ctx,
        kv_dtype=kv_dtype,
        weights_bytes=sum(info.size_bytes for info in reader.tensors),
        cache_bytes=sum(_blocks(n_ctx, group) * group.block_bytes for group in layout.groups) + 2 * layout.state_bytes,
        compute_bytes=executor.memory_bytes["compute"],
        stock_operations=executor.stock_operations,
    )


def _blocks(n_ctx: int, group: CacheGroup) -> int:
    """Count the blocks of one sequence in a group of layers, plus the null block."""
    reach = group.window or group.chunk
    n_tokens = min(n_ctx, reach + BLOCK_TOKENS) if reach else n_ctx
    return -(-n_tokens // BLOCK_TOKENS) + 1
