"""Run a transformers class once on random weights, and record it.

The class is that of the checkpoint's configuration with all its layers, but with narrow MLPs, a small vocabulary and
short windows.  Large weights are views of a small block of random numbers, so that a model of any size takes no memory.
"""

from __future__ import annotations

import contextlib
import copy
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import UnsupportedError
from .recorder import Recorder

N_TOKENS = (13, 17, 19, 23, 29)  # lengths of the text; one is taken that is no size of the model
_LARGE = 1 << 16  # weights with more numbers are views
_NARROW, _VOCABULARY = 192, 320
_WINDOWS = (4, 7, 10)
_MOST_WEIGHTS, _MOST_NUMBERS, _LONGEST = (
    1 << 17,
    1 << 42,
    1 << 21,
)  # limits of a model: numbers, and its longest dimension
INTERFACE = "quire_recorded"


@dataclass
class Observation:
    """A model, its recorded forward pass, and what was changed in its configuration."""

    model: Any
    recorder: Recorder
    logits: torch.Tensor
    ids: torch.Tensor
    windows: Mapping[int, int] = field(default_factory=dict)  # short windows, and those of the checkpoint
    narrowed: bool = False

    @property
    def n_tokens(self) -> int:
        return int(self.ids.shape[1])


def layers_of(model: Any) -> Any:
    """Return the list of decoder layers: the longest list of modules that lies in no other one."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        is_inner = any(path.startswith(outer + ".") for outer in found)
        if isinstance(module, torch.nn.ModuleList) and not is_inner and any(True for _ in module.parameters()):
            found[path] = module
    if not found:
        raise UnsupportedError(f"[fallback] unsupported {type(model).__name__}: it has no list of layers")
    return max(found.values(), key=len)


def integers_of(config: Any) -> set[int]:
    found = set()
    for value in vars(config).values():
        if isinstance(value, int):
            found.add(int(value))
    return found


def shrunk(config: Any, n_layer: int | None = None) -> tuple[Any, dict[int, int], bool]:
    """Return a configuration with narrow MLPs, a small vocabulary and short windows; the windows; if it is narrower.

    ``n_layer``: keep only the first layers.
    """
    config = copy.deepcopy(config)
    windows: dict[int, int] = {}
    narrowed = False
    total = getattr(config, "num_hidden_layers", None)
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and n_layer is not None and len(value) == total:
            setattr(config, name, value[:n_layer])
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if ("intermediate" in name or "ffn" in name or name == "n_inner") and value > 2 * _NARROW:
            setattr(config, name, _NARROW)
            narrowed = True
        elif "window" in name and value > 0 and "layer" not in name and "pattern" not in name:
            short = _WINDOWS[len(windows) % len(_WINDOWS)]
            short = next((one for one, real in windows.items() if real == value), short)
            windows[short] = value
            setattr(config, name, short)
        elif name.endswith("_token_id"):
            setattr(config, name, min(value, 1))
    if config.vocab_size > 2 * _VOCABULARY:
        config.vocab_size = _VOCABULARY
        narrowed = True
    if n_layer is not None and n_layer != total:
        for name in ("num_hidden_layers", "decoder_layers"):
            if hasattr(config, name):
                setattr(config, name, n_layer)
    return config, windows, narrowed


@contextlib.contextmanager
def _without_large_weights() -> Iterator[None]:
    """Create large weights without memory; small ones keep what their class initializes them with."""
    register = torch.nn.Module.register_parameter
    n_weights = n_numbers = 0

    def registered(self: Any, name: str, param: Any) -> None:
        nonlocal n_weights, n_numbers
        if param is not None:
            n_weights, n_numbers = n_weights + 1, n_numbers + param.numel()
            if n_weights > _MOST_WEIGHTS or n_numbers > _MOST_NUMBERS or max(param.shape, default=0) > _LONGEST:
                raise UnsupportedError(f"[fallback] unsupported sizes of config.json: '{name}' is too large")
        if param is not None and param.numel() > _LARGE and param.device.type != "meta":
            param = torch.nn.Parameter(param.to("meta"), requires_grad=False)
        register(self, name, param)

    torch.nn.Module.register_parameter = registered
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def _random(name: str, like: torch.Tensor) -> torch.Tensor:
    """Return random numbers in the shape of a weight: a view of few numbers if it is large."""
    source = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    shape = tuple(like.shape)
    if like.numel() > _LARGE:
        strides = [1]
        for step in (131, 17, 5)[: len(shape) - 1]:
            strides.insert(0, step)
        n = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
        block = torch.randn(n, generator=source) * (1.2 * shape[-1] ** -0.5)
        return block.as_strided(shape, strides)
    noise = torch.randn(shape, generator=source)
    if len(shape) >= 2:
        return noise * (0.5 if "emb" in name else 1.2 * shape[-1] ** -0.5)
    spread = like.abs().mean() if like.numel() else torch.tensor(0.0)
    return like + noise * (0.2 * spread if spread > 0 else 0.1)


def randomize(model: Any) -> None:
    """Give every weight, and every buffer that checkpoints store, random numbers; shared weights stay shared."""
    made: dict[int, Any] = {}
    stored = set(model.state_dict())
    with torch.no_grad():
        for path, module in model.named_modules():
            for name, old in list(module._parameters.items()):
                if old is None:
                    continue
                full = f"{path}.{name}" if path else name
                if id(old) not in made:
                    made[id(old)] = torch.nn.Parameter(_random(full, old.data), requires_grad=False)
                module._parameters[name] = made[id(old)]
            for name, old in list(module._buffers.items()):
                full = f"{path}.{name}" if path else name
                if old is not None and full in stored and old.dtype.is_floating_point and old.numel() > 1:
                    module._buffers[name] = _random(full, old)


def class_of(config: Any, name: str) -> Any:
    """Return transformers' class of that name, or the causal language model beside it."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    found = getattr(transformers, name, None)
    if found is None:  # its code, which may compute anything, is elsewhere
        raise UnsupportedError(
            f"[fallback] unsupported architecture '{name}': neither Quire nor transformers {transformers.__version__}"
            " has it"
        )
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return found
    try:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise UnsupportedError(
            f"[fallback] unsupported architecture '{name}': it is no causal language model"
        ) from None


