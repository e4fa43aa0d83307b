"""Changes of text models that tables cannot express."""

from __future__ import annotations

import base64
import binascii

from ...errors import LoadError
from ..gguf import GGUFReader
from .form import Translation, joined, rows_of

_ENCODERS = ("v.", "a.", "mm.", "mtp.", "model.vision_tower.")
_VOCABULARY = {"tokens": "string[]", "scores": "f32[]", "token_type": "i32[]"}
PRE, MODEL = "tokenizer.ggml.pre", "tokenizer.ggml.model"


def is_text(name: str) -> bool:
    return not name.startswith(_ENCODERS)


def with_sections(made: Translation, usual: tuple[int, ...] = ()) -> None:
    """Write the sections of RoPE as four numbers; ``usual``: those of files without any."""
    name = f"{made.arch}.rope.dimension_sections"
    for other in ("rope.mrope_section", "mrope_sections"):
        made.keys.move(f"{made.arch}.{other}", name)
        made.keys.remove(f"{made.arch}.{other}")
    if found := [int(n) for n in made.metadata.array(name)] if name in made.metadata else [*usual]:
        made.keys.set(name, "i32[]", [*found, 0, 0, 0, 0][:4])


def _cut_vocabulary(made: Translation, n: int) -> None:
    """Remove tokens beyond the rows of the embedding."""
    for key, kind in _VOCABULARY.items():
        full = f"tokenizer.ggml.{key}"
        if full not in made.metadata:
            continue
        values = made.metadata.strings(full) if kind == "string[]" else made.metadata.array(full).tolist()
        if len(values) > n:
            made.keys.set(full, made.metadata.type_of(full), values[:n])


def one_count(made: Translation) -> None:
    """Write the heads of k and v, of which recurrent layers have 0, as one number and a flag for each layer."""
    name = f"{made.arch}.attention.head_count_kv"
    if name in made.metadata and made.metadata.type_of(name).endswith("[]"):
        counts = [int(n) for n in made.metadata.array(name)]
        made.default("attention.recurrent_layers", "bool[]", [n == 0 for n in counts])
        made.keys.set(name, "u32", max(counts, default=0))


def is_ollamas_gemma3(reader: GGUFReader) -> bool:
    marks = ("mm.tokens_per_image", "rope.global.freq_base", "rope.local.freq_base")
    keys = reader.metadata
    return (
        any(f"gemma3.{mark}" in keys for mark in marks)
        or "gemma3.attention.layer_norm_rms_epsilon" not in keys
        or any(info.name.startswith(("v.", "mm.", "dense.")) for info in reader.tensors)
    )


def gemma3(made: Translation) -> None:
    if "dense.0.weight" in made.tensors:
        _embedding_gemma(made)
    # All models for contexts this long have it, and older files do not say so.
    elif made.integer("context_length") >= 131072 and "gemma3.rope.scaling.type" not in made.metadata:
        made.set("rope.scaling.type", "string", "linear")
        made.default("rope.scaling.factor", "f32", 8.0)
    if "token_embd.weight" in made.tensors:
        _cut_vocabulary(made, made.tensors.shape("token_embd.weight")[0])


def _embedding_gemma(made: Translation) -> None:
    for key in made.metadata:
        if key.startswith("gemma3."):
            made.keys.move(key, f"gemma-embedding.{key.removeprefix('gemma3.')}")
    made.arch = "gemma-embedding"
    made.keys.set("general.architecture", "string", made.arch)
    for key in ("attention.causal", "attention.sliding_window_pattern"):
        made.keys.remove(f"{made.arch}.{key}")
    names = {
        "dense.0.weight": "dense_2.weight",
        "dense.1.weight": "dense_3.weight",
        "norm.weight": "output_norm.weight",
    }
    made.tensors.rename(lambda name: names.get(name, name))
    for name in ("dense_2", "dense_3"):
        n_out, n_in = made.tensors.shape(f"{name}.weight")
        made.set(f"{name}_feat_in", "u32", n_in)
        made.set(f"{name}_feat_out", "u32", n_out)


def gemma3n(made: Translation) -> None:
    rows, n = "per_layer_token_embd.weight", 0
    if rows not in made.tensors or "token_embd.weight" not in made.tensors:
        return
    shape, n = made.tensors.shape("token_embd.weight"), made.tensors.shape(rows)[0]
    if n >= shape[0]:
        return
    # Tokens that only stand for images and sounds have no embeddings for the layers.
    made.tensors.make("token_embd.weight", ["token_embd.weight"], (n, *shape[1:]), rows_of(0, n))
    _cut_vocabulary(made, n)
    made.keys.set(MODEL, "string", "llama")
    texts, kinds = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
    if texts in made.metadata and kinds in made.metadata:
        types = [int(kind) for kind in made.metadata.array(kinds)]
        for i, text in enumerate(made.metadata.strings(texts)[: len(types)]):
            if len(text) == 6 and text.startswith(b"<0x") and text.endswith(b">"):
                types[i] = 6  # a byte
            elif text.startswith(b"<unused"):
                types[i] = 1  # an ordinary token
        made.keys.set(kinds, "i32[]", types)


def gemma4(made: Translation) -> None:
    if made.metadata.text(MODEL, "") == "llama":
        made.keys.set(MODEL, "string", "gemma4")


def qwen3vl(made: Translation) -> None:
    with_sections(made, (24, 20, 20))
    taps = f"{made.arch}.vision.deepstack_visual_indexes"
    made.default("n_deepstack_layers", "u32", len(made.metadata.array(taps)) if taps in made.metadata else 0)


