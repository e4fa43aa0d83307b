"""The encoders of images and sounds of a checkpoint folder, as the ``mmproj`` file that llama.cpp and Quire read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from ..._native.core import DType, Tensor
from ..._native.quant import quantize
from ...errors import LoadError, UnsupportedError
from ...files.folders import MISTRAL_PARAMS, is_mistral_folder
from ...files.gguf import GGUFWriter
from ...models.media import media_checkpoints_of
from ...models.media.checkpoint import MediaCheckpoint, image_keys, row_of
from ...tokenizer.tekken import TEKKEN, special_texts
from ..formats import StoredCheckpoint
from ..mapping import Fields, Source, Target, flattened, read_config, read_json
from ..mapping.tensors import planned
from ..reading.mistral import image_settings
from .made_reader import MadeReader, dtype_in_file
from .run import DTYPES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ProjectorReader", "convert_projector"]

ARCH = "clip"


class _Encoder:
    """One encoder of a checkpoint: its keys and tensors."""

    def __init__(self, folder: Path, checkpoint: StoredCheckpoint, whole: Fields, mapping: MediaCheckpoint) -> None:
        self.mapping, self.checkpoint = mapping, checkpoint
        self.config = whole.inner(mapping.config).filled(mapping.defaults)
        settings, videos = _processor_settings(folder), _video_settings(folder)
        mapping.check_settings(settings)
        self.keys: list[tuple[str, str, object]] = [
            *((name, key.kind, key.read(self.config)) for name, key in mapping.keys.items()),
            *((name, key.kind, key.read(whole)) for name, key in mapping.whole_keys.items()),
            *((name, key.kind, key.read(settings)) for name, key in mapping.settings.items()),
            *((name, key.kind, key.read(videos)) for name, key in mapping.video_settings.items()),
        ]
        if not mapping.hears:
            self.keys += image_keys(settings, limits_pixels=mapping.limits_pixels)
        roots = {root: self._spelling(spellings) for root, spellings in mapping.roots.items()}
        table = {ours: _spelled(Source.of(theirs), roots) for ours, theirs in mapping.tensors(whole).items()}
        table |= {ours: self._embedding(_token_id(folder, text)) for ours, text in mapping.token_rows.items()}
        n_layer = max(
            (value for name, _, value in self.keys if name.endswith(".block_count") and isinstance(value, int)),
            default=0,
        )
        self.targets = {target.name: target for target in planned(table, self.checkpoint, n_layer)}
        used = {source for target in self.targets.values() for source in target.sources}
        patterns = mapping.unused(whole) if callable(mapping.unused) else mapping.unused
        unused = sorted(
            name
            for name in self.checkpoint
            if name.startswith(tuple(roots.values()))
            and name not in used
            and not any(fnmatchcase(name, f"*{pattern}") for pattern in patterns)
        )
        if unused:
            raise UnsupportedError(f"[convert] unsupported tensor '{unused[0]:.80}' of the encoder")

    def _spelling(self, spellings: tuple[str, ...]) -> str:
        for spelling in spellings:
            if any(name.startswith(spelling) for name in self.checkpoint):
                return spelling
        raise LoadError(f"[convert] the checkpoint has no tensors of an encoder ({spellings[0]}*)")

    def _embedding(self, token: int) -> Source:
        """Return the row of a token in the language model's token embedding."""
        name = next((name for name in self.checkpoint if name.endswith("embed_tokens.weight")), None)
        if name is None or token >= self.checkpoint.shape(name)[0]:
            raise LoadError(f"[convert] the checkpoint has no embedding of token {token}")
        return Source((name,), row_of(token))

    def shape(self, target: Target) -> tuple[int, ...]:
        import numpy as np

        shape: tuple[int, ...] = self.checkpoint.shape(target.sources[0])
        return shape if target.change is None else target.change(np.zeros(shape, np.float32), self.config).shape

    def values(self, target: Target) -> npt.NDArray[np.float32]:
        (source,) = target.sources
        values = self.checkpoint.values(source)
        return values if target.change is None else target.change(values, self.config)


