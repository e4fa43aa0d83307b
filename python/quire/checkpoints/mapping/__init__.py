"""Map transformers' checkpoints to GGUF files: the vocabulary of model files.

``models/README.md`` explains it with an example.
"""

from ..reading.fields import Fields, read_json
from ..reading.folder import checkpoint_dtype, read_config
from ..reading.reference import reference_of
from .changes import Array, Change, adding, by_expert, half, interleaved, only_with, rows, squeezed, transposed
from .checkpoint import SILU, Checkpoint
from .decoder import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    PREDICTING_LAYERS,
    SHARED_EXPERT_TENSORS,
    has_windows,
    kinds_of_mlps,
    layers_of_type,
    local_layers,
    n_dense,
    no_windows,
    only_experts,
)
from .heads import HeadCheckpoint, flattened, head_class, speaks_of_eagle
from .keys import Key, cap, computed, f32, factor, flag, u32, window
from .pictures import with_pictures
from .rope import Entry, rope_keys
from .tensors import PredictingLayers, Source, Target, product, tensor

__all__ = [
    "DECODER_KEYS",
    "DECODER_TENSORS",
    "EXPERT_TENSORS",
    "PREDICTING_LAYERS",
    "SHARED_EXPERT_TENSORS",
    "SILU",
    "Array",
    "Change",
    "Checkpoint",
    "Entry",
    "Fields",
    "HeadCheckpoint",
    "Key",
    "PredictingLayers",
    "Source",
    "Target",
    "adding",
    "by_expert",
    "cap",
    "checkpoint_dtype",
    "computed",
    "f32",
    "factor",
    "flag",
    "flattened",
    "half",
    "has_windows",
    "head_class",
    "interleaved",
    "kinds_of_mlps",
    "layers_of_type",
    "local_layers",
    "n_dense",
    "no_windows",
    "only_experts",
    "only_with",
    "product",
    "read_config",
    "read_json",
    "reference_of",
    "rope_keys",
    "rows",
    "speaks_of_eagle",
    "squeezed",
    "tensor",
    "transposed",
    "u32",
    "window",
    "with_pictures",
]
