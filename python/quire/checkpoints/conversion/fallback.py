"""Open checkpoints of classes that Quire has no file for, as transformers' own code computes them.

The class's structure is read once (``checkpoints.structure``), checked against the class's logits, and kept in a cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._native.core import DType, find_device
from ..._native.graph import Executor
from ..._native.quant import quantize
from ...errors import LoadError, UnsupportedError
from ...files.gguf import GGUFReader, GGUFWriter
from ...hub.stores import own_cache
from ...models import load_model
from ..mapping import Checkpoint, Entry, Fields, Target
from ..structure import REVISION, Document

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...models.registry import LoadedModel
    from ..mapping import Array
    from ..structure.finding import Sample

_LOG = logging.getLogger("quire")
_NEEDED = ("transformers", "torch")
TOLERANCE = 1e-4  # for logits, relative to the largest
_BLOCK = 32


@dataclass(frozen=True)
class DescribedCheckpoint(Checkpoint):
    """A mapping that was found out."""

    document: Document | None = None

    @property
    def found(self) -> Document:
        assert self.document is not None
        return self.document

    def config_of(self, whole: Fields) -> Fields:
        return whole

    def entries(self, config: Fields) -> Iterator[Entry]:
        sizes = self.found.sizes
        yield "context_length", "u32", sizes["n_ctx"]
        yield "embedding_length", "u32", sizes["dim"]
        yield "block_count", "u32", sizes["n_layer"]
        yield "program", "string", json.dumps(self.found.program)
        config.filled({"vocab_size": sizes["n_vocab"], "num_hidden_layers": sizes["n_layer"]})

    def refuse_unread(self, whole: Fields) -> list[str]:
        return []  # transformers' code read them all

    def is_tied(self, whole: Fields) -> bool:
        return "output.weight" not in self.found.sources

    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        targets, used = [], set[str]()
        for name, source in self.found.sources.items():
            made = list(self._targets(name, source, there))
            if not made:
                raise LoadError(f"[convert] the checkpoint lacks tensor '{source['name']}'")
            targets += made
            used |= {one for target in made for one in target.sources}
        unused = {re.sub(r"\.\d+\.", ".{i}.", one, count=1) for one in self.found.unused} | set(self.found.unused)
        left = [name for name in there if name not in used and not self._is_ignored(name, unused)]
        if left:
            raise UnsupportedError(f"[convert] unknown tensors in the checkpoint ({len(left)}): {min(left)!r} ...")
        return targets

    def _is_ignored(self, name: str, unused: Collection[str]) -> bool:
        aliases = {one for names in self.found.aliases.values() for one in names}
        return (
            re.sub(r"\.\d+\.", ".{i}.", name, count=1) in unused
            or name in aliases
            or "rotary_emb." in name
            or any(re.search(pattern, name) for pattern in self.found.ignored)
        )

    def _targets(self, name: str, source: Mapping[str, Any], there: Collection[str]) -> Iterator[Target]:
        """Yield the tensor ``name`` of the file; two where checkpoints store the halves of experts' matrices."""
        weight = source["name"]
        change = _change(source)
        for one in [weight, *self.found.aliases.get(weight, [])]:
            short = one.partition(".")[2]
            if found := next((full for full in (one, short) if full in there), None):
                yield Target(name, (found,), change)
                return
        match = re.search(r"\.(\d+)\.", weight)
        layer = match.group(1) if match else ""
        for form in self.found.forms.get(re.sub(r"\.\d+\.", ".{i}.", weight, count=1), []):
            full = form["name"].replace("{i}", layer)
            names = _experts(full, there) if "{e}" in full else (full,)
            if not names or any(one not in there for one in names):
                continue
            turns = form["transposed"] != source["transposed"]
            part = name if form["half"] is None else name.replace("gate_up", ("gate", "up")[form["half"]])
            plain = replace_source(source, transposed=turns)
            yield Target(part, names, _change(plain), stacked="{e}" in full)


def replace_source(source: Mapping[str, Any], **changed: Any) -> Mapping[str, Any]:
    return {**source, **changed}


def _experts(name: str, there: Collection[str]) -> tuple[str, ...]:
    n = 0
    while name.replace("{e}", str(n)) in there:
        n += 1
    return tuple(name.replace("{e}", str(i)) for i in range(n))


def _change(source: Mapping[str, Any]) -> Callable[[Array, Fields], Array] | None:
    if source["rows"] is None and not source["transposed"] and not source["flat"]:
        return None
    return partial(_changed, source)


def _changed(source: Mapping[str, Any], x: Array, config: Fields) -> Array:
    import numpy as np

    if source["transposed"] and x.ndim > 1:
        x = np.ascontiguousarray(x.swapaxes(-1, -2))
    rows = source["rows"]
    if rows is not None:
        if "parts" in rows:
            n = x.shape[0] // rows["parts"]
            x = x[rows["part"] * n : (rows["part"] + 1) * n]
        else:
            groups, size = rows["groups"], rows["size"]
            if x.shape[0] != groups * size and groups * size != 0:
                raise UnsupportedError(
                    f"[convert] tensor '{source['name']}' has {x.shape[0]} rows: expected {groups * size}"
                )
            x = x.reshape(groups, size, *x.shape[1:])[:, rows["begin"] : rows["end"]].reshape(-1, *x.shape[1:])
    if source["flat"]:
        x = x.reshape(-1)
    return np.ascontiguousarray(x)


