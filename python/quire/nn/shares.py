"""A model file as one of several ranks sees it, which split its heads, MLPs and experts among them (tensor parallel).

Matrices whose outputs are split keep some of their rows, those that read split inputs some of their columns, and the
latter's products are summed over the ranks (Shoeybi et al. 2019).  Experts are handed out whole.  Keys hold the rank's
own numbers of heads and widths, so a model is declared and traced as if the share were a smaller model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, cast

from .._native.core import DType, Tensor
from ..errors import UnsupportedError
from ..files.changed_keys import ChangedKeys
from ..files.gguf import GGUFReader, Metadata

if TYPE_CHECKING:
    from .._native.gguf import TensorInfo

__all__ = ["SPLIT", "ShareReader", "experts_of_part"]

# Architectures whose shares were compared with the whole.  Others may compute more from the number of heads than their
# tensors show, such as ALiBi's slopes.
SPLIT = frozenset({
    "afmoe", "apertus", "arcee", "bailingmoe", "bailingmoe2", "chatglm", "codeshell", "cohere2", "cohere2moe",
    "command-r", "cwm", "dbrx", "deepseek", "deepseek2-ocr", "dots1", "ernie4_5", "ernie4_5-moe", "exaone",
    "exaone-moe", "exaone4", "falcon", "flint", "gemma", "gemma2", "gemma3", "glm4", "glm4moe", "gpt-oss", "gpt2",
    "gptj", "gptneo", "gptneox", "granite", "granite_swa", "granitemoe", "hrm_text", "hunyuan-dense", "hunyuan-moe",
    "hunyuan_vl", "hy_v3", "hyperclovax", "internlm2", "jais2", "kolibri1", "laguna", "llama", "llama4",
    "maincoder", "mellum", "mimo2", "minicpm", "mistral3", "muse-glimmer", "nanbeige", "nanochat", "nemotron",
    "olmo", "opt", "orion", "ouro", "paddleocr", "pangu-embedded", "persimmon", "phi2", "phi3", "phimoe", "plamo",
    "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "seed_oss", "smollm3", "solar",
    "spark2_5", "stablelm", "starcoder", "starcoder2", "step35", "vaultgemma", "xglm", "xverse",
})  # fmt: skip
# Tensors of a layer that every rank has whole.
_WHOLE = (
    "attn_norm*", "ffn_norm*", "attn_post_norm*", "post_attention_norm*", "ffn_post_norm*", "post_ffw_norm*",
    "ffn_gate_inp*", "exp_probs_b*", "ffn_*_shexp.*", "attn_q_norm*", "attn_k_norm*", "layer_output_scale*",
    "pre_ffw_norm*", "post_ffw_norm_*", "ffn_pre_norm*", "attn_norm_2*", "layer_out_norm*", "attn_output_norm*",
    "rope_freqs*", "rope_factors_*",
)  # fmt: skip
_HEAD_ROWS = ("attn_q", "attn_k", "attn_v")


@dataclass(frozen=True)
class _Range:
    begin: int
    end: int

    @property
    def n(self) -> int:
        return self.end - self.begin

    def of(self, size: int) -> _Range:
        """Return the range of units of so many numbers."""
        return _Range(self.begin * size, self.end * size)


@dataclass(frozen=True)
class _Cut:
    """The ranges of an axis that a rank keeps, one after the other."""

    axis: int
    ranges: tuple[_Range, ...]

    @property
    def n(self) -> int:
        return sum(each.n for each in self.ranges)


@dataclass(frozen=True)
class _Info:
    """As ``TensorInfo``, of a share."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class _Layer:
    """A rank's heads and columns of a layer's MLP."""

    q: _Range
    kv: _Range
    n_q: int  # heads of all ranks
    n_kv: int
    ffn: _Range
    n_ffn: int


