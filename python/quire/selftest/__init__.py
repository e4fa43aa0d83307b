"""The self-test of a device, which compares its results with ggml's operators on the CPU."""

from .gate import Checked, capabilities, check_device
from .results import CaseResult

__all__ = ["CaseResult", "Checked", "capabilities", "check_device"]
