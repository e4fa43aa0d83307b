"""Have transformers compute the answers that the tests compare with.

    python tests/references/make_references.py SHARED [tiny] [trained] [package]

SHARED is the folder of the shared test data (for tiny-chat and tiny-draft).  Needs torch, transformers, tokenizers,
gguf and numpy; writes tiny.json, tiny.npz, trained.npz, package.npz beside this script.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))
from tiny_checkpoints import CONFIGS, N_VOCAB, config_of, weight_of, write_checkpoint  # noqa: E402

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


def greedy(model: torch.nn.Module, ids: list[int], n_new: int) -> tuple[list[int], float]:
    """Tokens by the largest logit, and the smallest lead that any of them had (relative to the largest logit)."""
    out, lead = list(ids), np.inf
    for _ in range(n_new):
        logits = model(torch.tensor([out])).logits[0, -1]
        best = torch.topk(logits, 2).values
        lead = min(lead, float((best[0] - best[1]) / logits.abs().max()))
        out.append(int(logits.argmax()))
    return out[len(ids) :], lead


def make_tiny() -> None:
    shapes, arrays = {}, {}
    prompt = np.random.default_rng(7).integers(0, 256, 40)
    for name, (kind, _) in CONFIGS.items():
        config = transformers.AutoConfig.for_model(**config_of(name))
        model = getattr(transformers, kind)._from_config(config, attn_implementation="eager").float().eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)  # the names as files have them
            from safetensors import safe_open

            with safe_open(Path(folder) / "model.safetensors", "pt") as file:
                shapes[name] = {tensor: list(file.get_slice(tensor).get_shape()) for tensor in list(file.keys())}
            write_checkpoint(Path(folder), name, shapes[name])
            model = (
                getattr(transformers, kind)
                .from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
                .eval()
            )
        tied = config_of(name)["tie_word_embeddings"]
        assert tied == ("lm_head.weight" not in shapes[name])
        check = weight_of(name, "model.embed_tokens.weight", (N_VOCAB, 64))
        assert np.array_equal(model.get_input_embeddings().weight.numpy(), check), "the weights must be ours"
        arrays[f"{name}.logits"] = model(torch.tensor([prompt.tolist()])).logits[0].numpy()
        tokens, lead = greedy(model, prompt[:12].tolist(), 40)
        arrays[f"{name}.greedy"] = np.array(tokens)
        print(name, "smallest lead", lead, "largest logit", np.abs(arrays[f"{name}.logits"]).max())
    arrays["prompt"] = prompt
    (HERE / "tiny.json").write_text(json.dumps(shapes, indent=0) + "\n")
    np.savez_compressed(HERE / "tiny.npz", **arrays)


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in STARTS]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in chats + RAW]


def answers(model: torch.nn.Module, tokenizer: Tokenizer, prefix: str) -> dict[str, np.ndarray]:
    arrays = {}
    for i, ids in enumerate(prompts(tokenizer)):
        tokens, lead = greedy(model, ids, N_NEW)
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
    """With the weights that the package's own quantized file stands for."""
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


if __name__ == "__main__":
    wanted = sys.argv[2:] or ["tiny", "trained", "package"]
    if "tiny" in wanted:
        make_tiny()
    if "trained" in wanted:
        make_trained(Path(sys.argv[1]))
    if "package" in wanted:
        make_package(Path(sys.argv[1]))
