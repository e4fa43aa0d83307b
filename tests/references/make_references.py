"""Write the answers of transformers that tests compare with.

    python tests/references/make_references.py NAME ...             # models/NAME.npz of tests/tiny
    python tests/references/make_references.py trained --shared DIR  # trained.npz, of tiny-chat and tiny-draft
    python tests/references/make_references.py package --shared DIR  # package.npz

DIR is the folder of the shared test data.  Needs torch, transformers, tokenizers, gguf and numpy.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "support"))
from oracle_models import Oracle, no_inputs, oracle_of  # noqa: E402
from tiny_checkpoints import CONFIGS  # noqa: E402

torch.set_grad_enabled(False)
torch.manual_seed(0)

STARTS = [
    "Tell me a story about a fox", "Who are you?", "What is the capital of France?", "What is 2 + 3?", "List five fruits as bullet points.",
    "Count from 5 to 14.", "What day comes before Sunday?", "Tell me a story about a lighthouse.", "Say hello.",
    "What is the capital of Norway?", "Tell me about a girl named Amy.", "Reply in JSON with the keys name, age.\n\nThis is Rosa. She is 34.",
]  # fmt: skip
RAW = [
    "Once upon a time", "Once there was a fox", "The capital of", "One morning, Amy", "{\"name\": \"", "The old lighthouse", "Tom and his dog",
    "It was a sunny day and", "The moon", "A boy named Ben had", "In the forest", "The red ball",
]  # fmt: skip
N_NEW, N_LOGITS = 48, 8
LENGTHS = {"minimax-m3": 150, "minimax-m3-vl": 150}  # more blocks than an indexer picks


def make_model(name: str) -> None:
    """Return the checkpoint's tensors as transformers saves them, and its answers."""
    prompt = np.random.default_rng(7).integers(0, 256, LENGTHS.get(name, 40))
    oracle = oracle_of(name)
    logits = oracle.answer(prompt.tolist()).numpy()
    tokens, lead = oracle.greedy(prompt[:12].tolist(), 40) if oracle.model.can_generate() else ([], np.inf)
    print(name, "smallest lead", lead, "largest logit", np.abs(logits).max())
    np.savez_compressed(
        HERE / "models" / f"{name}.npz",
        shapes=np.array(json.dumps(oracle.shapes)), prompt=prompt, logits=logits, greedy=np.array(tokens),
    )  # fmt: skip


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in STARTS]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in chats + RAW]


def answers(model: torch.nn.Module, tokenizer: Tokenizer, prefix: str) -> dict[str, np.ndarray]:
    arrays = {}
    for i, ids in enumerate(prompts(tokenizer)):
        tokens, lead = Oracle(model, no_inputs, {}).greedy(ids, N_NEW)
        arrays[f"{prefix}.prompt.{i}"], arrays[f"{prefix}.greedy.{i}"] = np.array(ids), np.array(tokens)
        print(prefix, i, "smallest lead", lead, tokenizer.decode(tokens)[:60].replace("\n", " "))
        if i % 3 == 0:
            arrays[f"{prefix}.logits.{i}"] = model(torch.tensor([ids])).logits[0, -1].numpy()
    return arrays


def make_trained(shared: Path) -> None:
    arrays = {}
    for name in ("tiny-chat", "tiny-draft"):
        folder = shared / "models" / name
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        arrays |= answers(model, Tokenizer.from_file(str(folder / "tokenizer.json")), name)
    np.savez_compressed(HERE / "trained.npz", **arrays)


NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def make_package(shared: Path) -> None:
    """Write package.npz, with the dequantized weights of the package's model."""
    import gguf

    state = {}
    for tensor in gguf.GGUFReader(ROOT / "python/quire/data/tiny-chat-q8_0.gguf").tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        if tensor.name.startswith("blk."):
            _, layer, name, _ = tensor.name.split(".")
            state[f"model.layers.{layer}.{NAMES[name]}.weight"] = values
        else:
            state[
                {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[tensor.name.split(".")[0]] + ".weight"
            ] = values
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    folder = shared / "models" / "tiny-chat"
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    model.load_state_dict(state)
    arrays = answers(model, Tokenizer.from_file(str(folder / "tokenizer.json")), "package")
    np.savez_compressed(HERE / "package.npz", **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=[*CONFIGS, "trained", "package"])
    parser.add_argument("--shared", type=Path)
    arguments = parser.parse_args()
    for name in arguments.names:
        if name in CONFIGS:
            make_model(name)
        elif arguments.shared is None:
            parser.error(f"{name} needs --shared")
        else:
            {"trained": make_trained, "package": make_package}[name](arguments.shared)


if __name__ == "__main__":
    main()
