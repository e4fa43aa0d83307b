"""Convert a checkpoint, tensor by tensor."""

from __future__ import annotations

import json
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..._native.core import DType, Tensor
from ..._native.quant import quantize
from ...errors import LoadError, QuireError, UnsupportedError
from ...files.gguf import GGUFReader, GGUFWriter
from ...models import checkpoint_of, load_model
from ..formats import StoredCheckpoint, with_old_quantization
from ..mapping import Entry, Fields, Target, flattened, head_class, read_config, reference_of, transposed
from ..reading.qwen3_reranker import TEMPLATE
from .class_names import class_of
from .generation import write_sampling
from .made_reader import MadeReader, Origin, dtype_in_file
from .packing import Packer
from .reranker import is_reranker, reranker_entries, reranker_head
from .sentence import read_sentences
from .vectors import logit_entries
from .vocabulary import write_vocabulary

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..mapping import Array, Checkpoint

DTYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}  # values of GGUF's general.file_type
_LOG = logging.getLogger("quire")
_QUANTIZATION = ("quantization_config", "compression_config")  # the name in config.json, and its former name
# Describes how matrices that another program quantized were converted.
QUANTIZATION_KEY = "quire.checkpoint.quantization"
# Lists the fields of config.json that were ignored because transformers does not know them either.
IGNORED_KEY = "quire.checkpoint.ignored_fields"
Progress = Callable[[int, int, str], None]  # number of tensors done, number of all tensors, name
_HALVES = {"f16", "bf16"}
HEAD, EMBEDDING = "output.weight", "token_embd.weight"


@contextmanager
def possible(what: str) -> Iterator[None]:
    """Turn arithmetic errors caused by the configuration's numbers into a LoadError that names ``what``."""
    try:
        yield
    except QuireError:
        raise
    except (ArithmeticError, MemoryError, ValueError) as error:
        raise LoadError(f"[convert] {what} do not fit together: {error}") from None


def merged(config: Mapping[str, object], changed: Mapping[str, object]) -> dict[str, object]:
    """Return config.json with other fields: as in vLLM, those of inner configurations are replaced one by one."""
    found = dict(config)
    for name, value in changed.items():
        inner = config.get(name) if name.endswith("_config") else None
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        found[name] = merged(inner, value) if both else value  # type: ignore[arg-type]
    return found


def _mapping_of(name: str, values: Mapping[str, object]) -> Checkpoint:
    """Return how checkpoints of a class are converted; one that Quire has no file for is read as transformers does."""
    try:
        return checkpoint_of(name)
    except UnsupportedError as unknown:
        from .fallback import fallback

        return fallback(values, name, unknown)


