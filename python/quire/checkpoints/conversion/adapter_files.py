"""Write adapters: merged into their model, as GGUF files, and as PEFT folders."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..._native.core import DType, Tensor
from ..._native.quant import can_quantize, dequantize, quantize
from ...errors import LoadError, RequestError, UnsupportedError
from ...files.gguf import GGUFReader, GGUFWriter
from ...files.gguf_tools import write_changed
from ...files.whole_file import WholeFile
from ...models import load_model
from ...nn import Adapter
from ...nn.adapter import BY_MERGE, HEAD, TABLE
from .low_rank import Product, effect_of
from .made_reader import MadeReader
from .peft_config import CONFIG
from .peft_reader import PeftReader, opened_adapters

if TYPE_CHECKING:
    from ..mapping import Array, Fields, Target

__all__ = ["undone", "write_gguf_adapter", "write_merged", "write_peft_folder"]

_SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
_SLAB_ROWS = 4096
_TYPES = ("f32", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0")  # the usual ones
_PREFIX = "base_model.model."
Progress = Callable[[int, int, str], None]  # finished tensors, all tensors, name


def write_merged(
    base: GGUFReader,
    given: Sequence[tuple[str, float]],
    out: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Write a model with adapters merged into its matrices; return the names of these.

    Args:
        base: The model's file, or a checkpoint read as one.
        given: Paths of adapters, GGUF files or PEFT folders, with their scales.
        out: The new file, which appears when it is complete.
        dtype: The type of merged matrices; None: as in ``base``.
        progress: Called before each tensor, and at the end.

    Raises:
        LoadError: An adapter is malformed or does not fit the model.
        RequestError: The type is unknown.
        UnsupportedError: An adapter changes what Quire cannot change, or values cannot be stored in the type.
    """
    with opened_adapters(given, base, takes=BY_MERGE) as adapters:
        if len(adapters) > 1 and any(adapter.magnitudes for adapter in adapters):
            raise UnsupportedError("[adapter] unsupported use_dora beside other adapters: merge it alone")
        products = load_model(base, adapters=adapters).products
        sources = {info.name: info.name for info in base.tensors}  # by name in the new file
        own_head = HEAD in sources or TABLE not in sources
        changed = [name for name in [*sources, HEAD] if _changes(name, adapters)]
        if not own_head and (TABLE in changed or HEAD in changed):
            sources[HEAD] = TABLE  # the two differ from now on
        merged = [name for name in changed if name in sources]
        types = {name: base.tensor_info(source).dtype for name, source in sources.items()}
        if dtype is not None:
            matrices = (name for name in merged if len(base.tensor_info(sources[name]).shape) > 1)
            types |= dict.fromkeys(matrices, _type_of(dtype))
        with GGUFWriter(out, base.metadata.text("general.architecture"), alignment=base.alignment) as writer:
            writer.copy_metadata(base.metadata, without=_SPLIT_KEYS)
            for name, source in sources.items():
                writer.add_tensor(name, types[name], base.tensor_info(source).shape)
            for done, (name, source) in enumerate(sources.items()):
                if progress is not None:
                    progress(done, len(sources), name)
                tensor = base.tensor(source)
                if name not in merged:
                    writer.write(name, tensor)
                    continue
                for slab in _merged(name, tensor, adapters, products.get(name, 1.0)):
                    writer.write(name, _stored(slab, types[name], name))
            if progress is not None:
                progress(len(sources), len(sources), "")
    if not own_head and HEAD in sources:
        _check_head(Path(out))
    return merged


def _changes(name: str, adapters: Sequence[Adapter]) -> bool:
    return any(f"{name}.lora_a" in each.reader or name in each.wholes or name in each.experts for each in adapters)


def _check_head(out: Path) -> None:
    """Remove a model whose architecture has no head beside the embeddings.  UnsupportedError for one."""
    try:
        load_model(GGUFReader(out))
    except LoadError:
        out.unlink()
        raise UnsupportedError(
            "[adapter] unsupported adapter of the embeddings or the head: the architecture has one matrix for both"
        ) from None


def _type_of(name: str) -> DType:
    """Return a type of merged matrices.  RequestError for one that Quire cannot write."""
    try:
        found = DType(name)
    except UnsupportedError:
        found = None
    if found is None or not can_quantize(found):
        raise RequestError(f"[adapter] unknown type '{name:.40}': expected {', '.join(_TYPES)} ...")
    return found


def _merged(name: str, tensor: Tensor, adapters: Sequence[Adapter], scale: float) -> Sequence[Array]:
    """Return the rows of ``W + factor B A / scale`` in slabs.  ``scale``: what the model multiplies the product by."""
    import numpy as np

    values: Array = np.array(dequantize(tensor), np.float32).reshape(tensor.shape)
    n_out, n_in = (tensor.shape[0], tensor.shape[-1])
    for adapter in adapters:
        if (whole := adapter.wholes.get(name)) is not None:
            divided = scale if values.ndim > 1 else 1.0
            values += np.float32(adapter.scale) * (whole / np.float32(divided) - values)
        if name == TABLE and (rank := adapter.rank_of_table(n_out, n_in)):
            a, b = _half(adapter, name, "a", (n_out, rank)), _half(adapter, name, "b", (n_in, rank))
            values += np.float32(adapter.factor(rank)) * (a @ b.T)
        for expert, (left, right) in adapter.experts.get(name, {}).items():
            values[expert] += np.float32(adapter.scale) * (left @ right)
        if name != TABLE and values.ndim == 2 and (rank := adapter.rank_of(name, n_in, n_out)):
            a, b = _half(adapter, name, "a", (rank, n_in)), _half(adapter, name, "b", (n_out, rank))
            for begin in range(0, n_out, _SLAB_ROWS):
                values[begin : begin + _SLAB_ROWS] += np.float32(adapter.factor(rank) / scale) * (
                    b[begin : begin + _SLAB_ROWS] @ a
                )
        if (lengths := adapter.magnitudes.get(name)) is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                values *= (lengths / (abs(scale) * np.linalg.norm(values, axis=1)))[:, None]
    if not np.isfinite(values).all():
        raise LoadError(f"[adapter] merging '{name}' gives numbers that are not finite")
    if values.ndim == 1:
        return [values]
    if values.ndim == 3:
        values = values.reshape(-1, n_in)
    return [values[begin : begin + _SLAB_ROWS] for begin in range(0, len(values), _SLAB_ROWS)]


