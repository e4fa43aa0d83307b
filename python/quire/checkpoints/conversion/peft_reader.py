"""Read PEFT adapters: folders with ``adapter_config.json`` and ``adapter_model.safetensors``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..._native.core import Tensor
from ..._native.quant import dequantize
from ...errors import LoadError, UnsupportedError
from ...files.gguf import GGUFReader, GGUFWriter, LoadMode
from ...files.safetensors import SafetensorsFile
from ...nn import Adapter
from ..mapping import Array
from .low_rank import Product
from .made_reader import MadeReader
from .peft_config import CONFIG, PeftConfig
from .peft_names import places_of

__all__ = ["PeftFolder", "PeftReader", "opened_adapters"]

_WEIGHTS, _PICKLE = "adapter_model.safetensors", "adapter_model.bin"
_HALVES = (".lora_A.weight", ".lora_B.weight")
# Lengths of rows in place of the model's (Liu et al. 2024, "DoRA"); the second name is of PEFT before 0.11.
_MAGNITUDES = (".lora_magnitude_vector", ".lora_magnitude_vector.weight")
_PREFIX = "base_model.model."  # from PEFT's wrapper of the model


class PeftFolder:
    """An adapter as stored in its folder: the configuration, and ``B A`` of each module without the factor.

    Raises LoadError for a missing or malformed file, UnsupportedError for an adapter that Quire cannot compute.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / CONFIG).is_file():
            raise LoadError(f"[adapter] {folder} is not an adapter: expected a GGUF file or a folder with {CONFIG}")
        if not (folder / _WEIGHTS).is_file():
            if (folder / _PICKLE).is_file():
                raise UnsupportedError(
                    f"[adapter] {folder} has {_PICKLE}, a pickle that could run any code: expected {_WEIGHTS}, which"
                    " PEFT's save_pretrained writes"
                )
            raise LoadError(f"[adapter] {folder} has no {_WEIGHTS}")
        self.config = PeftConfig(folder)
        self._file = SafetensorsFile(folder / _WEIGHTS)
        self.size_bytes = (folder / _WEIGHTS).stat().st_size
        self.products = {module: self._product(module) for module in self._modules()}
        self.magnitudes = {module: self._magnitude(module) for module in self.products if self.config.has_magnitudes}

    def _modules(self) -> list[str]:
        ends = _MAGNITUDES if self.config.has_magnitudes else ()
        names = [name for name in self._file if not name.endswith(ends)]
        if not names:
            raise LoadError("[adapter] the file has no tensors")
        for name in names:
            half = next((half for half in _HALVES if name.endswith(half)), None)
            if half is None or not name.startswith(_PREFIX):
                raise UnsupportedError(
                    f"[adapter] unknown tensor '{name:.200}': expected {_PREFIX}MODULE{_HALVES[0]} or {_HALVES[1]}"
                )
            other = name.removesuffix(half) + _HALVES[half == _HALVES[0]]
            if other not in self._file:
                raise LoadError(f"[adapter] tensor '{other}' is missing, the other half of '{name}'")
            module = name.removeprefix(_PREFIX).removesuffix(half)
            if not self.config.targets(module):
                raise LoadError(f"[adapter] '{module}' is not a module that {CONFIG} adapts")
        return [name.removeprefix(_PREFIX).removesuffix(_HALVES[0]) for name in names if name.endswith(_HALVES[0])]

    def _product(self, module: str) -> Product:
        a, b = (self._file.shape(f"{_PREFIX}{module}{half}") for half in _HALVES)
        rank = self.config.rank_of(module)
        if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank or not a[1] or not b[0]:
            raise LoadError(
                f"[adapter] lora_A and lora_B of '{module}' have shapes {list(a)} and {list(b)}: expected"
                f" [{rank}, in] and [out, {rank}]"
            )
        right, left = (self._values(f"{_PREFIX}{module}{half}") for half in _HALVES)
        return Product(left, right)

    def _magnitude(self, module: str) -> Array:
        n_out = self.products[module].shape[0]
        name = next((f"{_PREFIX}{module}{end}" for end in _MAGNITUDES if f"{_PREFIX}{module}{end}" in self._file), None)
        if name is None or self._file.shape(name) != (n_out,):
            raise LoadError(
                f"[adapter] '{module}' has no lora_magnitude_vector of {n_out} numbers,"
                f" which 'use_dora' of {CONFIG} needs"
            )
        return self._values(name)

    def _values(self, name: str) -> Array:
        """Return one half in float32, in which PEFT computes too."""
        import numpy as np

        values = dequantize(self._file.tensor(name))
        if not np.isfinite(values).all():
            raise LoadError(f"[adapter] '{name}' has a number that is not finite")
        return values


