"""Compare models with transformers' stored answers (tests/references/make_references.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pytest
import quire.models
from chosen_kernels import threads_of
from quire._native import graph
from quire._native.core import Tensor, find_device
from quire._native.quant import dequantize
from quire.checkpoints.conversion import convert
from quire.errors import LoadError, UnsupportedError
from quire.gguf import GGUFReader, GGUFWriter
from quire.models import architectures, load_model
from tiny_checkpoints import CONFIGS, N_VOCAB, SOURCE, write_checkpoint

REFERENCES = Path(__file__).resolve().parents[1] / "references"
PACKAGED = Path(quire.models.__file__).parent.parent / "data" / "tiny-chat-q8_0.gguf"
TOLERANCE = 1e-3  # relative to the largest absolute logit
STEP = 64  # rows
Array = npt.NDArray[np.float32]


class Runner:
    """Runs one sequence at a time on an executor with its own cache."""

    def __init__(self, path: Path, kernels: str = "auto", threads: int | None = None, n_ctx: int | None = None) -> None:
        threads = threads or threads_of(kernels)
        reader = GGUFReader(path)
        model, late = load_model(reader), f"{reader.metadata.text('general.architecture')}.classifier.late"
        self.has_rows = any(spec.n_kv_head for spec in model.cache)
        self.scores_classes = model.config.scores_classes
        self.n_ctx = model.config.n_ctx_train
        self.has_state = any(spec.states for spec in model.cache)
        self.averages_scores = late in reader.metadata and bool(reader.metadata[late])
        self.state = 0
        self.decoder_start = model.config.decoder_start
        # An encoder reads the whole prompt in one step.
        self.most_tokens = min(STEP, self.n_ctx) if model.config.is_encoder else self.n_ctx
        self.executor = graph.Executor(
            model.trace(n_ctx),
            find_device("cpu"),
            n_blocks=9,
            n_states=33,
            threads=threads,
            kv_dtype="f32",
            kernels=kernels,
            max_rows=STEP,
            max_sequences=4,  # type: ignore[arg-type]
        )
        if self.decoder_start is not None:
            self.encode(SOURCE)

    def encode(self, source: list[int]) -> None:
        """Encode the source that the decoder attends to from now on."""
        slots = list(range(32, 32 + len(source)))
        self.executor.encode(source, slots=slots, row_begin=[0, len(source)], tables=[[1, 2]])
        self.n_source = len(source)

    def logits(self, ids: list[int], start: int = 0) -> Array:
        """Return the logits of ids[start:], computed in chunks; start 0 begins with an unused recurrent state."""
        self.state += start == 0
        if self.decoder_start is not None:  # every text has one more token, the start token
            rows = self._all([self.decoder_start, *ids], start + (start > 0))
            return rows[start == 0 :]
        return self._all(ids, start)

    def _all(self, ids: list[int], start: int) -> Array:
        parts = [self._chunk(ids[: min(begin + STEP, len(ids))], begin) for begin in range(start, len(ids), STEP)]
        return np.concatenate(parts)

    def _chunk(self, ids: list[int], start: int) -> Array:
        rows = list(range(start, len(ids)))
        source = {} if self.decoder_start is None else {"source_tables": [[1, 2]], "n_source": [self.n_source]}
        return self.executor.run(
            ids[start:], positions=rows, slots=[32 + p for p in rows] if self.has_rows else [], logit_rows=list(range(len(rows))),
            row_begin=[0, len(rows)], n_kv=[len(ids)], tables=[list(range(1, 9))] if self.has_rows else [], states=[self.state] if self.has_state else [],
            **source,  # type: ignore[arg-type]
        )  # fmt: skip

    def answer(self, ids: list[int]) -> Array:
        """Return what transformers' model returns: logits or vectors of every token, or class scores."""
        rows = self.logits(ids)
        if self.averages_scores:
            return np.asarray(rows.mean(axis=0))
        return rows[0] if self.scores_classes else rows

    def greedy(self, ids: list[int], n_new: int) -> list[int]:
        out, start = list(ids), 0
        for _ in range(n_new):
            logits = self.logits(out, start)
            start = len(out)
            out.append(int(logits[-1].argmax()))
        return out[len(ids) :]


