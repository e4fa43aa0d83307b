"""The engine's options, declared once: Python's keywords, the command line's options, the messages to a worker and the
tables in ``docs/`` are made from the fields of ``EngineConfig``.

This module loads no model code, so that the command line and the server's listener may read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Literal, TypeVar, get_args

from ..errors import RequestError
from ..files.expressions import Expression
from .call_names import name_call

__all__ = [
    "CacheDType",
    "EngineConfig",
    "EngineOption",
    "FitMode",
    "Kernels",
    "KvDType",
    "LoadMode",
    "Policy",
    "Speculation",
    "SplitMode",
    "cache_dtype_of",
    "engine_options",
]

# Of K and V, or of either: K/V.
CacheDType = Literal[
    "f32", "f16", "bf16", "q8_0", "q5_1", "q4_0",
    "f16/q8_0", "f16/q5_1", "f16/q4_0", "q8_0/f16", "q8_0/q5_1", "q8_0/q4_0",
    "q5_1/f16", "q5_1/q8_0", "q5_1/q4_0", "q4_0/f16", "q4_0/q8_0", "q4_0/q5_1",
]  # fmt: skip
KvDType = Literal["auto"] | CacheDType
Kernels = Literal["auto", "stock", "cpu"]
LoadMode = Literal["mmap", "copy", "lock"]
Speculation = Literal["auto", "off", "draft", "mtp", "eagle", "lookup", "grammar"]
Policy = Literal["fifo", "shortest-first", "priority", "dynamic"]
FitMode = Literal["on", "off"]
SplitMode = Literal["auto", "layer", "none"]

_KV_DTYPES = ("auto", *get_args(CacheDType))
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EngineOption:
    """What is known of an option besides its name and type.

    ``flags``: its names on the command line, with spaces between; empty where it has none.  ``server_only``: it is
    about several requests, so that only ``quire serve`` has it.  ``limits``: of an int, ends included; of a float, the
    first excluded.  ``choices``: of a text.  ``hexadecimal``: an int that is written so.  ``is_ints``: a tuple of ints
    within ``limits``, ascending.  ``is_adapters``: pairs of a path and a factor.
    ``is_overrides``: pairs of a regular expression and a device.  ``is_shares``: a tuple of numbers from 0, not all 0.
    """

    flags: str = ""
    metavar: str | None = None
    help: str = ""
    limits: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()
    server_only: bool = False
    hexadecimal: bool = False
    is_bool: bool = False
    is_float: bool = False
    is_ints: bool = False
    is_adapters: bool = False
    is_overrides: bool = False
    is_shares: bool = False


def _option(default: T, option: EngineOption) -> T:
    """A field with its option.  To type checkers, the default."""
    return field(default=default, metadata={"option": option})


_DEVICE = EngineOption(
    flags="--device", metavar="NAME",
    help="A name or kind (gpu, cuda, vulkan) of 'quire devices', several with commas, cpu, or auto [a GPU that passed"
    " 'quire devices --check', or the CPU].",
)  # fmt: skip
_N_GPU_LAYERS = EngineOption(limits=(0, 2**24))  # the command line has -ngl, which also takes words
_N_CPU_MOE = EngineOption(
    flags="-ncmoe --n-cpu-moe", metavar="N", limits=(0, 2**16),
    help="Experts of the first N layers stay on the CPU, where the model is on a device.",
)  # fmt: skip
_N_CPU_FFN = EngineOption(
    flags="-ncffn --n-cpu-ffn", metavar="N", limits=(0, 2**16),
    help="Feed-forward weights of the first N layers, but experts, stay on the CPU.",
)  # fmt: skip
_FIT = EngineOption(
    flags="-fit --fit", choices=get_args(FitMode), metavar="on|off",
    help="What does not fit on a device goes to the CPU: a smaller cache, experts, then layers.",
)  # fmt: skip
_FIT_TARGET = EngineOption(
    flags="-fitt --fit-target", metavar="MIB", limits=(0, 2**24), help="Of a device's free memory to be left free."
)
_FIT_CTX = EngineOption(
    flags="-fitc --fit-ctx", metavar="N", limits=(1, 2**24),
    help="The context that --fit keeps, before it takes layers from a device.",
)  # fmt: skip
_SPLIT_MODE = EngineOption(
    flags="-sm --split-mode", choices=get_args(SplitMode), metavar="MODE",
    help="Of devices of one kind: layer (all, layers one after the other), none (one), auto (as --tensor-split says).",
)  # fmt: skip
_TENSOR_SPLIT = EngineOption(
    flags="-ts --tensor-split", metavar="N,N,...", is_shares=True,
    help="What each device gets of the layers, in proportion [what is free there].",
)  # fmt: skip
_MAIN_GPU = EngineOption(
    flags="-mg --main-gpu", metavar="N", limits=(0, 63), help="Which device of several is used alone, from 0."
)
_OVERRIDE_TENSOR = EngineOption(
    flags="-ot --override-tensor", metavar="PATTERN=DEVICE", is_overrides=True,
    help="Weights in whose names the pattern is found are on the CPU, or on the device; may be repeated, or hold"
    " several with commas.",
)  # fmt: skip
_N_CTX = EngineOption(
    flags="-c --ctx-size", metavar="N", limits=(1, 2**24),
    help="Context: tokens of prompt and answer together; 0: the model's own [as memory allows].",
)  # fmt: skip
_THREADS = EngineOption(flags="-t --threads", metavar="N", limits=(0, 512), help="Threads; 0: one per core.")
_CPU_MASK = EngineOption(
    flags="-C --cpu-mask", metavar="HEX", limits=(1, 2**1024 - 1), hexadecimal=True,
    help="Processors that the threads may use, bit i for processor i [any].",
)  # fmt: skip
_KV_DTYPE = EngineOption(
    flags="--kv-dtype", choices=_KV_DTYPES, metavar="TYPE",
    help="Type of the KV cache: auto (bf16 where the processor multiplies that, else f16), f32, f16, bf16, q8_0, q5_1,"
    " q4_0, or K/V of f16 and those with a q, as q8_0/q4_0; those with a q are for Quire's own kernels.",
)  # fmt: skip
_N_BLOCKS = EngineOption(
    flags="--cache-blocks", metavar="N", limits=(2, 2**30), server_only=True, help="Of 32 tokens [as memory allows]."
)
_KERNELS = EngineOption(
    flags="--kernels", choices=get_args(Kernels), help="Quire's own operators where there are some, or ggml's only."
)
_ISA = EngineOption(
    flags="--isa", metavar="NAME", help="A lower instruction set of 'quire devices' [the best]."
)  # fmt: skip
_DETERMINISTIC = EngineOption(
    flags="--deterministic", is_bool=True,
    help="An answer's bits do not depend on the rest of the batch; slower where 'quire devices' shows AMX.",
)  # fmt: skip
_LOAD = EngineOption(
    flags="--load", choices=get_args(LoadMode), help="Map the file, read it into memory, or keep the mapping there."
)
_PACKED_CACHE = EngineOption(
    flags="--packed-cache", metavar="DIR",
    help="Keep the weights there as the kernels read them; the next start maps them [no].",
)  # fmt: skip
_QUANTIZE = EngineOption(
    flags="--quantize", metavar="TYPE",
    help="Quantize the weights while they are read: Q4_K_M, Q8_0, ... ('quire quantize --help') [as they are].",
)  # fmt: skip
_POLICY = EngineOption(
    flags="--policy", choices=get_args(Policy), server_only=True,
    help="Who runs first; dynamic: fair among keys, of each by age, length and priority.",
)  # fmt: skip
_MAX_STEP_TOKENS = EngineOption(
    flags="-ub --batch-size --ubatch-size", metavar="N", limits=(1, 2**16),
    help="Tokens in one step of the model [512, or as memory allows].",
)  # fmt: skip
_MAX_SEQUENCES = EngineOption(
    flags="-np --max-sequences --parallel", metavar="N", limits=(1, 2**12), server_only=True,
    help="Requests answered at the same time [32, or as memory allows].",
)  # fmt: skip
_MEMORY_BYTES = EngineOption(limits=(1, 2**60))
_TAPS = EngineOption(limits=(0, 2**16), is_ints=True)
_ADAPTERS = EngineOption(
    flags="--lora --lora-scaled", metavar="FILE[:SCALE]", is_adapters=True,
    help="A LoRA adapter, a GGUF file or a folder of PEFT, and its scale; may be repeated, or be several with commas.",
)  # fmt: skip
_STEP_S = EngineOption(
    flags="--step-time", metavar="S", limits=(0, 3600), is_float=True, server_only=True,
    help="Of one step, where reading less of a prompt makes it shorter.",
)  # fmt: skip
_SNAPSHOT_TOKENS = EngineOption(
    flags="--snapshot-tokens", metavar="N", limits=(1, 2**24),
    help="Most tokens between two kept copies of a recurrent state.",
)  # fmt: skip
_DRAFT = EngineOption(
    flags="-md --draft --model-draft", metavar="MODEL",
    help="A smaller model with the same tokenizer, or a head of EAGLE-3, which proposes tokens (docs/speculation.md).",
)  # fmt: skip
_SPECULATION = EngineOption(
    flags="--speculation", choices=get_args(Speculation),
    help="Who proposes tokens where a request does not say: all there are, nobody, the draft model, layers of the"
    " model's file that predict later tokens, the head of EAGLE-3 that --draft names, a look at the text so far, or a"
    " form that leaves no choice [auto with --draft, else grammar].",
)  # fmt: skip
_DRAFT_MAX = EngineOption(
    flags="--draft-max", metavar="N",
    limits=(1, 64), help="Tokens that are proposed at a time, at most.",
)  # fmt: skip
_DRAFT_MIN = EngineOption(
    flags="--draft-min", metavar="N", limits=(0, 64),
    help="So many are computed whatever they cost, where somebody proposes them.",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of the engine; RequestError naming the one that does not hold.

    ``device``: a name of ``quire.devices()``; ``"gpu"`` for the first GPU, ``"cuda"``, ``"vulkan"``, ``"rocm"``,
    ``"sycl"`` or ``"metal"`` for the first of that kind; ``"auto"`` for a GPU where there is one, and else the CPU; or
    ``"default"`` for one that passed ``quire devices --check``, unless another option is for the CPU alone.
    ``n_gpu_layers``: how many of the last layers are on the device, the output counted as the last one, while the CPU
    computes the others by Quire's own kernels; ``None``: all.  Where it is not 0, ``"cpu"`` and ``"default"`` stand
    for ``"auto"``.  ``fit``: ``"on"`` puts less there where a device is too small: a smaller cache (of ``fit_ctx``
    tokens at least, or ``n_ctx``), then experts on the CPU, then layers, so that ``fit_target`` MiB stay free;
    ``"off"`` fails instead.  ``n_cpu_moe``: the experts of so many first layers are on the CPU; ``n_cpu_ffn``: other
    feed-forward weights.  ``split_mode``: whether all devices of a kind are used, layers one after the other, or one,
    ``main_gpu``; ``tensor_split``: what each has of the layers, in proportion.  ``override_tensor``: pairs of a
    regular expression and a device, the CPU or the model's: weights in whose names it is found are there, and their
    products; the first one counts.  None of these changes anything where all of the model is on the CPU.
    ``n_ctx``: tokens of prompt and answer of one sequence; ``None`` is what the model was trained on, as far as the
    memory at hand reaches. ``threads``: 0 is one per core. ``cpu_mask``: the logical processors that the engine's
    threads may use, bit i for processor i; ``None``: any. ``kv_dtype``: of the cache; ``"auto"`` is ``"bf16"`` where
    Quire's own kernels run on a processor that multiplies BF16, else ``"f16"``; ``"q8_0"`` (8 bits, with a scale per
    token and head), ``"q5_1"`` and ``"q4_0"`` (5 and 4 bits, with scales for 32 numbers, so that heads must divide by
    32) need Quire's own kernels; ``"q8_0/q4_0"`` is K and V apart. ``n_blocks``: blocks of 32 tokens in the cache,
    shared by all sequences; ``None`` is a context, or 1024 tokens for each of ``max_sequences`` where that is more,
    within
    half of the memory that the weights leave.  ``kernels``: ``"auto"`` (Quire's own where there are some), ``"stock"``
    (ggml's only), ``"cpu"``.  ``isa``: the instruction set of Quire's kernels for this model; ``None``: the best of
    this machine.  ``deterministic``: an answer's bits do not depend on what else is computed beside it, nor on what
    the cache held; this costs something only where many rows are multiplied by tiles (AMX; ``docs/kernels.md``);
    ``None``: whether ``QUIRE_DETERMINISTIC=1`` is in the environment.  Models of one process may differ in
    both.  ``load``: ``"mmap"`` maps the file, ``"copy"`` reads it, ``"lock"`` keeps the mapping in
    memory.  ``packed_cache``: a folder in which the weights are kept as Quire's kernels read them, for the next start;
    ``None``: nowhere.  ``quantize``: the mix that weights of F32, F16 or BF16 become while they are read, as ``quire
    quantize`` names it; ``None``: they stay. ``policy``: who runs first.  ``max_step_tokens`` and ``max_sequences``:
    budgets of one step; ``None`` is 512 and 32, or less where memory is short.  ``memory_bytes``: what the model with
    its cache may take; ``None``: what the machine has left. ``step_s``: seconds that a step may take, where reading
    less of a prompt makes it shorter; ``None``: any time. ``snapshot_tokens``: where a model keeps a recurrent state,
    copies of it are cached at most so many tokens apart (and at the ends of prompts and messages), so that a text
    which diverges from an earlier one is not computed again from its beginning.  ``taps``: layers, numbered from 0,
    whose hidden states ``LLM.hidden_states`` can give.  ``adapters``: LoRA adapters, GGUF files or PEFT folders, each
    with what it is multiplied by; they add up, for all requests, and go without ``packed_cache``
    (``docs/adapters.md``).
    ``draft``: a GGUF file or checkpoint folder of a smaller model with the same tokenizer, or of a head of EAGLE-3 for
    this model, which proposes tokens that the model verifies; answers stay the model's own (``docs/speculation.md``).
    ``speculation``: who proposes for requests that do not say: ``"draft"``, ``"eagle"`` (that head), ``"mtp"`` (layers
    of the model's own file that predict later tokens), ``"lookup"`` (what followed where the end of the text occurred
    before), ``"grammar"`` (what a form leaves no choice in), ``"auto"`` (all, as far as there are) or ``"off"``;
    ``None`` is ``"auto"`` with a draft and ``"grammar"`` without.  Only ``"auto"`` and ``"mtp"`` take those layers into
    memory, and not beside a head.  ``draft_max``: tokens proposed at a time at most; how many are computed depends on
    what they cost and were worth lately, but ``draft_min`` are in any case.
    """

    device: str = _option("default", _DEVICE)
    n_gpu_layers: int | None = _option(None, _N_GPU_LAYERS)
    n_cpu_moe: int = _option(0, _N_CPU_MOE)
    n_cpu_ffn: int = _option(0, _N_CPU_FFN)
    override_tensor: tuple[tuple[str, str], ...] = _option((), _OVERRIDE_TENSOR)
    fit: FitMode = _option("on", _FIT)
    fit_target: int = _option(1024, _FIT_TARGET)
    fit_ctx: int = _option(4096, _FIT_CTX)
    split_mode: SplitMode = _option("auto", _SPLIT_MODE)
    tensor_split: tuple[float, ...] = _option((), _TENSOR_SPLIT)
    main_gpu: int = _option(0, _MAIN_GPU)
    n_ctx: int | None = _option(None, _N_CTX)
    threads: int = _option(0, _THREADS)
    cpu_mask: int | None = _option(None, _CPU_MASK)
    kv_dtype: KvDType = _option("auto", _KV_DTYPE)
    n_blocks: int | None = _option(None, _N_BLOCKS)
    kernels: Kernels = _option("auto", _KERNELS)
    isa: str | None = _option(None, _ISA)
    deterministic: bool | None = _option(None, _DETERMINISTIC)
    load: LoadMode = _option("mmap", _LOAD)
    packed_cache: str | None = _option(None, _PACKED_CACHE)
    quantize: str | None = _option(None, _QUANTIZE)
    policy: Policy = _option("fifo", _POLICY)
    max_step_tokens: int | None = _option(None, _MAX_STEP_TOKENS)
    max_sequences: int | None = _option(None, _MAX_SEQUENCES)
    memory_bytes: int | None = _option(None, _MEMORY_BYTES)
    step_s: float | None = _option(None, _STEP_S)
    snapshot_tokens: int = _option(1024, _SNAPSHOT_TOKENS)
    draft: str | None = _option(None, _DRAFT)
    speculation: Speculation | None = _option(None, _SPECULATION)
    draft_max: int = _option(16, _DRAFT_MAX)
    draft_min: int = _option(0, _DRAFT_MIN)
    taps: tuple[int, ...] = _option((), _TAPS)
    adapters: tuple[tuple[str, float], ...] = _option((), _ADAPTERS)

    def __post_init__(self) -> None:
        defaults = {entry.name: entry.default for entry in fields(self)}
        for name, option in engine_options().items():
            value: object = self.__dict__[name]
            if value is not None or defaults[name] is not None:
                _check(name, option, value)
        for name in ("isa", "packed_cache", "deterministic"):
            if self.__dict__[name] and self.kernels == "stock":
                raise RequestError(f"[engine] {name} must be None with kernels 'stock' but is for Quire's own")
        if self.n_gpu_layers == 0 and self.device.lower() not in ("cpu", "auto", "default"):
            raise RequestError(f"[engine] device must be 'cpu' where n_gpu_layers is 0 but is {self.device!r:.40}")
        if self.main_gpu and (self.split_mode == "layer" or self.tensor_split):
            raise RequestError(f"[engine] main_gpu must be 0 where several devices are used but is {self.main_gpu}")
        if self.draft_min > self.draft_max:
            raise RequestError(
                f"[engine] draft_min must be at most draft_max, {self.draft_max}, but is {self.draft_min}"
            )
        if self.adapters and self.packed_cache is not None:
            raise RequestError("[engine] packed_cache must be None with adapters but is given")
        if self.draft is None and self.speculation in ("draft", "eagle"):
            raise RequestError(f"[engine] draft must be given for speculation '{self.speculation}' but is None")