class _Conversion:
    """The conversion of one checkpoint."""

    def __init__(self, source: Path, overrides: str | None = None) -> None:
        self.source = source
        stored = read_config(source)
        changed: dict[str, object] = {} if overrides is None else json.loads(overrides)
        self.values = with_old_quantization(flattened(merged(stored, changed)), source)
        head = head_class(self.values)
        name, self._may_lack_head = class_of(self.values) if head is None else (head, False)
        # Heads are not transformers' models, so that no table tells which fields have no effect.
        reference = reference_of(name) if head is None else None
        self.whole = Fields("config.json", self.values, reference=reference)
        self.mapping = _mapping_of(name, self.values).chosen(self.whole)
        self.config = self.mapping.config_of(self.whole)
        self.arch = self.mapping.arch_of(self.config)
        with possible("the numbers of config.json"):
            self.entries = list(self.mapping.entries(self.config))
        self.sentences = read_sentences(source, self.whole)
        if self.sentences.is_masked:
            self.mapping = self.mapping.with_masked_head(name)
        known = {key for key, _, _ in self.entries}
        self.entries += [entry for entry in self.sentences.keys if entry[0] not in known]
        self.is_reranker = is_reranker(source, self.whole)
        if self.is_reranker:
            self.entries += reranker_entries()
        self.checkpoint = StoredCheckpoint(source, self._quantization())
        if n := self.mapping.n_predicting(self.config, self.checkpoint):
            self.entries = self.mapping.with_predicting(self.entries, n)
        self.numbers = list(self._numbers())
        if self.arch in ("clip-text", "siglip-text"):
            self.sentences.own += logit_entries(self.checkpoint)
        with possible("the numbers of config.json"):
            targets = self.mapping.targets(self.config, self.entries, self.checkpoint)
        if self.sentences.is_masked and not any(target.name == "mlm.output.bias" for target in targets):
            raise LoadError("[convert] sparse vectors need a head for masked tokens, which the checkpoint lacks")
        targets = self._without_copies(self._with_head(targets))
        self._check_vocabulary(targets)
        targets += self.sentences.targets
        if self.is_reranker:
            targets.append(reranker_head(source, partial(self._head_rows, targets)))
        self.ignored = self.mapping.refuse_unread(self.whole)
        if unknown := sorted({*changed} & {*self.ignored}):
            raise UnsupportedError(f"[convert] unknown field '{unknown[0]:.80}' of config.json in hf_overrides")
        packer = Packer(self.checkpoint, self.config)
        packed = {target.name: packer.packed(target) for target in targets}
        self.packed = {name: found for name, found in packed.items() if found is not None}
        scales = [target for target in targets if target.name.endswith(".scale")]
        self.factors = [*self._factors(), *scales]
        self.targets = [*self.factors, *(target for target in targets if target not in scales)]

    def _quantization(self) -> Fields | None:
        """Return the quantization settings of the whole configuration, or else of the text model."""
        for config in (self.whole, self.config):
            for name in _QUANTIZATION:
                if config.has(name):
                    return config.inner(name)
        return None

    def _factors(self) -> Iterator[Target]:
        """Yield tensors with the factors that products with packed matrices are multiplied by."""
        import numpy as np

        for name, packed in self.packed.items():
            if packed.factor != 1.0:
                yield Target(f"{name.removesuffix('.weight')}.scale", (), made=np.array([packed.factor], np.float32))

    def _numbers(self) -> Iterator[Entry]:
        """Yield keys with numbers that the checkpoint stores as tensors of one number."""
        for key, source in self.mapping.numbers.items():
            if "{i}" not in source:
                yield key, "f32", float(self.checkpoint.values(source).item())
                continue
            n_layer = self.config.integer("num_hidden_layers")
            names = [source.replace("{i}", str(i)) for i in range(n_layer)]
            yield key, "f32[]", [float(self.checkpoint.values(name).item()) for name in names]

    def _with_head(self, targets: list[Target]) -> list[Target]:
        """Leave out the head if it is the embedding's matrix.  Raises LoadError if it is neither stored nor tied."""
        by_name = {target.name: target for target in targets}
        head = by_name.get(HEAD)
        if "output" not in self.mapping.tensors or self.mapping.is_head:
            return targets
        if head is None:
            if not self._may_lack_head and not self.mapping.is_tied(self.whole):
                raise LoadError("[convert] the checkpoint has no head and does not tie it to the embedding")
            return targets
        if head.change is not None or not self.mapping.is_tied(self.whole):
            return targets
        if EMBEDDING not in by_name:  # the tied matrix was saved under the head's name
            return [replace(target, name=EMBEDDING) if target is head else target for target in targets]
        if not self._equal(head.sources[0], by_name[EMBEDDING].sources[0]):
            return targets
        return [target for target in targets if target is not head]

    def _check_vocabulary(self, targets: list[Target]) -> None:
        """Raise LoadError if the model has fewer rows than tokens, before rows without a token get one."""
        embedding = next((target for target in targets if target.name == EMBEDDING), None)
        if embedding is None or self.mapping.is_head:
            return
        n_vocab, n_rows = self.config.integer("vocab_size"), self.shape(embedding)[0]
        if n_vocab > n_rows:
            source = embedding.sources[0]
            raise LoadError(f"[convert] vocab_size is {n_vocab}, but the checkpoint's '{source}' has {n_rows} rows")

    def _without_copies(self, targets: list[Target]) -> list[Target]:
        """Leave out the copies of embedding and head in layers that predict later tokens."""
        by_name = {target.name: target for target in targets}
        embedding = by_name.get(EMBEDDING)
        of_model = {"embed_tokens": embedding, "shared_head_head": by_name.get(HEAD, embedding)}

        def is_copy(target: Target) -> bool:
            _, _, part = target.name.partition(".nextn.")
            own = of_model.get(part.removesuffix(".weight"))
            return own is not None and self._equal(target.sources[0], own.sources[0])

        return [target for target in targets if not is_copy(target)]

    def _head_rows(self, targets: list[Target]) -> Array:
        """Return the output matrix, which may be the embedding's."""
        by_name = {target.name: target for target in targets}
        (values,) = self.pieces(by_name.get(HEAD, by_name[EMBEDDING]))
        return values

    def _equal(self, one: str, other: str) -> bool:
        if self.checkpoint.shape(one) != self.checkpoint.shape(other):
            return False
        if one in self.checkpoint.matrices or other in self.checkpoint.matrices:
            return bool((self.checkpoint.values(one) == self.checkpoint.values(other)).all())
        mine, theirs = self.checkpoint[one].numpy(), self.checkpoint[other].numpy()
        return all((mine[i : i + 1024] == theirs[i : i + 1024]).all() for i in range(0, len(mine), 1024))

    def shape(self, target: Target) -> tuple[int, ...]:
        """Return the shape of the tensor that is written.  A change is tried on zeros."""
        import numpy as np

        if target.made is not None:
            return tuple(target.made.shape)
        shapes = [self.checkpoint.shape(source) for source in target.sources]
        if target.packing is not None:
            return target.packing.shape(target.name, shapes)
        if target.change is transposed and any(source in self.checkpoint.matrices for source in target.sources):
            raise UnsupportedError(
                f"[convert] unsupported quantized tensor '{target.sources[0]}': layers of its kind store [in, out]"
            )
        if target.change is not None:
            with possible(f"the configuration and '{target.sources[0]}' of {shapes[0]}"):
                shapes = [target.change(np.zeros(shape, np.float32), self.config).shape for shape in shapes]
        if len({shape if target.stacked or target.multiplied else shape[1:] for shape in shapes}) != 1:
            found = sorted(set(shapes))
            raise LoadError(f"[convert] the tensors of '{target.name}' have shapes {found}: expected one shape")
        if target.stacked:
            return (len(shapes), *shapes[0])
        if target.multiplied:
            return shapes[0]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def data(self, target: Target, dtype: DType) -> Iterator[npt.NDArray[np.generic]]:
        """Yield the tensor as stored in the file, one part at a time."""
        if target.packing is not None:
            blocks, exponents = (self.checkpoint.bytes_of(source) for source in target.sources)
            if blocks.ndim == 3:
                yield target.packing.packed(blocks, exponents)
            else:
                yield from map(target.packing.packed, blocks, exponents)
        elif target.name in self.packed:
            yield from self.packed[target.name].data()
        elif target.made is not None and target.made.dtype.kind == "i":
            yield target.made
        else:
            for piece in self.pieces(target):
                yield quantize(piece, dtype).numpy()

    def pieces(self, target: Target) -> Iterator[Array]:
        if target.made is not None:
            yield cast("Array", target.made)
            return
        changed = (self._changed(target, source) for source in target.sources)
        if target.multiplied:
            yield reduce(mul, changed)
        else:
            yield from changed

    def _changed(self, target: Target, source: str) -> Array:
        values = self.checkpoint.values(source)
        return target.change(values, self.config) if target.change is not None else values

    def dtype(self, target: Target, shape: tuple[int, ...], wanted: DType) -> DType:
        """Return the dtype of a tensor: that of ``dtype_in_file``, with these exceptions.

        Packed tensors keep their type, and a tensor that its quantization library dequantizes to 16 bits keeps that
        16-bit type.
        """
        if target.packing is not None:
            return DType(target.packing.dtype)
        if target.name in self.packed:
            return DType(self.packed[target.name].dtype)
        if target.made is not None and target.made.dtype.kind == "i":
            return DType(f"i{8 * target.made.dtype.itemsize}")
        of_library = {
            self.checkpoint.matrices[name].dtype for name in target.sources if name in self.checkpoint.matrices
        }
        if str(wanted) in _HALVES and len(of_library) == 1 and of_library <= _HALVES:
            wanted = DType(of_library.pop())
        return dtype_in_file(target, shape, wanted)

    def fate(self, dtypes: dict[str, DType], shapes: dict[str, tuple[int, ...]]) -> str:
        """Describe how the quantized matrices are stored, and their size; empty if there are none."""
        if not self.checkpoint.matrices:
            return ""
        kept, other, n_bytes = Counter[str](), Counter[str](), 0
        for target in self.targets:
            n = sum(source in self.checkpoint.matrices for source in target.sources)
            if n:
                dtype, shape = dtypes[target.name], shapes[target.name]
                (kept if target.name in self.packed else other)[str(dtype)] += n
                n_bytes += math.prod(shape[:-1]) * dtype.row_bytes(shape[-1])
        words = [f"{n} kept exactly as {dtype}" for dtype, n in kept.items()]
        words += [f"{n} dequantized to {dtype}" for dtype, n in other.items()]
        stored = self.checkpoint.stored_bytes
        n = len(self.checkpoint.matrices)
        return f"{self.checkpoint.method}, {n} matrices: {', '.join(words)}; {stored} bytes became {n_bytes}"