def close(found: Array, expected: Array, tolerance: float = TOLERANCE) -> None:
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that converts a random checkpoint by name."""
    folder = tmp_path_factory.mktemp("tiny")

    def make(name: str) -> Path:
        out = folder / f"{name}.gguf"
        if not out.is_file():
            write_checkpoint(folder / name, name)
            convert(folder / name, out, "f32")
        return out

    return make


def tolerance_of(name: str, kernels: str) -> float:
    """Return the largest deviation allowed for a tiny model."""
    # ggml looks GELU up in a half-precision table, which costs more if scores are not scaled.
    if kernels == "stock" and name in ("t5-gated", "mt5", "umt5"):
        return 5 * TOLERANCE
    if kernels == "stock" and name.startswith(("gemma", "t5encoder-g", "mt5e", "umt5e")):
        return 3 * TOLERANCE
    return TOLERANCE


# Every third model runs under the sanitizers; siblings run the same native code.
NAMES = [name if i % 3 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(CONFIGS)]


@pytest.mark.whole
@pytest.mark.parametrize("kernels", ["auto", "stock"])
@pytest.mark.parametrize("name", NAMES)
def test_random_models_equal_transformers(tiny: Callable[[str], Path], name: str, kernels: str) -> None:
    stored = np.load(REFERENCES / "models" / f"{name}.npz")
    runner = Runner(tiny(name), kernels)
    prompt = stored["prompt"].tolist()
    close(runner.answer(prompt), stored["logits"], tolerance_of(name, kernels))
    if runner.executor.makes_logits:
        assert runner.greedy(prompt[:12], 40) == stored["greedy"].tolist()


def with_tensors(source: Path, out: Path, changes: dict[str, Array], without: tuple[str, ...] = ()) -> Path:
    """Write the f32 file with added or replaced tensors; ``without``: keys to remove."""
    reader = GGUFReader(source)
    tensors = {info.name: reader.tensor(info.name).numpy() for info in reader.tensors} | changes
    with GGUFWriter(out, reader.metadata.text("general.architecture")) as writer:
        for key in [key for key in reader.metadata if key not in without]:
            kind = reader.metadata.type_of(key)
            value = reader.metadata.strings(key) if kind == "string[]" else reader.metadata[key]
            writer.set(key, value, kind)  # type: ignore[arg-type]
        for name, values in tensors.items():
            writer.add_tensor(name, "f32", values.shape)
        for name, values in tensors.items():
            writer.write(name, values)
    return out


@pytest.mark.parametrize(("name", "tensor"), [("qwen2", "attn_q"), ("qwen3", "ffn_down"), ("phi3", "attn_qkv")])
def test_products_are_scaled_if_the_file_has_a_scale(
    tiny: Callable[[str], Path], tmp_path: Path, name: str, tensor: str
) -> None:
    """Files with NVFP4 have a scale for each matrix beside those of blocks."""
    weight = f"blk.0.{tensor}.weight"
    smaller = GGUFReader(tiny(name)).tensor(weight).numpy() * np.float32(0.25)
    expected = Runner(with_tensors(tiny(name), tmp_path / "a.gguf", {weight: smaller})).logits([3, 5, 8])
    scales = {
        f"blk.0.{tensor}.scale": np.array([0.25], np.float32),
        f"blk.0.{tensor}.input_scale": np.ones(1, np.float32),
    }
    close(Runner(with_tensors(tiny(name), tmp_path / "b.gguf", scales)).logits([3, 5, 8]), expected, 1e-5)


def test_a_scale_that_cannot_be_applied_is_rejected_by_name(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    scales = {"blk.0.ffn_gate_exps.scale": np.full(8, 0.25, np.float32)}
    with pytest.raises(UnsupportedError, match=r"blk\.0\.ffn_gate_exps\.scale"):
        load_model(GGUFReader(with_tensors(tiny("qwen3moe"), tmp_path / "a.gguf", scales)))


@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
@pytest.mark.parametrize("name", ["gemma4-moe", "qwen3moe"])
def test_gates_and_ups_of_experts_may_be_one_tensor(tmp_path: Path, name: str, dtype: str) -> None:
    """llama.cpp's converter writes them this way for Gemma 4."""
    write_checkpoint(tmp_path / name, name)
    convert(tmp_path / name, tmp_path / "two.gguf", dtype)
    reader = GGUFReader(tmp_path / "two.gguf")
    with GGUFWriter(tmp_path / "one.gguf", reader.metadata.text("general.architecture")) as writer:
        for key in reader.metadata:
            kind = reader.metadata.type_of(key)
            value = reader.metadata.strings(key) if kind == "string[]" else reader.metadata[key]
            writer.set(key, value, kind)  # type: ignore[arg-type]
        tensors = {}
        for info in reader.tensors:
            values, shape = reader.tensor(info.name).numpy(), tuple(info.shape)
            if "ffn_up_exps" in info.name:
                continue
            if "ffn_gate_exps" in info.name:
                up = reader.tensor(info.name.replace("gate", "up")).numpy()
                values, shape = np.concatenate([values, up], 1), (shape[0], 2 * shape[1], shape[2])
            tensors[info.name.replace("gate_exps", "gate_up_exps")] = (info.dtype, shape, values)
        for tensor, (kind, shape, _) in tensors.items():
            writer.add_tensor(tensor, kind, shape)
        for tensor, (_, _, values) in tensors.items():
            writer.write(tensor, values)
    ids = list(range(3, 40))
    assert np.array_equal(Runner(tmp_path / "one.gguf").logits(ids), Runner(tmp_path / "two.gguf").logits(ids))


