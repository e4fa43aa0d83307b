"""``quire devices``: what models can run on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from .tables import print_table
from .text import size_text

if TYPE_CHECKING:
    from .._native.core import Device

__all__ = ["command"]


@click.command("devices")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--operations", is_flag=True, help="Name the operations of each device, too.")
def command(*, as_json: bool, operations: bool) -> None:
    """List the devices of the backends that load: name, kind, memory, features, supported operations."""
    from .._native.core import devices
    from .._native.kernels import supported_isas

    found = devices()
    if as_json:
        kernels = {"isa": supported_isas()[-1], "supported": list(supported_isas())}
        print(json.dumps({"devices": [_as_object(device) for device in found], "kernels": kernels}, ensure_ascii=False))
        return
    print_table(
        ("name", "kind", "free>", "memory>", "operations>", "description", "features"),
        (
            (
                device.name,
                device.kind,
                size_text(device.memory_free_bytes),
                size_text(device.memory_total_bytes),
                str(len(device.operations)),
                device.description,
                " ".join(_features(device)),
            )
            for device in found
        ),
    )
    known = supported_isas()
    print(f"kernels: {known[-1]} (this machine runs {', '.join(known)}; --isa forces a lower one)")
    if operations:
        for device in found:
            print(f"{device.name}: {' '.join(device.operations)}")


def _features(device: Device) -> list[str]:
    """``"AVX2 = 1"`` as ``"AVX2"``; other values stay."""
    pairs = (text.partition(" = ") for text in device.features)
    return [name if value == "1" else f"{name}={value}" for name, _, value in pairs]


def _as_object(device: Device) -> dict[str, object]:
    return {
        "name": device.name,
        "description": device.description,
        "kind": device.kind,
        "memory_free_bytes": device.memory_free_bytes,
        "memory_total_bytes": device.memory_total_bytes,
        "features": _features(device),
        "operations": list(device.operations),
    }
