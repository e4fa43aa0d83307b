"""Where and how a model runs: ``quire.engine_options``, by the name that the engine calls it by."""

from ..engine_options import (
    CacheDType,
    EngineConfig,
    FitMode,
    Kernels,
    KvDType,
    LoadMode,
    Policy,
    Speculation,
    SplitMode,
)

__all__ = [
    "CacheDType",
    "EngineConfig",
    "FitMode",
    "Kernels",
    "KvDType",
    "LoadMode",
    "Policy",
    "Speculation",
    "SplitMode",
]
