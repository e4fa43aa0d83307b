"""Adapters of PEFT: a folder with ``adapter_config.json`` and ``adapter_model.safetensors``."""

from __future__ import annotations

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
_PREFIX = "base_model.model."  # PEFT's own wrapping of the model


class PeftFolder:
    """An adapter as it lies in its folder: configuration, and of each module ``B A`` without its factor.

    Raises LoadError for what is absent or malformed, UnsupportedError for what Quire does not compute.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / CONFIG).is_file():
            raise LoadError(f"[adapter] {folder} must be a GGUF file, or a folder with {CONFIG}, but has none")
        if not (folder / _WEIGHTS).is_file():
            if (folder / _PICKLE).is_file():
                raise UnsupportedError(
                    f"[adapter] {folder} must have {_WEIGHTS} but has {_PICKLE}, a pickle, which could run any code:"
                    " PEFT's save_pretrained writes the other"
                )
            raise LoadError(f"[adapter] {folder} must have {_WEIGHTS} but has not")
        self.config = PeftConfig(folder)
        self._file = SafetensorsFile(folder / _WEIGHTS)
        self.size_bytes = (folder / _WEIGHTS).stat().st_size
        self.products = {module: self._product(module) for module in self._modules()}

    def _modules(self) -> list[str]:
        names = list(self._file)
        if not names:
            raise LoadError("[adapter] the file must hold tensors but has none")
        for name in names:
            half = next((half for half in _HALVES if name.endswith(half)), None)
            if half is None or not name.startswith(_PREFIX):
                raise UnsupportedError(
                    f"[adapter] tensor '{name:.200}' must be {_PREFIX}MODULE{_HALVES[0]} or {_HALVES[1]} but is not"
                )
            other = name.removesuffix(half) + _HALVES[half == _HALVES[0]]
            if other not in self._file:
                raise LoadError(f"[adapter] tensor '{name}' must have its other half but '{other}' is missing")
            module = name.removeprefix(_PREFIX).removesuffix(half)
            if not self.config.targets(module):
                raise LoadError(f"[adapter] '{module}' must be a module that {CONFIG} adapts but is not")
        return [name.removeprefix(_PREFIX).removesuffix(_HALVES[0]) for name in names if name.endswith(_HALVES[0])]

    def _product(self, module: str) -> Product:
        a, b = (self._file.shape(f"{_PREFIX}{module}{half}") for half in _HALVES)
        rank = self.config.rank_of(module)
        if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank or not a[1] or not b[0]:
            raise LoadError(
                f"[adapter] '{module}' must have lora_A [{rank}, in] and lora_B [out, {rank}] but has {list(a)} and"
                f" {list(b)}"
            )
        right, left = (self._values(f"{_PREFIX}{module}{half}") for half in _HALVES)
        return Product(left, right)

    def _values(self, name: str) -> Array:
        """A half as float32, as which PEFT computes it, too."""
        import numpy as np

        values = dequantize(self._file.tensor(name))
        if not np.isfinite(values).all():
            raise LoadError(f"[adapter] the numbers of '{name}' must be finite but one is not")
        return values


class PeftReader(MadeReader):
    """An adapter of PEFT, read as the GGUF file that goes with ``base``; see ``nn.Adapter``.

    Keys and names go to a file in the folder ``scratch``, which is removed at the end of ``with``.  Raises as
    ``PeftFolder`` and ``places_of``.
    """

    def __init__(self, folder: Path, base: GGUFReader, scratch: Path) -> None:
        import numpy as np

        peft = PeftFolder(folder)
        config, products = peft.config, peft.products
        factors = {module: config.factor_of(module, product.rank) for module, product in products.items()}
        # A file says one alpha for all of its pairs; factors that do not follow from that go into B.
        same = config.alpha != 0 and all(
            factors[module] == config.alpha / product.rank for module, product in products.items()
        )
        self._products: dict[str, Product] = {}
        for place in places_of({module: product.shape for module, product in products.items()}, base):
            product = products[place.module]
            if place.effect is not None:
                product = place.effect.of(product.turned() if place.effect.turns else product)
            product = product if same else product.times(factors[place.module])
            if not np.isfinite(product.left).all():
                raise LoadError(
                    f"[adapter] the numbers of '{place.module}' times their factor must be finite but are not"
                )
            self._products[place.target] = product
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
        """A half of a pair, in memory of its own."""
        import numpy as np

        target, _, half = name.rpartition(".lora_")
        product = self._products[target]
        return Tensor.from_numpy(np.ascontiguousarray(product.right if half == "a" else product.left))


@contextmanager
def opened_adapters(
    given: Sequence[tuple[str, float]], base: GGUFReader, load: LoadMode = "mmap"
) -> Iterator[list[Adapter]]:
    """Adapters, GGUF files or folders of PEFT, with their scales, to be read while a model is loaded from ``base``.

    Their tensors stay when the block ends.  Raises as ``GGUFReader`` and ``PeftReader``.
    """
    with ExitStack() as stack:
        adapters = []
        for path, scale in given:
            if not Path(path).is_dir():
                if Path(path).name in (CONFIG, _WEIGHTS, _PICKLE):
                    raise LoadError(f"[adapter] {path} must be a GGUF file, or PEFT's folder itself, but lies in one")
                adapters.append(Adapter(GGUFReader(path, load), scale))
                continue
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-")))
            reader = stack.enter_context(PeftReader(Path(path), base, scratch))
            adapters.append(Adapter(reader, scale))
        yield adapters
