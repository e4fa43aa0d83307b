"""Write a GGUF file of a published shape with random weights, since speed depends on shapes and types, not on values.

    python benchmarks/make_shape.py SHAPE OUT.gguf [--type q4_k] [--experts mxfp4] [--layers N] [--vocab FILE]
                                    [--mmproj OUT.gguf] [--encoder f16] [--encoder-layers N]

SHAPE is a config.json, or the name of one in benchmarks/shapes.  transformers lists the tensors of such a checkpoint
without creating weights, and Quire's conversion decides what they become.  Matrices have the given type, or the nearest
one whose blocks fit their rows; embedding and head are q6_k or q8_0; vectors and routers stay f32.  --vocab is a GGUF
file with as many tokens as the shape; without it, tokens are bytes and the rest is unused.  --mmproj also writes the
encoder of images or sounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from quire._native.core import DType
from quire._native.gguf import TensorInfo
from quire._native.quant import quantize
from quire.checkpoints.conversion import CheckpointReader
from quire.checkpoints.conversion.projector import ProjectorReader
from quire.gguf import GGUFReader, GGUFWriter
from transformers.core_model_loading import revert_weight_conversion

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))
from tiny_checkpoints import tokenizer_json  # noqa: E402
from tiny_media import family  # noqa: E402

Array = npt.NDArray[np.float32]
PIECE = 1 << 22  # random numbers per matrix; the rest repeats them
LAYER_LISTS = ("layer_types", "mlp_layer_types")
# The tiny models that have the special tokens and the template of a shape, and the settings of its image processor.
MEDIA: dict[str, tuple[str, dict[str, object]]] = {
    "qwen3-asr-0.6b": ("qwen3asr", {"feature_size": 128}),
    "qwen3-vl-0.6b": ("qwen3vl", {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}),
}
SMALLER = {"q4_k": "q4_0", "q6_k": "q8_0", "q5_k": "q5_0"}  # blocks of 32 instead of 256


def shared_layers(kinds: list[str], n: int) -> int:
    """Return how many of the last layers share K and V: at most ``n``, and the layers before must be of every kind."""
    while set(kinds[: len(kinds) - n]) != set(kinds):
        n -= 1
    return n


def config_of(shape: str, layers: int | None, encoder_layers: int | None = None) -> dict[str, object]:
    path = HERE / "shapes" / f"{shape}.json"
    config: dict[str, Any] = json.loads((path if path.is_file() else Path(shape)).read_text())
    text = config.get("text_config", config)
    if layers is not None:
        text["num_hidden_layers"] = layers
        for name in LAYER_LISTS:
            if isinstance(kinds := text.get(name), list):
                text[name] = kinds[:layers]
        if isinstance(n_shared := text.get("num_kv_shared_layers"), int):
            text["num_kv_shared_layers"] = shared_layers(text["layer_types"], min(n_shared, layers // 2))
    if encoder_layers is not None:
        for part, name in (("vision_config", "depth"), ("audio_config", "encoder_layers")):
            if part in config:
                config[part][name] = encoder_layers
                taps = config[part].get("deepstack_visual_indexes", [])
                config[part]["deepstack_visual_indexes"] = [i for i in range(encoder_layers) if i < len(taps)]
    return config


def shapes_of(config: dict[str, object]) -> dict[str, list[int]]:
    """Return the tensors that transformers would save."""
    (kind,) = config["architectures"]  # type: ignore[misc]
    with torch.device("meta"):
        model = getattr(transformers, str(kind))._from_config(transformers.AutoConfig.for_model(**config))
    found = revert_weight_conversion(model, model.state_dict())
    is_tied = bool(config.get("tie_word_embeddings"))
    return {name: list(value.shape) for name, value in found.items() if not (is_tied and name == "lm_head.weight")}


def write_folder(folder: Path, config: dict[str, object], shape: str) -> None:
    """Write a checkpoint whose weights are a hole in a sparse file."""
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    if shape in MEDIA:
        name, settings = MEDIA[shape]
        tiny = family(name)
        replace(tiny, processor={**tiny.processor, **settings}).save_texts(folder)
    else:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "add_bos_token": False}))
    header, end = {}, 0
    for name, shape in shapes_of(config).items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def dtype_of(name: str, shape: tuple[int, ...], options: argparse.Namespace) -> DType:
    wanted = options.type
    if name in ("token_embd.weight", "output.weight", "per_layer_token_embd.weight"):
        wanted = {"q4_k": "q6_k", "q4_0": "q6_k", "mxfp4": "q8_0"}.get(wanted, wanted)
    elif "_exps." in name and options.experts:
        wanted = options.experts
    while shape[-1] % DType(wanted).block_size:
        wanted = SMALLER.get(wanted, "f16")
    return DType(wanted)


def vector_of(name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Return values with which no state grows and no norm becomes 0."""
    values = random.standard_normal(shape).astype(np.float32)
    if name.endswith("ssm_a"):
        return -np.exp(0.5 * values)
    if "ssm_dt" in name and name.endswith("bias"):
        return 0.1 * values - 3
    if "norm" in name or "ln" in name.split(".")[-2] or name.endswith(("scale", "scale.weight", "ssm_d")):
        return 1 + 0.05 * values
    if name.endswith(".bias"):
        return 0.1 * values
    return values * shape[-1] ** -0.5 if len(shape) > 1 else 0.1 * values