def check_prompts(runner: Runner, stored: dict[str, npt.NDArray[np.generic]], prefix: str) -> None:
    for i in range(24):
        ids = stored[f"{prefix}.prompt.{i}"].tolist()
        expected = stored[f"{prefix}.greedy.{i}"].tolist()
        assert len(expected) == 48
        assert runner.greedy(ids, 48) == expected, f"prompt {i}"
        if f"{prefix}.logits.{i}" in stored:
            close(runner.logits(ids)[-1], stored[f"{prefix}.logits.{i}"])  # type: ignore[arg-type]


@pytest.mark.whole
@pytest.mark.slow  # random models run the same native code
@pytest.mark.parametrize("name", ["tiny-chat", "tiny-draft"])
def test_trained_models_equal_transformers(shared: Path, tmp_path: Path, name: str) -> None:
    convert(shared / "models" / name, tmp_path / "x.gguf", "f32")
    check_prompts(Runner(tmp_path / "x.gguf"), dict(np.load(REFERENCES / "trained.npz")), name)


@pytest.mark.slow
def test_packaged_model_equals_transformers(tmp_path: Path) -> None:
    """Both use the dequantized weights of the package's Q8_0 file."""
    reader = GGUFReader(PACKAGED)
    with GGUFWriter(tmp_path / "x.gguf", "qwen3") as writer:
        for key in reader.metadata:
            kind = reader.metadata.type_of(key)
            if key.startswith("qwen3.") or key == "tokenizer.ggml.tokens":
                value = reader.metadata.strings(key) if kind == "string[]" else reader.metadata[key]
                writer.set(key, value, kind)  # type: ignore[arg-type]
        for info in reader.tensors:
            writer.add_tensor(info.name, "f32", info.shape)
        for info in reader.tensors:
            writer.write(info.name, dequantize(reader.tensor(info.name)))
    check_prompts(Runner(tmp_path / "x.gguf"), dict(np.load(REFERENCES / "package.npz")), "package")


def test_packaged_model_is_close_to_its_reference() -> None:
    """Q8_0 products also round activations to 8 bits, which costs up to a few percent of a logit."""
    stored, runner = np.load(REFERENCES / "package.npz"), Runner(PACKAGED)
    for i in range(0, 24, 3):
        expected = stored[f"package.logits.{i}"]
        found = runner.logits(stored[f"package.prompt.{i}"].tolist())[-1]
        assert np.abs(found - expected).max() <= 0.05 * np.abs(expected).max()


# One hostile change of the metadata causes a typed error, or the model still loads; it never crashes.
HOSTILE_VALUES = [(0, "u32"), (1, "u32"), (3, "u32"), (2**31 - 1, "u32"), (2**32 - 1, "u32"), (2**63, "u64"), (-1, "i32"), (0.0, "f32"),
                  (float("nan"), "f32"), (float("inf"), "f32"), ("x", "string"), (True, "bool"), ([1, 2], "u32[]"), ([], "u32[]"), (["a"], "string[]"), (None, "")]  # fmt: skip


