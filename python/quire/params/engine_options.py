"""The engine's options, declared once: Python's keywords, the command line's options, the messages to a worker and the
tables in ``docs/`` are made from the fields of ``EngineConfig``.

This module loads no model code, so that the command line and the server's listener may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from ..errors import RequestError
from .call_names import name_call
from .engine_rules import (
    Adapters,
    JsonObject,
    KeyValues,
    LayerRange,
    Layers,
    NamedPaths,
    Names,
    Overrides,
    PathText,
    Shares,
)
from .parameter import Declaration, Speculation, declared
from .rules import LORA_SCALE_MAX, Bool, Bytes, Choice, Float, Int, Text

__all__ = [
    "KV_DTYPES",
    "CacheDType",
    "EngineConfig",
    "EngineOption",
    "FitMode",
    "Kernels",
    "KvDType",
    "LoadMode",
    "Policy",
    "RopeScaling",
    "Speculation",
    "SplitMode",
    "cache_dtype_of",
    "config_of",
    "engine_options",
]

# One type for K and V, or K/V.
CacheDType = Literal[
    "f32", "f16", "bf16", "q8_0", "q5_1", "q4_0",
    "f16/q8_0", "f16/q5_1", "f16/q4_0", "q8_0/f16", "q8_0/q5_1", "q8_0/q4_0",
    "q5_1/f16", "q5_1/q8_0", "q5_1/q4_0", "q4_0/f16", "q4_0/q8_0", "q4_0/q5_1",
]  # fmt: skip
KvDType = Literal["auto"] | CacheDType
Kernels = Literal["auto", "stock", "cpu"]
LoadMode = Literal["mmap", "copy", "lock"]
Policy = Literal["fifo", "shortest-first", "priority", "dynamic"]
FitMode = Literal["on", "off"]
RopeScaling = Literal["none", "linear", "yarn"]
SplitMode = Literal["auto", "layer", "none"]
KV_DTYPES = ("auto", *get_args(CacheDType))


@dataclass(frozen=True, kw_only=True)
class EngineOption(Declaration):
    """An option of the engine.

    ``server_only``: it concerns several requests, so that only ``quire serve`` has it.  ``hexadecimal``: an int that
    the command line takes in hexadecimal digits.
    """

    server_only: bool = False
    hexadecimal: bool = False

    @property
    def help(self) -> str:
        """Its description on the command line, where an option that is not given is None."""
        return f"{self.doc} [{self.none}]." if self.none else f"{self.doc}."


# fmt: off
@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The options of an engine.  Raises ``RequestError`` naming the one that is out of range.

    Options about devices have no effect if the whole model is on the CPU.  ``isa``, ``deterministic`` and
    ``packed_cache`` are for Quire's own kernels; two models in one process may differ in the first two.
    """

    device: str = declared("default", EngineOption(
        rule=Text(), flags="--device", metavar="NAME", aliases="device_map",
        doc="Name or kind (gpu, cuda, vulkan, rocm, sycl, metal) of a device in 'quire devices', several with commas;"
        " cpu; auto: a GPU if there is one; default: a GPU that passed 'quire devices --check', else the CPU",
    ))
    n_gpu_layers: int | None = declared(None, EngineOption(
        # The command line has -ngl, which also takes words.
        rule=Int(0, 2**24, optional=True), none="all", aliases="gpu_layers num_gpu num_gpu_layers ngl",
        doc="Number of last layers on the device, the output counted as the last; Quire's own kernels compute the"
        " others on the CPU. Unless it is 0, the devices 'cpu' and 'default' mean 'auto'",
    ))
    n_cpu_moe: int = declared(0, EngineOption(
        rule=Int(0, 2**16), flags="-ncmoe --n-cpu-moe", metavar="N",
        doc="Keep the experts of the first N layers on the CPU",
    ))
    n_cpu_ffn: int = declared(0, EngineOption(
        rule=Int(0, 2**16), flags="-ncffn --n-cpu-ffn", metavar="N",
        doc="Keep the feed-forward weights of the first N layers, except experts, on the CPU",
    ))
    override_tensor: tuple[tuple[str, str], ...] = declared((), EngineOption(
        rule=Overrides(), flags="-ot --override-tensor", metavar="PATTERN=DEVICE",
        doc="Put weights whose names the pattern is found in, and their products, on the CPU or on the device; the"
        " first match counts; may be repeated, or several with commas",
    ))
    fit: FitMode = declared("on", EngineOption(
        rule=Choice(get_args(FitMode)), flags="-fit --fit", metavar="on|off",
        doc="If a device is too small, put less there: a smaller cache, experts on the CPU, then layers; off: fail",
    ))
    fit_target: int = declared(1024, EngineOption(
        rule=Int(0, 2**24), flags="-fitt --fit-target", metavar="MIB", doc="MiB of a device's memory to leave free",
    ))
    fit_ctx: int = declared(4096, EngineOption(
        rule=Int(1, 2**24), flags="-fitc --fit-ctx", metavar="N",
        doc="Tokens of context that --fit keeps before it takes layers from a device, unless a context is set",
    ))
    split_mode: SplitMode = declared("auto", EngineOption(
        rule=Choice(get_args(SplitMode)), flags="-sm --split-mode", metavar="MODE",
        doc="With several devices of one kind: layer (use all, layers one after the other), none (use one), auto"
        " (layer if --tensor-split is set)",
    ))
    tensor_split: tuple[float, ...] = declared((), EngineOption(
        rule=Shares(), flags="-ts --tensor-split", metavar="N,N,...", none="by free memory",
        doc="Each device's share of the layers, in proportion",
    ))
    main_gpu: int = declared(0, EngineOption(
        rule=Int(0, 63), flags="-mg --main-gpu", metavar="N", doc="Use only this device, numbered from 0",
    ))
    tensor_parallel_size: int = declared(1, EngineOption(
        rule=Int(1, 64), flags="-tp --tensor-parallel-size", metavar="N",
        doc="Processes on this machine's CPU that split each layer's heads, MLP and experts among them"
        " (docs/several_processes.md)",
    ))
    pipeline_parallel_size: int = declared(1, EngineOption(
        rule=Int(1, 64), flags="-pp --pipeline-parallel-size", metavar="N",
        doc="Stages of a pipeline, each with some of the layers and with as many processes as --tensor-parallel-size",
    ))
    n_ctx: int | None = declared(None, EngineOption(
        rule=Int(1, 2**24, optional=True), flags="-c --ctx-size", metavar="N", none="as memory allows",
        doc="Context: tokens of prompt and answer of one sequence; 0: the model's own",
        aliases="max_model_len num_ctx ctx_size context_length context_size max_seq_len max_length",
    ))
    threads: int = declared(0, EngineOption(
        rule=Int(0, 512, minus_one=0), flags="-t --threads", metavar="N", doc="Threads; 0: one per core",
        aliases="n_threads num_threads num_thread n_threads_batch",
    ))
    cpu_mask: int | None = declared(None, EngineOption(
        rule=Int(1, 2**1024 - 1, optional=True), flags="-C --cpu-mask", metavar="HEX", hexadecimal=True, none="any",
        doc="Processors that the threads may use, bit i for processor i",
    ))
    kv_dtype: KvDType = declared("auto", EngineOption(
        rule=Choice(KV_DTYPES), flags="--kv-dtype", metavar="TYPE",
        doc="Type of the KV cache: auto (bf16 where the processor multiplies it, else f16), f32, f16, bf16, q8_0, q5_1,"
        " q4_0, or K/V such as q8_0/q4_0. Quantized types need Quire's own kernels, and q5_1 and q4_0 need heads"
        " divisible by 32", aliases="kv_cache_dtype cache_type_k cache_type_v type_k type_v dtype",
    ))
    n_blocks: int | None = declared(None, EngineOption(
        rule=Int(2, 2**30, optional=True), flags="--cache-blocks", metavar="N", server_only=True,
        doc="Blocks of 32 tokens in the cache, shared by all sequences", aliases="num_gpu_blocks_override",
        none="one context, or 1024 tokens per sequence if that is more, in at most half of the free memory",
    ))
    kernels: Kernels = declared("auto", EngineOption(
        rule=Choice(get_args(Kernels)), flags="--kernels",
        doc="auto: Quire's own kernels where there are some; stock: only ggml's operators; cpu: only Quire's own",
    ))
    isa: str | None = declared(None, EngineOption(
        rule=Text(optional=True), flags="--isa", metavar="NAME", none="the best of this machine",
        doc="Instruction set of Quire's kernels, one of 'quire devices'",
    ))
    deterministic: bool | None = declared(None, EngineOption(
        rule=Bool(optional=True), flags="--deterministic", none="QUIRE_DETERMINISTIC=1 turns it on",
        doc="Make an answer's bits independent of the rest of the batch and of the cache; slower only where"
        " 'quire devices' shows AMX (docs/kernels.md)",
    ))
    load: LoadMode = declared("mmap", EngineOption(
        rule=Choice(get_args(LoadMode)), flags="--load", aliases="use_mmap use_mlock",
        doc="mmap: map the file; copy: read it into memory; lock: map it and keep it in memory",
    ))
    packed_cache: str | None = declared(None, EngineOption(
        rule=PathText(), flags="--packed-cache", metavar="DIR", none="no folder",
        doc="Folder for the weights in the layout of Quire's kernels; the next start maps them from there",
    ))
    cache_disk: str | None = declared(None, EngineOption(
        rule=PathText(), flags="--cache-disk", metavar="DIR", none="no folder",
        doc="Folder that keeps what the cache computed over restarts, shared by processes and models; nobody else may"
        " write to it (docs/cache.md)",
    ))
    cache_disk_size: int = declared(16 << 30, EngineOption(
        rule=Bytes(1 << 20), flags="--cache-disk-size", metavar="BYTES",
        doc="Most bytes in the folder of --cache-disk, as in 500M, 16G or 1T; the least recently used go first",
    ))
    cache_ram: int = declared(0, EngineOption(
        rule=Bytes(0, small_is_mib=True, minus_one=2**60), flags="-cram --cache-ram", metavar="BYTES",
        doc="Bytes of memory for what the cache of a device has no room for, as in 8G; -1: no limit; a number below 1M"
        " is in MiB, as in llama.cpp",
    ))
    quantize: str | None = declared(None, EngineOption(
        rule=Text(optional=True), flags="--quantize", metavar="TYPE", none="as they are",
        doc="Quantize F32, F16 and BF16 weights while reading them: Q4_K_M, Q8_0, ... ('quire quantize --help')",
        aliases="quantization load_in_8bit load_in_4bit torch_dtype",
    ))
    policy: Policy = declared("fifo", EngineOption(
        rule=Choice(get_args(Policy)), flags="--policy", server_only=True, aliases="scheduling_policy",
        doc="Order of requests; dynamic: fair among keys, and for each key by age, length and priority",
    ))
    max_step_tokens: int | None = declared(None, EngineOption(
        rule=Int(1, 2**16, optional=True), flags="-ub --batch-size --ubatch-size", metavar="N",
        doc="Tokens in one step of the model", none="512, or as memory allows",
        aliases="n_batch batch_size n_ubatch max_num_batched_tokens",
    ))
    max_sequences: int | None = declared(None, EngineOption(
        rule=Int(1, 2**12, optional=True), flags="-np --max-sequences --parallel", metavar="N", server_only=True,
        doc="Requests answered at the same time", none="32, or as memory allows",
        aliases="max_num_seqs n_parallel n_seq_max max_batch_size",
    ))
    memory_bytes: int | None = declared(None, EngineOption(
        rule=Int(1, 2**60, optional=True), none="what is left", aliases="gpu_memory_utilization",
        doc="Bytes that the model and its cache may take",
    ))
    step_s: float | None = declared(None, EngineOption(
        rule=Float(0.0, 3600.0, open_below=True, optional=True), flags="--step-time", metavar="S", server_only=True,
        doc="Target seconds per step: prompts are read in smaller parts to meet it", none="any",
    ))
    snapshot_tokens: int = declared(1024, EngineOption(
        rule=Int(1, 2**24), flags="--snapshot-tokens", metavar="N",
        doc="Most tokens between two cached copies of a recurrent state; a text that diverges from an earlier one is"
        " computed again from the last copy",
    ))
    mmproj: str | None = declared("auto", EngineOption(
        rule=PathText(), flags="-mm --mmproj", metavar="FILE|DIR|auto|none", none="text only",
        doc="The encoder of images: an mmproj GGUF file, a checkpoint folder, auto for the one that lies with the model"
        " if there is one, or none (docs/images.md)", aliases="clip_model_path",
    ))  # fmt: skip
    draft: str | None = declared(None, EngineOption(
        rule=PathText(), flags="-md --draft --model-draft", metavar="MODEL", none="none",
        doc="Smaller model with the same tokenizer, or EAGLE-3 head of this model, that proposes tokens; answers stay"
        " the model's own (docs/speculation.md)", aliases="draft_model speculative_model model_draft",
    ))
    speculation: Speculation | None = declared(None, EngineOption(
        rule=Choice(get_args(Speculation), optional=True), flags="--speculation",
        none="auto with a draft, else grammar", aliases="speculative_config",
        doc="What proposes tokens for requests that do not say: auto (everything there is), off, draft (the draft"
        " model), eagle (the head), mtp (layers of the model's file that predict later tokens), lookup (earlier text)"
        " or grammar (where structured output leaves no choice)",
    ))
    draft_max: int = declared(16, EngineOption(
        rule=Int(1, 64), flags="--draft-max", metavar="N", aliases="num_speculative_tokens",
        doc="Most tokens proposed at a time; fewer are computed if they cost more than they gain",
    ))
    draft_min: int = declared(0, EngineOption(
        rule=Int(0, 64), flags="--draft-min", metavar="N",
        doc="Least number of proposed tokens to compute, even at a loss of speed",
    ))
    override_kv: tuple[tuple[str, bool | int | float | str], ...] = declared((), EngineOption(
        rule=KeyValues(), flags="--override-kv", metavar="KEY=TYPE:VALUE", aliases="kv_overrides",
        doc="Use another value for a key of the model's file, TYPE being int, float, bool or str; may be repeated",
    ))
    hf_overrides: str | None = declared(None, EngineOption(
        rule=JsonObject(), flags="--hf-overrides", metavar="JSON", none="as it is",
        doc="Fields of config.json that replace those of a checkpoint folder",
    ))
    rope_scaling: RopeScaling | None = declared(None, EngineOption(
        rule=Choice(get_args(RopeScaling), optional=True), flags="--rope-scaling", none="the model's",
        doc="How positions are stretched", aliases="rope_scaling_type",
    ))
    rope_scale: float | None = declared(None, EngineOption(
        rule=Float(0.0, 1e6, open_below=True, optional=True), flags="--rope-scale", metavar="N", none="the model's",
        doc="Factor that the context is stretched by",
    ))
    rope_freq_base: float | None = declared(None, EngineOption(
        rule=Float(0.0, 1e15, optional=True), flags="--rope-freq-base", metavar="N", none="the model's",
        doc="Base of RoPE's frequencies; 0: the model's", aliases="rope_theta rope_frequency_base",
    ))
    rope_freq_scale: float | None = declared(None, EngineOption(
        rule=Float(0.0, 1e6, optional=True), flags="--rope-freq-scale", metavar="N", none="the model's",
        doc="Factor of RoPE's frequencies, 1 / --rope-scale; 0: the model's",
    ))
    yarn_orig_ctx: int | None = declared(None, EngineOption(
        rule=Int(0, 2**24, optional=True), flags="--yarn-orig-ctx", metavar="N", none="the model's",
        doc="YaRN: context that the model was trained with; 0: the model's",
    ))
    yarn_ext_factor: float | None = declared(None, EngineOption(
        rule=Float(-1.0, 1.0, optional=True), flags="--yarn-ext-factor", metavar="N", none="1",
        doc="YaRN: share of extrapolation; only 1, or -1 for the model's, is supported",
    ))
    yarn_attn_factor: float | None = declared(None, EngineOption(
        rule=Float(-1.0, 1e6, optional=True), flags="--yarn-attn-factor", metavar="N",
        none="1 + 0.1 ln of the scale", doc="YaRN: factor of queries and keys; -1: the model's",
    ))
    yarn_beta_slow: float | None = declared(None, EngineOption(
        rule=Float(-1.0, 1e6, optional=True), flags="--yarn-beta-slow", metavar="N", none="the model's",
        doc="YaRN: turns within the trained context below which frequencies are stretched; -1: the model's",
    ))
    yarn_beta_fast: float | None = declared(None, EngineOption(
        rule=Float(-1.0, 1e6, optional=True), flags="--yarn-beta-fast", metavar="N", none="the model's",
        doc="YaRN: turns within the trained context above which frequencies are kept; -1: the model's",
    ))
    taps: tuple[int, ...] = declared((), EngineOption(
        rule=Layers(), flags="--taps", metavar="LAYERS", server_only=True,
        doc="Layers, numbered from 0 and separated by commas, whose hidden states can be returned",
    ))
    adapters: tuple[tuple[str, float], ...] = declared((), EngineOption(
        rule=Adapters(LORA_SCALE_MAX), flags="--lora --lora-scaled", metavar="FILE[:SCALE]",
        doc="LoRA adapter, a GGUF file or a PEFT folder, and its scale; may be repeated, or several with commas; they"
        " add up and apply to all requests that choose no others", aliases="lora lora_path lora_paths adapter",
    ))
    lora_modules: tuple[tuple[str, str], ...] = declared((), EngineOption(
        rule=NamedPaths(), flags="--lora-modules", metavar="NAME=PATH",
        doc="LoRA adapter that requests may choose by its name; may be repeated",
    ))
    max_loras: int = declared(32, EngineOption(
        rule=Int(1, 2**16), flags="--max-loras", metavar="N", aliases="max_cpu_loras",
        doc="LoRA adapters in memory; the least recently used are read again when they are needed",
    ))
    lora_cache_size: int = declared(0, EngineOption(
        rule=Bytes(0), flags="--lora-cache-size", metavar="BYTES",
        doc="Most memory for LoRA adapters, such as 500M or 2G; the least recently used are dropped, and read again"
        " when needed; 0: no limit",
    ))
    max_lora_rank: int | None = declared(None, EngineOption(
        rule=Int(1, 2**16, optional=True), flags="--max-lora-rank", metavar="N", none="any",
        doc="Largest rank of LoRA adapters that are accepted",
    ))
    control_vectors: tuple[tuple[str, float], ...] = declared((), EngineOption(
        rule=Adapters(), flags="--control-vector --control-vector-scaled", metavar="FILE[:SCALE]",
        doc="Control vector, a GGUF file as llama.cpp's, and its scale for requests that choose none; may be repeated,"
        " or several with commas", aliases="control_vector",
    ))
    control_vector_layers: tuple[int, ...] = declared((), EngineOption(
        rule=LayerRange(), flags="--control-vector-layer-range", metavar="START END",
        doc="First and last layer that control vectors are added after [all from 1 on]",
    ))
    enable_prompt_embeds: bool = declared(False, EngineOption(
        rule=Bool(), flags="--enable-prompt-embeds", server_only=True,
        doc="Accept prompts that are embeddings in place of tokens (prompt_embeds)",
    ))
    logits_processors: tuple[str, ...] = declared((), EngineOption(
        rule=Names(), flags="--logits-processors", metavar="[NAME=]MODULE:OBJECT",
        doc="Register a logits processor that requests choose by name; may be repeated. Entry points of the group"
        " quire.logits_processors are always registered", server_only=True,
    ))
    # fmt: on

    def __post_init__(self) -> None:
        if self.mmproj == "none":
            object.__setattr__(self, "mmproj", None)
        for name, option in engine_options().items():
            object.__setattr__(self, name, option.rule.check(f"[engine] {name}", self.__dict__[name]))
        for name in ("isa", "packed_cache", "deterministic"):
            if self.__dict__[name] and self.kernels == "stock":
                raise RequestError(f"[engine] {name} needs Quire's own kernels, but kernels is 'stock'")
        if self.n_gpu_layers == 0 and self.device.lower() not in ("cpu", "auto", "default"):
            raise RequestError(f"[engine] device {self.device!r:.40} cannot be combined with n_gpu_layers 0")
        if self.main_gpu and (self.split_mode == "layer" or self.tensor_split):
            raise RequestError(f"[engine] main_gpu {self.main_gpu} cannot be combined with a split across devices")
        if self.draft_min > self.draft_max:
            raise RequestError(f"[engine] draft_min {self.draft_min} is more than draft_max {self.draft_max}")
        if self.rope_scale is not None and self.rope_freq_scale is not None:
            raise RequestError("[engine] rope_scale and rope_freq_scale mean the same: give one of them")
        if len(self.adapters) > self.max_loras:
            raise RequestError(f"[engine] {len(self.adapters)} adapters exceed max_loras {self.max_loras}")
        if self.draft is None and self.speculation in ("draft", "eagle"):
            raise RequestError(f"[engine] speculation '{self.speculation}' needs a draft model: give draft")


