"""Any mixture of faults of a library, a tree or a file: a DeviceError or None with a reason, never a crash or a 0."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeprec.devices.jtop_power import read_power
from edgeprec.devices.nvml import NvmlSensor
from edgeprec.devices.nvml_gpus import list_gpus
from edgeprec.devices.nvml_power import Metric
from edgeprec.devices.rapl import RaplSensor
from edgeprec.devices.replay import load_trace
from edgeprec.errors import DeviceError

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_nvml.py"))))
Err = fake.Err

CODES = st.sampled_from([1, 2, 3, 4, 6, 9, 10, 12, 13, 15, 16, 17, 18, 77, 999]).map(Err)


def answer(value: object) -> st.SearchStrategy[object]:
    """Return a value or any error."""
    return st.one_of(st.just(value), CODES)


GPU = st.fixed_dictionaries(
    {
        "nvmlDeviceGetName": answer(b"NVIDIA H200"),
        "nvmlDeviceGetUUID": answer("GPU-1234"),
        "nvmlDeviceGetPciInfo": answer(SimpleNamespace(busId=b"00000000:17:00.0")),
        "nvmlDeviceGetArchitecture": answer(9),
        "nvmlDeviceGetTotalEnergyConsumption": answer(5_000_000),
        "nvmlDeviceGetPowerUsage": answer(90_000),
        "field186": answer(91_000),
        "nvmlDeviceGetMigMode": answer([0, 0]),
        "nvmlDeviceGetMemoryInfo": answer(SimpleNamespace(total=141 << 30)),
        "nvmlDeviceGetUtilizationRates": answer(SimpleNamespace(gpu=7)),
        "nvmlDeviceGetPowerManagementLimit": answer(700_000),
        "handle": st.one_of(st.none(), CODES),
    }
)


def is_gone(gpu: object, metric: Metric, codes: set[int]) -> bool:
    """Return whether the metric of a GPU now answers that the GPU is gone."""
    found = gpu.answers[METRICS[list(Metric).index(metric)]]
    return isinstance(found, Err) and found.code in codes


METRICS = ("nvmlDeviceGetTotalEnergyConsumption", "field186", "nvmlDeviceGetPowerUsage")


@settings(max_examples=150, deadline=None)
@given(st.lists(GPU, min_size=1, max_size=3), st.lists(GPU, min_size=3, max_size=3))
def test_any_mixture_of_nvml_refusals(at_open: list[dict[str, object]], later: list[dict[str, object]]) -> None:
    """Each GPU is measured by the first metric it answered, or is None with NVML's reason; facts fail one by one."""
    gpus = [fake.FakeGpu(**answers) for answers in at_open]
    library = fake.FakeNvml(*gpus)
    works = [
        not isinstance(answers["handle"], Err) and any(not isinstance(answers[metric], Err) for metric in METRICS)
        for answers in at_open
    ]
    if not any(works):
        with pytest.raises(DeviceError):
            NvmlSensor.open(library=library, environ={})
        assert library.open_count == 0
        return
    sensor = NvmlSensor.open(library=library, environ={})
    sample = sensor.read()
    reached = [i for i, answers in enumerate(at_open) if not isinstance(answers["handle"], Err)]
    for index in reached:
        value = sample.values[f"gpu{index}"]
        expected = next((at_open[index][m] for m in METRICS if not isinstance(at_open[index][m], Err)), None)
        assert value == expected
        assert (value is None) == (f"gpu{index}" in sample.reasons)
    for facts in sensor.facts():
        for name in ("memory_bytes", "power_limit_mw", "utilisation_percent", "driver"):
            assert (getattr(facts, name) is None) == (name in facts.reasons)
    for gpu, answers in zip(gpus, later, strict=False):
        gpu.answers = {**gpu.answers, **answers}
    gone = {1, 15, 16, 18, 999}
    read = [(gpu, sensor._gpus[i].metric) for i, gpu in enumerate(gpus[index] for index in reached)]
    lost = [metric is None or is_gone(gpu, metric, gone) for gpu, metric in read]
    if all(lost):
        with pytest.raises(DeviceError, match="every GPU is gone"):
            sensor.read()
        return
    sample = sensor.read()
    assert all((value is None) == (rail_id in sample.reasons) for rail_id, value in sample.values.items())
    assert 0.0 not in sample.values.values()


