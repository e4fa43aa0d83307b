"""Converting a checkpoint, tensor by tensor."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .._native.core import DType
from .._native.quant import dequantize, quantize
from ..errors import LoadError, UnsupportedError
from ..gguf import GGUFWriter
from ..safetensors import SafetensorsFolder
from .architectures import Target, family_of, targets, write_keys
from .checkpoint import Fields, read_json
from .generation import write_sampling
from .vocabulary import write_vocabulary

if TYPE_CHECKING:
    from .architectures import Array

DTYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}  # with GGUF's general.file_type
# Angles of the rotation, which older checkpoints hold although the configuration says them; transformers, too, looks at
# the latter.
BUFFER = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
Progress = Callable[[int, int, str], None]  # tensors done, tensors in all, name


def _shape(target: Target, checkpoint: SafetensorsFolder) -> tuple[int, ...]:
    if target.made is not None:
        return tuple(target.made.shape)
    shapes = {checkpoint.shape(source) for source in target.sources}
    if len(shapes) != 1:
        raise LoadError(f"[convert] the tensors of '{target.name}' must have one shape but have {sorted(shapes)}")
    shape = shapes.pop()
    return (len(target.sources), *shape) if target.stacked else shape


def _dtype(target: Target, shape: tuple[int, ...], wanted: DType) -> DType:
    """Vectors and routers stay f32; rows that do not divide into blocks become f16."""
    if target.keep_f32 or len(shape) == 1:
        return DType("f32")
    return wanted if shape[-1] % wanted.block_size == 0 else DType("f16")


def _piece(target: Target, checkpoint: SafetensorsFolder, source: str) -> Array:
    values = dequantize(checkpoint[source])
    return target.change(values) if target.change is not None else values


def convert(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], dtype: str = "bf16", progress: Progress | None = None
) -> None:
    """Write the checkpoint in ``folder`` as the GGUF file ``out``.

    ``dtype`` is that of matrices: f32, f16, bf16 or q8_0; vectors are f32.  One tensor is in memory at a time, and
    ``out`` appears when complete.  Raises LoadError for a folder that is no sound checkpoint, UnsupportedError for an
    architecture, a tokenizer or a dtype that is not known, CapacityError when the disk is full.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(f"[convert] the dtype must be one of {', '.join(DTYPES)} but is '{dtype}'")
    source = Path(folder)
    config = Fields("config.json", read_json(source / "config.json"))
    family = family_of(config)
    checkpoint = SafetensorsFolder(source)
    todo = list(targets(config, family, checkpoint.__contains__))
    used = {name for target in todo for name in target.sources} | {"lm_head.weight"}
    left = sorted(name for name in set(checkpoint) - used if not BUFFER.search(name))
    if left:
        raise UnsupportedError(
            f"[convert] every tensor of the checkpoint must be known but {left[0]!r} ({len(left)} in all) is not"
        )
    with GGUFWriter(out, family.arch) as writer:
        writer.set("general.name", source.resolve().name)
        writer.set("general.file_type", DTYPES[dtype], "u32")
        writer.set("general.quantization_version", 2, "u32")
        write_keys(writer, config, family)
        write_vocabulary(writer, source, config.integer("vocab_size"))
        write_sampling(writer, source)
        dtypes = {}
        for target in todo:
            shape = _shape(target, checkpoint)
            dtypes[target.name] = _dtype(target, shape, DType(dtype))
            writer.add_tensor(target.name, dtypes[target.name], shape)
        for done, target in enumerate(todo):
            if progress is not None:
                progress(done, len(todo), target.name)
            pieces = (
                [target.made]
                if target.made is not None
                else (_piece(target, checkpoint, name) for name in target.sources)
            )
            for piece in pieces:
                writer.write(target.name, quantize(piece, dtypes[target.name]).numpy())
        if progress is not None:
            progress(len(todo), len(todo), "")
