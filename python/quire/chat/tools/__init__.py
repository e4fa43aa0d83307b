"""Tool calls on the wire: one file for each format, all of them read while the answer comes."""

from __future__ import annotations

from quire.chat.tools.apertus import APERTUS
from quire.chat.tools.bare_json import BARE_JSON
from quire.chat.tools.calls import Call, Kind, Text, ToolFormat, Tools
from quire.chat.tools.command_r import COMMAND_R
from quire.chat.tools.deepseek import DEEPSEEK
from quire.chat.tools.deepseek_dsml import DEEPSEEK_DSML
from quire.chat.tools.functionary import FUNCTIONARY
from quire.chat.tools.gemma import GEMMA
from quire.chat.tools.gigachat import GIGACHAT
from quire.chat.tools.glm import GLM
from quire.chat.tools.granite import GRANITE
from quire.chat.tools.harmony import HARMONY
from quire.chat.tools.hermes import HERMES
from quire.chat.tools.hunyuan import HUNYUAN
from quire.chat.tools.kimi_k2 import KIMI_K2
from quire.chat.tools.kimi_k3 import KIMI_K3
from quire.chat.tools.lfm2 import LFM2
from quire.chat.tools.llama3 import LLAMA3
from quire.chat.tools.minicpm import MINICPM
from quire.chat.tools.minimax import MINIMAX
from quire.chat.tools.mistral import MISTRAL
from quire.chat.tools.muse import MUSE
from quire.chat.tools.nemotron import NEMOTRON
from quire.chat.tools.parser import ToolParser
from quire.chat.tools.phi import PHI4
from quire.chat.tools.pythonic import PYTHONIC
from quire.chat.tools.qwen3_coder import QWEN3_CODER
from quire.errors import RequestError

__all__ = ["TOOL_FORMATS", "Call", "Kind", "Text", "ToolFormat", "ToolParser", "Tools", "detect_tools", "tool_format"]

TOOL_FORMATS: tuple[ToolFormat, ...] = (
    MUSE,
    HARMONY,
    KIMI_K3,
    KIMI_K2,
    DEEPSEEK_DSML,
    DEEPSEEK,
    MINIMAX,
    HUNYUAN,
    GLM,
    QWEN3_CODER,
    MINICPM,
    GEMMA,
    LFM2,
    COMMAND_R,
    MISTRAL,
    FUNCTIONARY,
    NEMOTRON,
    APERTUS,
    GIGACHAT,
    GRANITE,
    PHI4,
    HERMES,
    PYTHONIC,
    LLAMA3,
    BARE_JSON,
)
"""In the order in which a template is tried: those with marks of their own first."""


def detect_tools(template: str) -> ToolFormat | None:
    """The format that a chat template's source shows, or None."""
    return next((form for form in TOOL_FORMATS if form.recognizes(template)), None)


def tool_format(name: str) -> ToolFormat:
    """A format by its name.  Raises RequestError for an unknown one."""
    for form in TOOL_FORMATS:
        if form.name == name:
            return form
    known = ", ".join(form.name for form in TOOL_FORMATS)
    raise RequestError(f"[chat] tool_format must be auto, none or one of {known} but is {name!r:.80}")
