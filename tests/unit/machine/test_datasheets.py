import pytest

from charact.machine.datasheets import _SHEETS, datasheet


@pytest.mark.parametrize(("name", "bf16", "gigabytes_per_s"), [
    ("NVIDIA H100 80GB HBM3", 989.5, 3350), ("NVIDIA H100 PCIe", 756.5, 2000), ("NVIDIA H100 NVL", 835.5, 3900),
    ("NVIDIA H200", 989.5, 4800), ("NVIDIA H200 NVL", 835.5, 4800), ("NVIDIA B200", 2250, 8000),
    ("NVIDIA GB200", 2500, 8000), ("NVIDIA A100-SXM4-40GB", 312, 1555), ("A100-PCIE-40GB", 312, 1555),
    ("NVIDIA A100-SXM4-80GB", 312, 2039), ("NVIDIA A100 80GB PCIe", 312, 1935), ("NVIDIA A10", 125, 600),
    ("NVIDIA A30", 165, 933), ("NVIDIA A40", 149.7, 696), ("NVIDIA L4", 121, 300), ("NVIDIA L40S", 362.05, 864),
    ("NVIDIA GeForce RTX 3090", 71, 936), ("NVIDIA GeForce RTX 4090", 165.2, 1008),
    ("NVIDIA GeForce RTX 5090", 209.5, 1792), ("NVIDIA RTX A6000", 154.8, 768), ("Tesla V100-SXM2-16GB", None, 900),
    ("Tesla V100-PCIE-32GB", None, 900), ("Tesla P100-PCIE-12GB", None, 549), ("Tesla K80", None, 240),
    ("Tesla T4", None, 320), ("AMD Instinct MI250X", 191.5, 1638), ("AMD Instinct MI300X", 1307.4, 5300),
    ("AMD Instinct MI300X OAM", 1307.4, 5300), ("AMD Instinct MI325X", 1307.4, 6000),
])
def test_figures_of_a_device_by_pytorchs_name(name: str, bf16: float | None, gigabytes_per_s: float) -> None:
    sheet = datasheet(name)
    assert sheet is not None
    assert sheet.bytes_per_s == pytest.approx(gigabytes_per_s * 1e9)
    assert sheet.flop_per_s.get("bf16") == (None if bf16 is None else pytest.approx(bf16 * 1e12))


@pytest.mark.parametrize("name", [
    "", "NVIDIA", "NVIDIA H100", "NVIDIA H100 80GB HBM2e", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H20",
    "NVIDIA A10G", "NVIDIA A100", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA L40", "NVIDIA RTX 6000 Ada Generation",
    "AMD Instinct MI250", "AMD Instinct MI300A", "Tesla P4", "AMD EPYC",
])
def test_a_name_that_is_not_known_as_a_whole_is_of_no_datasheet(name: str) -> None:
    assert datasheet(name) is None


@pytest.mark.parametrize("name", _SHEETS)
def test_figures_are_dense_and_in_base_units(name: str) -> None:
    sheet = _SHEETS[name]
    assert 1e11 < sheet.bytes_per_s < 1e13
    assert 1e12 < sheet.flop_per_s["fp32"] <= min(sheet.flop_per_s.values())
    if "bf16" in sheet.flop_per_s:
        assert sheet.flop_per_s["bf16"] == sheet.flop_per_s["fp16"]
        # Of dense figures the largest is 419, the L40S's; of sparse ones the smallest of its generation is 600.
        assert sheet.flop_per_s["bf16"] / sheet.bytes_per_s < 450
    assert any(year in sheet.source for year in map(str, range(2015, 2027)))
