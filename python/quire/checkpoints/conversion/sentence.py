"""Read sentence-transformers' files: how token vectors become an embedding, and the prompts for texts.

Source: sentence-transformers' modules (Reimers and Gurevych 2019) and the files that they save.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..._native.quant import dequantize
from ...errors import LoadError, UnsupportedError
from ...files.safetensors import SafetensorsFile
from ..mapping import Entry, Fields, Target, read_json
from .vectors import hides_expansion, linear_heads, multi_entries, page_entries, splade_entries, unread_heads

if TYPE_CHECKING:
    from ..mapping import Array

__all__ = ["Sentences", "read_sentences"]

# Modes of 1_Pooling/config.json, with the values of GGUF's pooling_type.
_MODES = {"mean": 1, "mean_tokens": 1, "cls": 2, "cls_token": 2, "lasttoken": 3, "max": 0, "max_tokens": 0}
_MEAN, _MAX = 1, 0  # GGUF has no number for the maximum
# Modules that do not change a vector's direction.  Embeddings are normalized on request.
_WITHOUT_EFFECT = ("Transformer", "MLMTransformer", "Normalize", "Dropout")
# Torch's activation classes, with their names in Quire's GGUF key.
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Sigmoid": "sigmoid"}
_IN_MODEL = ("Identity", "Tanh")  # those that dense layers of the model may have
# Activations that a cross-encoder's score may go through.
_SCORE_ACTIVATIONS = {"Identity": "identity", "Sigmoid": "sigmoid"}
_LENGTHS = "sentence_*_config.json"  # the Transformer module's: bert, roberta and others


@dataclass
class Sentences:
    """The GGUF keys and tensors for a folder's modules; docs/gguf.md describes the keys."""

    keys: list[Entry] = field(default_factory=list)  # without the architecture's prefix
    own: list[Entry] = field(default_factory=list)  # with full names
    targets: list[Target] = field(default_factory=list)  # matrices that embeddings are multiplied by
    after_pooling: list[str] = field(default_factory=list)  # activations of layers that follow pooling
    is_masked: bool = False  # vectors are made of the head that predicts masked tokens


def read_sentences(folder: Path, whole: Fields) -> Sentences:
    """Read the modules of a folder and its settings for texts.  ``whole`` is config.json.

    Raises LoadError for a malformed file, UnsupportedError for an unknown pooling, module or setting.
    """
    found, mode, n_dense = Sentences(), None, 0
    for kind, path in _modules(folder):
        place = folder / path
        if kind == "Pooling":
            mode = _pooling(Fields(f"{path}/config.json", read_json(place / "config.json")))
            if mode == _MAX:
                found.own.append(("quire.embedding.pooling", "string", "max"))
            else:
                found.keys.append(("pooling_type", "u32", mode))
        elif kind == "Dense":
            _add_dense(found, place, path, n_dense, mode)
            n_dense += 1
        elif kind == "SpladePooling":
            found.own += splade_entries(path, Fields(f"{path}/config.json", read_json(place / "config.json")))
            found.is_masked = True
        elif kind not in _WITHOUT_EFFECT:
            raise UnsupportedError(
                f"[convert] unknown module '{kind}' in modules.json: expected Transformer, Pooling, Dense, Dropout,"
                " Normalize, MLMTransformer or SpladePooling"
            )
        elif kind in ("Transformer", "MLMTransformer") and path not in ("", "."):
            raise UnsupportedError(f"[convert] the path of {kind} in modules.json is '{path}': expected ''")
    if found.after_pooling:
        found.own.append(("quire.embedding.after_pooling", "string[]", found.after_pooling))
    found.own += [*_lengths(folder), *_prompts(folder), *_activation(folder, whole), *page_entries(folder, whole)]
    if (mode is None and n_dense) or (folder / "artifact.metadata").is_file():
        found.own += multi_entries(folder)
        if hides_expansion(found.own):
            found.keys.append(("attention.hidden_expansion", "bool", True))
    found.targets += linear_heads(folder, whole)
    if unread := unread_heads(folder):
        found.own.append(("quire.embedding.unread", "string[]", unread))
    return found


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Return each module's class name, without its package, and folder."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"[convert] '{path}' is not valid JSON: {error}") from None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise LoadError(f"[convert] '{path}' is not a list of modules")
    found = [(str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))) for module in modules]
    for _, below in found:
        if Path(below).is_absolute() or ".." in Path(below).parts:
            raise LoadError(f"[convert] '{path}' names the folder {below!r:.60}: expected one below its own")
    return found


def _pooling(config: Fields) -> int:
    wanted = [
        name.removeprefix("pooling_mode_")
        for name in config.names()
        if name.startswith("pooling_mode_") and config.flag(name, False)
    ]
    if config.has("pooling_mode"):
        wanted = [config.text("pooling_mode", "")]
    if len(wanted) != 1 or wanted[0] not in _MODES:
        raise UnsupportedError(f"[convert] unknown pooling {wanted}: expected mean, max, cls or lasttoken")
    if not config.flag("include_prompt", True):
        raise UnsupportedError("[convert] 'include_prompt' of the pooling is false: expected true")
    config.refuse_unread(("word_embedding_dimension", "embedding_dimension"))
    return _MODES[wanted[0]]