def _half(adapter: Adapter, name: str, half: str, shape: tuple[int, int]) -> Array:
    import numpy as np

    return np.asarray(dequantize(adapter.reader.tensor(f"{name}.lora_{half}")), np.float32).reshape(shape)


def _stored(values: Array, dtype: DType, name: str) -> Tensor:
    try:
        return quantize(values, dtype)
    except UnsupportedError as error:
        raise UnsupportedError(f"[adapter] cannot store '{name}' as {dtype}: choose another type ({error})") from None


def write_gguf_adapter(folder: Path, base: GGUFReader, out: str | os.PathLike[str]) -> None:
    """Write a PEFT folder as llama.cpp's GGUF adapter for the model of ``base``; raises as ``PeftReader``."""
    with tempfile.TemporaryDirectory(prefix="quire-") as scratch, PeftReader(folder, base, Path(scratch)) as reader:
        # Checks that it fits.
        load_model(base, adapters=[Adapter(reader, takes=frozenset({"embeddings", "alora_invocation_tokens"}))])
        write_changed(reader, out)


def write_peft_folder(path: Path, base: GGUFReader, out: Path) -> None:
    """Write a GGUF adapter as a PEFT folder for the checkpoint that ``base`` reads.

    Raises:
        RequestError: The folder exists already.
        UnsupportedError: ``base`` is no checkpoint, or its conversion cannot be undone for a matrix.
    """
    import numpy as np

    if not isinstance(base, MadeReader) or (origin := base.origin) is None:
        raise UnsupportedError("[adapter] a PEFT folder needs the names of the model's checkpoint: give its folder")
    if out.exists():
        raise RequestError(f"[adapter] {out} exists already: name a new folder")
    targets = {target.name: target for target in origin.targets}
    halves: dict[str, Array] = {}
    ranks, alphas = dict[str, int](), dict[str, float]()
    with opened_adapters([(str(path), 1.0)], base) as (adapter,):
        load_model(base, adapters=[adapter])
        for name in sorted({info.name.rpartition(".")[0] for info in adapter.reader.tensors}):
            n_out, n_in = (int(n) for n in base.tensor_info(name).shape)
            rank = adapter.rank_of(name, n_in, n_out)
            right, left = (
                np.asarray(dequantize(adapter.reader.tensor(f"{name}.lora_{half}")), np.float32).reshape(shape)
                for half, shape in (("a", (rank, n_in)), ("b", (n_out, rank)))
            )
            module, product, _ = undone(targets[name], Product(left, right), origin.config)
            halves[f"{_PREFIX}{module}.lora_A.weight"] = product.right
            halves[f"{_PREFIX}{module}.lora_B.weight"] = product.left
            ranks[module], alphas[module] = rank, adapter.factor(rank) * rank
    out.mkdir(parents=True)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "target_modules": sorted(ranks), "lora_dropout": 0.0,
        "r": next(iter(ranks.values())), "lora_alpha": next(iter(alphas.values())), "inference_mode": True,
        "rank_pattern": {f"^{module}": rank for module, rank in ranks.items()},
        "alpha_pattern": {f"^{module}": alpha for module, alpha in alphas.items()},
    }  # fmt: skip
    (out / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _write_safetensors(out / "adapter_model.safetensors", halves)


def undone(target: Target, product: Product, config: Fields) -> tuple[str, Product, bool]:
    """Return a matrix's module, the product ``[out, in]`` that is added there, and whether it stores ``[in, out]``."""
    import numpy as np

    refusal = UnsupportedError(f"[adapter] '{target.name}' is not a reordered matrix of one module")
    if len(target.sources) != 1 or not target.sources[0].endswith(".weight"):
        raise refusal
    module = target.sources[0].removesuffix(".weight")
    if target.change is None:
        return module, product, False
    shape = product.shape
    plain, turned = (effect_of(target.change, stored, config) for stored in (shape, shape[::-1]))
    found = plain if plain is not None and not plain.turns else turned if turned is not None and turned.turns else None
    if found is None:
        raise refusal
    for order in (found.rows, found.columns):
        if sorted(order) != list(range(len(order))):
            raise refusal
    left, right = product.left / found.factors[:, None], product.right
    if found.turns:
        left, right = right.T, left.T
    made = Product(np.empty_like(left), np.empty_like(right))
    made.left[found.rows], made.right[:, found.columns] = left, right
    return module, made.turned() if found.turns else made, found.turns


def _write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    import numpy as np

    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with WholeFile(path, "adapter") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values, np.float32).tobytes())