class PeftReader(MadeReader):
    """A PEFT adapter, read as the GGUF adapter for ``base``; see ``nn.Adapter``.

    Keys and names are written to a file in the folder ``scratch``, which is removed at the end of ``with``.  Raises
    what ``PeftFolder`` and ``places_of`` raise.
    """

    def __init__(self, folder: Path, base: GGUFReader, scratch: Path) -> None:
        import numpy as np

        peft = PeftFolder(folder)
        config, products = peft.config, peft.products
        factors = {module: config.factor_of(module, product.rank) for module, product in products.items()}
        # A GGUF adapter has one alpha for all pairs.  Factors that do not follow from it are multiplied into B.
        same = config.alpha != 0 and all(
            factors[module] == config.alpha / product.rank for module, product in products.items()
        )
        self._products: dict[str, Product] = {}
        self.magnitudes: dict[str, Array] = {}  # lengths of the rows of ``W + B A``, for DoRA
        for place in places_of({module: product.shape for module, product in products.items()}, base):
            product = products[place.module]
            if place.effect is not None:
                product = place.effect.of(product.turned() if place.effect.turns else product)
            product = product if same else product.times(factors[place.module])
            if not np.isfinite(product.left).all():
                raise LoadError(f"[adapter] the numbers of '{place.module}' times their factor are not finite")
            self._products[place.target] = product
            if (lengths := peft.magnitudes.get(place.module)) is not None:
                if place.effect is not None:
                    lengths = place.effect.lengths(lengths, products[place.module].shape[1])
                self.magnitudes[place.target] = lengths
        writer = GGUFWriter(scratch / "adapter.gguf", base.metadata.text("general.architecture"))
        try:
            writer.set("general.type", "adapter")
            writer.set("general.name", folder.resolve().name)
            writer.set("adapter.type", "lora")
            if same:
                writer.set("adapter.lora.alpha", config.alpha, "f32")
            for target, product in self._products.items():
                writer.add_tensor(f"{target}.lora_a", "f32", product.right.shape)
                writer.add_tensor(f"{target}.lora_b", "f32", product.left.shape)
            super().__init__(writer)
        except BaseException:
            writer.abort()
            raise

    def tensor(self, name: str) -> Tensor:
        """Return one half of a pair, in newly allocated memory."""
        import numpy as np

        target, _, half = name.rpartition(".lora_")
        product = self._products[target]
        return Tensor.from_numpy(np.ascontiguousarray(product.right if half == "a" else product.left))


@contextmanager
def opened_adapters(
    given: Sequence[tuple[str, float]], base: GGUFReader, load: LoadMode = "mmap", *, merges: bool = False
) -> Iterator[list[Adapter]]:
    """Open adapters with their scales, to be read while a model is loaded from ``base``.

    Each is a GGUF file or a PEFT folder.  ``merges``: see ``Adapter``.  Their tensors remain valid after the block.
    Raises what ``GGUFReader`` and ``PeftReader`` raise.
    """
    with ExitStack() as stack:
        adapters = []
        for path, scale in given:
            if not os.path.isdir(path):  # false for what is too long for a path
                if Path(path).name in (CONFIG, _WEIGHTS, _PICKLE):
                    raise LoadError(
                        f"[adapter] {path} is a file in a PEFT folder: expected the folder itself, or a GGUF file"
                    )
                adapters.append(Adapter(GGUFReader(path, load), scale, merges))
                continue
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-")))
            reader = stack.enter_context(PeftReader(Path(path), base, scratch))
            adapters.append(Adapter(reader, scale, merges))
        yield adapters
