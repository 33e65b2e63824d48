"""Manufacturers' peaks of GPUs: dense products, never sparse ones, and memory bandwidth."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Datasheet:
    """Peaks of one device in PyTorch: for a board with two chips, of one of them."""

    flop_per_s: Mapping[str, float]
    """By precision; absent if the device has no instructions for it. Tensor cores accumulate in fp32."""
    bytes_per_s: float
    """Between the device and its memory (B/s)."""
    source: str
    """Name of the document and its year."""


def datasheet(device_name: str) -> Datasheet | None:
    """Return the datasheet of a device by its name in PyTorch; None if there is none, as for a part of a GPU (MIG).

    Variants of a model differ, so the whole name must match.
    """
    name = re.sub(r"^(NVIDIA |AMD )?(Tesla |Instinct )?", "", device_name)
    return next((sheet for pattern, sheet in _SHEETS.items() if re.fullmatch(pattern, name)), None)


def _sheet(source: str, gigabytes_per_s: float, **teraflop_per_s: float) -> Datasheet:
    return Datasheet({precision: value * 1e12 for precision, value in teraflop_per_s.items()},
                     gigabytes_per_s * 1e9, source)


def _tensor_cores(source: str, gigabytes_per_s: float, fp32: float, tf32: float, half: float) -> Datasheet:
    """Return the datasheet of a GPU of Ampere or later, with equal rates for bf16 and fp16."""
    return _sheet(source, gigabytes_per_s, fp32=fp32, tf32=tf32, bf16=half, fp16=half)


_P100 = "NVIDIA Tesla P100 datasheet, 2016"
_V100 = "NVIDIA V100 datasheet, 2020"
_A100 = "NVIDIA A100 datasheet, 2021"
_GA102 = "NVIDIA Ampere GA102 architecture whitepaper, 2020"
_H100 = "NVIDIA H100 datasheet, 2024"
_H200 = "NVIDIA H200 datasheet, 2024"
_BLACKWELL = "NVIDIA Blackwell architecture technical brief, 2024"

_SHEETS = {
    # Two chips on each board; PyTorch sees each of them.
    "K80": _sheet("NVIDIA Tesla K80 board specification, 2015, half of the board", 240, fp32=4.37),
    "P100-SXM2-16GB": _sheet(_P100, 732, fp32=10.6, fp16=21.2),
    "P100-PCIE-16GB": _sheet(_P100, 732, fp32=9.3, fp16=18.7),
    "P100-PCIE-12GB": _sheet(_P100, 549, fp32=9.3, fp16=18.7),
    "V100-SXM2-(16|32)GB": _sheet(_V100, 900, fp32=15.7, fp16=125),
    "V100-PCIE-(16|32)GB": _sheet(_V100, 900, fp32=14, fp16=112),
    "V100S-PCIE-32GB": _sheet(_V100, 1134, fp32=16.4, fp16=130),
    "T4": _sheet("NVIDIA T4 product brief, 2018", 320, fp32=8.1, fp16=65),
    "A10": _tensor_cores("NVIDIA A10 datasheet, 2021", 600, 31.2, 62.5, 125),
    "A30": _tensor_cores("NVIDIA A30 datasheet, 2021", 933, 10.3, 82, 165),
    "A40": _tensor_cores("NVIDIA A40 datasheet, 2021", 696, 37.4, 74.8, 149.7),
    "A100-(SXM4|PCIE)-40GB": _tensor_cores(_A100, 1555, 19.5, 156, 312),
    "A100-SXM4-80GB": _tensor_cores(_A100, 2039, 19.5, 156, 312),
    "A100 80GB PCIe": _tensor_cores(_A100, 1935, 19.5, 156, 312),
    "L4": _tensor_cores("NVIDIA L4 datasheet, 2023, half of the sparse figures", 300, 30.3, 60, 121),
    "L40S": _tensor_cores("NVIDIA L40S datasheet, 2023", 864, 91.6, 183, 362.05),
    "H100 80GB HBM3": _tensor_cores(f"{_H100} (SXM), half of the sparse figures", 3350, 67, 494.5, 989.5),
    "H100 PCIe": _tensor_cores("NVIDIA H100 datasheet, 2023 (PCIe), half of the sparse figures", 2000, 51, 378, 756.5),
    "H100 NVL": _tensor_cores(f"{_H100} (NVL), half of the sparse figures", 3900, 60, 417.5, 835.5),
    "H200": _tensor_cores(f"{_H200} (SXM), half of the sparse figures", 4800, 67, 494.5, 989.5),
    "H200 NVL": _tensor_cores(f"{_H200} (NVL), half of the sparse figures", 4800, 60, 417.5, 835.5),
    "B200": _tensor_cores(f"{_BLACKWELL} (HGX B200)", 8000, 80, 1100, 2250),
    "GB200": _tensor_cores(f"{_BLACKWELL} (GB200)", 8000, 90, 1250, 2500),
    "GeForce RTX 3090": _tensor_cores(_GA102, 936, 35.6, 35.6, 71),
    "RTX A6000": _tensor_cores(_GA102, 768, 38.7, 77.4, 154.8),
    "GeForce RTX 4090": _tensor_cores("NVIDIA Ada GPU architecture whitepaper, 2022", 1008, 82.6, 82.6, 165.2),
    "GeForce RTX 5090": _tensor_cores("NVIDIA RTX Blackwell architecture whitepaper, 2025", 1792, 104.8, 104.8, 209.5),
    "MI250X": _sheet("AMD Instinct MI250X datasheet, 2021, half of the board", 1638, fp32=47.9, bf16=191.5, fp16=191.5),
    "MI300X( OAM)?": _tensor_cores("AMD Instinct MI300X datasheet, 2023", 5300, 163.4, 653.7, 1307.4),
    "MI325X( OAM)?": _tensor_cores("AMD Instinct MI325X datasheet, 2024", 6000, 163.4, 653.7, 1307.4),
}
"""Datasheets by the device's name without its manufacturer, as a regular expression for the whole name."""