def made(kind: Any, config: Any, attention: str) -> Any:
    """Return a model of a class with random weights."""
    config = copy.deepcopy(config)
    config._attn_implementation = attention
    config._experts_implementation = "eager"
    with _without_large_weights(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # some classes draw small weights
        model = kind(config).eval()
    model = model.float()
    randomize(model)
    return model


def _attention(module: Any, q: Any, k: Any, v: Any, attention_mask: Any = None, **named: Any) -> tuple[Any, None]:
    """Attend as transformers' classes usually do, and record it."""
    recorder = _RECORDING[-1]
    known = [recorder.operand(one) for one in (q, k, v)]
    named = {name: recorder.operand(value) for name, value in named.items()}
    recorder._paused += 1
    try:
        scale = named.get("scaling")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        repeated = [one.repeat_interleave(q.shape[1] // one.shape[1], dim=1) for one in (k, v)]
        scores = q @ repeated[0].transpose(2, 3) * scale
        if cap := named.get("softcap"):
            scores = torch.tanh(scores / cap) * cap
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attention_mask is not None:
            seen = attention_mask[..., : k.shape[-2]]
            mask = seen if seen.dtype == torch.bool else seen > -1e4
        scores = scores.masked_fill(~mask, float("-inf"))
        sinks = named.get("s_aux")
        if sinks is not None:
            extra = sinks.tensor.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            weights = torch.cat([scores, extra], -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        output = (weights @ repeated[1]).transpose(1, 2).contiguous()
    finally:
        recorder._paused -= 1
    named |= {"mask": mask.reshape(-1, *mask.shape[-2:])[0], "scale": float(scale)}
    recorder.add("attend", output, args=tuple(known), named=named, module=module)
    return output, None


_RECORDING: list[Recorder] = []


def register() -> None:
    """Declare the recorded attention to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(INTERFACE, _attention)
    AttentionMaskInterface.register(INTERFACE, eager_mask)


def text(n: int, n_vocab: int) -> torch.Tensor:
    """Return the tokens of a text."""
    return torch.tensor([[(37 * i * i + 11 * i + 5) % (n_vocab - 3) + 2 for i in range(n)]])


def run(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of a text."""
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


def observe(kind: Any, config: Any, n_layer: int | None = None) -> Observation:
    """Record the model of a configuration, with its first ``n_layer`` layers.

    Attention is recorded as one call if the class uses transformers' interface for it, else as the calls that it makes.
    """
    register()
    try:
        seen = _observe(kind, config, n_layer, INTERFACE)
    except KeyError as error:
        if error.args != (INTERFACE,) and INTERFACE not in str(error):
            raise
        return _observe(kind, config, n_layer, "eager")
    if any(value.call == "attend" for value in seen.recorder.values):
        return seen
    return _observe(kind, config, n_layer, "eager")


def _observe(kind: Any, config: Any, n_layer: int | None, attention: str) -> Observation:
    small, windows, narrowed = shrunk(config, n_layer)
    sizes = {int(s) for s in integers_of(config)} | {int(s) for s in integers_of(small)}
    model = made(kind, small, attention)
    sizes |= {size for weight in model.parameters() for size in weight.shape}
    n = next((n for n in N_TOKENS if n not in sizes), N_TOKENS[-1])
    ids = text(n, small.vocab_size)
    layers = layers_of(model)
    stored = set(model.state_dict(keep_vars=True))
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    recorder = Recorder(model, list(layers), {name: one for name, one in named.items() if name in stored})
    recorder.start(ids)
    _RECORDING.append(recorder)
    try:
        with torch.no_grad(), recorder:
            logits = run(model, ids)
    finally:
        _RECORDING.pop()
        recorder.close()
    found = recorder.traced(logits)
    if found is None:
        raise UnsupportedError("[fallback] unsupported model: its logits come from calls that Quire cannot record")
    return Observation(model, recorder, logits, ids, windows, narrowed)