def _add_dense(found: Sentences, place: Path, path: str, i: int, mode: int | None) -> None:
    """Add the i-th Dense module: to the model if pooling may follow it, as llama.cpp does, else after pooling.

    That is so for the first two without an activation after a mean, or with tanh after a single token's vector.
    """
    config = Fields(f"{path}/config.json", read_json(place / "config.json"))
    kind = config.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if kind not in _ACTIVATIONS:
        words = ", ".join(_ACTIVATIONS)
        raise UnsupportedError(f"[convert] 'activation_function' of '{path}' is '{kind}': expected {words}")
    is_linear = kind == "Identity" and mode != _MAX
    in_model = i < 2 and not found.after_pooling and (is_linear or (kind in _IN_MODEL and mode in (2, 3)))
    name = f"dense_{i + 2}" if in_model else f"pooled_{len(found.after_pooling)}"
    n_in, n_out = config.integer("in_features", low=1), config.integer("out_features", low=1)
    if not (place / "model.safetensors").is_file():
        raise LoadError(f"[convert] '{place}' has no model.safetensors")
    tensors = SafetensorsFile(place / "model.safetensors")
    wanted = {"linear.weight": (n_out, n_in), **({"linear.bias": (n_out,)} if config.flag("bias", True) else {})}
    if {tensor: tensors.shape(tensor) for tensor in tensors} != wanted:
        raise LoadError(
            f"[convert] the tensors of '{place}/model.safetensors' do not match its config.json: expected {wanted}"
        )
    for tensor in wanted:
        values: Array = dequantize(tensors.tensor(tensor))
        found.targets.append(Target(tensor.replace("linear", name), (), made=values))
    if not in_model:
        found.after_pooling.append(_ACTIVATIONS[kind])
        return
    found.keys += [(f"{name}_feat_in", "u32", n_in), (f"{name}_feat_out", "u32", n_out)]
    if kind != "Identity":
        found.keys.append((f"{name}_activation", "string", _ACTIVATIONS[kind]))


def _lengths(folder: Path) -> Iterator[Entry]:
    """Yield the largest number of tokens of a text."""
    if not (folder / "modules.json").is_file():
        return
    for path in sorted(folder.glob(_LENGTHS)):
        config = Fields(path.name, read_json(path))
        if config.flag("do_lower_case", False):
            raise UnsupportedError(f"[convert] 'do_lower_case' of '{path.name}' is true: expected false")
        if config.has("max_seq_length"):
            yield "quire.embedding.max_tokens", "u32", config.integer("max_seq_length", low=1)
        return


def _prompts(folder: Path) -> Iterator[Entry]:
    """Yield the prompts that precede texts, by name."""
    path = folder / "config_sentence_transformers.json"
    if not path.is_file():
        return
    config = Fields(path.name, read_json(path))
    prompts = config.inner("prompts") if config.has("prompts") else None
    names = prompts.names() if prompts is not None else []
    if prompts is not None and names:
        yield "quire.embedding.prompt_names", "string[]", list(names)
        yield "quire.embedding.prompts", "string[]", [prompts.text(name) for name in names]
    if config.has("default_prompt_name"):
        default = config.text("default_prompt_name")
        if default not in names:
            raise LoadError(f"[convert] 'default_prompt_name' is '{default}', which is not the name of a prompt")
        yield "quire.embedding.default_prompt", "string", default


def _activation(folder: Path, whole: Fields) -> Iterator[Entry]:
    """Yield the activation of a cross-encoder's score.  The file that names it depends on the version."""
    named: dict[str, str] = {}
    path = folder / "config_sentence_transformers.json"
    places = [(Fields(path.name, read_json(path)), "activation_fn")] if path.is_file() else []
    if whole.has("sentence_transformers"):
        inner = whole.inner("sentence_transformers")
        inner.value("version")
        places.append((inner, "activation_fn"))
    places.append((whole, "sbert_ce_default_activation_function"))
    for fields, name in places:
        if not fields.has(name):
            continue
        kind = fields.text(name)
        module, _, last = kind.rpartition(".")
        if last not in _SCORE_ACTIVATIONS or not f"{module}.".startswith("torch.nn."):
            raise UnsupportedError(
                f"[convert] '{name}' of {fields.where} is '{kind}': expected Identity or Sigmoid of torch.nn"
            )
        named[fields.where] = _SCORE_ACTIVATIONS[last]
    if len(set(named.values())) > 1:
        raise UnsupportedError(f"[convert] the files name different activations of the cross-encoder: {named}")
    if named:
        yield "quire.score.activation", "string", next(iter(named.values()))
