"""Make a wheel with the backend module of one kind of device: see ci/device_wheel."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from release_wheels import DIST, ROOT, TOOLS, Machine

WORK = ROOT / "build" / "device_wheel"
INDEX_LIMIT_BYTES = 100_000_000  # limit of the index for one file, without a special request
# Libraries that the package has loaded before it loads a module.
OWN_LIBRARIES = ("libquire-ggml-base.so", "libquire-ggml.so")


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device.

    ``module`` is the name in ``libggml-MODULE.so``, ``option`` the CMake option.  ``system`` has patterns of libraries
    that come with the driver or toolkit and never go into a wheel.  ``requires`` are packages on the index that contain
    some of them, in ``folders`` relative to the module.
    """

    module: str
    option: str
    system: tuple[str, ...]
    title: str
    requires: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


KINDS = {
    "vulkan": DeviceKind("vulkan", "QUIRE_VULKAN", ("libvulkan.so.1",), "Vulkan"),
    "cuda": DeviceKind(
        "cuda", "QUIRE_CUDA", ("libcuda.so.1", "libcudart.so.*", "libcublas.so.*", "libcublasLt.so.*", "libnccl.so.*"),
        "NVIDIA's CUDA",
        ("nvidia-cublas>=13.0,<14", "nvidia-cuda-runtime>=13.0,<14"), ("$ORIGIN/../nvidia/cu13/lib",),
    ),
    "rocm": DeviceKind("hip", "QUIRE_HIP", ("libamdhip64.so.*", "libhipblas.so.*", "librocblas.so.*"), "AMD's ROCm"),
    "sycl": DeviceKind(
        "sycl", "QUIRE_SYCL", ("libsycl.so.*", "libmkl_*.so.*", "libdnnl.so.*", "libze_loader.so.*", "libsvml.so",
        "libimf.so", "libirng.so", "libintlc.so.*"), "SYCL",
    ),
}  # fmt: skip


def run(*command: str | Path, log: Path, **environment: str) -> str:
    """Run a command that must succeed; return its output, which is also logged to a file."""
    done = subprocess.run(
        [str(part) for part in command], env={**os.environ, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    log.write_text(done.stdout)
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-6000:]}\nfailed: {' '.join(map(str, command))}")
    return done.stdout


