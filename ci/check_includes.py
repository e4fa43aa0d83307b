"""Check the layers of native code by its #include lines, and the length of all source files.

    python ci/check_includes.py [ROOT]

Layers, lowest first: core; gguf quant kv; kernels cuda vulkan graph; engine; testing; bindings.  Within graph and
engine the folders are layers too (``ROOMS``).  ggml's headers belong to core, gguf, quant, cuda, vulkan, graph and
kv/kv_store.cpp, Python's to bindings; kernels know neither.  The parts that are tested without a device or a clock
(``PURE``) reach no device, no thread and no clock through any header.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ALLOWED = {
    "core": {"core"},
    "gguf": {"core", "gguf"},
    "quant": {"core", "quant"},
    "kv": {"core", "kv"},
    "kernels": {"kernels"},  # and KERNEL_HEADERS, except in folders of instruction sets
    "cuda": {"cuda"},  # compiled into ggml's CUDA module, except headers shared with the core
    "vulkan": {"cuda", "vulkan"},  # compiled into ggml's Vulkan module
    "graph": {"core", "gguf", "quant", "kv", "kernels", "cuda", "graph"},
    "engine": {"core", "gguf", "quant", "kv", "kernels", "graph", "engine"},
    "testing": {"core", "kv", "graph", "engine", "testing"},
    "bindings": {"core", "gguf", "quant", "kv", "kernels", "graph", "engine", "testing", "bindings"},
    "tokenizer": {"tokenizer"},  # and TOKENIZER_HEADERS
}
# Folders inside a layer, lowest first: each may include only itself and those before it.
ROOMS = {
    "graph": ("trace", "stock", "cpu", "operations", "run"),
    "engine": ("sampling", "scheduling", "drafting", "decoding"),
}
GGML_LAYERS = ("core", "gguf", "quant", "cuda", "vulkan", "graph")
GGML_FILES = {"kv/kv_store.cpp", "kv/kv_store_transfer.cpp"}
PURE = {
    "kv": {
        "block_pool",
        "block_table",
        "free_list",
        "prefix_hash",
        "blake2b",
        "cache_spec",
        "cache_ledger",
        "cache_pool",
        "sequence_cache",
        "sequence_cache_tiers",
        "block_tiers",
    },
    "engine": {
        "scheduler",
        "scheduler_check",
        "scheduler_plan",
        "scheduler_policy",
        "scheduler_yield",
        "sequence",
        "batch",
        "sampler",
        "stop_matcher",
        "sampling_params",
    },
}
# Standard headers that pure parts must not include: time, threads, files.
IMPURE = {"chrono", "condition_variable", "filesystem", "fstream", "future", "iostream", "mutex", "thread"}
# Interfaces that do not need a device.
PURE_INTERFACES = {
    "core/block_tokens.h",
    "core/error.h",
    "core/dtype.h",
    "core/q8_layout.h",
    "graph/trace/adapter_use.h",
    "graph/trace/step_batch.h",
}
KERNEL_ROOMS = {"kernels", "kernels/attention", "kernels/matmul", "kernels/rows"}
KERNEL_HEADERS = (
    "core/block_tokens.h",
    "core/environment.h",
    "core/error.h",
    "core/large_pages.h",
    "core/poison.h",
    "core/q8_layout.h",
)
TOKENIZER_HEADERS = ("core/large_pages.h",)
LONG, TOO_LONG = 300, 500
TOO_LONG_STUB = 800  # stubs are for reference, not for reading in one go
FORBIDDEN_STEMS = {"utils", "util", "common", "misc", "manager", "helper", "helpers"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
GGML_HEADER = re.compile(r"^(ggml|gguf)([-_.]|$)")
PYTHON_HEADER = re.compile(r"^(pybind11/|Python\.h$|numpy/)")


def includes_of(path: Path) -> list[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(2)) + 1, found.group(2)) for found in INCLUDE.finditer(text)]


class Tree:
    """The headers and sources below native/, by relative path."""

    def __init__(self, native: Path) -> None:
        self.files = {
            path.relative_to(native).as_posix(): includes_of(path)
            for path in sorted(native.rglob("*"))
            if path.suffix in {".h", ".hpp", ".cpp"}
        }

    def resolve(self, source: str, header: str) -> str | None:
        """Return Quire's own file that a line includes, None for other files."""
        beside = (Path(source).parent / header).as_posix()
        return header if header in self.files else beside if beside in self.files else None

    def reached(self, source: str) -> dict[str, str]:
        """Return every header that a file includes directly or indirectly, with the file that includes it."""
        found: dict[str, str] = {}
        left = [source]
        while left:
            current = left.pop()
            for _, header in self.files[current]:
                ours = self.resolve(current, header)
                name = ours or header
                if name not in found:
                    found[name] = current
                    if ours:
                        left.append(ours)
        return found


