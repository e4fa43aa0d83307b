"""Kinds of devices: their names for users, in ggml's files and in device names, and their requirements."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KINDS", "Kind", "kind_named", "kind_of_module"]


@dataclass(frozen=True)
class Kind:
    """One kind of device.

    Attributes:
        names: Names that users write.
        module: The module's name, as in ``libggml-MODULE``.
        prefix: How the names of its devices start, in lower case.
        option: The CMake option that builds the module.
        needs: What must be installed, and how to check it; shown to users.
        extra: The extra of Quire that installs a wheel with the module; "" if none is published.
    """

    names: tuple[str, ...]
    module: str
    prefix: str
    option: str
    needs: str
    extra: str = ""


KINDS = (
    Kind(("cuda",), "cuda", "cuda", "QUIRE_CUDA", "install NVIDIA's driver; nvidia-smi lists the GPUs it finds"),
    Kind(
        ("vulkan",), "vulkan", "vulkan", "QUIRE_VULKAN",
        "install a Vulkan driver; vulkaninfo --summary lists the devices it finds, and GGML_VK_VISIBLE_DEVICES=0 "
        "allows one that runs on the CPU (Mesa's lavapipe)", "vulkan",
    ),
    Kind(("rocm", "hip"), "hip", "rocm", "QUIRE_HIP", "install AMD's ROCm; rocminfo lists the GPUs it finds"),
    Kind(("sycl",), "sycl", "sycl", "QUIRE_SYCL", "install Intel's driver; sycl-ls lists the devices it finds"),
    Kind(("metal",), "metal", "mtl", "QUIRE_METAL", "a GPU that Metal supports is required"),
)  # fmt: skip


def kind_named(name: str) -> Kind | None:
    """Return the kind with this name (``"cuda"``), or the kind of a device with this name (``"CUDA0"``)."""
    stem = name.lower().rstrip("0123456789")
    return next((kind for kind in KINDS if stem in kind.names or stem == kind.prefix), None)


def kind_of_module(module: str) -> Kind | None:
    return next((kind for kind in KINDS if kind.module == module), None)
