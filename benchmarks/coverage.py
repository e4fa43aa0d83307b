"""Print how many models that other programs name Quire opens: llama.cpp, transformers and vLLM.

    PYTHONPATH=python python benchmarks/coverage.py            # counts, and the names that do not open
    PYTHONPATH=python python benchmarks/coverage.py --json     # the same as JSON

The names are in coverage_names.json, with their sources and dates.  llama.cpp's are values of GGUF's
``general.architecture``; the others are classes of checkpoints.  A class opens if ``quire convert`` reads its
config.json; a decoder without a causal language model's head counts like its model.  Classes that open through
transformers' code (fallback_results.json, by fallback.py) count separately.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from quire.checkpoints.conversion.class_names import class_of
from quire.models.registry import architectures, checkpoint_classes, is_head_name

NAMES = Path(__file__).with_name("coverage_names.json")
FALLBACK = Path(__file__).with_name("fallback_results.json")
DEVIATION = re.compile(r"\d+e-\d+")


def opens(program: str, name: str) -> bool:
    """Return whether Quire opens models of this name."""
    if program == "llama.cpp":
        return name in architectures() or is_head_name(name)
    found, _ = class_of({"architectures": [name]})
    return found in checkpoint_classes()


def falling_back() -> set[str]:
    """Return the classes that open through transformers' code."""
    results: dict[str, str] = json.loads(FALLBACK.read_text(encoding="utf-8"))
    return {name for name, result in results.items() if DEVIATION.fullmatch(result)}


def counts() -> dict[str, dict[str, object]]:
    """Return, for each program, how many of its names open, and those that do not."""
    found: dict[str, dict[str, object]] = {}
    through_fallback = falling_back()
    for program, listed in json.loads(NAMES.read_text(encoding="utf-8")).items():
        names: list[str] = listed["names"]
        missing = [name for name in names if not opens(program, name)]
        found[program] = {
            "source": listed["source"],
            "date": listed["date"],
            "names": len(names),
            "open": len(names) - len(missing),
            "fallback": [name for name in missing if name in through_fallback],
            "missing": missing,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    found = counts()
    if parser.parse_args().json:
        print(json.dumps(found, indent=1))
        return
    for program, row in found.items():
        missing = row["missing"]
        assert isinstance(missing, list)
        print(f"{program}: {row['open']} of {row['names']} open ({row['source']}, {row['date']})")
        fallback = row["fallback"]
        assert isinstance(fallback, list)
        if fallback:
            print(f"  {len(fallback)} more open as transformers' code describes them: {', '.join(fallback)}")
        print(f"  missing: {', '.join(name for name in missing if name not in fallback)}")


if __name__ == "__main__":
    main()
