"""Facts about the GPU and its state, for the manifest.

In: the current device. Out: JSON-able dictionaries; what cannot be learnt is None. Clocks, power and other processes
come from NVML (nvidia-ml-py), which does not wake or change the GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from warplens.capture import driver

_REASONS = {
    "hardware slowdown": "ClocksThrottleReasonHwSlowdown",
    "hardware thermal slowdown": "ClocksThrottleReasonHwThermalSlowdown",
    "hardware power brake": "ClocksThrottleReasonHwPowerBrakeSlowdown",
    "software thermal slowdown": "ClocksThrottleReasonSwThermalSlowdown",
    "software power cap": "ClocksThrottleReasonSwPowerCap",
}


@contextlib.contextmanager
def _nvml(device: int) -> Iterator[tuple[Any, Any] | None]:
    """NVML and its handle of the device; None where it cannot be used."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, no library, no permission: nothing of this is needed for recording
        yield None
        return
    try:
        yield nvml, nvml.nvmlDeviceGetHandleByUUID(_uuid(device).encode())
    finally:
        nvml.nvmlShutdown()


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None when NVML has none for this device."""
    try:
        return question(*arguments)
    except Exception:  # NVMLError has a subclass for each refusal
        return None


def _uuid(device: int) -> str:
    raw = bytes(driver.call("cuDeviceGetUuid", device).bytes).hex()
    return f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"


def c_text(data: bytes) -> str:
    """What a C function wrote into a buffer: up to its first zero byte; what follows was there before."""
    return data.partition(b"\0")[0].decode(errors="replace")


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def device_facts(device: int) -> dict[str, Any]:
    """Name, compute capability, SMs, L2, versions, MIG and MPS of a device."""
    facts: dict[str, Any] = {
        "name": c_text(driver.call("cuDeviceGetName", 256, device)),
        "compute_capability": [
            driver.attribute(device, "COMPUTE_CAPABILITY_MAJOR"),
            driver.attribute(device, "COMPUTE_CAPABILITY_MINOR"),
        ],
        "sm_count": driver.attribute(device, "MULTIPROCESSOR_COUNT"),
        "l2_bytes": driver.attribute(device, "L2_CACHE_SIZE"),
        "driver": None,
        "cuda_driver_version": driver.call("cuDriverGetVersion"),
        "mig": None,
        "multi_process": has_mps(),
    }
    with _nvml(device) as found:
        if found is not None:
            nvml, handle = found
            facts["driver"] = _text(_ask(nvml.nvmlSystemGetDriverVersion))
            mig = _ask(nvml.nvmlDeviceGetMigMode, handle)
            facts["mig"] = None if mig is None else bool(mig[0])
    return facts


def gpus_in_mig() -> list[int] | None:
    """Numbers of the GPUs that are divided (MIG); None where NVML does not tell. Opens no context."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, no library, no permission
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        modes = [_ask(nvml.nvmlDeviceGetMigMode, handle) for handle in handles]
    finally:
        nvml.nvmlShutdown()
    return [index for index, mode in enumerate(modes) if mode and mode[0]]


def has_mps() -> bool | None:
    """Whether an MPS server runs here; None where /proc does not tell."""
    try:
        names = [(entry / "comm").read_text() for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return None
    return any(name.startswith("nvidia-cuda-mps") for name in names)


def clock_state(device: int) -> dict[str, Any]:
    """Clocks, power, temperature, throttle reasons and number of other processes, as they are now."""
    keys = "sm_hz", "memory_hz", "power_w", "temperature_c", "throttle_reasons", "other_processes"
    state: dict[str, Any] = dict.fromkeys(keys)
    with _nvml(device) as found:
        if found is None:
            return state
        nvml, handle = found
        clock = nvml.nvmlDeviceGetClockInfo
        for key, kind in (("sm_hz", nvml.NVML_CLOCK_SM), ("memory_hz", nvml.NVML_CLOCK_MEM)):
            mega_hz = _ask(clock, handle, kind)
            state[key] = None if mega_hz is None else mega_hz * 1e6
        milli_w = _ask(nvml.nvmlDeviceGetPowerUsage, handle)
        state["power_w"] = None if milli_w is None else milli_w / 1e3
        state["temperature_c"] = _ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        mask = _ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if mask is not None:
            bits = {text: getattr(nvml, f"nvml{name}", 0) for text, name in _REASONS.items()}
            state["throttle_reasons"] = [text for text, bit in bits.items() if mask & bit]
        processes = _ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        if processes is not None:
            state["other_processes"] = sum(process.pid != os.getpid() for process in processes)
    return state