# Options by the names that other engines give them.
_ALIASES: Mapping[str, str] = {
    "model_path": "model", "model_id": "model", "path": "model", "pretrained_model_name_or_path": "model",
    "repo_id": "model", "hf_repo": "model", "n_threads": "threads", "num_threads": "threads", "num_thread": "threads",
    "n_threads_batch": "threads", "max_model_len": "n_ctx", "num_ctx": "n_ctx", "ctx_size": "n_ctx",
    "context_length": "n_ctx", "context_size": "n_ctx", "max_seq_len": "n_ctx", "max_length": "n_ctx",
    "n_batch": "max_step_tokens", "batch_size": "max_step_tokens", "n_ubatch": "max_step_tokens",
    "max_num_batched_tokens": "max_step_tokens", "max_num_seqs": "max_sequences", "n_parallel": "max_sequences",
    "n_seq_max": "max_sequences", "max_batch_size": "max_sequences", "gpu_layers": "n_gpu_layers",
    "num_gpu": "n_gpu_layers", "num_gpu_layers": "n_gpu_layers", "ngl": "n_gpu_layers", "device_map": "device",
    "kv_cache_dtype": "kv_dtype", "cache_type_k": "kv_dtype", "cache_type_v": "kv_dtype", "type_k": "kv_dtype",
    "type_v": "kv_dtype", "draft_model": "draft", "speculative_model": "draft", "model_draft": "draft",
    "num_speculative_tokens": "draft_max", "speculative_config": "speculation", "lora": "adapters",
    "lora_path": "adapters", "lora_paths": "adapters", "adapter": "adapters", "use_mmap": "load", "use_mlock": "load",
    "quantization": "quantize", "load_in_8bit": "quantize", "load_in_4bit": "quantize", "torch_dtype": "quantize",
    "dtype": "kv_dtype", "gpu_memory_utilization": "memory_bytes", "num_gpu_blocks_override": "n_blocks",
    "scheduling_policy": "policy", "tensor_parallel_size": "tensor_split",
}  # fmt: skip

