"""Shared leaves of model files: weights and the layers that several architectures use."""

from .._native.graph import (
    CacheSpec,
    MoeSpec,
    RopeSpec,
    Trace,
    Tracer,
    Weight,
    add_weight,
    attend,
    embed,
    glu,
    rope,
    select_rows,
    soft_cap,
    tanh,
)
from .._native.graph import TraceTensor as Tensor
from .keys import Keys
from .layers import Embedding, LayerNorm, Linear, RMSNorm
from .mlp import MLP, FusedGatedMLP, GatedMLP, MoE
from .rotary import frequency_factors, rope_spec
from .step import Step
from .weights import Weights

__all__ = [
    "MLP",
    "CacheSpec",
    "Embedding",
    "FusedGatedMLP",
    "GatedMLP",
    "Keys",
    "LayerNorm",
    "Linear",
    "MoE",
    "MoeSpec",
    "RMSNorm",
    "RopeSpec",
    "Step",
    "Tensor",
    "Trace",
    "Tracer",
    "Weight",
    "Weights",
    "add_weight",
    "attend",
    "embed",
    "frequency_factors",
    "glu",
    "rope",
    "rope_spec",
    "select_rows",
    "soft_cap",
    "tanh",
]
