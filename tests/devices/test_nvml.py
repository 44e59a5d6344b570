"""NVML: which GPUs, which metric of each, and what every refusal turns into."""

from __future__ import annotations

import logging
import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeprec.devices.counter_check import check_counter, compare_readings
from edgeprec.devices.meter import Meter
from edgeprec.devices.nvml import NvmlSensor
from edgeprec.devices.nvml_gpus import list_gpus
from edgeprec.devices.nvml_library import NvmlLibrary, explain_code
from edgeprec.devices.reading import Method
from edgeprec.devices.sensor import Quantity, Scope
from edgeprec.errors import DeviceError

HERE = Path(__file__)
fake = SimpleNamespace(**runpy.run_path(str(HERE.with_name("fake_nvml.py"))))
bench = SimpleNamespace(**runpy.run_path(str(HERE.with_name("fake_meter.py"))))
Err, FakeGpu, FakeNvml = fake.Err, fake.FakeGpu, fake.FakeNvml
ENERGY, USAGE, INSTANT = "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage", "field186"
S, MS = bench.S, bench.MS


class Rig:
    """A meter over an NvmlSensor over fake GPUs, on a clock that moves when told."""

    def __init__(self, *gpus: object, **options: object) -> None:
        self.clock = bench.FakeClock(0)
        self.nvml = FakeNvml(*gpus)
        self.sensor = NvmlSensor.open(library=self.nvml, environ={}, clock=self.clock, **options)
        self.samplers: list[object] = []

    def window(self, seconds: float, *, period_ms: float = 50.0) -> object:
        """Measure so many seconds."""

        def sampler(sample: object, period_ns: int) -> object:
            self.samplers.append(bench.ManualSampler(sample, period_ns))
            return self.samplers[-1]

        meter = Meter(self.sensor, period_ms=period_ms, clock=self.clock, sampler=sampler, cost_clock=self.clock)
        with meter.window("work") as window:
            for _ in range(round(seconds * 1000 / period_ms)):
                self.clock.advance(round(period_ms * MS))
                self.samplers[-1].sample()
        return window


def counter_of(rig: object, power_w: float) -> object:
    """Return the answers of a counter in mJ that moves every 100 ms."""
    return lambda: 7_000_000 + (rig.clock() + 41 * MS) // (100 * MS) * round(power_w * 100)


def test_the_energy_counter_is_preferred() -> None:
    """A GPU with a counter is measured by it: 350 W over 10 s are 3500 J, with step and scope declared."""
    gpu = FakeGpu(**{ENERGY: 1, USAGE: 350_000, INSTANT: 350_000})
    rig = Rig(gpu)
    gpu.answers[ENERGY] = counter_of(rig, 350)
    reading = rig.window(10).reading
    assert reading.joules == pytest.approx(3500)
    assert (reading.source, reading.method, reading.scope, reading.is_total) == (
        "nvml",
        Method.COUNTER,
        Scope.GPU,
        True,
    )
    assert rig.sensor.rails[0].label == "NVIDIA H200"
    assert INSTANT not in gpu.calls, "a probe that is not needed was made"