def version_of_quire() -> str:
    """Return the version from pyproject.toml."""
    match = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def commit_time() -> str:
    """Return the time for archives, so that the same commit gives the same bytes."""
    command = ["git", "log", "-1", "--format=%ct"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return os.environ.get("SOURCE_DATE_EPOCH", told or "315532800")


def by_zig(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return settings and variables to build with zig's compiler for the C library of ci/release's wheels."""
    compilers = Machine(platform.machine()).compilers()
    # Copy only Vulkan's headers, because the system's folder also has the headers of another C library.
    headers = folder / "headers"
    headers.mkdir(parents=True, exist_ok=True)
    for name in ("vulkan", "vk_video", "spirv"):
        source, link = Path("/usr/include") / name, headers / name
        if source.is_dir() and not link.is_symlink():
            link.symlink_to(source)
    folders = (Path("/usr/lib") / f"{platform.machine()}-linux-gnu", Path("/usr/lib64"), Path("/usr/lib"))
    loader = next((place / "libvulkan.so" for place in folders if (place / "libvulkan.so").exists()), None)
    if loader is None:
        sys.exit("Vulkan's loader not found (Debian: apt install libvulkan-dev)")
    variables = {"CC": str(compilers / "cc"), "CXX": str(compilers / "c++"), "CCACHE_DISABLE": "1"}
    settings = {"Vulkan_INCLUDE_DIR": headers, "Vulkan_LIBRARY": loader, "CMAKE_CXX_FLAGS": f"-isystem {headers}"}
    return [f"-D{name}={value}" for name, value in settings.items()], variables


def build(kind: DeviceKind, folder: Path, settings: list[str], variables: dict[str, str]) -> Path:
    """Build the module and strip its symbols, paths of this machine, and library search paths."""
    objects = folder / "objects"
    options = {
        kind.option: "ON",
        "QUIRE_PORTABLE": "ON",
        "Python_EXECUTABLE": sys.executable,
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
        "CMAKE_MODULE_LINKER_FLAGS": "-s",
        "CMAKE_SHARED_LINKER_FLAGS": "-s",
    }
    defined = [f"-D{name}={value}" for name, value in options.items()]
    log = folder / "build.log"
    run("cmake", "-S", ROOT, "-B", objects, "-G", "Ninja", *defined, *settings, log=log, **variables)
    run("cmake", "--build", objects, "--target", f"ggml-{kind.module}", log=log, **variables)
    return next(objects.rglob(f"libggml-{kind.module}.so"))


def write_tree(folder: Path, name: str, module: Path, version: str) -> None:
    """Write the wheel's contents: a package with only the module, and metadata with its entry point."""
    kind = KINDS[name]
    package = folder / f"quire_llm_{name}"
    package.mkdir(parents=True)
    shutil.copyfile(module, package / f"libggml-{kind.module}.so")
    (package / "__init__.py").write_text(f'"""Quire\'s module for {kind.title}; the package quire finds it."""\n')
    info = folder / f"quire_llm_{name}-{version}.dist-info"
    (info / "licenses").mkdir(parents=True)
    licences = {"LICENSE": ROOT / "LICENSE", "LICENSE.ggml": ROOT / "vendor" / "ggml" / "LICENSE"}
    for target, source in licences.items():
        shutil.copyfile(source, info / "licenses" / target)
    metadata = [
        "Metadata-Version: 2.4",
        f"Name: quire-llm-{name}",
        f"Version: {version}",
        f"Summary: Quire's module for {kind.title}: install quire-llm[{name}]",
        "License-Expression: MIT",
        *(f"License-File: {target}" for target in licences),
        "Requires-Python: >=3.10",
        # A module works with only one build of ggml, recorded in its note.
        f"Requires-Dist: quire-llm=={version}",
        *(f"Requires-Dist: {package}" for package in kind.requires),
    ]
    (info / "METADATA").write_text("\n".join(metadata) + "\n\nSee quire's documentation, *Devices*.\n")
    (info / "entry_points.txt").write_text(f"[quire.modules]\n{kind.module} = quire_llm_{name}\n")
    machine = platform.machine()
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: ci/device_wheel\nRoot-Is-Purelib: false\nTag: py3-none-linux_{machine}\n"
    )


def pack(name: str, folder: Path, epoch: str) -> Path:
    """Pack ``folder / "tree"`` into a wheel, with the platform tags that the module's libraries allow."""
    made, repaired = folder / "made", folder / "repaired"
    for place in (made, repaired):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
    log = folder / "pack.log"
    run(TOOLS / "wheel", "pack", folder / "tree", "-d", made, log=log, SOURCE_DATE_EPOCH=epoch)
    excluded = [f"--exclude={library}" for library in (*OWN_LIBRARIES, *KINDS[name].system)]
    wheel = next(made.glob("*.whl"))
    run(TOOLS / "auditwheel", "repair", *excluded, "-w", repaired, wheel, log=log, SOURCE_DATE_EPOCH=epoch)
    DIST.mkdir(exist_ok=True)
    return Path(shutil.copy2(next(repaired.glob("*.whl")), DIST))


def main() -> None:
    """Build the wheel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--zig", action="store_true")
    parser.add_argument("--module", type=Path)
    parser.add_argument("--define", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    if options.zig and options.kind != "vulkan":
        parser.error(f"--zig only works for vulkan: {options.kind} has its own compiler")
    folder = WORK / options.kind
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    module = options.module
    if module is not None and (module.parent / "only-for-tests").exists():
        sys.exit(f"{module} only has the shaders of the tests: rebuild it with ci/devices --whole --build")
    if module is None:
        settings, variables = by_zig(folder) if options.zig else ([], {})
        module = build(KINDS[options.kind], folder, [*settings, *(f"-D{one}" for one in options.define)], variables)
    note = re.search(rb"Quire\0\0\0(ggml [^\0]+)\0", module.read_bytes())
    if note is None:
        sys.exit(f"{module} was not built with Quire: it has no note of its ggml build")
    shutil.rmtree(folder / "tree", ignore_errors=True)
    write_tree(folder / "tree", options.kind, module, version_of_quire())
    packed = folder / "tree" / f"quire_llm_{options.kind}" / f"libggml-{KINDS[options.kind].module}.so"
    folders = ":".join(("$ORIGIN", *KINDS[options.kind].folders))
    if options.module is not None or KINDS[options.kind].folders:  # its build may have left search paths in it
        run(TOOLS / "patchelf", "--set-rpath", folders, packed, log=folder / "pack.log")
    wheel = pack(options.kind, folder, commit_time())
    size = wheel.stat().st_size
    print(f"{wheel.relative_to(ROOT)}: {note[1].decode()}, {size / 1e6:.1f} MB in {time.monotonic() - start:.0f} s")
    if size > INDEX_LIMIT_BYTES:
        sys.exit(f"the wheel exceeds the index's limit of {INDEX_LIMIT_BYTES / 1e6:.0f} MB for a file")


if __name__ == "__main__":
    main()
