"""Fetch the pinned ggml: download the archive in `ggml.toml` with pip, check its hash, keep ggml and its licence.

    python vendor/fetch.py [DESTINATION]        # default: vendor/ggml beside this file

The destination appears complete or not at all: files are unpacked to a folder next to it, which is then renamed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAMP = "QUIRE-PIN"


def read_pin(path: Path) -> dict[str, str]:
    """Return the `key = "value"` lines of the pin file; Python 3.10 has no TOML parser."""
    pin = dict(re.findall(r'^(\w+)\s*=\s*"([^"]*)"', path.read_text(encoding="utf-8"), re.MULTILINE))
    missing = {"package", "package_version", "archive", "sha256", "folder", "licence"} - pin.keys()
    if missing:
        raise SystemExit(f"[vendor] {path} lacks {', '.join(sorted(missing))}")
    return pin


def download(pin: dict[str, str], folder: Path) -> Path:
    """Have pip download the archive.  With `--require-hashes` pip rejects a wrong file before running any of it."""
    requirement = folder / "requirement.txt"
    requirement.write_text(
        f"{pin['package']}=={pin['package_version']} --hash=sha256:{pin['sha256']}\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", pin["package"]]
    command += ["--no-build-isolation", "--require-hashes", "-d", str(folder), "-r", str(requirement)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"[vendor] pip could not download {pin['archive']}:\n{done.stderr.strip()[-2000:]}")
    return folder / pin["archive"]


def check_hash(archive: Path, expected: str) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != expected:
        raise SystemExit(f"[vendor] wrong sha256 of {archive.name}: {found} instead of {expected}")


def unpack(archive: Path, pin: dict[str, str], target: Path) -> None:
    """Copy only the pinned folder and the licence out of the archive; skip links and unsafe paths."""
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = member.name.partition("/")[2]
            if not member.isfile() or ".." in Path(inside).parts:
                continue
            if inside == pin["licence"]:
                relative = "LICENSE"
            elif inside.startswith(pin["folder"] + "/"):
                relative = inside[len(pin["folder"]) + 1 :]
            else:
                continue
            source = tar.extractfile(member)
            if source is None:
                continue
            path = target / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            with source, path.open("wb") as out:
                shutil.copyfileobj(source, out)
    for needed in ("LICENSE", "CMakeLists.txt", "include/ggml.h"):
        if not (target / needed).is_file():
            raise SystemExit(f"[vendor] no {needed} in {archive.name}")
    (target / STAMP).write_text(pin["sha256"] + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    destination = Path(arguments[0]).resolve() if arguments else HERE / "ggml"
    pin = read_pin(HERE / "ggml.toml")
    stamp = destination / STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == pin["sha256"]:
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".fetch-") as name:
        folder = Path(name)
        archive = download(pin, folder)
        check_hash(archive, pin["sha256"])
        unpack(archive, pin, folder / "ggml")
        if destination.exists():
            shutil.rmtree(destination)
        (folder / "ggml").rename(destination)


if __name__ == "__main__":
    main(sys.argv[1:])