def experts_of_part(n_expert: int, part: int, n_parts: int) -> tuple[int, int]:
    """Return the first of the experts that a rank has, and their number."""
    begin, end = (n_expert * i // n_parts for i in (part, part + 1))
    return begin, end - begin


class ShareReader(GGUFReader):
    """Reads rank ``part``'s share of a model that ``n_parts`` ranks split.

    Raises:
        UnsupportedError: The model cannot be split so; the message names what is not divisible.
    """

    def __init__(self, source: GGUFReader, part: int, n_parts: int) -> None:
        self.path, self._source, self.part, self.n_parts = source.path, source, part, n_parts
        self._arch = source.metadata.text("general.architecture")
        if self._arch not in SPLIT:
            raise UnsupportedError(
                f"[parallel] tensor_parallel_size is unsupported for architecture {self._arch}"
                " (pipeline_parallel_size splits layers instead)"
            )
        n_layer = source.metadata.integer(f"{self._arch}.block_count", high=65536)
        heads = self._by_layer("attention.head_count", n_layer)
        kv_heads = self._by_layer("attention.head_count_kv", n_layer, heads)
        ffn = self._by_layer("feed_forward_length", n_layer, [0] * n_layer)
        if not any(info.name.endswith("ffn_down.weight") for info in source.tensors):
            ffn = [0] * n_layer  # it is the width of experts, which are handed out whole
        self._splits_ffn = any(ffn)
        unit = self._ffn_unit()
        self._head_dim = source.metadata.integer(f"{self._arch}.attention.key_length", 0)
        self._v_head_dim = source.metadata.integer(f"{self._arch}.attention.value_length", 0)
        if not self._head_dim:
            dim = source.metadata.integer(f"{self._arch}.embedding_length")
            self._head_dim = dim // max(heads[0], 1)
        self._v_head_dim = self._v_head_dim or self._head_dim
        self._layers = [
            _Layer(self._heads(q, "head_count"), self._kv_heads(kv), q, kv, self._columns(n, unit), n)
            for q, kv, n in zip(heads, kv_heads, ffn, strict=True)
        ]
        self.metadata = Metadata(self._keys())
        self._infos: Mapping[str, _Info] = {info.name: self._share_of(info) for info in source.tensors}

    # --- the layers' sizes

    def _by_layer(self, name: str, n: int, default: Sequence[int] | None = None) -> list[int]:
        key, metadata = f"{self._arch}.{name}", self._source.metadata
        if default is not None and key not in metadata:
            return list(default)
        if metadata.type_of(key).endswith("[]"):
            return [int(value) for value in metadata.array(key)[:n]]
        return [metadata.integer(key)] * n

    def _heads(self, n: int, key: str) -> _Range:
        if n % self.n_parts:
            raise self._indivisible(f"{n} heads ({self._arch}.attention.{key})")
        size = n // self.n_parts
        return _Range(self.part * size, (self.part + 1) * size)

    def _kv_heads(self, n: int) -> _Range:
        if n and self.n_parts % n == 0:  # several ranks share one
            begin = self.part * n // self.n_parts
            return _Range(begin, begin + 1)
        return self._heads(n, "head_count_kv")

    def _ffn_unit(self) -> int:
        """Return the columns of ``ffn_down`` that quantized blocks keep together."""
        infos = self._source.tensors
        return max((info.dtype.block_size for info in infos if info.name.endswith("ffn_down.weight")), default=1)

    def _columns(self, n: int, unit: int) -> _Range:
        n_units = n // unit
        if n and (n % unit or n_units < self.n_parts):
            raise self._indivisible(f"{n} columns of MLPs in blocks of {unit}")
        begin, end = (n_units * part // self.n_parts for part in (self.part, self.part + 1))
        return _Range(begin * unit, end * unit)

    def _indivisible(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"[parallel] cannot split {what} over {self.n_parts} processes: change tensor_parallel_size"
        )

    def _keys(self) -> ChangedKeys:
        keys = ChangedKeys(self._source.metadata.reader)
        own = {
            "attention.head_count": [layer.q.n for layer in self._layers],
            "attention.head_count_kv": [layer.kv.n for layer in self._layers],
            "feed_forward_length": [layer.ffn.n for layer in self._layers],
        }
        for name, values in own.items():
            key = f"{self._arch}.{name}"
            if name == "feed_forward_length" and not self._splits_ffn:
                continue
            if key in self._source.metadata and self._source.metadata.type_of(key).endswith("[]"):
                keys.set(key, "i32[]", values)
            else:
                keys.set(key, "u32", values[0])
        keys.set(f"{self._arch}.attention.key_length", "u32", self._head_dim)
        keys.default(f"{self._arch}.attention.value_length", "u32", self._v_head_dim)
        keys.default(f"{self._arch}.rope.dimension_count", "u32", self._head_dim)
        return keys

    # --- tensors

    def _share_of(self, info: TensorInfo) -> _Info:
        cut, shape = self._cut_of(info.name, info.shape), list(info.shape)
        if cut is None:
            return _Info(info.name, info.dtype, info.shape, info.size_bytes)
        shape[cut.axis] = cut.n
        if cut.axis == len(shape) - 1:
            block = info.dtype.block_size
            if any(each.begin % block or each.end % block for each in cut.ranges):
                each = cut.ranges[0]
                raise self._indivisible(f"'{info.name}', whose blocks have {block} columns, at column {each.end}")
        n_bytes = info.size_bytes // info.shape[cut.axis] * cut.n
        return _Info(info.name, info.dtype, tuple(shape), n_bytes)

    def _cut_of(self, name: str, shape: Sequence[int]) -> _Cut | None:
        """Return what this rank keeps; None: all."""
        if not name.startswith("blk."):
            return None
        _, number, inner = name.split(".", 2)
        if any(fnmatchcase(inner, pattern) for pattern in _WHOLE):
            self._check_norm(name, inner, shape)
            return None
        if int(number) >= len(self._layers):
            raise self._unsplit(name)
        layer, (stem, kind) = self._layers[int(number)], inner.rpartition(".")[::2]
        if kind not in ("weight", "bias"):
            raise self._unsplit(name)
        if stem in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps"):
            return self._experts(name, shape)
        rows = self._rows_of(stem, layer, shape[0])
        if rows is not None:
            return _Cut(0, rows)
        columns = self._columns_of(stem, layer)
        if columns is None or (kind == "weight" and len(shape) != 2):
            raise self._unsplit(name)
        return _Cut(1, (columns,)) if kind == "weight" else None  # added by one rank

    def _check_norm(self, name: str, inner: str, shape: Sequence[int]) -> None:
        of_head = inner.startswith(("attn_q_norm", "attn_k_norm"))
        if of_head and tuple(shape) != (self._head_dim,):
            raise UnsupportedError(
                f"[parallel] cannot split '{name}' over processes: it normalizes all heads together"
                " (pipeline_parallel_size splits layers instead)"
            )

    def _unsplit(self, name: str) -> UnsupportedError:
        return UnsupportedError(
            f"[parallel] tensor_parallel_size is unsupported for {self._arch}: cannot split '{name}'"
            " (pipeline_parallel_size splits layers instead)"
        )

    def _experts(self, name: str, shape: Sequence[int]) -> _Cut:
        begin, n = experts_of_part(shape[0], self.part, self.n_parts)
        if not n:
            raise self._indivisible(f"{shape[0]} experts of '{name}'")
        return _Cut(0, (_Range(begin, begin + n),))

    def _rows_of(self, stem: str, layer: _Layer, n: int) -> tuple[_Range, ...] | None:
        head, v_head = self._head_dim, self._v_head_dim
        q, k, v = layer.q.of(head), layer.kv.of(head), layer.kv.of(v_head)
        n_q, n_k, n_v = layer.n_q * head, layer.n_kv * head, layer.n_kv * v_head
        found: tuple[tuple[_Range, int], ...] | None = None
        if stem in _HEAD_ROWS:
            found = {"attn_q": ((q, n_q),), "attn_k": ((k, n_k),), "attn_v": ((v, n_v),)}[stem]
        elif stem == "attn_qkv":
            found = ((q, n_q), (k, n_k), (v, n_v))
        elif stem == "attn_sinks" or (stem == "attn_gate" and n == layer.n_q):
            found = ((layer.q, layer.n_q),)
        elif stem == "attn_gate":
            found = ((layer.q.of(v_head), layer.n_q * v_head),)
        elif stem == "ffn_up" and n == 2 * layer.n_ffn:  # gate and up
            found = ((layer.ffn, layer.n_ffn), (layer.ffn, layer.n_ffn))
        elif stem in ("ffn_gate", "ffn_up"):
            found = ((layer.ffn, layer.n_ffn),)
        if found is None or sum(size for _, size in found) != n:
            return None
        begins = [sum(size for _, size in found[:i]) for i in range(len(found))]
        return tuple(
            _Range(begin + each.begin, begin + each.end) for begin, (each, _) in zip(begins, found, strict=True)
        )

    def _columns_of(self, stem: str, layer: _Layer) -> _Range | None:
        if stem == "attn_output":
            return layer.q.of(self._v_head_dim)
        return layer.ffn if stem == "ffn_down" and layer.n_ffn else None

    def tensor(self, name: str) -> Tensor:
        """Return the share of a tensor: in the file's memory if it lies there in one piece, else a copy."""
        import numpy as np

        stored = self._source.tensor(name)
        info = self._infos[name]
        cut = self._cut_of(name, self._source.tensor_info(name).shape)
        if cut is None:
            return stored
        if cut.axis == 0 and len(cut.ranges) == 1:
            return stored.part(cut.ranges[0].begin, cut.ranges[0].end)
        n_rows = stored.shape[0]
        rows = stored.numpy().view(np.uint8).reshape(n_rows, -1)
        if cut.axis == 0:
            pieces = [rows[each.begin : each.end] for each in cut.ranges]
            kept = np.concatenate(pieces)
        else:
            each, row_bytes = cut.ranges[0], info.dtype.row_bytes
            kept = rows[:, row_bytes(each.begin) if each.begin else 0 : row_bytes(each.end)]
        tensor = Tensor.empty(info.dtype, info.shape)
        tensor.numpy().view(np.uint8).reshape(info.shape[0], -1)[:] = kept
        return tensor

    # --- the rest of a reader

    @property
    def version(self) -> int:
        return self._source.version

    @property
    def alignment(self) -> int:
        return self._source.alignment

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self._infos.values())

    @property
    def n_files(self) -> int:
        return self._source.n_files

    @property
    def tensors(self) -> list[TensorInfo]:
        return cast("list[TensorInfo]", list(self._infos.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def tensor_info(self, name: str) -> TensorInfo:
        return cast("TensorInfo", self._infos[name]) if name in self._infos else self._source.tensor_info(name)

    @property
    def identity(self) -> str:
        return ""

    @property
    def source_files(self) -> list[Path]:
        return self._source.source_files

    @property
    def is_made(self) -> bool:
        return self._source.is_made

    @property
    def is_mapped(self) -> bool:
        return False

    def check_unchanged(self) -> None:
        self._source.check_unchanged()

    def __repr__(self) -> str:
        return f"ShareReader({self._source!r}, part {self.part} of {self.n_parts})"