_OPTIONS: Mapping[str, EngineOption] = MappingProxyType(
    {entry.name: entry.metadata["parameter"] for entry in fields(EngineConfig)}
)
_ALIASES = {alias: name for name, option in _OPTIONS.items() for alias in option.aliases.split()}
_MODEL = "model_path model_id path pretrained_model_name_or_path repo_id hf_repo"
_ALIASES |= dict.fromkeys(_MODEL.split(), "model")  # an argument of LLM
EngineConfig.__doc__ = "\n        ".join(
    [f"{EngineConfig.__doc__}\n    Args:", *(f"{name}: {each.text}." for name, each in _OPTIONS.items())]
)

name_call(EngineConfig, _ALIASES)


def engine_options() -> Mapping[str, EngineOption]:
    """Return all options by name, in the order of ``EngineConfig``."""
    return _OPTIONS


def config_of(given: Mapping[str, Any]) -> EngineConfig:
    """Return the options of keyword arguments, which may be lists, paths, and llama.cpp's numbers for the defaults."""
    values: dict[str, Any] = {name: _OPTIONS[name].rule.lenient(value) for name, value in given.items()}
    if given.get("n_gpu_layers") == -1 and given.get("device") == "default":
        values["device"] = "auto"
    values["n_ctx"] = values.get("n_ctx") or None
    return EngineConfig(**values)


def cache_dtype_of(k: str | None, v: str | None) -> str:
    """Return ``kv_dtype`` for llama.cpp's two options; one that is left out is F16, as in llama.cpp.

    F32 and BF16 cannot be combined with F16, so one of them alone applies to both.
    """
    if k is None or v is None:
        only = k or v or "f16"
        if only in ("f32", "bf16"):
            return only
        k, v = k or "f16", v or "f16"
    return k if k == v else f"{k}/{v}"