def qwen35(made: Translation) -> None:
    reordered = f"{made.arch}.ssm.v_head_reordered"
    if not made.metadata.flag(reordered, True):
        raise LoadError(f"[gguf] unsupported '{reordered}': false (expected true)")
    made.keys.remove(reordered)
    with_sections(made)
    one_count(made)


def gptoss(made: Translation) -> None:
    made.keys.set(PRE, "string", "gpt-4o")
    for block in made.blocks():
        _split_gates(made, block)
        if f"{block}attn_qkv.weight" in made.tensors:
            _split_heads(made, block)
    if "blk.0.ffn_gate_exps.weight" in made.tensors:
        made.default("expert_feed_forward_length", "u32", made.tensors.shape("blk.0.ffn_gate_exps.weight")[1])


def _split_gates(made: Translation, block: str) -> None:
    """Split gates and ups of experts, which alternate."""
    both = f"{block}ffn_gate_up_exps"
    if f"{both}.weight" not in made.tensors:
        return
    n_expert, n_rows, n_in = made.tensors.shape(f"{both}.weight")
    for i, name in enumerate(("gate", "up")):
        own = f"{block}ffn_{name}_exps"
        made.tensors.make(f"{own}.weight", [f"{both}.weight"], (n_expert, n_rows // 2, n_in), rows_of(i, n_rows, 2))
        if f"{both}.bias" in made.tensors:
            made.tensors.make(
                f"{own}.bias", [f"{both}.bias"], (n_expert, n_rows // 2),
                lambda tensors, i=i: [tensors[0].numpy()[:, i::2].copy()],  # type: ignore[misc]
            )  # fmt: skip
    for suffix in ("weight", "bias"):
        made.tensors.remove(f"{both}.{suffix}")


def _split_heads(made: Translation, block: str) -> None:
    n_head, n_kv_head = made.integer("attention.head_count"), made.integer("attention.head_count_kv")
    size, at = made.integer("attention.key_length"), 0
    for suffix in ("weight", "bias"):
        both, at = f"{block}attn_qkv.{suffix}", 0
        if both not in made.tensors:
            continue
        n_rows, *rest = made.tensors.shape(both)
        if n_rows != (n_head + 2 * n_kv_head) * size:
            raise LoadError(f"[gguf] tensor '{both}' has {n_rows} rows, which are not those of its heads")
        for name, n in (("q", n_head), ("k", n_kv_head), ("v", n_kv_head)):
            end = at + n * size
            made.tensors.make(f"{block}attn_{name}.{suffix}", [both], (n * size, *rest), rows_of(at, end))
            at = end
        made.tensors.remove(both)


def lfm2(made: Translation) -> None:
    made.keys.set(PRE, "string", "lfm2")
    if "blk.0.ffn_gate.weight" in made.tensors:  # some files have another number
        made.set("feed_forward_length", "u32", made.tensors.shape("blk.0.ffn_gate.weight")[0])


def mistral3(made: Translation) -> None:
    if made.metadata.text(PRE, "") in ("", "default"):
        made.keys.set(PRE, "string", "tekken")


def glm4moelite(made: Translation) -> None:
    """Write the sizes of heads as llama.cpp does for latent attention: one head of k and v, and those of each head."""
    rank, n_rot, head_dim = (made.integer(name) for name in ("attention.kv_lora_rank", "rope.dimension_count", _HEAD))
    made.set("attention.key_length_mla", "u32", head_dim)
    made.set("attention.value_length_mla", "u32", made.integer("attention.value_length"))
    made.set("attention.head_count_kv", "u32", 1)
    made.set("attention.key_length", "u32", rank + n_rot)
    made.set("attention.value_length", "u32", rank)
    made.keys.set(PRE, "string", "glm4")


_HEAD = "attention.key_length"


def glmocr(made: Translation) -> None:
    with_sections(made)
    made.default("rope.dimension_count", "u32", made.integer(_HEAD))
    made.keys.set(PRE, "string", "chatglm-bpe")
    for block in made.blocks():
        if f"{block}ffn_gate.weight" in made.tensors:
            joined(made, f"{block}ffn_up.weight", [f"{block}ffn_gate.weight", f"{block}ffn_up.weight"])


def nemotron_h(made: Translation) -> None:
    for block in made.blocks():
        if (name := f"{block}ffn_latent_down.weight") in made.tensors:
            made.default("moe_latent_size", "u32", made.tensors.shape(name)[0])


def llama(made: Translation) -> None:
    """Name the pre-tokenizer of Llama 3, whose name files made before it had one lack."""
    texts = made.metadata.strings("tokenizer.ggml.tokens") if "tokenizer.ggml.tokens" in made.metadata else []
    if len(texts) > 128009 and texts[128009] == b"<|eot_id|>":
        made.keys.set(PRE, "string", "llama-bpe")


def bert(made: Translation) -> None:
    """Decode the table of characters, which is one string for each digit of base64."""
    key = "tokenizer.ggml.precompiled_charsmap"
    try:
        table = base64.b64decode(b"".join(made.metadata.strings(key)), validate=True)
    except binascii.Error as error:
        raise LoadError(f"[gguf] key '{key}' is no base64: {error}") from None
    made.keys.set(key, "u8[]", table)


def llama4(made: Translation) -> None:
    for old, new in (
        ("intermediate_size", "feed_forward_length"),
        ("intermediate_size_moe", "expert_feed_forward_length"),
    ):
        if (name := f"{made.arch}.{old}") in made.metadata:
            made.set(new, "u32", made.metadata.integer(name))
            made.keys.remove(name)
