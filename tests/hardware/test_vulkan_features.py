"""The table of features on devices in docs/devices.md, row by row on Vulkan (ci/devices).  Oracle: the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from device_features import REFUSED, ROWS, Use, check_refused, check_same
from vulkan_device import vulkan

pytestmark = [pytest.mark.device, pytest.mark.python_only]


@pytest.fixture(scope="module", autouse=True)
def device() -> str:
    return vulkan().name


@pytest.mark.parametrize(("name", "options", "use"), ROWS, ids=[row[0] for row in ROWS])
def test_features_that_run(
    name: str, options: dict[str, Any], use: Use, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "BF16" in name and not os.environ.get("QUIRE_DEVICES_WHOLE"):
        pytest.skip("the module for tests has no shaders for BF16: ci/devices --whole")
    monkeypatch.chdir(tmp_path)
    check_same(name, options, use, device)


@pytest.mark.parametrize(("name", "options", "words"), REFUSED, ids=[row[0] for row in REFUSED])
def test_features_that_are_refused(
    name: str, options: dict[str, Any], words: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_refused(options, words, device)
