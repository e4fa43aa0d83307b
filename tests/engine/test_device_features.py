"""The table of features on devices in docs/devices.md, row by row on the device that counts.  Oracle: the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from counting_device import counting_device
from device_features import REFUSED, ROWS, TABLE, Use, check_refused, check_same


@pytest.fixture(scope="module")
def device() -> str:
    return counting_device().device.name


@pytest.mark.parametrize(("name", "options", "use"), ROWS, ids=[row[0] for row in ROWS])
def test_features_that_run(
    name: str, options: dict[str, Any], use: Use, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"| {name} | yes |" in TABLE
    monkeypatch.chdir(tmp_path)
    check_same(name, options, use, device)


@pytest.mark.parametrize(("name", "options", "words"), REFUSED, ids=[row[0] for row in REFUSED])
def test_features_that_are_refused(
    name: str, options: dict[str, Any], words: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"| {name} | refused |" in TABLE
    monkeypatch.chdir(tmp_path)
    check_refused(options, words, device)
