"""Edit what is unpacked in a few places where a system that we support does not compile it.

    python vendor/edits.py [FOLDER]             # default: vendor/ggml beside this file

An edit that is there already is left alone; one whose text is not found is an error, so that a new version of ggml is
looked at again.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Edit:
    """Lines to put around a block of `path`: before the line that starts with `first`, and after that with `last`."""

    path: str
    first: str
    last: str
    before: str
    after: str


EDITS = (
    # Layer settings, which choose what the validation layer checks, came with version 272 of Vulkan's headers.
    # Debian 12 has 239, and Ubuntu 22.04 has 204.
    Edit(
        path="src/ggml-vulkan/ggml-vulkan.cpp",
        first="    std::vector<vk::LayerSettingEXT> settings",
        last="    vk::InstanceCreateInfo instance_create_info(",
        before="#if VK_HEADER_VERSION >= 272 // edited: see vendor/README.md",
        after="#else\n    vk::InstanceCreateInfo instance_create_info({}, &app_info, layers, extensions);\n#endif",
    ),
)


def edited(text: str, edit: Edit) -> str:
    """The text with the edit; itself where it has it already."""
    lines = text.split("\n")
    if edit.before in lines:
        return text
    starts = [i for i, line in enumerate(lines) if line.startswith(edit.first)]
    ends = [i for i, line in enumerate(lines) if line.startswith(edit.last)]
    if len(starts) != 1 or len(ends) != 1 or ends[0] < starts[0]:
        raise SystemExit(
            f"[vendor] {edit.path} must have one block from {edit.first.strip()!r} to {edit.last.strip()!r} "
            "but has not: vendor/edits.py was written for another version of ggml"
        )
    begin, end = starts[0], ends[0]
    lines[end + 1 : end + 1] = edit.after.split("\n")
    lines.insert(begin, edit.before)
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]).resolve() if arguments else HERE / "ggml"
    for edit in EDITS:
        path = folder / edit.path
        if not path.is_file():
            raise SystemExit(f"[vendor] {path} must be there to be edited but is not")
        before = path.read_text(encoding="utf-8")
        after = edited(before, edit)
        if after == before:
            continue
        beside = path.with_name(path.name + ".edited")
        beside.write_text(after, encoding="utf-8")
        os.replace(beside, path)


if __name__ == "__main__":
    main(sys.argv[1:])