name_call(EngineConfig, _ALIASES)


def cache_dtype_of(k: str | None, v: str | None) -> str:
    """The ``kv_dtype`` for what llama.cpp names apart, and takes as F16 where one is left out.

    Types that go with none but themselves are both's then.
    """
    if k is None or v is None:
        only = k or v or "f16"
        if only in ("f32", "bf16"):
            return only
        k, v = k or "f16", v or "f16"
    return k if k == v else f"{k}/{v}"


def engine_options() -> dict[str, EngineOption]:
    """All options by name, in the order of ``EngineConfig``."""
    return {entry.name: entry.metadata["option"] for entry in fields(EngineConfig)}


def _check(name: str, option: EngineOption, value: object) -> None:
    if option.is_bool:
        if not isinstance(value, bool):
            raise RequestError(f"[engine] {name} must be a bool but is {value!r:.40}")
    elif option.is_float:
        assert option.limits is not None
        low, high = option.limits
        if not isinstance(value, int | float) or isinstance(value, bool) or not low < value <= high:
            raise RequestError(f"[engine] {name} must be above {low} and at most {high} but is {value!r:.40}")
    elif option.is_shares:
        _check_shares(name, value)
    elif option.is_ints:
        assert option.limits is not None
        ints = list(value) if isinstance(value, tuple) else [-1]
        if not all(type(each) is int and each >= 0 for each in ints) or sorted({*ints}) != ints:
            raise RequestError(f"[engine] {name} must be a tuple of ints from 0 that ascend but is {value!r:.40}")
    elif option.is_adapters or option.is_overrides:
        _check_pairs(name, option, value)
    elif option.limits is not None:
        low, high = option.limits
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            most = str(high) if high < 2**40 else f"2**{int(high).bit_length()} - 1"
            raise RequestError(f"[engine] {name} must be an int from {low} to {most} but is {value!r:.40}")
    elif not isinstance(value, str):
        raise RequestError(f"[engine] {name} must be a string but is {value!r:.40}")
    elif option.choices and value not in option.choices:
        raise RequestError(f"[engine] {name} must be one of {', '.join(option.choices)} but is {value!r:.40}")


