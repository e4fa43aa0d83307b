"""Write features.json: what transformers' feature extractors give, as shapes and some of the numbers.

    python tests/media/record_features.py

Needs transformers; the tests compare with the file where it is absent.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from audio_cases import CASES, LENGTHS, reference, sound


def main() -> None:
    records: dict[str, dict[str, object]] = {}
    for name in CASES:
        for length in LENGTHS:
            frames, n_real = reference(name, sound(length))
            places = np.linspace(0, frames.size - 1, 48).astype(int)
            records.setdefault(name, {})[str(length)] = {
                "shape": list(frames.shape),
                "n_real": n_real,
                "mean": round(float(frames[:n_real].mean(dtype=np.float64)), 7),
                "numbers": [round(float(number), 7) for number in frames.reshape(-1)[places]],
            }
    rows = [
        f' "{name}": {{\n' + ",\n".join(f'  "{n}": {json.dumps(r)}' for n, r in kept.items()) + "\n }"
        for name, kept in records.items()
    ]
    Path(__file__).with_name("features.json").write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
