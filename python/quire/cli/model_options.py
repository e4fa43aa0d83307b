"""The options of every command that runs a model, by the names that llama.cpp's users know."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import click

from ..errors import UnsupportedError

if TYPE_CHECKING:
    from ..engine.config import Kernels, KvDType, LoadMode

__all__ = ["GpuLayers", "ModelOptions", "model_options"]

GpuLayers: TypeAlias = "int | Literal['all']"


def _gpu_layers(ctx: click.Context, param: click.Parameter, value: str | None) -> GpuLayers | None:
    """``all`` (or -1), or a number of layers."""
    if value is None:
        return None
    if value in ("all", "-1"):
        return "all"
    if not value.isdecimal() or len(value) > 6:
        raise click.BadParameter(f"must be all, -1 or a number of layers but is {value!r}", ctx, param)
    return int(value)


def _cpu_mask(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Hexadecimal digits, with or without 0x."""
    if value is None:
        return None
    digits = value.removeprefix("0x")
    if not 1 <= len(digits) <= 256 or not set(digits) <= set("0123456789abcdefABCDEF") or not int(digits, 16):
        raise click.BadParameter(f"must be a hexadecimal number above 0 but is {value!r:.40}", ctx, param)
    return int(digits, 16)


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and where and how it runs.  ``path`` None is the package's model."""

    path: str | None
    n_ctx: int | None
    threads: int
    cpu_mask: int | None
    gpu_layers: GpuLayers | None
    device: str | None
    kernels: Kernels
    isa: str | None
    deterministic: bool | None
    kv_dtype: KvDType
    load: LoadMode
    packed_cache: str | None

    def device_name(self) -> str:
        """The device that ``--device`` and ``-ngl`` ask for together.

        UsageError when they contradict each other, UnsupportedError for a part of the layers.
        """
        on_cpu = self.device is not None and self.device.lower() == "cpu"
        if self.gpu_layers is None:
            return self.device or "cpu"
        if self.gpu_layers == 0:
            if self.device is not None and not on_cpu:
                raise click.UsageError(f"-ngl 0 keeps the model on the CPU but --device is {self.device}")
            return "cpu"
        if on_cpu:
            raise click.UsageError(f"-ngl {self.gpu_layers} needs another device but --device is {self.device}")
        if self.gpu_layers != "all":
            n_layer = _n_layer(self.path)
            if self.gpu_layers < n_layer:
                raise UnsupportedError(
                    f"[-ngl] layers must be 0 or all {n_layer} of the model but are {self.gpu_layers}: "
                    "one model on several devices is not supported yet"
                )
        return self.device or "gpu"


def _n_layer(path: str | None) -> int:
    from ..engine.loader import packaged_model
    from ..gguf import GGUFReader

    source = packaged_model() if path is None else Path(path)
    if source.is_dir():
        raise UnsupportedError("[-ngl] layers must be 0 or all for a checkpoint folder but are a number")
    metadata = GGUFReader(source).metadata
    return metadata.integer(f"{metadata.text('general.architecture')}.block_count")


_OPTIONS = (
    click.option("-m", "--model", "path", metavar="MODEL", help="GGUF file or checkpoint folder [the package's own]."),
    click.option(
        "-c", "--ctx-size", "n_ctx", type=click.IntRange(1), metavar="N",
        help="Tokens of prompt and answer together [the model's own, as memory allows].",
    ),
    click.option("-t", "--threads", type=click.IntRange(0), default=0, metavar="N", help="Threads; 0: one per core."),
    click.option(
        "-C", "--cpu-mask", callback=_cpu_mask, metavar="HEX",
        help="Processors that the threads may use, bit i for processor i [any].",
    ),
    click.option(
        "-ngl", "--gpu-layers", "--n-gpu-layers", "gpu_layers", callback=_gpu_layers, metavar="N|all",
        help="0: the CPU; all, -1 or as many as the model has: all on the device.",
    ),
    click.option("--device", metavar="NAME", help="A name of 'quire devices', or gpu [cpu]."),
    click.option(
        "--kernels", type=click.Choice(["auto", "stock", "cpu"]), default="auto", show_default=True,
        help="Quire's own operators where there are some, or ggml's only.",
    ),
    click.option("--isa", metavar="NAME", help="A lower instruction set of 'quire devices' [the best]."),
    click.option(
        "--deterministic", is_flag=True, default=None,
        help="An answer's bits do not depend on its company in a batch; slower where 'quire devices' shows AMX.",
    ),
    click.option(
        "--packed-cache", metavar="DIR",
        help="Keep the weights there as the kernels read them; the next start maps them [no].",
    ),
    click.option(
        "--kv-dtype", type=click.Choice(["auto", "f32", "f16", "bf16", "q8_0"]), default="auto", show_default=True,
        help="Type of the KV cache; auto: bf16 where the processor multiplies that, else f16; q8_0 is half the size,"
        " for Quire's own kernels.",
    ),
)  # fmt: skip


def model_options(load: LoadMode = "mmap") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options; the function gets them as one argument, ``model``.  ``load`` is the default of ``--load``."""
    load_option = click.option(
        "--load",
        type=click.Choice(["mmap", "copy", "lock"]),
        default=load,
        show_default=True,
        help="Map the file, read it into memory, or keep the mapping there.",
    )

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def packed(*args: object, **values: object) -> None:
            own = {name: values.pop(name) for name in ModelOptions.__dataclass_fields__}
            function(*args, model=ModelOptions(**own), **values)  # type: ignore[arg-type]

        for option in reversed((*_OPTIONS, load_option)):
            packed = option(packed)
        return packed

    return decorate
