"""Sources, mixes and reproducible importance matrices for comparisons with llama.cpp's quantizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from quire.checkpoints.conversion import convert
from quire.engine.loading.loader import packaged_model
from quire.gguf import GGUFReader
from quire.quantization import MIXES, Importance, Wishes, plan, quantize_model
from quire.quantization.importance import Sums
from tiny_checkpoints import write_checkpoint

# Dense, experts (8 and other numbers), states, windows, the name falcon, and embeddings per layer.
TINY = ("qwen3moe", "mixtral", "granitehybrid", "gpt-oss", "falcon", "lfm2moe", "qwen3next", "gemma4", "phi3")
# For the package's model, whose rows are whole blocks of every type; the slowest types are left out.
WHOLE_BLOCKS = (
    "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q3_K_L", "Q2_K", "TQ2_0", "Q8_0", "BF16", "MXFP4_MOE", "Q1_0", "Q2_0",
)  # fmt: skip
# Arguments of both programs, by name.
OPTIONS = {
    "pure": ("Q4_K_M", ["--pure"], Wishes(pure=True)),
    "types": (
        "Q4_K_M",
        ["--output-tensor-type", "q5_0", "--token-embedding-type", "q8_0", "--tensor-type", "attn_k=q8_0"],
        Wishes(output_dtype="q5_0", embedding_dtype="q8_0", patterns=(("attn_k", "q8_0"),)),
    ),
    "head": ("Q5_1", ["--leave-output-tensor"], Wishes(keep_output=True)),
}


def mixes_of(source: str) -> tuple[str, ...]:
    """Return the mixes to try for a source."""
    return WHOLE_BLOCKS if source == "package" else (*MIXES, "COPY")


def write_source(folder: Path, source: str) -> Path:
    """Write the f32 file to be quantized."""
    path = folder / f"{source}.gguf"
    if source == "package":
        reader = GGUFReader(packaged_model())
        quantize_model(reader, path, plan(reader, "F32", Wishes(allow_requantize=True)))
        return path
    checkpoint = folder / source
    checkpoint.mkdir()
    write_checkpoint(checkpoint, source)
    convert(checkpoint, path, "f32")
    return path


def write_importance(path: Path, source: Path) -> None:
    """Write the importance of all matrices, with some experts that saw no tokens."""
    made = Importance(datasets=["a text"], n_chunks=3, chunk_tokens=512)
    source_of = np.random.Generator(np.random.PCG64(7))
    for info in GGUFReader(source).tensors:
        if len(info.shape) >= 2 and info.name.endswith("weight") and info.name != "token_embd.weight":
            n_matrix = info.shape[0] if len(info.shape) == 3 else 1
            counts = source_of.integers(0 if n_matrix > 1 else 5, 40, n_matrix).astype(np.float32)
            squares = source_of.random((n_matrix, info.shape[-1]), np.float32) * counts[:, None]
            made.sums[info.name] = Sums(squares, counts)
    made.write(path)
