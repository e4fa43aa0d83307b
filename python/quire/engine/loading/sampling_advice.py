"""Read the sampling that a model's file advises."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...errors import LoadError, RequestError
from ...files.gguf import Metadata
from ...params.sampling import PARAMETERS, SamplingParams

__all__ = ["advised_sampling"]


def advised_sampling(metadata: Metadata) -> Mapping[str, object]:
    """Return the fields of SamplingParams that the file sets.  LoadError for a value out of range."""
    advice: dict[str, object] = {}
    for name, parameter in PARAMETERS.items():
        if (key := parameter.gguf) and key in metadata:
            is_list = metadata.type_of(key).endswith("[]")
            advice[name] = metadata.array(key).tolist() if is_list else metadata[key]
    try:
        params = SamplingParams(**advice)  # type: ignore[arg-type]
    except RequestError as error:
        raise LoadError(f"[loader] general.sampling or quire.sampling of the file is invalid: {error}") from error
    # Values that equal Quire's defaults are kept too: the file asks for them.
    return MappingProxyType({name: getattr(params, name) for name in advice})