def fallback(values: Mapping[str, object], name: str, unknown: UnsupportedError) -> Checkpoint:
    """Return the mapping of a class that Quire has no file for; ``unknown`` is the error that says so.

    Raises:
        UnsupportedError: A package is missing, or a part of the class is unsupported; the message names it.
    """
    installed = {package: _version(package) for package in _NEEDED}
    kept = _kept(values, installed)
    document = _read(kept)
    if document is None:
        if missing := [package for package, found in installed.items() if not found]:
            raise UnsupportedError(
                f"[fallback] Quire has no file for architecture '{name}': install {' and '.join(missing)} to read it "
                f"from transformers' code (pip install {' '.join(missing)})"
            ) from unknown
        from ..structure.finding import find

        document, sample = find(values, name)
        document = replace(document, difference=check(sample))
        _write(kept, document)
    _LOG.warning(
        "[convert] Quire has no file for %s: reading it as transformers %s computes it (logits differ by %.0e)",
        document.kind, installed["transformers"] or "", document.difference,
    )  # fmt: skip
    return DescribedCheckpoint("described", {}, {"token_embd": "", "output": ""}, rope=None, document=document)


def check(sample: Sample) -> float:
    """Return by how much the description's logits differ from the class's, relative to the largest.

    Raises:
        UnsupportedError: They differ by more than ``TOLERANCE``.
    """
    import numpy as np

    differences = [
        float(np.abs(found - expected).max() / np.abs(expected).max())
        for found, expected in zip(logits_of(sample), sample.logits, strict=True)
    ]
    difference = max(differences, key=lambda one: math.inf if math.isnan(one) else one)
    if not difference <= TOLERANCE:
        raise UnsupportedError(
            f"[fallback] unsupported {sample.document.kind}: Quire's logits differ from transformers' by"
            f" {difference:.1e} of the largest"
        )
    return difference


def logits_of(sample: Sample) -> list[npt.NDArray[np.float32]]:
    """Return Quire's logits for a sample's texts."""
    mapping = DescribedCheckpoint("described", {}, {}, rope=None, document=sample.document)
    config = Fields("config.json", {})
    entries = list(mapping.entries(config))
    with tempfile.TemporaryDirectory(prefix="quire-") as scratch:
        path = Path(scratch) / "sample.gguf"
        targets = mapping.targets(config, entries, sample.tensors)
        values = {target.name: _value(target, sample, config) for target in targets}
        with GGUFWriter(path, "described") as writer:
            for key, kind, value in entries:
                writer.set(f"described.{key}", value, kind)
            for name, one in values.items():
                writer.add_tensor(name, DType("f32"), one.shape)
            for name, one in values.items():
                writer.write(name, quantize(one, DType("f32")).numpy())
        model = load_model(GGUFReader(path))
        texts = zip(sample.texts, sample.logits, strict=True)
        return [_last_logits(model, ids, len(expected)) for ids, expected in texts]


def _last_logits(model: LoadedModel, ids: list[int], n_rows: int) -> npt.NDArray[np.float32]:
    n = len(ids)
    n_blocks = -(-n // _BLOCK)
    has_rows = any(spec.n_kv_head for spec in model.cache)
    executor = Executor(
        model.trace(max(n, 2)), find_device("CPU"), n_blocks=n_blocks + 1, threads=1, kernels="cpu", max_rows=n,
        max_sequences=1, kv_dtype="f32",
    )  # fmt: skip
    return executor.run(
        ids, positions=list(range(n)), slots=[_BLOCK + i for i in range(n)] if has_rows else [],
        logit_rows=list(range(n - n_rows, n)), row_begin=[0, n], n_kv=[n],
        tables=[list(range(1, 1 + n_blocks))] if has_rows else [],
    )  # fmt: skip


def _value(target: Target, sample: Sample, config: Fields) -> Array:
    import numpy as np

    parts = [sample.tensors[name] for name in target.sources]
    if target.change is not None:
        parts = [target.change(one, config) for one in parts]
    return np.ascontiguousarray(np.stack(parts) if target.stacked else parts[0])


# The cache


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _kept(values: Mapping[str, object], installed: Mapping[str, str]) -> Path:
    text = json.dumps([values, installed["transformers"], REVISION], sort_keys=True, default=str)
    return own_cache(os.environ) / "described" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _read(path: Path) -> Document | None:
    try:
        return Document(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _write(path: Path, document: Document) -> None:
    """Keep a document; a folder that cannot be written to is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
            try:
                json.dump(document.as_json(), file)
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        _LOG.debug("[convert] cannot keep %s: %s", path, error)


__all__ = ["DescribedCheckpoint", "check", "fallback", "logits_of"]
