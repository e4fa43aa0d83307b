"""Where and how a model runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from ..errors import RequestError

__all__ = ["CacheDType", "EngineConfig", "Kernels", "KvDType", "LoadMode", "Policy"]

CacheDType = Literal["f32", "f16", "bf16", "q8_0"]
KvDType = Literal["auto"] | CacheDType
Kernels = Literal["auto", "stock", "cpu"]
LoadMode = Literal["mmap", "copy", "lock"]
Policy = Literal["fifo", "shortest-first", "priority", "dynamic"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "kv_dtype": ("auto", *get_args(CacheDType)),
    "kernels": get_args(Kernels),
    "load": get_args(LoadMode),
    "policy": get_args(Policy),
}
_LIMITS = {
    "n_ctx": (1, 2**24),
    "n_blocks": (2, 2**30),
    "threads": (0, 512),
    "cpu_mask": (1, 2**1024 - 1),
    "max_step_tokens": (1, 2**16),
    "max_sequences": (1, 2**12),
    "snapshot_tokens": (1, 2**24),
    "memory_bytes": (1, 2**60),
}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of the engine; RequestError naming the one that does not hold.

    ``device``: a name of ``quire.devices()``, or ``"gpu"`` for the first.  ``n_ctx``: tokens of prompt and answer of
    one sequence; ``None`` is what the model was trained on, as far as the memory at hand reaches.  ``threads``: 0 is
    one per core.  ``cpu_mask``: the logical processors that the engine's threads may use, bit i for processor i;
    ``None``: any.  ``kv_dtype``: of the cache; ``"auto"`` is ``"bf16"`` where Quire's own kernels run on a processor
    that multiplies BF16, else ``"f16"``; ``"q8_0"`` (8 bits, with a scale per token and head) needs Quire's own
    kernels.  ``n_blocks``: blocks of 32 tokens in the cache, shared by all sequences; ``None`` is a context, or 1024
    tokens for each of ``max_sequences`` where that is more, within half of the memory that the weights leave.
    ``kernels``: ``"auto"`` (Quire's own where there are some), ``"stock"`` (ggml's only), ``"cpu"``.  ``isa``: the
    instruction set of Quire's kernels in the whole process, from this model on; ``None`` leaves it, at first the best
    of this machine.  ``deterministic``: an answer's bits do not depend on what else is computed beside it, nor on what
    the cache held; this costs something only where many rows are multiplied by tiles (AMX; ``docs/kernels.md``), and
    holds for the whole process, from this model on; ``None`` leaves it, at first False.  ``load``: ``"mmap"`` maps the
    file, ``"copy"`` reads it, ``"lock"`` keeps the mapping in memory.  ``packed_cache``: a folder in which the weights
    are kept as Quire's kernels read them, for the next start; ``None``: nowhere.  ``policy``: who runs first.
    ``max_step_tokens`` and ``max_sequences``: budgets of one step; ``None`` is 512 and 32, or less where memory is
    short.  ``memory_bytes``: what the model with its cache may take; ``None``: what the machine has left.  ``step_s``:
    seconds that a step may take, where reading less of a prompt makes it shorter; ``None``: any time.
    ``snapshot_tokens``: where a model keeps a recurrent state, copies of it are cached at most so many tokens apart
    (and at the ends of prompts and messages), so that a text which diverges from an earlier one is not computed again
    from its beginning.
    """

    device: str = "cpu"
    n_ctx: int | None = None
    threads: int = 0
    cpu_mask: int | None = None
    kv_dtype: KvDType = "auto"
    n_blocks: int | None = None
    kernels: Kernels = "auto"
    isa: str | None = None
    deterministic: bool | None = None
    load: LoadMode = "mmap"
    packed_cache: str | None = None
    policy: Policy = "fifo"
    max_step_tokens: int | None = None
    max_sequences: int | None = None
    memory_bytes: int | None = None
    step_s: float | None = None
    snapshot_tokens: int = 1024

    def __post_init__(self) -> None:
        for entry in fields(self):
            value: object = self.__dict__[entry.name]
            if value is None and entry.default is None:
                continue
            if entry.name == "deterministic":
                if not isinstance(value, bool):
                    raise RequestError(f"[engine] deterministic must be a bool but is {value!r:.40}")
            elif entry.name in _LIMITS:
                low, high = _LIMITS[entry.name]
                if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                    most = str(high) if high < 2**40 else f"2**{high.bit_length()} - 1"
                    raise RequestError(
                        f"[engine] {entry.name} must be an int from {low} to {most} but is {value!r:.40}"
                    )
            elif entry.name == "step_s":
                if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 3600:
                    raise RequestError(f"[engine] step_s must be above 0 and at most 3600 but is {value!r:.40}")
            elif not isinstance(value, str):
                raise RequestError(f"[engine] {entry.name} must be a string but is {value!r:.40}")
            elif entry.name in _CHOICES and value not in _CHOICES[entry.name]:
                known = ", ".join(_CHOICES[entry.name])
                raise RequestError(f"[engine] {entry.name} must be one of {known} but is {value!r:.40}")
        for name in ("isa", "packed_cache"):
            if self.__dict__[name] is not None and self.kernels == "stock":
                raise RequestError(f"[engine] {name} must be None with kernels 'stock' but is for Quire's own")