def pieces_of(shape: tuple[int, ...], dtype: DType, random: np.random.Generator) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield a matrix in pieces of rows, which repeat after a while."""
    columns, n_rows = shape[-1], int(np.prod(shape[:-1]))
    drawn = min(n_rows, max(1, PIECE // columns))
    values = random.standard_normal((drawn, columns)).astype(np.float32) * columns**-0.5
    stored = quantize(values, dtype).numpy().reshape(-1).view("u1").reshape(drawn, -1)
    for begin in range(0, n_rows, drawn):
        yield stored[: n_rows - begin].reshape(-1)


def copy_keys(writer: GGUFWriter, reader: GGUFReader, wanted: Callable[[str], bool]) -> None:
    for key in reader.metadata:
        kind = reader.metadata.type_of(key)
        if wanted(key) and key not in ("general.architecture", "general.name"):
            writer.set(key, reader.metadata.strings(key) if kind == "string[]" else reader.metadata[key], kind)  # type: ignore[arg-type]


def write(out: Path, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        folder = Path(scratch) / "checkpoint"
        folder.mkdir()
        write_folder(folder, config_of(options.shape, options.layers, options.encoder_layers), options.shape)
        with CheckpointReader(folder, Path(scratch), "bf16") as reader:
            write_file(out, reader, options, lambda info: dtype_of(info.name, info.shape, options))
        if options.mmproj:
            with ProjectorReader(folder, Path(scratch), options.encoder) as reader:
                write_file(options.mmproj, reader, options, lambda info: info.dtype)


def write_file(
    out: Path, reader: GGUFReader, options: argparse.Namespace, dtype: Callable[[TensorInfo], DType]
) -> None:
    """Write the file that a reader describes; ``dtype`` tells the type of matrices."""
    random = np.random.default_rng(1)
    with GGUFWriter(out, reader.metadata.text("general.architecture")) as writer:
        copy_keys(writer, reader, lambda key: not (options.vocab and key.startswith("tokenizer.")))
        if options.vocab and "tokenizer.ggml.model" in reader.metadata:
            copy_keys(writer, GGUFReader(options.vocab), lambda key: key.startswith("tokenizer."))
        writer.set("general.name", Path(options.shape).stem)
        infos = list(reader.tensors)
        dtypes = {info.name: DType("f32") if str(info.dtype) == "f32" else dtype(info) for info in infos}
        for info in infos:
            writer.add_tensor(info.name, dtypes[info.name], info.shape)
        for info in infos:
            if info.name.startswith("rope_"):
                writer.write(info.name, reader.tensor(info.name).numpy())
            elif str(info.dtype) == "f32":
                writer.write(info.name, vector_of(info.name, info.shape, random))
            else:
                for piece in pieces_of(info.shape, dtypes[info.name], random):
                    writer.write(info.name, piece.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape")
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="q4_k")
    parser.add_argument("--experts", help="type of stacked experts, if another")
    parser.add_argument("--vocab", type=Path)
    parser.add_argument("--layers", type=int, help="number of layers, if fewer than in the published model")
    parser.add_argument("--mmproj", type=Path, help="the file of the encoder")
    parser.add_argument(
        "--encoder", default="f16", choices=("f16", "bf16", "f32"), help="type of the encoder's matrices"
    )
    parser.add_argument("--encoder-layers", type=int, help="layers of the encoder, if fewer")
    options = parser.parse_args()
    write(options.out, options)


if __name__ == "__main__":
    main()
