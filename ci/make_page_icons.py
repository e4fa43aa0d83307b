"""Write the chat page's icons from Lucide's files: ``python ci/make_page_icons.py node_modules/lucide-static``.

The result is committed; only somebody who wants another icon runs this.
"""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "python" / "quire" / "server" / "page"
NAMES = [
    "activity",
    "arrow-down",
    "arrow-up",
    "audio-lines",
    "bookmark",
    "book-open",
    "brain",
    "check",
    "chevron-down",
    "chevron-left",
    "chevron-right",
    "chevron-up",
    "circle-alert",
    "code",
    "columns-2",
    "copy",
    "cpu",
    "download",
    "ellipsis",
    "eye",
    "file-text",
    "folder",
    "hard-drive",
    "image",
    "info",
    "keyboard",
    "lightbulb",
    "message-square",
    "mic",
    "monitor",
    "moon",
    "panel-left",
    "paperclip",
    "pencil",
    "percent",
    "pin",
    "pin-off",
    "play",
    "plus",
    "power",
    "printer",
    "refresh-cw",
    "rotate-ccw",
    "search",
    "settings-2",
    "share-2",
    "square",
    "square-pen",
    "sun",
    "timer",
    "trash-2",
    "triangle-alert",
    "upload",
    "users",
    "wrench",
    "x",
    "zap",
    "wifi-off",
]


def shapes(svg: str) -> list[list[object]]:
    """Return the shapes of an icon as ``[tag, attributes]``."""
    root = ET.fromstring(re.sub(r'\sxmlns="[^"]*"', "", svg, count=1))  # noqa: S314 -- files of a pinned package
    return [[child.tag, dict(child.attrib)] for child in root]


def main(folder: Path) -> None:
    """Write ``icons.js``."""
    version = json.loads((folder / "package.json").read_text())["version"]
    lines = [
        f"// Icons of Lucide {version} (lucide.dev), ISC licence; some are derived from Feather, MIT licence.",
        "// vendor/NOTICES.md has both licences.  Written by ci/make_page_icons.py.",
        "export const ICONS = {",
    ]
    for name in NAMES:
        made = shapes((folder / "icons" / f"{name}.svg").read_text())
        lines.append(f"  {json.dumps(name)}: {json.dumps(made, separators=(',', ':'))},")
    (PAGE / "icons.js").write_text("\n".join([*lines, "};", ""]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
