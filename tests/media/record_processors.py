"""Write processors.json: what transformers' image processors give, as shapes and digests.

    python tests/media/record_processors.py

Needs transformers; the tests compare with the file where it is absent.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from image_processor_cases import CASES, SIZES, expected_views, picture, reference_of
from PIL import Image


def main() -> None:
    records: dict[str, dict[str, object]] = {}
    for name, (_, _, patch, _) in CASES.items():
        for size in SIZES[1:8:2]:
            try:
                output = reference_of(name)(images=Image.fromarray(picture(*size)), return_tensors="np")
            except (ValueError, ZeroDivisionError, RuntimeError):
                continue
            views = [np.ascontiguousarray(view, np.float32) for view in expected_views(name, output, patch)]
            digest = hashlib.sha256(b"".join(view.tobytes() for view in views)).hexdigest()
            records.setdefault(name, {})[f"{size[0]}x{size[1]}"] = {
                "shapes": [list(view.shape) for view in views],
                "sha256": digest,
            }
    text = json.dumps(records, indent=1) + "\n"
    Path(__file__).with_name("processors.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
