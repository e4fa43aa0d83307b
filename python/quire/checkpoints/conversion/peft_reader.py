"""Read PEFT adapters: folders with ``adapter_config.json`` and ``adapter_model.safetensors``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..._native.core import Tensor
from ..._native.quant import dequantize
from ...errors import LoadError, UnsupportedError
from ...files.gguf import GGUFReader, GGUFWriter, LoadMode
from ...files.safetensors import SafetensorsFile
from ...nn import Adapter
from ...nn.adapter import HEAD, TABLE
from ..mapping import Array
from .low_rank import Product
from .made_reader import MadeReader
from .peft_config import CONFIG, PeftConfig
from .peft_experts import expert_products
from .peft_names import places_of, wholes_of

__all__ = ["PeftFolder", "PeftReader", "opened_adapters"]

_WEIGHTS, _PICKLE = "adapter_model.safetensors", "adapter_model.bin"
_HALVES = (".lora_A.weight", ".lora_B.weight")
_TABLE_HALVES = (".lora_embedding_A", ".lora_embedding_B")
_BASE = ".base_layer.weight"  # the model's own embedding or head, which PEFT saves beside its adapter
_NEARLY = 0.05  # relative difference from it that quantization explains
# Lengths of rows in place of the model's (Liu et al. 2024, "DoRA"); the second name is of PEFT before 0.11.
_MAGNITUDES = (".lora_magnitude_vector", ".lora_magnitude_vector.weight")
_PREFIX = "base_model.model."  # from PEFT's wrapper of the model


class PeftFolder:
    """An adapter as stored in its folder: the configuration, and ``B A`` of each module without the factor.

    ``tables``: modules of ``products`` that are embeddings, ``[rows, columns]``.  ``fused``: those that are parameters
    with the matrices of all experts.  ``wholes``: tensors that replace the model's.  ``bases``: tensors that the model
    should have.

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
        self.tables: set[str] = set()
        self.fused: set[str] = set()
        self.wholes: dict[str, Array] = {}
        self.bases: dict[str, Array] = {}
        self.products = {module: self._product(module) for module in self._modules()}
        self.magnitudes = {module: self._magnitude(module) for module in self.products if self.config.has_magnitudes}

    def _modules(self) -> list[str]:
        ends = _MAGNITUDES if self.config.has_magnitudes else ()
        names = [name for name in self._file if not name.endswith(ends)]
        if not names:
            raise LoadError("[adapter] the file has no tensors")
        modules: dict[str, None] = {}
        for name in names:
            halves = next((pair for pair in (_HALVES, _TABLE_HALVES) if name.endswith(pair)), None)
            if halves is not None and name.startswith(_PREFIX):
                modules[self._module(name, halves)] = None
            elif not self._is_whole(name):
                raise UnsupportedError(
                    f"[adapter] unknown tensor '{name:.200}': expected {_PREFIX}MODULE{_HALVES[0]} or {_HALVES[1]}"
                )
        return [*modules]

    def _module(self, name: str, halves: tuple[str, str]) -> str:
        """Return the module that a half is of."""
        half = next(half for half in halves if name.endswith(half))
        other = name.removesuffix(half) + halves[half == halves[0]]
        if other not in self._file:
            raise LoadError(f"[adapter] tensor '{other}' is missing, the other half of '{name}'")
        module = name.removeprefix(_PREFIX).removesuffix(half)
        if self.config.targets_parameter(module):
            if self.config.has_magnitudes:
                raise UnsupportedError(f"[adapter] unsupported use_dora of parameters: '{module}'")
            self.fused.add(module)
        elif not self.config.targets(module):
            raise LoadError(f"[adapter] '{module}' is not a module that {CONFIG} adapts")
        if halves is _TABLE_HALVES:
            if self.config.has_magnitudes:
                raise UnsupportedError(f"[adapter] unsupported use_dora of embeddings: '{module}'")
            self.tables.add(module)
        return module

    def _is_whole(self, name: str) -> bool:
        """Read a tensor that is not a half.  Return False if the configuration does not mention it."""
        own = name.removeprefix(_PREFIX)
        if not name.startswith(_PREFIX):
            return False
        if own.endswith(_BASE) and any(
            own.removesuffix(_BASE) + half in self._halves_of_file for half in (_HALVES[0], _TABLE_HALVES[0])
        ):
            self.bases[own.removesuffix(_BASE) + ".weight"] = self._values(name)
            return True
        if self.config.saves(own.rpartition(".")[0]):
            self.wholes[own] = self._values(name)
            return True
        return False

    @property
    def _halves_of_file(self) -> set[str]:
        return {name.removeprefix(_PREFIX) for name in self._file}

    def _product(self, module: str) -> Product:
        halves = _TABLE_HALVES if module in self.tables else _HALVES
        a, b = (self._file.shape(f"{_PREFIX}{module}{half}") for half in halves)
        rank = self.config.rank_of(module)
        if module in self.fused and len(a) == 2 and a[0] and a[0] % rank == 0:
            rank = a[0]
        if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank or not a[1] or not b[0]:
            raise LoadError(
                f"[adapter] lora_A and lora_B of '{module}' have shapes {list(a)} and {list(b)}: expected"
                f" [{rank}, in] and [out, {rank}]"
            )
        right, left = (self._values(f"{_PREFIX}{module}{half}") for half in halves)
        product = Product(left, right)
        return product.turned() if module in self.tables else product

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
        factors = {module: config.factor_of(module, config.rank_of(module)) for module in products}
        self.experts, expert_modules = expert_products(
            {module: product.times(factors[module]) for module, product in products.items()}, peft.fused, base
        )
        products = {module: product for module, product in products.items() if module not in expert_modules}
        # A GGUF adapter has one alpha for all pairs.  Factors that do not follow from it are multiplied into B.
        same = config.alpha != 0 and all(
            factors[module] == config.alpha / product.rank for module, product in products.items()
        )
        self._products: dict[str, Product] = {}
        self.magnitudes: dict[str, Array] = {}  # lengths of the rows of ``W + B A``, for DoRA
        self.wholes = wholes_of(peft.wholes, base)
        self.invocation = config.invocation
        _check_bases(wholes_of(peft.bases, base), base)
        places = places_of({module: product.shape for module, product in products.items()}, base) if products else []
        for place in places:
            product = products[place.module]
            if (place.target == TABLE) != (place.module in peft.tables):
                raise UnsupportedError(
                    f"[adapter] unsupported module '{place.module}': only embeddings of tokens are looked up"
                )
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
            if self.invocation:
                writer.set("adapter.alora.invocation_tokens", [*self.invocation], "u32[]")
            for target in self._products:
                for half in "ab":
                    writer.add_tensor(f"{target}.lora_{half}", "f32", self._half(target, half).shape)
            super().__init__(writer)
        except BaseException:
            writer.abort()
            raise

    def tensor(self, name: str) -> Tensor:
        """Return one half of a pair, in newly allocated memory."""
        import numpy as np

        target, _, half = name.rpartition(".lora_")
        return Tensor.from_numpy(np.ascontiguousarray(self._half(target, half)))

    def _half(self, target: str, half: str) -> Array:
        product = self._products[target]
        if target == TABLE:  # as llama.cpp stores it: ``a [rows, rank]``, ``b [columns, rank]``
            return product.left if half == "a" else product.right.T
        return product.right if half == "a" else product.left


