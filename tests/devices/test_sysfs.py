"""Files of the kernel: every way in which one can fail is a reason, never a number and never an exception."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from edgeprec.devices.sysfs import Sysfs, natural_key, read_file

ERRNOS = [
    errno.ENODATA,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EIO,
    errno.EREMOTEIO,
    errno.ENXIO,
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.ENODEV,
    errno.EISDIR,
    errno.ESRCH,
    errno.ENOTTY,
]


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (b"4984\n", 4984.0),
        (b"-20\n", -20.0),
        (b"0\n", 0.0),
        (b"  19875  \n", 19875.0),
        (b"+7", 7.0),
        (b"12.5\n", 12.5),
        (b"42\0", 42.0),
    ],
)
def test_numbers_are_read_as_they_stand(tmp_path: Path, content: bytes, number: float) -> None:
    """Signs, white space and a closing NUL are no obstacle, and zero and negative numbers are data."""
    (tmp_path / "f").write_bytes(content)
    assert Sysfs(tmp_path).number("f") == (number, None, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\0\0\0\n",
        b"garbage\n",
        b"\xff\xfe\x00",
        b"12 34\n",
        b"0x10\n",
        b"1e3\n",
        b"nan\n",
        b"inf\n",
        b"9" * 400,
        "١٢".encode(),
        b"--5",
        b"1_000",
    ],
)
def test_what_is_not_a_number_is_none_with_a_reason(tmp_path: Path, content: bytes) -> None:
    """Nothing but a plain decimal number becomes a value: no zero, no infinity, no guess."""
    (tmp_path / "f").write_bytes(content)
    value, reason, code = Sysfs(tmp_path).number("f")
    assert value is None
    assert reason is not None
    assert reason.startswith("f ")
    assert code is None


@pytest.mark.parametrize("code", ERRNOS)
def test_every_errno_is_a_reason_that_names_it(tmp_path: Path, code: int) -> None:
    """A read that fails gives errno's name and number, and never raises."""

    def reader(path: str) -> bytes:
        raise OSError(code, os.strerror(code), path)

    sysfs = Sysfs(tmp_path, reader=reader)
    for outcome in (sysfs.text("d/f"), sysfs.number("d/f"), sysfs.leading_number("d/f")):
        assert outcome.value is None
        assert outcome.code == code
        assert errno.errorcode[code] in str(outcome.reason)
    assert sysfs.strings("d/f") == ()


def test_a_locked_file_says_its_path_and_the_fix(tmp_path: Path) -> None:
    """EACCES tells which file and which command helps."""

    def reader(path: str) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    reason = Sysfs(tmp_path, reader=reader).number("sys/in_power0_input").reason
    assert reason is not None
    assert f"sudo chmod a+r {tmp_path}/sys/in_power0_input" in reason


def test_missing_files_folders_and_broken_links_are_reasons(tmp_path: Path) -> None:
    """A path that is missing, a folder, a loop or below a file is answered by errno's name."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("1\n")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    sysfs = Sysfs(tmp_path)
    cases = {"none": "ENOENT", "folder": "EISDIR", "file/x": "ENOTDIR", "loop": "ELOOP", "dangling": "ENOENT"}
    for path, name in cases.items():
        assert str(sysfs.number(path).reason).startswith(name), path
        assert sysfs.number(path).value is None


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    """A named pipe in the place of a file is read as empty instead of waiting for a writer."""
    os.mkfifo(tmp_path / "pipe")
    assert Sysfs(tmp_path).text("pipe").reason == "pipe is empty"


@pytest.mark.parametrize(("text", "number"), [("32760 ma\n", 32760.0), ("120\n", 120.0), ("-5 mV\n", -5.0)])
def test_limits_may_carry_a_unit(tmp_path: Path, text: str, number: float) -> None:
    """JetPack 4 writes ``32760 ma``: the first token counts."""
    (tmp_path / "warn_current_limit_0").write_text(text)
    assert Sysfs(tmp_path).leading_number("warn_current_limit_0").value == number


@pytest.mark.parametrize("text", ["ma 32760\n", "garbage\n", "\n", "32760ma\n"])
def test_a_damaged_limit_is_none(tmp_path: Path, text: str) -> None:
    """A limit that does not start with a number is None, not 0."""
    (tmp_path / "f").write_text(text)
    assert Sysfs(tmp_path).leading_number("f").value is None


def test_device_tree_strings_are_split_at_nul(tmp_path: Path) -> None:
    """A compatible list is one string per NUL."""
    (tmp_path / "compatible").write_bytes(b"nvidia,p3834-0008\0nvidia,tegra264\0")
    assert Sysfs(tmp_path).strings("compatible") == ("nvidia,p3834-0008", "nvidia,tegra264")


def test_names_sort_as_numbers(tmp_path: Path) -> None:
    """hwmon10 comes after hwmon2, and a folder that is missing has no names."""
    for number in (10, 2, 1, 33):
        (tmp_path / f"hwmon{number}").mkdir()
    assert Sysfs(tmp_path).names("") == ("hwmon1", "hwmon2", "hwmon10", "hwmon33")
    assert Sysfs(tmp_path).names("none") == ()
    assert sorted(["a", "a1b", "1a", "a01"], key=natural_key) == ["1a", "a", "a01", "a1b"]


def test_two_ways_to_one_folder_have_one_real_path(tmp_path: Path) -> None:
    """Links are followed to tell the same folder twice from two folders."""
    (tmp_path / "iio:device0").mkdir()
    (tmp_path / "iio_device").symlink_to("iio:device0")
    sysfs = Sysfs(tmp_path)
    assert sysfs.real("iio_device") == sysfs.real("iio:device0")
    assert sysfs.exists("iio_device")
    assert sysfs.is_folder("iio_device")
    assert sysfs.absolute("x") == f"{tmp_path}/x"


def test_long_files_are_read_whole(tmp_path: Path) -> None:
    """A file longer than one read, such as /proc/cpuinfo of a large machine, comes back whole."""
    content = b"processor : 1\n" * 20_000
    (tmp_path / "cpuinfo").write_bytes(content)
    assert read_file(str(tmp_path / "cpuinfo")) == content