@settings(max_examples=50, deadline=None)
@given(st.lists(GPU, max_size=3))
def test_listing_gpus_never_fails_for_one_of_them(answers: list[dict[str, object]]) -> None:
    """The list of GPUs has all that can be reached, or one sentence when there is none to reach."""
    reachable = sum(not isinstance(gpu["handle"], Err) for gpu in answers)
    library = fake.FakeNvml(*(fake.FakeGpu(**gpu) for gpu in answers))
    if answers and not reachable:
        with pytest.raises(DeviceError, match="none can be reached"):
            list_gpus(library)
    else:
        assert len(list_gpus(library)) == reachable
    assert library.open_count == 0


ZONES = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "psys"}
FILES = ("name", "energy_uj", "max_energy_range_uj")
DAMAGE = st.dictionaries(
    st.tuples(st.sampled_from(sorted(ZONES)), st.sampled_from(FILES)),
    st.sampled_from([None, "", "\n", "abc\n", "-5\n", "99999999999999999999999999\n", "\x00\x00"]),
    max_size=6,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DAMAGE)
def test_any_damage_to_a_rapl_tree(
    tmp_path_factory: pytest.TempPathFactory, damage: dict[tuple[str, str], str | None]
) -> None:
    """Deleted or garbled files raise DeviceError at most, never give 0, and leave other zones as they were."""
    root = tmp_path_factory.mktemp("tree")
    for i, (number, name) in enumerate(ZONES.items()):
        folder = root / "sys/class/powercap" / number
        folder.mkdir(parents=True)
        contents = dict(zip(FILES, (name, f"{(i + 1) * 1000}", "262143328850"), strict=True))
        for file, content in contents.items():
            changed = damage.get((number, file), content + "\n")
            if changed is not None:
                (folder / file).write_text(changed)
    untouched = [number for number in ZONES if not any(place == number for place, _ in damage)]
    try:
        sample = RaplSensor.open(root=root).read()
    except DeviceError:
        assert not untouched
        return
    assert 0.0 not in sample.values.values()
    assert all((value is None) == (zone in sample.reasons) for zone, value in sample.values.items())
    for number in untouched:
        expected = (list(ZONES).index(number) + 1) * 1.0
        assert [v for k, v in sample.values.items() if k.endswith(ZONES[number])] == [expected]


KEYS = st.sampled_from(["rail", "tot", "power", "cur", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(JSON | st.tuples(JSON, JSON))
def test_any_shape_of_jtop_is_figures_or_a_sentence(power: object) -> None:
    """Whatever a release of jetson-stats returns: rails in mW, or one DeviceError."""
    try:
        found = read_power(power)
    except DeviceError:
        return
    assert all(value is None or isinstance(value, float) for value in found.rails_mw.values())
    assert found.sum_mw is None or isinstance(found.sum_mw, float)


def damaged(text: str, cut: int, put: str) -> str:
    """Return a text with something put in place of a character."""
    at = cut % len(text)
    return text[:at] + put + text[at + 1 :]


def dropped(text: str, cut: int, put: str) -> str:
    """Return a text cut off."""
    return text[: cut % len(text)] + put


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([damaged, dropped]), st.integers(0, 5000), st.text(max_size=3))
def test_any_damage_to_a_trace(
    tmp_path_factory: pytest.TempPathFactory, change: Callable[[str, int, str], str], cut: int, put: str
) -> None:
    """A damaged trace is read or refused with the file's name; it never crashes the program that reads it."""
    whole = Path(__file__).with_name("traces").joinpath("h200-counter.jsonl").read_text()
    text = change("\n".join(whole.splitlines()[:12]) + "\n", cut, put)
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text(text, encoding="utf-8", errors="replace", newline="")
    refusal = ""
    header, samples = None, []
    try:
        header, samples = load_trace(path)
    except DeviceError as error:
        refusal = str(error)
    if header is None:
        assert str(path) in refusal
        return
    assert samples
    assert all(value is None or math.isfinite(value) for sample in samples for value in sample.values.values())
