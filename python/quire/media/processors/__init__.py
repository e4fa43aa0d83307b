"""Image processors by family, one file each; ``FAMILIES`` names them as checkpoints do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ...errors import LoadError, UnsupportedError
from ..image_processor import ImageProcessor
from ..settings import Settings
from .clip import open_clip
from .gemma3 import open_gemma3
from .gemma4 import open_gemma4
from .glm4v import open_glm4v
from .idefics3 import open_idefics3
from .internvl import open_internvl
from .kimi import open_kimi
from .lfm2_vl import open_lfm2_vl
from .llama4 import open_llama4
from .llava_next import open_llava_next
from .paddleocr_vl import open_paddleocr_vl
from .pixtral import open_pixtral
from .qwen_vl import open_qwen_vl
from .siglip import open_siglip, open_siglip2

__all__ = ["FAMILIES", "open_processor"]

Opener: TypeAlias = Callable[[Settings, int, int], ImageProcessor]

FAMILIES: Mapping[str, Opener] = {
    "CLIPImageProcessor": open_clip,
    "Gemma3ImageProcessor": open_gemma3,
    "Gemma4ImageProcessor": open_gemma4,
    "Glm46VImageProcessor": open_glm4v,
    "Glm4vImageProcessor": open_glm4v,
    "GotOcr2ImageProcessor": open_internvl,
    "Idefics3ImageProcessor": open_idefics3,
    "Kimi_K25ImageProcessor": open_kimi,
    "Lfm2VlImageProcessor": open_lfm2_vl,
    "Llama4ImageProcessor": open_llama4,
    "LlavaImageProcessor": open_clip,
    "LlavaNextImageProcessor": open_llava_next,
    "PaddleOCRVLImageProcessor": open_paddleocr_vl,
    "PixtralImageProcessor": open_pixtral,
    "Qwen2VLImageProcessor": open_qwen_vl,
    "Siglip2ImageProcessor": open_siglip2,
    "SiglipImageProcessor": open_siglip,
    "SmolVLMImageProcessor": open_idefics3,
}


def open_processor(config: Mapping[str, Any], *, patch_size: int, merge: int) -> ImageProcessor:
    """Return the image processor that a checkpoint's configuration describes.

    Args:
        config: The contents of preprocessor_config.json, or of processor_config.json.
        patch_size: Side of a patch of the vision encoder, in pixels.
        merge: Patches along each side of the square that becomes one token.

    Raises:
        LoadError: A field is out of range.
        UnsupportedError: The processor's class, or a step that it switches off, is unsupported.
    """
    nested = config.get("image_processor")
    if isinstance(nested, Mapping):
        config = nested
    name = config.get("image_processor_type") or config.get("feature_extractor_type")
    if not isinstance(name, str):
        raise LoadError("image processor: image_processor_type is missing")
    opener = FAMILIES.get(re.sub("(Fast|Pil)$", "", name))
    if opener is None:
        raise UnsupportedError(f"image processor {name!r:.60} is unsupported")
    settings = Settings(config)
    settings.require("do_resize", True)
    settings.require("do_convert_rgb", True)
    return opener(settings, patch_size, merge)
