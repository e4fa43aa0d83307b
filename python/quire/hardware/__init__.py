"""Backend modules, the devices they offer, finding a device by name, and the results of device checks."""

from .choice import checked_gpu, devices, find_device, find_devices, has_gpu
from .modules import ModuleReport, module_reports
from .verdicts import Verdict, verdict_of

__all__ = [
    "ModuleReport",
    "Verdict",
    "checked_gpu",
    "devices",
    "find_device",
    "find_devices",
    "has_gpu",
    "module_reports",
    "verdict_of",
]