def _check_pairs(name: str, option: EngineOption, value: object) -> None:
    what = "path, finite number" if option.is_adapters else "pattern, device"
    if not isinstance(value, tuple) or (option.is_adapters and not all(_is_adapter(each) for each in value)):
        raise RequestError(f"[engine] {name} must be a tuple of pairs ({what}) but is {value!r:.80}")
    for each in value if option.is_overrides else ():
        _check_override(name, each)


def _check_shares(name: str, value: object) -> None:
    numbers = value if isinstance(value, tuple) else (-1.0,)
    is_number = all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers)
    if not is_number or not all(0 <= each < 1e9 for each in numbers) or (numbers and not any(numbers)):
        raise RequestError(f"[engine] {name} must be numbers from 0, one of them above it, but is {value!r:.80}")


def read_shares(text: str) -> tuple[float, ...]:
    """Numbers with commas or slashes between them; RequestError for others."""
    try:
        found = tuple(float(part) for part in text.replace("/", ",").split(","))
    except ValueError:
        raise RequestError(f"[engine] tensor_split must be numbers with commas between but is {text!r:.80}") from None
    _check_shares("tensor_split", found)
    return found


def read_adapters(values: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """Paths with their factors, of ``FILE``, ``FILE:SCALE`` or several with commas; RequestError without a name."""
    found = []
    for each in (part for value in values for part in value.split(",")):
        path, colon, scale = each.rpartition(":")
        try:
            found.append((path, float(scale)) if colon else (each, 1.0))
        except ValueError:  # a colon of the path
            found.append((each, 1.0))
        if not found[-1][0]:
            raise RequestError(f"[engine] a file of an adapter must be named but there is {each!r:.80}")
    return tuple(found)


def read_overrides(values: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Patterns with their devices, of ``PATTERN=DEVICE`` or several with commas; RequestError for others."""
    found = []
    for each in (part for value in values for part in value.split(",")):
        pattern, equals, device = each.rpartition("=")
        if not equals:
            raise RequestError(f"[engine] override_tensor must be PATTERN=DEVICE but is {each!r:.80}")
        _check_override("override_tensor", (pattern, device))
        found.append((pattern, device))
    return tuple(found)


def _check_override(name: str, value: object) -> None:
    if not isinstance(value, tuple) or len(value) != 2 or not all(isinstance(each, str) and each for each in value):
        raise RequestError(f"[engine] {name} must be pairs (pattern, device) but one is {value!r:.80}")
    Expression(value[0], f"[engine] {name}", RequestError)


def _is_adapter(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    path, scale = value
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    return isinstance(path, str) and is_number and isfinite(scale)