@pytest.mark.parametrize(
    ("gpu", "lag_ms"),
    [
        ({INSTANT: 250_000}, None),
        ({USAGE: 250_000}, 500.0),
        ({USAGE: 250_000, INSTANT: Err(3)}, 500.0),
        ({USAGE: 250_000, INSTANT: 0}, 500.0),
        ({USAGE: 250_000, "nvmlDeviceGetName": "NVIDIA A100-SXM4-80GB", "nvmlDeviceGetArchitecture": 7}, None),
        ({USAGE: 250_000, "nvmlDeviceGetName": "Tesla V100-SXM2-16GB", "nvmlDeviceGetArchitecture": 5}, None),
        ({USAGE: 250_000, "nvmlDeviceGetName": "Tesla P100", "nvmlDeviceGetArchitecture": Err(13)}, None),
    ],
)
def test_without_a_counter_power_is_integrated(
    gpu: dict[str, object], lag_ms: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """No counter (Pascal, vGPU) is not 0 kWh: 250 W for 10 s are 2500 J by integration, said once, with the lag."""
    rig = Rig(FakeGpu(**gpu))
    reading = rig.window(10, period_ms=100).reading
    assert reading.joules == pytest.approx(2500)
    assert (reading.method, reading.lag_ms) == (Method.INTEGRATED_POWER, lag_ms)
    assert reading.plus_minus_joules >= 2 * 250 * 0.1
    assert [r.message for r in caplog.records if "no energy counter" in r.message].__len__() == 1


def test_wsl_where_only_power_answers() -> None:
    """On WSL2 one missing metric takes no other down: 18 W for 10 s are 180 J, utilisation and memory are None."""
    rig = Rig(FakeGpu(**{USAGE: 18_000}))
    assert rig.window(10, period_ms=100).reading.joules == pytest.approx(180)
    facts = rig.sensor.facts()[0]
    assert (facts.utilisation_percent, facts.memory_bytes, facts.power_limit_mw) == (None, None, None)
    assert "code 3 (not supported)" in facts.reasons["utilisation_percent"]
    assert "code 3 (not supported)" in facts.reasons["power_limit_mw"]
    assert facts.driver == "580.95.05"


@pytest.mark.parametrize("refused", ["memory", "utilisation", "limit"])
def test_each_fact_is_refused_by_itself(refused: str) -> None:
    """NVML calls answered NotSupported one by one leave the other facts in place."""
    answers = {
        "memory": ("nvmlDeviceGetMemoryInfo", SimpleNamespace(total=141 << 30)),
        "utilisation": ("nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=42)),
        "limit": ("nvmlDeviceGetPowerManagementLimit", 700_000),
    }
    given = {call: (Err(3) if name == refused else value) for name, (call, value) in answers.items()}
    facts = list_gpus(FakeNvml(FakeGpu(**{USAGE: 1000}, **given)))[0]
    values = {
        "memory": facts.memory_bytes,
        "utilisation": facts.utilisation_percent,
        "limit": facts.power_limit_mw,
    }
    assert [name for name, value in values.items() if value is None] == [refused]
    assert len(facts.reasons) == 1


@pytest.mark.parametrize("name", ["Orin (nvgpu)", b"Orin (nvgpu)", "NVIDIA Thor"])
def test_jetson_gives_no_power_and_says_so(name: object) -> None:
    """On a Jetson NVML initialises and refuses everything: the sensor is unavailable with that reason, NVML is shut."""
    library = FakeNvml(fake.jetson_gpu(name))
    with pytest.raises(DeviceError, match="NVML is present, no power on this board") as caught:
        NvmlSensor.open(library=library, environ={})
    assert "code 3 (not supported)" in str(caught.value)
    assert (name.decode() if isinstance(name, bytes) else name) in str(caught.value)
    assert library.open_count == 0


def test_two_gpus_of_which_one_gives_no_power() -> None:
    """One card without power hides no other: GPU 0 is measured, GPU 1 is None with its reason, the sum is partial."""
    rig = Rig(FakeGpu(**{USAGE: 100_000}), FakeGpu(nvmlDeviceGetUUID="GPU-1111"))
    window = rig.window(5)
    assert window.reading.joules == pytest.approx(500)
    assert window.reading.is_total is False
    assert rig.sensor.total.is_partial
    assert "gpu1 NVIDIA H200 not measured" in window.note
    assert window.by_rail["gpu1"].reading is None
    assert "code 3 (not supported)" in window.by_rail["gpu1"].note
    assert [rail.label for rail in rig.sensor.rails] == ["NVIDIA H200 (gpu0)", "NVIDIA H200 (gpu1)"]


def test_a_gpu_that_cannot_be_reached_does_not_hide_the_other(caplog: pytest.LogCaptureFixture) -> None:
    """A handle refused with "no permission" leaves the other GPU measured; if none is left, the reason is given."""
    rig = Rig(FakeGpu(handle=Err(4)), FakeGpu(**{USAGE: 100_000}))
    assert [gpu.index for gpu in rig.sensor.gpus] == [1]
    assert "GPU 0" in caplog.text
    with pytest.raises(DeviceError, match="/dev/nvidiactl"):
        NvmlSensor.open(library=FakeNvml(FakeGpu(handle=Err(4))), environ={})


def test_two_gpus_are_summed() -> None:
    """The total of two GPUs, one by its counter and one by power, is their sum and marked as of mixed methods."""
    first = FakeGpu(**{ENERGY: 1})
    rig = Rig(first, FakeGpu(**{INSTANT: 50_000}))
    first.answers[ENERGY] = counter_of(rig, 100)
    reading = rig.window(10).reading
    assert reading.joules == pytest.approx(1500)
    assert (reading.method, reading.is_total) == (Method.MIXED, True)


@pytest.mark.parametrize("code", [1, 15, 16, 18, 999])
def test_a_gpu_that_vanishes_ends_the_series(code: int) -> None:
    """A GPU that falls off the bus midway leaves the joules up to there, a coverage and NVML's reason with the fix."""
    gpu = FakeGpu(**{INSTANT: 100_000})
    rig = Rig(gpu)
    gpu.answers[INSTANT] = lambda: Err(code) if rig.clock() > 4 * S else 100_000
    window = rig.window(10)
    assert window.reading.joules == pytest.approx(400, rel=0.01)
    assert window.reading.coverage == pytest.approx(0.4, abs=0.01)
    assert f"code {code} (" in window.note
    assert "sensor ended" in window.note
    asked = len(gpu.calls)
    assert rig.window(1).reading is None
    with pytest.raises(DeviceError, match=f"code {code}"):
        rig.sensor.read()
    assert len(gpu.calls) <= asked + 1, "a lost GPU is asked again and again"


def test_one_of_two_gpus_vanishes() -> None:
    """The other GPU goes on; the sum stands with the coverage of the lost one and names it."""
    lost = FakeGpu(**{INSTANT: 100_000})
    rig = Rig(FakeGpu(**{INSTANT: 100_000}), lost)
    lost.answers[INSTANT] = lambda: Err(15) if rig.clock() > 5 * S else 100_000
    reading = rig.window(10).reading
    assert reading.joules == pytest.approx(1500, rel=0.01)
    assert reading.coverage == pytest.approx(0.5, abs=0.01)
    assert reading.joules + reading.plus_minus_joules >= 2000
    assert "GPU is lost" in reading.note


def test_a_refusal_that_passes_is_a_gap() -> None:
    """ "Not supported" to a poll that came too fast costs that sample only; the metric is not given up or replaced."""
    gpu = FakeGpu(**{INSTANT: 100_000, USAGE: 55_000})
    rig = Rig(gpu)
    gpu.answers[INSTANT] = lambda: Err(3) if 2 * S < rig.clock() < 3 * S else 100_000
    reading = rig.window(10).reading
    assert reading.joules == pytest.approx(900, rel=0.01)
    assert reading.coverage == pytest.approx(0.9)
    assert USAGE not in gpu.calls


def test_a_counter_that_answers_zero_or_runs_backwards() -> None:
    """A zero that is taken back changes nothing; a true reset drops one interval and is counted."""
    gpu = FakeGpu(**{ENERGY: 1})
    rig = Rig(gpu)
    steps = counter_of(rig, 100)
    gpu.answers[ENERGY] = lambda: 0 if rig.clock() == 3 * S else steps()
    assert rig.window(6).reading.joules == pytest.approx(600)
    gpu.answers[ENERGY] = lambda: steps() - 7_000_000 if rig.clock() > 9 * S else steps()
    reading = rig.window(6).reading
    assert reading.resets == 1
    assert reading.coverage == pytest.approx(1 - 0.05 / 6)
    assert reading.joules == pytest.approx(595, rel=0.005)


def test_driver_and_binding_faults_are_named_with_their_fix() -> None:
    """Whatever NVML answers at the start names the code and what to do about it."""
    faults = {
        9: "sudo modprobe nvidia",
        12: "install the NVIDIA driver",
        18: "the driver was upgraded while it was loaded: reboot",
        999: "dmesg",
        77: "code 77 (unnamed)",
    }
    for code, fix in faults.items():
        with pytest.raises(DeviceError, match=f"code {code} ") as caught:
            NvmlSensor.open(library=FakeNvml(init=Err(code)), environ={})
        assert fix in str(caught.value)


def test_an_old_driver_without_the_counter_call() -> None:
    """Function not found: the power is integrated and the reason names the driver as older than the binding."""
    rig = Rig(FakeGpu(**{ENERGY: Err(13), USAGE: 60_000}))
    assert rig.window(5).reading.joules == pytest.approx(300)
    refusals = rig.sensor._gpus[0].refusals.values()
    assert any("the driver is older than nvidia-ml-py" in refusal for refusal in refusals)


def test_an_unofficial_binding_is_accepted_as_far_as_it_goes() -> None:
    """Another package named pynvml, with bytes for names and calls missing, still measures; a foreign one explains."""
    library = FakeNvml(
        FakeGpu(**{USAGE: 60_000, "nvmlDeviceGetName": b"Tesla T4", "nvmlDeviceGetUUID": b"GPU-265c"}),
        is_official=False,
        missing=(ENERGY,),
    )
    sensor = NvmlSensor.open(library=library, environ={"CUDA_VISIBLE_DEVICES": "GPU-265c"})
    assert sensor.rails[0].label == "Tesla T4"
    refusals = sensor._gpus[0].refusals.values()
    assert any("pip install nvidia-ml-py" in refusal for refusal in refusals)
    with pytest.raises(DeviceError, match="not NVIDIA's binding"):
        NvmlSensor.open(library=SimpleNamespace(), environ={})


def test_no_gpu_and_no_visible_gpu() -> None:
    """A machine without GPUs, and a process that hides them all, each get their own sentence."""
    with pytest.raises(DeviceError, match="lists no GPU"):
        NvmlSensor.open(library=FakeNvml(), environ={})
    library = FakeNvml(FakeGpu(**{USAGE: 1}))
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES='-1' leaves no GPU visible"):
        NvmlSensor.open(library=library, environ={"CUDA_VISIBLE_DEVICES": "-1"})
    assert library.open_count == 0


def test_mig_energy_is_shared() -> None:
    """With MIG the counter is the whole board's: the joules are marked as shared and utilisation is None."""
    gpu = FakeGpu(
        **{ENERGY: 1, "nvmlDeviceGetMigMode": [1, 1], "nvmlDeviceGetMaxMigDeviceCount": 7},
        mig_uuids=("MIG-2d20791a-1111", "MIG-77777777-2222"),
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=0),
    )
    rig = Rig(gpu)
    gpu.answers[ENERGY] = counter_of(rig, 100)
    reading = rig.window(5).reading
    assert reading.is_shared is True
    assert "shared by all instances" in reading.note
    assert rig.sensor.facts()[0].utilisation_percent is None
    assert rig.sensor.gpus[0].mig_uuids == ("MIG-2d20791a-1111", "MIG-77777777-2222")


def test_after_a_fork_the_sensor_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML does not survive a fork: reading in the child says so instead of hanging."""
    rig = Rig(FakeGpu(**{USAGE: 1000}))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(DeviceError, match="open the sensor after the fork"):
        rig.sensor.read()


def test_close_is_harmless_twice_and_when_the_gpu_is_lost() -> None:
    """Closing twice shuts NVML down once."""
    rig = Rig(FakeGpu(**{USAGE: 1000}))
    rig.sensor.close()
    rig.sensor.close()
    assert rig.nvml.open_count == 0


def test_sample_is_stamped_in_the_middle_of_the_read() -> None:
    """The stamp lies half way through the calls."""
    gpu = FakeGpu(**{INSTANT: 1000})
    rig = Rig(gpu)

    def slow() -> int:
        rig.clock.advance(4 * MS)
        return 1000

    gpu.answers[INSTANT] = slow
    assert rig.sensor.read().time_ns == 2 * MS


def test_missing_binding_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the message names it."""
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(DeviceError, match="pip install nvidia-ml-py"):
        NvmlLibrary.open()


def test_every_code_reads_as_a_sentence() -> None:
    """Known codes have a name, unknown ones a number."""
    assert explain_code(15) == "code 15 (GPU is lost): it fell off the bus: look at dmesg and reboot"
    assert explain_code(12345) == "code 12345 (unnamed)"


def both_metrics(counter_w: float, power_w: float) -> Iterator[object]:
    """Yield two rigs over GPUs with a counter and an instantaneous power of their own."""
    for quantity in (Quantity.ENERGY, Quantity.POWER):
        gpu = FakeGpu(**{ENERGY: 1, INSTANT: round(power_w * 1000)})
        rig = Rig(gpu, quantity=quantity)
        gpu.answers[ENERGY] = counter_of(rig, counter_w)
        yield rig


@pytest.mark.parametrize(("counter_w", "power_w", "warns"), [(37.4, 65.317, True), (100, 101, False), (121, 100, True)])
def test_counter_and_integral_are_compared(counter_w: float, power_w: float, warns: bool) -> None:
    """37 W by the counter against 65 W by integration is a warning; a few per cent are not. Neither is corrected."""
    counter, integral = (rig.window(5.0).reading for rig in both_metrics(counter_w, power_w))
    check = compare_readings(counter, integral)
    assert check.difference == pytest.approx(counter_w / power_w - 1, abs=1e-3)
    assert (check.warning is not None) is warns
    assert counter.joules == pytest.approx(counter_w * 5)
    assert integral.joules == pytest.approx(power_w * 5)


def test_comparing_needs_both() -> None:
    """Two meters measure the same work side by side; one that measured nothing is a warning with its reason."""
    rig = bench.Bench(lambda ns: {"r1": 5000.0 if ns < 3 * S else "EIO (5)"})
    other = Meter(rig.sensor, clock=rig.clock, sampler=rig.sampler, cost_clock=rig.clock)
    check = check_counter(rig.meter, other, lambda: rig.run(2.0))
    assert check.difference == pytest.approx(0.0)
    assert check.warning is None
    rig.run(2.0)
    missing = check_counter(rig.meter, other, lambda: rig.run(2.0))
    assert (missing.difference, missing.counter) == (None, None)
    assert missing.warning.endswith("cannot be compared: VDD_IN not measured: EIO (5)")


def test_log_is_quiet_for_a_plain_gpu(caplog: pytest.LogCaptureFixture) -> None:
    """A GPU with everything raises no warning."""
    with caplog.at_level(logging.WARNING):
        Rig(FakeGpu(**{ENERGY: 1}))
    assert caplog.records == []
