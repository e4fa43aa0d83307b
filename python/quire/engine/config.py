"""Where and how a model runs: ``quire.engine_options``, by the name that the engine calls it by."""

from ..engine_options import CacheDType, EngineConfig, Kernels, KvDType, LoadMode, Policy, Speculation

__all__ = ["CacheDType", "EngineConfig", "Kernels", "KvDType", "LoadMode", "Policy", "Speculation"]
