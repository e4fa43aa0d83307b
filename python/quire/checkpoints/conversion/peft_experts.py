"""Find the matrices of experts that the modules and parameters of a PEFT adapter change."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from .low_rank import Product
from .peft_names import expert_names

if TYPE_CHECKING:
    from ...files.gguf import GGUFReader

__all__ = ["ExpertProducts", "expert_products"]

# By tensor of the model's file: the products that are added to its experts' matrices.
ExpertProducts = dict[str, dict[int, Product]]


def expert_products(
    products: Mapping[str, Product], fused: Collection[str], base: GGUFReader
) -> tuple[ExpertProducts, set[str]]:
    """Return the products of experts, and the modules that they are of.

    Args:
        products: By module, times their factor.
        fused: Those of parameters with the matrices of all experts: their rank counts all experts.
        base: The model's file.

    Raises:
        LoadError: Shapes do not fit the model.
        UnsupportedError: A parameter has no counterpart in the file.
    """
    found: ExpertProducts = {}
    used: set[str] = set()
    for stem, place in expert_names(base).items():
        pattern = re.compile(re.escape(stem).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\{e\}", r"(?P<e>\d+)"))
        for module, product in products.items():
            if module in fused:
                continue
            if (match := pattern.fullmatch(module)) is None:
                continue
            target = place.replace("{i}", match["i"] or "")
            if target not in base:
                continue
            _add(found, target, int(match["e"]), product, base)
            used.add(module)
    for module in fused:
        _add_fused(found, module, products[module], base)
        used.add(module)
    return found, used


def _add(found: ExpertProducts, target: str, expert: int, product: Product, base: GGUFReader) -> None:
    shape = tuple(int(n) for n in base.tensor_info(target).shape)
    if len(shape) != 3 or shape[1:] != product.shape or expert >= shape[0]:
        raise LoadError(f"[adapter] expert {expert} has a product {list(product.shape)}: '{target}' is {list(shape)}")
    if expert in found.setdefault(target, {}):
        raise LoadError(f"[adapter] expert {expert} of '{target}' is adapted twice")
    found[target][expert] = product


def _add_fused(found: ExpertProducts, module: str, product: Product, base: GGUFReader) -> None:
    """Add the products of a parameter with all experts' matrices, of gates and ups one above the other or of downs."""
    own, layer = module, ""
    while own.endswith(".base_layer"):  # the module has several parameters
        own = own.removesuffix(".base_layer")
    places = dict[str, str]()
    for stem, target in expert_names(base).items():
        home, _, part = stem.rpartition(".{e}.")
        # The module around the experts may have another name in transformers than in checkpoints.
        block = re.escape(home.removesuffix(".experts").rpartition(".")[0]).replace(r"\{i\}", r"(?P<i>\d+)")
        match = re.fullmatch(rf"{block}(\.[^.]+)?\.experts", own)
        if part and match is not None:
            layer = match.groupdict().get("i") or ""
            places[target.rpartition(".ffn_")[2]] = target.replace("{i}", layer)
    gate, up, down = (places.get(f"{part}_exps.weight", "") for part in ("gate", "up", "down"))
    if not all(name and name in base for name in (gate, up, down)):
        raise UnsupportedError(f"[adapter] unsupported target_parameters: no experts of their own for '{own}'")
    n_expert, ffn, dim = (int(n) for n in base.tensor_info(gate).shape)
    if product.rank % n_expert:
        raise LoadError(f"[adapter] '{module}' has {product.rank} rows: expected a multiple of {n_expert} experts")
    right = product.right.reshape(n_expert, -1, product.right.shape[1])
    left = product.left.reshape(product.left.shape[0], -1, n_expert)
    for expert in range(n_expert):
        b, a = left[..., expert], right[expert]
        if product.shape == (2 * ffn, dim):
            _add(found, gate, expert, Product(b[:ffn], a), base)
            _add(found, up, expert, Product(b[ffn:], a), base)
        elif product.shape == (dim, ffn):
            _add(found, down, expert, Product(b, a), base)
        else:
            shape = list(product.shape)
            raise LoadError(
                f"[adapter] '{module}' has a product {shape}: expected [{2 * ffn}, {dim}] or [{dim}, {ffn}]"
            )
