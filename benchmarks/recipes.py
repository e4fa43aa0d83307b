#!/usr/bin/env python3
"""Compare recipes by measurement with llama.cpp's mixes of equal size, by divergence on a text that neither has seen.

    recipes.py MODEL.gguf --calibration FILE --held-out FILE [--mixes Q3_K_S,...] [--chunks 4] [--rounds 0]
        [--imatrix FILE] [--costs FILE.json] [--picture FILE.png] [--threads 1]

The mixes are quantized with the same importance matrix as the recipes, and also without one (Quire's files are
identical to llama.cpp's: tests/quantization).  Divergence is measured in float32, with each matrix quantized and
dequantized again.  ``Q4_0:pure`` is a mix without exceptions (--pure).  The picture shows the recipes' curve in blue,
and the mixes with the importance matrix in red with dots.  ``--costs`` saves the trials for the next run.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from quire.evaluation.calibration import calibration_from
from quire.evaluation.costs import groups_of, measure_costs
from quire.evaluation.recipe import for_size, kept_bytes, measured, refined
from quire.evaluation.search import importance_over
from quire.evaluation.trial import Trial, opened_trial
from quire.gguf import GGUFReader
from quire.quantization import Importance, Wishes, plan

MIXES = "IQ2_M,Q2_K,IQ3_XXS,Q3_K_S,IQ3_M,Q3_K_M,IQ4_XS,Q4_K_S,Q4_K_M,Q5_K_S,Q5_K_M,Q6_K"


def divergence_of(trial: Trial, types: dict[str, str], importance: Importance | None) -> float:
    """Return the divergence on the held-out text."""
    empty = Importance()
    for name, dtype in types.items():
        trial.set(name, trial.values(name, dtype, importance or empty))
    return trial.divergence()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--mixes", default=MIXES)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--imatrix", type=Path)
    parser.add_argument("--costs", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    engine = {"threads": options.threads}
    reader = GGUFReader(options.model)
    n_values = sum(math.prod(info.shape) for info in reader.tensors)
    calibration = calibration_from(options.calibration, reader, parse_special=True)
    held_out = calibration_from(options.held_out, reader, parse_special=True)
    importance = Importance.read(options.imatrix) if options.imatrix else importance_over(reader, calibration, engine)
    known = json.loads(options.costs.read_text()) if options.costs and options.costs.exists() else None
    sizes = {}
    for mix in options.mixes.split(","):
        name, _, how = mix.partition(":")
        todo = plan(reader, name, Wishes(pure=how == "pure"), importance)
        sizes[mix] = {t.name: t.dtype for t in todo.tensors if t.dtype != t.source}, todo.n_bytes
    groups = groups_of(reader)
    recipes = {}
    with opened_trial(reader, calibration.rows[: options.chunks], engine) as trial:
        costs = measure_costs(trial, reader, groups, importance, known=known)
        if options.costs:
            options.costs.write_text(json.dumps(costs.trials))
        kept = kept_bytes(reader, costs)
        for mix, (_, n_bytes) in sizes.items():
            recipe = for_size(costs, n_bytes - kept)
            for _ in range(options.rounds):
                again = refined(trial, costs, recipe, importance, groups)
                other = measured(trial, for_size(again, n_bytes - kept), importance)
                before = recipe if recipe.measured is not None else measured(trial, recipe, importance)
                recipe = other if other.measured < before.measured else before
            recipes[mix] = recipe
    found = {}
    print(f"{'mix':8} {'bits':>6} {'recipe':>10} {'mix':>10} {'ratio':>6} {'no imatrix':>10} {'ratio':>6}", flush=True)
    with opened_trial(reader, held_out.rows[: options.chunks], engine) as trial:
        for mix, (types, n_bytes) in sizes.items():
            own = divergence_of(trial, dict(recipes[mix].types), importance)
            guided = divergence_of(trial, types, importance)
            try:
                bare = divergence_of(trial, types, None)
            except Exception:  # types that need importance
                bare = math.nan
            bits = 8 * n_bytes / n_values
            found[mix] = {
                "bits": bits,
                "recipe": own,
                "guided": guided,
                "bare": bare,
                "types": dict(recipes[mix].types),
            }
            print(
                f"{mix:8} {bits:6.3f} {own:10.3g} {guided:10.3g} {own / guided:6.2f} {bare:10.3g} {own / bare:6.2f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.picture:
        from quire.cli.curve_picture import bars_of, write_picture

        points = sorted((one["bits"], one["recipe"]) for one in found.values())
        others = sorted((one["bits"], one["guided"]) for one in found.values())
        write_picture(options.picture, points, others[0], others)
        print("\n".join(["", "recipes", *bars_of(points), "", "mixes", *bars_of(others)]))


if __name__ == "__main__":
    main()