# The only native code involved reads and writes files.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if i % 9 else name for i, name in enumerate(CONFIGS)]
)
def test_hostile_metadata_is_rejected_or_loads(tiny: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    reader = GGUFReader(tiny(name))
    arch = reader.metadata.text("general.architecture")
    keys = [key for key in reader.metadata if key.startswith(f"{arch}.")]
    refused = 0
    part = crc32(name.encode())  # an eighth of the values; other architectures test the others
    for i, changed in enumerate(keys):
        for hostile in HOSTILE_VALUES[(i + part) % 8 :: 8]:
            with GGUFWriter(tmp_path / "x.gguf", arch) as writer:
                for key in keys:
                    value, kind = hostile if key == changed else (reader.metadata[key], reader.metadata.type_of(key))
                    if value is not None:
                        writer.set(key, value, kind)  # type: ignore[arg-type]
                for info in reader.tensors:
                    writer.add_tensor(info.name, info.dtype, info.shape)
                for info in reader.tensors:
                    writer.write(info.name, reader.tensor(info.name).numpy())
            try:
                load_model(GGUFReader(tmp_path / "x.gguf"))
            except (LoadError, UnsupportedError, ValueError):
                refused += 1
    assert refused > len(keys) // 2


def rewritten(
    reader: GGUFReader,
    out: Path,
    change: Callable[[str, tuple[int, ...]], tuple[str, tuple[int, ...]] | None],
    *,
    arch: str | None = None,
) -> None:
    """Write the file with tensors renamed, reshaped or dropped."""
    with GGUFWriter(out, arch or reader.metadata.text("general.architecture")) as writer:
        for key in reader.metadata:
            if key.split(".")[0] not in ("general", "tokenizer"):
                writer.set(key, reader.metadata[key], reader.metadata.type_of(key))  # type: ignore[arg-type]
        changes = {info.name: change(info.name, info.shape) for info in reader.tensors}
        for info in reader.tensors:
            if (now := changes[info.name]) is not None:
                writer.add_tensor(now[0], info.dtype, now[1])
        for info in reader.tensors:
            if (now := changes[info.name]) is not None:
                writer.write(now[0], reader.tensor(info.name).numpy())


def test_tensors_must_fit_and_all_be_used(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    reader, out = GGUFReader(tiny("qwen3")), tmp_path / "x.gguf"
    for missing in [info.name for info in reader.tensors]:
        rewritten(reader, out, lambda name, shape, missing=missing: None if name == missing else (name, shape))  # type: ignore[misc]
        with pytest.raises(LoadError, match=missing.replace(".", r"\.")):
            load_model(GGUFReader(out))
        rewritten(
            reader,
            out,
            lambda name, shape, odd=missing: (
                (name, shape[::-1] if len(shape) > 1 else (2, shape[0] // 2)) if name == odd else (name, shape)
            ),
        )  # type: ignore[misc]
        if (
            reader.tensor_info(missing).shape[0] != reader.tensor_info(missing).shape[-1]
            or len(reader.tensor_info(missing).shape) == 1
        ):
            with pytest.raises((LoadError, ValueError)):
                load_model(GGUFReader(out))
    rewritten(
        reader,
        out,
        lambda name, shape: (name, shape) if name != "blk.1.attn_q_norm.weight" else ("blk.1.extra.weight", shape),
    )
    with pytest.raises(LoadError, match=r"blk\.1\.attn_q_norm"):
        load_model(GGUFReader(out))


def test_leftover_tensors_are_an_error(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    reader, out = GGUFReader(tiny("llama")), tmp_path / "x.gguf"
    with GGUFWriter(out, "llama") as writer:
        for key in reader.metadata:
            if key.startswith("llama."):
                writer.set(key, reader.metadata[key], reader.metadata.type_of(key))  # type: ignore[arg-type]
        names = [info.name for info in reader.tensors]
        for name in names:
            writer.add_tensor(name, "f32", reader.tensor_info(name).shape)
        writer.add_tensor("blk.0.mystery.weight", "f32", (4,))
        for name in names:
            writer.write(name, reader.tensor(name).numpy())
        writer.write("blk.0.mystery.weight", bytes(16))
    with pytest.raises(LoadError, match=r"blk\.0\.mystery\.weight"):
        load_model(GGUFReader(out))


def test_unknown_architectures_are_rejected_with_the_list(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    rewritten(GGUFReader(tiny("llama")), tmp_path / "x.gguf", lambda name, shape: (name, shape), arch="mystery")
    with pytest.raises(UnsupportedError, match=f"'mystery'.* {', '.join(architectures())}"):
        load_model(GGUFReader(tmp_path / "x.gguf"))


def test_a_vector_must_be_f32() -> None:
    tensor = Tensor.from_numpy(np.ones(4, np.float16))
    tracer = graph.Tracer([graph.CacheSpec(n_kv_head=1, head_dim=4)])
    embedding = graph.Weight("e", Tensor.from_numpy(np.ones((N_VOCAB, 4), np.float32)))
    with pytest.raises(ValueError, match=r"\bw\b.* f16"):
        graph.rms_norm(graph.embed(tracer.tokens, embedding), graph.Weight("w", tensor), 1e-5)
