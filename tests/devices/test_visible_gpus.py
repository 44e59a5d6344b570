"""Which GPUs a process may use: every form of CUDA_VISIBLE_DEVICES, CUDA's own PCI ids, and MIG."""

from __future__ import annotations

import pytest

from edgeprec.devices.visible_gpus import GpuIdentity, select_gpus

GPUS = [
    GpuIdentity(index=0, name="H200", uuid="GPU-aaaa1111", pci_id="00000000:17:00.0"),
    GpuIdentity(index=1, name="H200", uuid="GPU-265c9814", pci_id="00000000:3D:00.0"),
    GpuIdentity(index=2, name="H200", uuid="GPU-265cffff", pci_id="00000001:17:00.0"),
    GpuIdentity(
        index=3, name="H200", uuid="GPU-bbbb", pci_id="00000002:01:00.0", is_mig=True, mig_uuids=("MIG-2d20791a-1",)
    ),
]


@pytest.mark.parametrize(
    ("visible", "expected", "shared"),
    [
        (None, [0, 1, 2, 3], {3}),
        ("0", [0], set()),
        ("0,2", [0, 2], set()),
        (" 2 , 0 ", [2, 0], set()),
        ("2,2", [2], set()),
        ("0,-1,1", [0], set()),
        ("0,9,1", [0], set()),
        ("", [], set()),
        ("-1", [], set()),
        ("NoDevFiles", [], set()),
        ("GPU-265c9814", [1], set()),
        ("GPU-aaaa1111,GPU-265c9814", [0, 1], set()),
        ("GPU-265c", [], set()),  # two GPUs begin so: CUDA takes neither
        ("MIG-2d20791a-1", [3], {3}),
        ("MIG-2d20", [3], {3}),
        ("MIG-GPU-bbbb/1/0", [3], {3}),
        ("MIG-unknown", [], set()),
    ],
)
def test_every_form_of_cuda_visible_devices(visible: str | None, expected: list[int], shared: set[int]) -> None:
    """Numbers, UUIDs, their beginnings, MIG instances of both forms, lists, and the ways to say none."""
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    selection = select_gpus(GPUS, environ)
    assert [gpu.index for gpu in selection.gpus] == expected
    assert selection.shared == shared
    assert expected or "leaves no GPU visible" in selection.note


def test_mig_without_a_list_of_instances_is_the_only_split_gpu() -> None:
    """A driver that will not list instances still leaves one answer when a single GPU is split."""
    gpus = [GPUS[0], GpuIdentity(index=1, name="H200", is_mig=True)]
    assert [gpu.index for gpu in select_gpus(gpus, {"CUDA_VISIBLE_DEVICES": "MIG-2d20"}).gpus] == [1]


def test_pci_ids_of_cuda_decide() -> None:
    """CUDA's own PCI ids win over the environment, however they are written, and one NVML does not list is named."""
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    selection = select_gpus(GPUS, environ, ["0001:17:00.0", "0000:3d:00"])
    assert [gpu.index for gpu in selection.gpus] == [2, 1]
    assert select_gpus(GPUS, environ, ["0000:99:00.0"]).note == "NVML lists no GPU at 0000:99:00.0"


@pytest.mark.parametrize(("order", "is_doubtful"), [(None, True), ("FASTEST_FIRST", True), ("PCI_BUS_ID", False)])
def test_numbers_are_doubtful_among_unlike_gpus(order: str | None, is_doubtful: bool) -> None:
    """Where GPUs differ and the order is CUDA's own, a number may name another GPU, and the note says so."""
    gpus = [GPUS[0], GpuIdentity(index=1, name="RTX A2000")]
    environ = {"CUDA_VISIBLE_DEVICES": "0"} | ({"CUDA_DEVICE_ORDER": order} if order else {})
    assert (select_gpus(gpus, environ).note is not None) is is_doubtful
