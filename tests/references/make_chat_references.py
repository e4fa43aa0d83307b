"""Write chat.json: digests of transformers' renderings of every template in a folder.

    python tests/references/make_chat_references.py ../shared/templates

Needs transformers.  Tests compare Quire's renderings with it (tests/chat/test_chat_template_references.py, which has the
same CASES and the same frozen day).
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_cases import CASES
from transformers_chats import frozen, rendered


def main(folder: Path) -> None:
    found: dict[str, dict[str, list[object] | None]] = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        entry = found[path.name] = {}
        with frozen():
            for name, case in CASES.items():
                text = rendered(source, case)
                entry[name] = None if text is None else [len(text), hashlib.sha256(text.encode()).hexdigest()[:16]]
    target = Path(__file__).with_name("chat.json")
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(found.items())]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    results = [value for entry in found.values() for value in entry.values()]
    print(f"{len(found)} templates, {len(results)} renderings, {results.count(None)} refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
