"""The self-test of a device: what a device computes, beside ggml's operators on the CPU."""

from .gate import Checked, capabilities, check_device
from .results import CaseResult

__all__ = ["CaseResult", "Checked", "capabilities", "check_device"]
