"""Building blocks of model files: weights, keys, and the layers that several architectures use."""

from .._native.graph import (
    CacheSpec,
    MoeSpec,
    RopeSpec,
    Trace,
    Tracer,
    Weight,
    activate,
    add_weight,
    attend,
    embed,
    glu,
    rope,
    scale_by_position,
    select_rows,
    soft_cap,
    tanh,
)
from .._native.graph import TraceTensor as Tensor
from .adapter import Adapter
from .eagle import EagleHead, Fusion
from .experts import ROUTING, ExpertConfig, SharedExpert, Together, experts_of
from .keys import Keys
from .latent import LatentAttention, LatentSizes, latent_rope
from .layers import Embedding, LayerNorm, Linear, RMSNorm, unit_norm
from .mlp import MLP, FusedGatedMLP, GatedMLP, MoE
from .predictor import Predictor
from .rotary import LongRope, frequency_factors, rope_spec
from .step import Step
from .weights import Weights

__all__ = [
    "MLP",
    "ROUTING",
    "Adapter",
    "CacheSpec",
    "EagleHead",
    "Embedding",
    "ExpertConfig",
    "FusedGatedMLP",
    "Fusion",
    "GatedMLP",
    "Keys",
    "LatentAttention",
    "LatentSizes",
    "LayerNorm",
    "Linear",
    "LongRope",
    "MoE",
    "MoeSpec",
    "Predictor",
    "RMSNorm",
    "RopeSpec",
    "SharedExpert",
    "Step",
    "Tensor",
    "Together",
    "Trace",
    "Tracer",
    "Weight",
    "Weights",
    "activate",
    "add_weight",
    "attend",
    "embed",
    "experts_of",
    "frequency_factors",
    "glu",
    "latent_rope",
    "rope",
    "rope_spec",
    "scale_by_position",
    "select_rows",
    "soft_cap",
    "tanh",
    "unit_norm",
]
