"""What a model's file says of sampling."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...errors import LoadError, RequestError
from ...files.gguf import Metadata
from ...params.sampling import SamplingParams

__all__ = ["advised_sampling"]

# Keys of a file, by the fields of SamplingParams; below general.sampling where they do not say.
_ADVICE = {
    "quire.sampling.typical_p": "typical_p",
    "quire.sampling.bad_token_ids": "bad_token_ids",
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "penalty_last_n": "penalty_last_n",
    "penalty_repeat": "repetition_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}


def advised_sampling(metadata: Metadata) -> Mapping[str, object]:
    """The fields of SamplingParams that the file says; LoadError where that is nothing to sample by."""
    advice: dict[str, object] = {}
    for key, name in _ADVICE.items():
        full = key if "." in key else f"general.sampling.{key}"
        if full in metadata:
            is_list = metadata.type_of(full).endswith("[]")
            advice[name] = metadata.array(full).tolist() if is_list else metadata[full]
    try:
        params = SamplingParams(**advice)  # type: ignore[arg-type]
    except RequestError as error:
        raise LoadError(
            f"[loader] general.sampling and quire.sampling of the file must be valid but {error}"
        ) from error
    # Also what is as usual without advice: a file that says temperature 1 means it.
    return MappingProxyType({name: getattr(params, name) for name in advice})
