"""Kinds of devices: how users, ggml's files and its devices call them, and what each needs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KINDS", "Kind", "kind_named", "kind_of_module"]


@dataclass(frozen=True)
class Kind:
    """``names``: what users write.  ``module``: of ``libggml-MODULE``.  ``prefix``: of its devices' names.

    ``extra``: of Quire, which brings a wheel with the module; "" where none is published.
    """

    names: tuple[str, ...]
    module: str
    prefix: str
    option: str
    needs: str
    extra: str = ""


KINDS = (
    Kind(("cuda",), "cuda", "cuda", "QUIRE_CUDA", "NVIDIA's driver must be installed: nvidia-smi lists what it finds"),
    Kind(
        ("vulkan",), "vulkan", "vulkan", "QUIRE_VULKAN",
        "a driver for Vulkan must be installed: vulkaninfo --summary lists what it finds; GGML_VK_VISIBLE_DEVICES=0 "
        "admits one that is a processor (Mesa's lavapipe)", "vulkan",
    ),
    Kind(("rocm", "hip"), "hip", "rocm", "QUIRE_HIP", "AMD's ROCm must be installed: rocminfo lists what it finds"),
    Kind(("sycl",), "sycl", "sycl", "QUIRE_SYCL", "Intel's driver must be installed: sycl-ls lists what it finds"),
    Kind(("metal",), "metal", "mtl", "QUIRE_METAL", "the machine must have a GPU that Metal knows"),
)  # fmt: skip


def kind_named(name: str) -> Kind | None:
    """The kind that users call so, or of a device of that name (``"CUDA0"``)."""
    stem = name.lower().rstrip("0123456789")
    return next((kind for kind in KINDS if stem in kind.names or stem == kind.prefix), None)


def kind_of_module(module: str) -> Kind | None:
    return next((kind for kind in KINDS if kind.module == module), None)