def _check_bases(bases: Mapping[str, Array], base: GGUFReader) -> None:
    """Raise UnsupportedError if the model's tensors are not those that the adapter was trained beside."""
    import numpy as np

    for target, values in bases.items():
        own = dequantize(base.tensor(TABLE if target == HEAD and HEAD not in base else target))
        if own.shape != values.shape or np.abs(own - values).mean() > _NEARLY * np.abs(own).mean():
            raise UnsupportedError(
                f"[adapter] base_layer of '{target}' differs from the model's: the adapter was trained on other weights"
                " or a larger vocabulary"
            )


@contextmanager
def opened_adapters(
    given: Sequence[tuple[str, float]], base: GGUFReader, load: LoadMode = "mmap", *, takes: Collection[str] = ()
) -> Iterator[list[Adapter]]:
    """Open adapters with their scales, to be read while a model is loaded from ``base``.

    Each is a GGUF file or a PEFT folder.  ``takes``: see ``Adapter``.  Their tensors remain valid after the block.
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
                adapters.append(Adapter(GGUFReader(path, load), scale, frozenset(takes)))
                continue
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-")))
            reader = stack.enter_context(PeftReader(Path(path), base, scratch))
            adapters.append(Adapter(reader, scale, frozenset(takes)))
        yield adapters