def shortened(names: Sequence[str], most: int = 8) -> str:
    """Join the first ``most`` names, followed by the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"{name!s:.80}" for name in names[:most]) + more


def convert(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], dtype: str = "bf16", progress: Progress | None = None
) -> None:
    """Write the checkpoint in ``folder`` as the GGUF file ``out``.

    ``dtype`` is the type of matrices: f32, f16, bf16 or q8_0.  Vectors are f32.  A matrix that another program
    quantized stays quantized if a GGUF type represents it exactly (docs/quantization.md).  One tensor is in memory at a
    time, and ``out`` appears only when it is complete.  Before any data is written, the architecture checks that the
    file has all keys and tensors it needs.  Raises LoadError for a malformed checkpoint, UnsupportedError for an
    unknown architecture, field, tokenizer or dtype, CapacityError if the disk is full.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(f"[convert] unknown dtype '{dtype}': expected {', '.join(DTYPES)}")
    todo = _Conversion(Path(folder))
    if todo.mapping.is_head:
        raise UnsupportedError("[convert] the checkpoint is a head, not a model: open it as the draft of a model")
    with GGUFWriter(out, todo.arch) as writer:
        dtypes = _announce(writer, todo, dtype)
        load_model(GGUFReader(writer.reserve()), predicts=True)
        for done, target in enumerate(todo.targets):
            if progress is not None:
                progress(done, len(todo.targets), target.name)
            if done >= len(todo.factors):
                for data in todo.data(target, dtypes[target.name]):
                    writer.write(target.name, data)
        if progress is not None:
            progress(len(todo.targets), len(todo.targets), "")