def layer_of(path: str) -> str:
    return path.split("/", 1)[0]


def room_of(path: str) -> int | None:
    """Return the position of a file's folder in its layer, None if the layer has no order of folders."""
    parts = path.split("/")
    rooms = ROOMS.get(parts[0], ())
    return rooms.index(parts[1]) if len(parts) > 2 and parts[1] in rooms else None


def is_excepted(path: str, header: str) -> bool:
    """Return the extra headers a kernel file may include.

    Code that chooses an instruction set may raise errors, kernels may not.  Whatever a kernel includes is compiled for
    its instruction set.
    """
    if layer_of(path) == "tokenizer":
        return header in TOKENIZER_HEADERS
    in_room = Path(path).parent.as_posix() in KERNEL_ROOMS
    return in_room and header in KERNEL_HEADERS


def check_lines(tree: Tree) -> list[str]:
    """Check each include line: which layer may include which."""
    errors = []
    for path, lines in tree.files.items():
        layer = layer_of(path)
        if layer not in ALLOWED:
            errors.append(f"native/{path}: unknown layer {layer} (expected {', '.join(ALLOWED)})")
            continue
        room = room_of(path)
        if layer in ROOMS and room is None:
            errors.append(f"native/{path}: not in a folder of {layer} ({', '.join(ROOMS[layer])})")
        for number, header in lines:
            place = f"native/{path}:{number}"
            ours = tree.resolve(path, header)
            if ours and layer_of(ours) not in ALLOWED[layer] and not is_excepted(path, ours):
                errors.append(f"{place}: {layer} includes {header}, but may not depend on {layer_of(ours)}")
            if ours and room is not None and layer_of(ours) == layer and (room_of(ours) or 0) > room:
                errors.append(f"{place}: {ROOMS[layer][room]} is below the folder of {header}")
            if not ours and GGML_HEADER.match(header) and layer not in GGML_LAYERS and path not in GGML_FILES:
                errors.append(f"{place}: {layer} includes ggml's {header}: only {', '.join(GGML_LAYERS)} may")
            if not ours and PYTHON_HEADER.match(header) and layer != "bindings":
                errors.append(f"{place}: {layer} includes Python's {header}: only bindings may")
    return errors


def check_pure(tree: Tree) -> list[str]:
    """Check what pure parts include through all headers."""
    errors = []
    for path in tree.files:
        if Path(path).stem not in PURE.get(layer_of(path), set()):
            continue
        for header, source in tree.reached(path).items():
            ours = header in tree.files
            if ours and layer_of(header) not in {"kv", "engine"} and header not in PURE_INTERFACES:
                errors.append(f"native/{path}: pure, but includes {header} through {source}")
            if not ours and (header in IMPURE or GGML_HEADER.match(header)):
                errors.append(f"native/{path}: pure, but includes <{header}> through {source}")
    return errors


def check_lengths(root: Path) -> tuple[list[str], list[str]]:
    """Report files that are too long to read in one go (errors) or nearly so (warnings)."""
    errors, warnings = [], []
    sources = [path for folder in ("native", "python") for path in sorted((root / folder).rglob("*"))]
    for path in sources:
        if path.suffix not in {".py", ".pyi", ".pyx", ".cpp", ".h", ".hpp"} or not path.is_file():
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        place = path.relative_to(root).as_posix()
        if path.stem in FORBIDDEN_STEMS:
            errors.append(f"{place}: name the file after its contents")
        generated = bool(lines) and "do not edit" in lines[0]
        most = TOO_LONG_STUB if place.endswith(".pyi") else TOO_LONG
        if len(lines) > most and not generated:
            errors.append(f"{place}: {len(lines)} lines, the limit is {most}")
        elif len(lines) > LONG and not generated:
            warnings.append(f"{place}: {len(lines)} lines")
    return errors, warnings


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    tree = Tree(root / "native")
    errors, warnings = check_lengths(root)
    errors = check_lines(tree) + check_pure(tree) + errors
    for warning in warnings:
        print(f"warning: {warning}")
    for error in errors:
        print(error)
    print(f"{len(tree.files)} native files, {len(errors)} errors, {len(warnings)} long")
    return 1 if errors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
