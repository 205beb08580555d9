"""doctor and demo, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests import synthesis
from warplens import demo
from warplens.cli import doctor as doctor_module
from warplens.cli import main
from warplens.errors import DeviceError
from warplens.trace import Trace


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], env={"COLUMNS": "120"})


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> Trace:
    trace = Trace.from_recording(synthesis.fake_recording(blocks=24))
    monkeypatch.setattr(demo, "bundled_trace", lambda: trace)
    return trace


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise DeviceError("the CUDA driver sees no GPU\nmore")

    monkeypatch.setattr(demo, "require_gpu", fail)


@pytest.mark.usefixtures("bundled", "no_gpu")
def test_demo_without_a_gpu_says_so_and_writes_a_recording_and_two_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    result = run("demo", "-o", folder)
    assert result.exit_code == 0, result.output
    assert "nothing was recorded here: the CUDA driver sees no GPU" in " ".join(result.stdout.split())
    assert "TRUST" in result.stdout
    names = ["warplens-demo.wlens", "warplens-demo-blocks.png", "warplens-demo-warps.png"]
    assert [line for line in result.stdout.splitlines() if line.startswith("wrote")] == [
        f"wrote {folder / name}" for name in names
    ]
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)
    assert result.stderr == f"next: warplens show {folder / names[0]}\n"


@pytest.mark.usefixtures("bundled")
def test_demo_with_a_gpu_records_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = synthesis.fake_recording(blocks=8)
    recording.manifest["launches"][0] |= {"lost_events": 3, "lost_chunks": 1}
    monkeypatch.setattr(demo, "require_gpu", lambda: None)
    monkeypatch.setattr(demo, "record_live", lambda: Trace.from_recording(recording))
    result = run("demo", "-o", tmp_path)
    assert "recorded on this machine's GPU" in result.stdout
    assert result.exit_code == 4


@pytest.mark.usefixtures("no_gpu")
def test_device_cpu_opens_the_bundled_recording_and_asks_for_no_gpu(bundled: Trace) -> None:
    trace, origin = demo.demo_trace("cpu")
    assert trace is bundled
    assert origin == "the bundled recording of an NVIDIA H200 (--device cpu)"


@pytest.mark.usefixtures("bundled", "no_gpu")
def test_demo_into_a_place_that_cannot_be_written_is_a_file_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert run("demo", "-o", tmp_path / "file" / "inside").exit_code == 3


def test_the_kernel_of_the_demo_is_in_the_package() -> None:
    assert "WARPLENS_SITES" in demo.kernel_path().read_text(encoding="utf-8")


def checks(**found: str) -> list[Any]:
    return [doctor_module.Check(name, state, "x", "pip install x") for name, state in found.items()]  # type: ignore[arg-type]


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("note", 0), ("missing", 5)])
def test_doctor_ends_with_5_when_something_to_record_is_missing(
    monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    monkeypatch.setattr(doctor_module, "examine", lambda: checks(driver=state))
    assert run("doctor").exit_code == code
    facts = json.loads(run("doctor", "--json").stdout)
    assert facts["can_record"] is (code == 0)
    assert facts["exit_code"] == code


def test_doctor_names_the_command_for_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "_has_module", lambda name: False)  # noqa: ARG005
    found = {check.name: check for check in doctor_module.examine()}
    assert found["nvrtc"].state == "missing"
    assert "pip install" in found["nvrtc"].mend
    assert found["python"].state == "ok"


def test_doctor_runs_here_and_tells_versions() -> None:
    result = run("doctor", "--json")
    names = [check["name"] for check in json.loads(result.stdout)["checks"]]
    assert names[:5] == ["python", "platform", "numpy", "polars", "matplotlib"]
    assert result.exit_code in (0, 5)


def test_doctor_tells_what_else_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/other/libprofiler.so")
    monkeypatch.setenv("LD_PRELOAD", "/opt/nvbit_tool.so")
    monkeypatch.setattr(doctor_module, "has_mps", lambda: True)
    monkeypatch.setattr(doctor_module, "gpus_in_mig", lambda: [1])
    monkeypatch.setattr("platform.release", lambda: "5.15-microsoft-standard-WSL2")
    notes = {check.name: check.found for check in doctor_module._surroundings()}
    assert set(notes) == {"profilers", "mig", "mps", "wsl"}
    assert "(CUDA_INJECTION64_PATH, LD_PRELOAD)" in notes["profilers"]
    assert "GPU 1" in notes["mig"]
    monkeypatch.delenv("CUDA_INJECTION64_PATH")
    monkeypatch.delenv("LD_PRELOAD")
    monkeypatch.setattr(doctor_module, "gpus_in_mig", lambda: None)
    monkeypatch.setattr(doctor_module, "has_mps", lambda: None)
    monkeypatch.setattr("platform.release", lambda: "6.1.0")
    assert doctor_module._surroundings() == []


def test_a_binary_is_no_device() -> None:
    result = run("doctor", "--binary", "/dev/zero")
    assert result.exit_code == 3
    assert "found a device or a pipe" in result.stderr


def test_doctor_names_kernels_as_the_source_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "c++filt"
    tool.write_text("#!/bin/sh\nsed 's/_Z1fPf/f(float*)/'\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setattr(doctor_module, "find_tool", lambda name: str(tool))  # noqa: ARG005
    assert doctor_module._demangled(("_Z1fPf", "_Z1gPf")) == ["f(float*)", "_Z1gPf"]
    for broken in ("exit 1", "echo one"):
        tool.write_text(f"#!/bin/sh\n{broken}\n", encoding="utf-8")
        assert doctor_module._demangled(("_Z1fPf", "_Z1gPf")) == ["_Z1fPf", "_Z1gPf"]
    monkeypatch.setattr(doctor_module, "find_tool", lambda name: None)  # noqa: ARG005
    monkeypatch.setattr("shutil.which", lambda name: None)  # noqa: ARG005
    assert doctor_module._demangled(("_Z1fPf",)) == ["_Z1fPf"]
