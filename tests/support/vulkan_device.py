"""The tests' Vulkan device: ggml's Vulkan on Mesa's lavapipe, which ``ci/devices`` builds and enables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quire import Device


def vulkan() -> Device:
    """Return Vulkan's first device; skip the test if ci/devices has not built the module, or without a driver."""
    from quire.errors import UnsupportedError
    from quire.hardware import find_device

    try:
        return find_device("Vulkan0")
    except UnsupportedError as error:
        if os.environ.get("QUIRE_MODULE_PATH"):
            pytest.fail(str(error))  # ci/devices runs the tests for this
        pytest.skip(f"no Vulkan device: ci/devices builds its module and enables lavapipe ({error})")


def vulkan_module() -> Path:
    """Return the module's file."""
    vulkan()
    from quire.hardware import module_reports

    return next(Path(report.path) for report in module_reports() if report.module == "vulkan")