def _announce(writer: GGUFWriter, todo: _Conversion, dtype: str) -> dict[str, DType]:
    """Write everything that precedes the data, and return the dtype of each tensor."""
    _write_keys(writer, todo, dtype)
    dtypes, shapes = {}, {}
    for target in todo.targets:
        shape = shapes[target.name] = todo.shape(target)
        dtypes[target.name] = todo.dtype(target, shape, DType(dtype))
        writer.add_tensor(target.name, dtypes[target.name], shape)
        if target.name == "token_types.weight":  # llama.cpp does not open an encoder without this key
            writer.set("tokenizer.ggml.token_type_count", shape[0], "u32")
    if fate := todo.fate(dtypes, shapes):
        writer.set(QUANTIZATION_KEY, fate)
        _LOG.warning("[convert] %s", fate)
    # The model is opened before the other data is written, and needs these.
    for target in todo.factors:
        for data in todo.data(target, dtypes[target.name]):
            writer.write(target.name, data)
    return dtypes


class CheckpointReader(MadeReader):
    """A checkpoint folder, read as the file that ``convert`` would write, without writing its data.

    Tensors are converted on request.  Keys and names are written to a file in the folder ``scratch``, which contains no
    data and is removed at the end of ``with``.  Raises what ``convert`` raises.
    """

    def __init__(self, folder: Path, scratch: Path, dtype: str, overrides: str | None = None) -> None:
        """``overrides``: an object of JSON with other fields of config.json."""
        self._todo = _Conversion(folder, overrides)
        self._targets = {target.name: target for target in self._todo.targets}
        writer = GGUFWriter(scratch / f"{folder.resolve().name}.gguf", self._todo.arch)
        try:
            self._dtypes = _announce(writer, self._todo, dtype)
            super().__init__(writer)
        except BaseException:
            writer.abort()
            raise

    @property
    def source_files(self) -> list[Path]:
        """The files in the checkpoint's folder."""
        return [path for path in self._todo.source.iterdir() if path.is_file()]

    @property
    def origin(self) -> Origin:
        """How the checkpoint is converted."""
        return Origin(self._todo.mapping, self._todo.config, self._todo.targets)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor, from the checkpoint's mapped file if that has the same bytes, else newly allocated."""
        info, target = self.tensor_info(name), self._targets[name]
        if (
            len(target.sources) == 1
            and target.packing is None
            and target.change is None
            and target.made is None
            and not target.stacked
            and target.sources[0] not in self._todo.checkpoint.matrices
        ):
            stored = self._todo.checkpoint[target.sources[0]]
            if stored.dtype == info.dtype and stored.shape == info.shape:
                return stored
        return self.made(name, self._todo.data(target, self._dtypes[name]))


def _write_keys(writer: GGUFWriter, todo: _Conversion, dtype: str) -> None:
    writer.set("general.name", todo.source.resolve().name)
    writer.set("general.file_type", DTYPES[dtype], "u32")
    writer.set("general.quantization_version", 2, "u32")
    if todo.ignored:
        writer.set(IGNORED_KEY, todo.ignored, "string[]")
        _LOG.warning(
            "[convert] ignoring fields of config.json that transformers does not know: %s", shortened(todo.ignored)
        )
    for key, kind, value in todo.entries:
        writer.set(f"{todo.arch}.{key}", value, kind)
    for key, kind, value in todo.numbers:
        writer.set(key, value, kind)
    for key, kind, value in todo.sentences.own:
        writer.set(key, value, kind)
    if todo.mapping.is_head:
        return
    write_vocabulary(writer, todo.source, todo.config.integer("vocab_size"))
    if todo.is_reranker:
        writer.set("tokenizer.chat_template.rerank", TEMPLATE)
    write_sampling(writer, todo.source)