class _Conversion:
    """The encoders of a checkpoint."""

    def __init__(self, folder: Path, dtype: str) -> None:
        if dtype not in DTYPES:
            raise UnsupportedError(f"[convert] unsupported dtype '{dtype}': expected one of {', '.join(DTYPES)}")
        self.file_type, self._wanted = DTYPES[dtype], DType(dtype)
        config = flattened(read_config(folder))
        names = Fields("config.json", config).items("architectures")
        for part in ("thinker_config", "vlm_config"):  # the part that reads images and text
            if isinstance(inner := config.get(part), Mapping):
                config = {**inner, "architectures": names}
        whole, checkpoint = Fields("config.json", config), StoredCheckpoint(folder, None)
        mappings = media_checkpoints_of(str(names[0]) if names else "", whole)
        self.encoders = [_Encoder(folder, checkpoint, whole, mapping) for mapping in mappings]
        self._owners = {name: encoder for encoder in self.encoders for name in encoder.targets}

    def _keys(self) -> Iterator[tuple[str, str, object]]:
        """Return what stands before the keys of the encoders, and these, without the prefix of all of them."""
        sections = ["audio" if encoder.mapping.hears else "vision" for encoder in self.encoders]
        for section in sections:
            yield f"has_{section}_encoder", "bool", True
        projectors = [encoder.mapping.projector for encoder in self.encoders]
        if len(set(projectors)) == 1:
            yield "projector_type", "string", projectors[0]
        else:
            for section, projector in zip(sections, projectors, strict=True):
                yield f"{section}.projector_type", "string", projector
        for encoder in self.encoders:
            yield from encoder.keys

    def announce(self, writer: GGUFWriter, name: str) -> dict[str, DType]:
        """Write all keys and declare all tensors; return the tensors' dtypes."""
        writer.set("general.type", "mmproj")
        writer.set("general.name", name)
        writer.set("general.file_type", self.file_type, "u32")
        writer.set("general.quantization_version", 2, "u32")
        for key, kind, value in self._keys():
            if value is not None:
                writer.set(f"{ARCH}.{key}", value, kind)
        dtypes = {}
        for encoder in self.encoders:
            for target in encoder.targets.values():
                shape = encoder.shape(target)
                is_f16 = any(fnmatchcase(target.name, pattern) for pattern in encoder.mapping.f16)
                dtypes[target.name] = DType("f16") if is_f16 else dtype_in_file(target, shape, self._wanted)
                writer.add_tensor(target.name, dtypes[target.name], shape)
        return dtypes

    def data(self, name: str, dtype: DType) -> Iterator[npt.NDArray[np.generic]]:
        encoder = self._owners[name]
        yield quantize(encoder.values(encoder.targets[name]), dtype).numpy()


def _spelled(source: Source, roots: Mapping[str, str]) -> Source:
    for root, spelling in roots.items():
        if source.names and source.names[0].startswith(root):
            return source.moved(root, spelling)
    return source


def _processor_settings(folder: Path) -> Fields:
    """Return the settings of the processor; empty where the folder has none."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            settings = Fields(name, read_json(folder / name))
            return settings.inner("image_processor") if settings.has("image_processor") else settings
    if is_mistral_folder(folder):
        return Fields(MISTRAL_PARAMS, image_settings(read_json(folder / MISTRAL_PARAMS)))
    return Fields("preprocessor_config.json", {})


def _video_settings(folder: Path) -> Fields:
    name = "video_preprocessor_config.json"
    return Fields(name, read_json(folder / name) if (folder / name).is_file() else {})


def _token_id(folder: Path, text: str) -> int:
    """Return the id of an added token."""
    if not (folder / "tokenizer.json").is_file() and (folder / TEKKEN).is_file():
        marks = special_texts(folder / TEKKEN)
        if text in marks:
            return marks.index(text)
        raise LoadError(f"[convert] the tokenizer has no token '{text}'")
    added = read_json(folder / "tokenizer.json").get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and token.get("content") == text and isinstance(token.get("id"), int):
            return int(token["id"])
    raise LoadError(f"[convert] the tokenizer has no token '{text}'")


def convert_projector(folder: str | os.PathLike[str], out: str | os.PathLike[str], dtype: str = "f16") -> None:
    """Write the encoders of images and sounds of the checkpoint in ``folder`` as the ``mmproj`` file ``out``.

    Args:
        folder: A checkpoint in Hugging Face's form.
        out: The file, which appears when it is complete.
        dtype: Of matrices: f32, f16, bf16 or q8_0.  Vectors are f32.

    Raises:
        LoadError: The folder is no sound checkpoint.
        UnsupportedError: The class, a tensor or the dtype is unknown.
    """
    path = Path(folder)
    todo = _Conversion(path, dtype)
    with GGUFWriter(out, ARCH) as writer:
        dtypes = todo.announce(writer, path.resolve().name)
        for target in dtypes:
            for data in todo.data(target, dtypes[target]):
                writer.write(target, data)


class ProjectorReader(MadeReader):
    """A checkpoint folder, read as the file that ``convert_projector`` would write; see ``CheckpointReader``."""

    def __init__(self, folder: Path, scratch: Path, dtype: str) -> None:
        self._todo = _Conversion(folder, dtype)
        writer = GGUFWriter(scratch / f"mmproj-{folder.resolve().name}.gguf", ARCH)
        try:
            self._dtypes = self._todo.announce(writer, folder.resolve().name)
            super().__init__(writer)
        except BaseException:
            writer.abort()
            raise

    def tensor(self, name: str) -> Tensor:
        """Return the tensor, converted now."""
        return self.made(name, self._todo.data(name, self._dtypes[name]))
