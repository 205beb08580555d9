"""Facts about the GPU and its state, for the manifest.

In: the current device. Out: JSON-able dictionaries; what cannot be learnt is None. nvidia-smi is asked for clocks,
power and other processes, at most a second.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

from warplens.capture import driver

_QUERY = {
    "sm_hz": ("clocks.sm", 1e6),
    "memory_hz": ("clocks.mem", 1e6),
    "power_w": ("power.draw", 1.0),
    "temperature_c": ("temperature.gpu", 1.0),
}
_REASONS = ("hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap", "hw_slowdown")


def _smi(*arguments: str) -> list[list[str]] | None:
    path = shutil.which("nvidia-smi")
    if path is None:
        return None
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _uuid(device: int) -> str:
    raw = bytes(driver.call("cuDeviceGetUuid", device).bytes).hex()
    return f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"


def device_facts(device: int) -> dict[str, Any]:
    """Name, compute capability, SMs, L2, versions, MIG and MPS of a device."""
    rows = _smi(f"--id={_uuid(device)}", "--query-gpu=driver_version,mig.mode.current", "--format=csv,noheader")
    version, mig = (rows[0] + ["", ""])[:2] if rows else (None, None)
    return {
        "name": driver.call("cuDeviceGetName", 256, device).rstrip(b"\0").decode(),
        "compute_capability": [
            driver.attribute(device, "COMPUTE_CAPABILITY_MAJOR"),
            driver.attribute(device, "COMPUTE_CAPABILITY_MINOR"),
        ],
        "sm_count": driver.attribute(device, "MULTIPROCESSOR_COUNT"),
        "l2_bytes": driver.attribute(device, "L2_CACHE_SIZE"),
        "driver": version or None,
        "cuda_driver_version": driver.call("cuDriverGetVersion"),
        "mig": {"Enabled": True, "Disabled": False}.get(mig or ""),
        "multi_process": _has_mps(),
    }


def _has_mps() -> bool | None:
    path = shutil.which("pgrep")
    if path is None:
        return None
    return subprocess.run([path, "-x", "nvidia-cuda-mps"], capture_output=True, check=False).returncode == 0


def clock_state(device: int) -> dict[str, Any]:
    """Clocks, power, temperature, throttle reasons and number of other processes, as nvidia-smi gives them now."""
    fields = [field for field, _ in _QUERY.values()]
    fields += [f"clocks_event_reasons.{reason}" for reason in _REASONS]
    uuid = _uuid(device)
    rows = _smi(f"--id={uuid}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    state: dict[str, Any] = dict.fromkeys([*_QUERY, "throttle_reasons", "other_processes"])
    if not rows or len(rows[0]) != len(fields):
        return state
    for (key, (_, scale)), text in zip(_QUERY.items(), rows[0], strict=False):
        try:
            state[key] = float(text) * scale
        except ValueError:
            state[key] = None
    reasons = rows[0][len(_QUERY) :]
    state["throttle_reasons"] = [r for r, text in zip(_REASONS, reasons, strict=True) if text == "Active"]
    apps = _smi(f"--id={uuid}", "--query-compute-apps=pid", "--format=csv,noheader")
    state["other_processes"] = None if apps is None else max(len(apps) - 1, 0)
    return state
