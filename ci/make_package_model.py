#!/usr/bin/env python3
"""Make the package's model from its checkpoint: make_package_model.py CHECKPOINT [OUT.gguf]"""

from __future__ import annotations

import sys
from pathlib import Path

from quire.checkpoints.conversion import convert

DEFAULT = Path(__file__).resolve().parent.parent / "python/quire/data/tiny-chat-q8_0.gguf"

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    out = Path(sys.argv[2]) if len(sys.argv) == 3 else DEFAULT
    convert(sys.argv[1], out, "q8_0")
    print(f"{out}: {out.stat().st_size} bytes")
