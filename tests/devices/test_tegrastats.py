"""Lines of tegrastats from every generation, read to rails, temperatures and load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.devices.tegrastats import parse_line
from edgeprec.devices.tegrastats_log import read_tegrastats
from edgeprec.errors import DeviceError

NANO = (
    "RAM 1409/3964MB (lfb 28x4MB) SWAP 0/1982MB (cached 0MB) CPU [22%@518,off,off,off] EMC_FREQ 0%@1600 "
    "GR3D_FREQ 0%@76 PLL@28.5C CPU@32C PMIC@50C GPU@30.5C AO@39.5C thermal@31.25C "
    "POM_5V_IN 2003/2003 POM_5V_GPU 0/0 POM_5V_CPU 320/320"
)
TX2 = (
    "RAM 2211/7860MB (lfb 1x4MB) IRAM 0/252kB(lfb 252kB) GR3D_FREQ 0%@114 APE 150 MTS fg 1% bg 1% PLL@42.5C "
    "VDD_SYS_GPU 182/182 VDD_SYS_SOC 730/730 VDD_4V0_WIFI 0/0 VDD_IN 5297/5297 VDD_SYS_CPU 1917/1917 "
    "VDD_SYS_DDR 1241/1241"
)
AGX_XAVIER = (
    "RAM 3276/7859MB GR3D_FREQ 12%@318 GPU@39.5C CPU@40C GPU 120/100 CPU 400/410 SOC 900/900 CV 0/0 SYS5V 1500/1500"
)
AGX_ORIN = (
    "RAM 5000/30536MB EMC_FREQ 1%@2133 GR3D_FREQ 14%@[407,407] CV0@73.625C GPU@69.125C tj@77.281C "
    "VDD_GPU_SOC 3150mW/2971mW VDD_CPU_CV 14312mW/12415mW VIN_SYS_5V0 4968mW/5048mW VDDQ_VDD2_1V8AO 1091mW/1091mW"
)
ORIN_R39 = (
    "01-02-2026 10:11:12 RAM 3276/7859MB GR3D_FREQ 12%@[1300,1300] NVENC0 off PVA0_FREQ off APE 174 "
    "cpu@52.968C/52.968C gpu@47.625C/47.625C VDD_GPU_SOC 5139mW/5139mW/5140mW"
)
THOR = (
    "RAM 26063/125772MB (lfb 35x4MB) CPU [0%@2601,off] EMC_FREQ @4266 GR3D_FREQ @[1574,1574,1574] "
    "gpu@62.906C/63.5C tj@51.218C/51.218C VDD_GPU 5525mW/5500mW/5600mW VIN 28906mW/28000mW/30000mW"
)
THOR_IDLE = (
    "RAM 26063/125772MB (lfb 35x4MB) CPU [2%@972] VDD_GPU -392mW/-392mW VDD_CPU_SOC_MSS 3924mW/3835mW "
    "VIN_SYS_5V0 5064mW/5055mW VIN 15004mW/15096mW"
)

LINES = {
    "nano": (NANO, {"POM_5V_IN": 2003, "POM_5V_GPU": 0, "POM_5V_CPU": 320}, ("POM_5V_IN",), 0.0),
    "tx2": (
        TX2,
        {
            "VDD_SYS_GPU": 182,
            "VDD_SYS_SOC": 730,
            "VDD_4V0_WIFI": 0,
            "VDD_IN": 5297,
            "VDD_SYS_CPU": 1917,
            "VDD_SYS_DDR": 1241,
        },
        ("VDD_IN",),
        0.0,
    ),
    "agx xavier": (AGX_XAVIER, {"GPU": 120, "CPU": 400, "SOC": 900, "CV": 0, "SYS5V": 1500}, None, 12.0),
    "agx orin": (
        AGX_ORIN,
        {"VDD_GPU_SOC": 3150, "VDD_CPU_CV": 14312, "VIN_SYS_5V0": 4968, "VDDQ_VDD2_1V8AO": 1091},
        ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),
        14.0,
    ),
    "orin r39": (ORIN_R39, {"VDD_GPU_SOC": 5139}, None, 12.0),
    "thor": (THOR, {"VDD_GPU": 5525, "VIN": 28906}, ("VIN",), None),
    "thor idle": (
        THOR_IDLE,
        {"VDD_GPU": -392, "VDD_CPU_SOC_MSS": 3924, "VIN_SYS_5V0": 5064, "VIN": 15004},
        ("VIN",),
        None,
    ),
    "orin nano": (
        "VDD_IN 5520mW/5400mW VDD_CPU_GPU_CV 1200mW/1100mW VDD_SOC 1500mW/1500mW",
        {"VDD_IN": 5520, "VDD_CPU_GPU_CV": 1200, "VDD_SOC": 1500},
        ("VDD_IN",),
        None,
    ),
    "nothing": ("RAM 1409/3964MB SWAP 0/1982MB APE 150", {}, None, None),
}


@pytest.mark.parametrize("board", LINES)
def test_rails_total_and_load_of_each_generation(board: str) -> None:
    """Units or none, two numbers or three, negative or not: the right rails in mW, memory is none of them."""
    line, rails, _, load = LINES[board]
    parsed = parse_line(line)
    assert {name: rail.now_mw for name, rail in parsed.rails.items()} == rails
    assert parsed.gpu_load_percent == load, "a load that is absent is None, not 0"


def test_third_number_is_the_highest() -> None:
    """Since JetPack 7 a rail has now, mean and highest; before, no highest is made up."""
    assert parse_line(THOR).rails["VDD_GPU"].highest_mw == 5600
    assert parse_line(THOR).rails["VDD_GPU"].average_mw == 5500
    assert parse_line(AGX_ORIN).rails["VDD_GPU_SOC"].highest_mw is None


def test_temperature_and_rail_of_one_name() -> None:
    """On AGX Xavier GPU is a temperature and a rail; both are kept."""
    parsed = parse_line(AGX_XAVIER)
    assert parsed.temperatures_c["GPU"] == 39.5
    assert parsed.rails["GPU"].now_mw == 120


def test_temperatures_in_both_spellings() -> None:
    """Upper and lower case, with and without a limit behind; a zone that is off is left out."""
    assert parse_line(THOR).temperatures_c == {"gpu": 62.906, "tj": 51.218}
    assert parse_line(NANO).temperatures_c["thermal"] == 31.25
    assert parse_line("CV0@-256C GPU@30C").temperatures_c == {"GPU": 30.0}


@pytest.mark.parametrize("board", [name for name, found in LINES.items() if found[1]])
def test_total_of_a_log(board: str) -> None:
    """The total is the input rail, or the sum that is known for these labels; else it is None with a note."""
    line, rails, total, _ = LINES[board]
    header, _ = read_tegrastats([line])
    assert (None if header.total is None else header.total.rail_ids) == total
    assert (header.total is None) == (header.total_note is not None)
    assert {rail.id for rail in header.rails} == set(rails)


def test_log_without_dates_has_one_second_a_line() -> None:
    """The default interval of tegrastats spaces lines that have no date."""
    header, samples = read_tegrastats([TX2, "noise", TX2, TX2])
    assert [sample.time_ns for sample in samples] == [0, 10**9, 2 * 10**9]
    assert header.period_ms == 1000
    assert {rail.id: rail.parent for rail in header.rails}["VDD_SYS_GPU"] == "VDD_IN"


def test_log_with_dates_and_a_pause() -> None:
    """Ten lines a second are 100 ms apart, and a pause in the dates stays a pause."""
    dated = [f"01-02-2026 10:11:{12 + i // 10:02d} VDD_IN {5000 + i}mW/5000mW" for i in range(40)]
    dated += [f"01-02-2026 10:11:{26 + i // 10:02d} VDD_IN {5000 + i}mW/5000mW" for i in range(20)]
    header, samples = read_tegrastats(dated)
    assert header.period_ms == 100
    assert samples[39].time_ns == 39 * 10**8
    assert samples[40].time_ns == 14 * 10**9


def test_log_slower_than_a_second() -> None:
    """A log of one line every five seconds is spaced by its dates."""
    header, samples = read_tegrastats([f"01-02-2026 10:11:{5 * i:02d} VDD_IN 5000mW/5000mW" for i in range(6)])
    assert header.period_ms == 5000
    assert samples[-1].time_ns == 25 * 10**9


def test_rail_missing_in_a_line_is_none() -> None:
    """Without root some lines lack fields: the rail is None there, with a reason."""
    _, samples = read_tegrastats([THOR, "RAM 1/2MB VIN 1000mW/1000mW"])
    assert samples[1].values == {"VDD_GPU": None, "VIN": 1000.0}
    assert "not in this line" in samples[1].reasons["VDD_GPU"]


def test_a_log_without_rails_is_refused() -> None:
    """Something else entirely is not read as an empty log."""
    with pytest.raises(DeviceError, match="no line has a power rail"):
        read_tegrastats(["hello", ""])


@given(st.text(max_size=200), st.integers(0, 200), st.sampled_from([NANO, TX2, AGX_ORIN, THOR_IDLE]))
def test_any_text_is_read_without_an_exception(noise: str, cut: int, line: str) -> None:
    """Cut and garbled lines never raise, and no rail is made up for a line that is only cut short."""
    parse_line(noise)
    cut_rails = parse_line(line[:cut]).rails
    whole = parse_line(line).rails
    assert set(cut_rails) <= set(whole)
