"""transformers' models with our random weights: the classes themselves, siblings, and models assembled from parts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from adapted_models import ADAPTED
from formula_decoders import FORMULAS
from safetensors import safe_open
from siblings import Sibling, sibling_of
from tiny_checkpoints import MADE_TENSORS, SOURCE, class_of, config_of, weight_of, write_safetensors

Inputs = Callable[[int], dict[str, torch.Tensor]]  # further inputs besides the ids, by number of tokens


def no_inputs(n: int) -> dict[str, torch.Tensor]:
    return {}


def answer_to_source(model: Any, source: list[int], ids: list[int]) -> torch.Tensor:
    """Return an encoder-decoder model's logits for each token of an answer to the source."""
    with torch.no_grad():
        decoder_ids = torch.tensor([[model.config.decoder_start_token_id, *ids]])
        logits: torch.Tensor = model(torch.tensor([source]), decoder_input_ids=decoder_ids).logits[0, 1:]
    return logits


@dataclass(frozen=True)
class Oracle:
    """A model, further inputs of its forward pass, and the shapes of its tensors by transformers' names."""

    model: Any
    inputs: Inputs
    shapes: dict[str, list[int]]

    def answer(self, ids: list[int]) -> torch.Tensor:
        """Return the logits of each token, the scores of classes, or an encoder's vectors."""
        if hasattr(self.model, "decoder") and self.model.config.is_encoder_decoder:
            return answer_to_source(self.model, SOURCE, ids)
        with torch.no_grad():
            output = self.model(torch.tensor([ids]), **self.inputs(len(ids)))
        return (output["logits"] if "logits" in output else output["last_hidden_state"])[0]

    def greedy(self, ids: list[int], n_new: int) -> tuple[list[int], float]:
        """Return greedy tokens, and the smallest lead of any of them, relative to the largest logit."""
        out, lead = list(ids), np.inf
        for _ in range(n_new):
            logits = self.answer(out)[-1]
            best = torch.topk(logits, 2).values
            lead = min(lead, float((best[0] - best[1]) / logits.abs().max()))
            out.append(int(logits.argmax()))
        return out[len(ids) :], lead


def loaded(name: str, model: Any) -> Oracle:
    """Load our weights into a model assembled here."""
    shapes = {tensor: list(weight.shape) for tensor, weight in sorted(model.named_parameters())}
    weights = {tensor: torch.from_numpy(weight_of(name, tensor, tuple(shape))) for tensor, shape in shapes.items()}
    left = model.load_state_dict(weights, strict=False)
    assert not left.unexpected_keys
    assert set(left.missing_keys) <= {"lm_head.weight", *dict(model.named_buffers())}
    return Oracle(model.eval(), no_inputs, shapes)


def oracle_of(name: str, changed: Mapping[str, object] | None = None) -> Oracle:
    """Return the model of a tiny configuration, or of the configuration ``changed``."""
    own = config_of(name) if changed is None else dict(changed)
    if class_of(name) in FORMULAS:
        return loaded(name, FORMULAS[class_of(name)](own))
    sibling = sibling_of(name, class_of(name)) or Sibling(class_of(name), dict, lambda config, tensors: tensors)
    kind, fields = getattr(transformers, sibling.kind), sibling.config(own)
    config = transformers.AutoConfig.for_model(**fields)
    adapt = ADAPTED.get(name, ADAPTED.get(class_of(name)))

    def inputs(n: int) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(array) for name, array in sibling.inputs(own, n).items()}

    def build() -> torch.nn.Module:
        model = kind._from_config(config, attn_implementation="eager").float()
        if adapt is not None:
            adapt(model, own)
        return model

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        if adapt is None:
            build().save_pretrained(folder)
            with safe_open(Path(folder) / "model.safetensors", "pt") as file:
                names = sorted(tensor for tensor in file.keys() if not tensor.endswith(MADE_TENSORS))  # noqa: SIM118
                shapes = {tensor: list(file.get_slice(tensor).get_shape()) for tensor in names}
            weights = {tensor: weight_of(name, tensor, tuple(shape)) for tensor, shape in shapes.items()}
            write_safetensors(Path(folder) / "model.safetensors", weights)
            model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        else:
            model, shapes = (made := loaded(name, build())).model, made.shapes
            model.tie_weights()
    embedding = model.get_input_embeddings().weight.detach().numpy()
    ours = [weight_of(name, tensor, tuple(shape)) for tensor, shape in shapes.items() if shape == list(embedding.shape)]
    assert any(np.array_equal(embedding, weight) for weight in ours), "the weights are not ours"
    return Oracle(model, inputs, shapes)
