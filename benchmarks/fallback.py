"""Try the fallback on transformers' causal language models that Quire has no file for.

    PYTHONPATH=python python benchmarks/fallback.py             # writes fallback_results.json and the table of the docs
    PYTHONPATH=python python benchmarks/fallback.py NAME ...    # tries some classes, writes nothing

Every class is tried with a tiny configuration: the sizes below, and those of fallback_sizes.json.  The result is the
largest difference of a logit from transformers', relative to the largest logit, or the part that was refused.  Needs
torch and transformers.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS, SIZES = HERE / "fallback_results.json", HERE / "fallback_sizes.json"
DEVIATION = re.compile(r"\d+e-\d+")
PAGE = HERE.parent / "docs" / "models_transformers.md"
COMMON: dict[str, Any] = {
    "vocab_size": 272, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 16, "d_model": 64, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "ffn_dim": 96, "embedding_size": 64, "n_embd": 64, "n_layer": 2, "n_head": 4,
    "moe_intermediate_size": 32, "num_experts": 8, "n_routed_experts": 8, "num_local_experts": 8, "n_positions": 128,
    "is_decoder": True, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "type_vocab_size": 2,
}  # fmt: skip


def config_of(model_type: str, own: dict[str, Any]) -> dict[str, Any]:
    """Return a tiny configuration as in config.json."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    names = {*vars(kind()), *getattr(kind, "attribute_map", {}), *inspect.signature(kind).parameters}
    made = kind(**{name: value for name, value in {**COMMON, **own}.items() if name in names and value is not None})
    values: dict[str, Any] = json.loads(json.dumps(made.to_dict(), default=str))
    return {**values, "model_type": model_type}


def tried(name: str, model_type: str, own: dict[str, Any] | None) -> str:
    """Return the deviation, or the part that was refused."""
    from quire.checkpoints.conversion.fallback import check
    from quire.checkpoints.structure.finding import find
    from quire.errors import UnsupportedError

    if own is None:
        return "not tried: it has no small configuration"
    try:
        config = config_of(model_type, own)
    except Exception as error:  # a configuration checks itself in its own way
        return f"no tiny configuration: {type(error).__name__}"
    try:
        return f"{check(find(config, name)[1]):.0e}"
    except UnsupportedError as error:
        return re.sub(r"\[fallback\] (unsupported )?", "", str(error).splitlines()[0])[:150]


def main() -> None:
    from coverage import NAMES, opens
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    warnings.simplefilter("ignore")
    types: dict[str, str] = {}
    for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        types.setdefault(str(name), model_type)
    listed = json.loads(NAMES.read_text(encoding="utf-8"))["transformers"]["names"]
    names = sys.argv[1:] or [name for name in listed if not opens("transformers", name)]
    sizes = json.loads(SIZES.read_text(encoding="utf-8"))
    results = {}
    for name in names:
        results[name] = tried(name, types[name], sizes.get(name, {}))
        print(f"{name}: {results[name]}", flush=True)
    if not sys.argv[1:]:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write_page(results)


def is_open(result: str) -> bool:
    return DEVIATION.fullmatch(result) is not None


def write_page(results: dict[str, str]) -> None:
    """Replace the table at the end of the page."""
    n_open = sum(map(is_open, results.values()))
    text = PAGE.read_text(encoding="utf-8").partition("## Results\n")[0]
    lines = [
        f"Of the {len(results)} causal language models of transformers that Quire has no file for, {n_open} open and",
        "match. Each was tried with a tiny random configuration (`benchmarks/fallback.py`). The result is the largest",
        "difference of any logit from transformers', relative to the largest logit, or the part that was refused.", "",
        "| class | result |", "|---|---|",
    ]  # fmt: skip
    ranked = sorted(results.items(), key=lambda item: (not is_open(item[1]), item[0]))
    lines += [f"| {name} | {result.replace('|', '/')} |" for name, result in ranked]
    PAGE.write_text(f"{text}## Results\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
