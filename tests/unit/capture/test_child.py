"""Running a program as its user would: exit codes, what is run, Python's own start. No compiler, no GPU."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from warplens.capture.child import Watch, command_line, environment, run
from warplens.capture.request import Request, to_text
from warplens.errors import UsageError


def test_a_python_file_and_a_module_are_run_by_this_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("", encoding="utf-8")
    assert command_line([str(script), "-x"]) == [sys.executable, str(script), "-x"]
    assert command_line(["pkg", "-m"], module=True) == [sys.executable, "-m", "pkg", "-m"]
    assert command_line(["./a.out", "x.py"]) == ["./a.out", "x.py"]
    with pytest.raises(UsageError, match="nothing to run"):
        command_line([])


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("true", 0)])
def test_the_exit_code_is_the_programs_own(script: str, code: int) -> None:
    assert run(["sh", "-c", script], "").code == code


def test_a_program_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot run"):
        run(["/nonexistent/program"], "")


def executable(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    path.chmod(0o755)
    return str(path)


def test_a_script_without_a_first_line_for_the_system_is_run_by_sh_as_a_shell_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = executable(tmp_path / "a script", b'test "$2" = "b c" && exit 7\n')
    assert run([script, "a", "b c"], "").code == 7
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert run(["a script", "a", "b c"], "").code == 7


def test_why_a_file_that_is_there_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="what its first line names"):
        run([executable(tmp_path / "script", b"#!/nonexistent/shell\n")], "")
    with pytest.raises(UsageError, match="Exec format error"):
        run([executable(tmp_path / "program", b"\x7fELF\2\1\1\0")], "")


def test_a_program_that_does_not_end_is_stopped() -> None:
    ending = run(["sleep", "30"], "", timeout_s=0.2)
    assert (ending.code, ending.why) == (124, "it was stopped after 0.2 s (--timeout)")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux alone tells that a process has ended")
def test_the_end_of_a_program_with_a_time_out_is_told_and_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Popen.wait sleeps up to 50 ms between two questions."""
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"slept {seconds} s"))
    seen: list[float] = []
    assert run(["sh", "-c", "sleep 0.1; exit 3"], "", timeout_s=30, watch=Watch(tick=seen.append)).code == 3
    assert seen == []


def python(tmp_path: Path, code: str, *path: str) -> subprocess.CompletedProcess[str]:
    variables = environment(to_text(Request(), str(tmp_path)))
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"].split(os.pathsep)[0], *path])
    return subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True, timeout=60
    )


def test_the_users_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.own = 'here'", encoding="utf-8")
    done = python(tmp_path, "import sys; print(own, sys.modules['sitecustomize'].__file__)", str(own))
    assert done.stdout.split() == ["here", str(own / "sitecustomize.py")]


def test_a_python_start_loads_nothing_of_warplens_and_nothing_slow(tmp_path: Path) -> None:
    slow = "('warplens', 'numpy', 'urllib', 'json', 're')"
    done = python(tmp_path, f"import sys; print([m for m in sys.modules if m.split('.')[0] in {slow}])")
    assert done.stdout == "[]\n"
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_used_a_gpu_package_says_so_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "torch.py").write_text("", encoding="utf-8")
    run_folder = tmp_path / os.fsdecode(b"a+b %c&\xe9")
    run_folder.mkdir()
    code = "import os, sys, torch\nsys.argv = ['/x/a \"\\\\ \\n\\xe9']\nif os.fork() == 0: raise SystemExit"
    python(run_folder, code, str(tmp_path / "lib"))
    (note,) = run_folder.glob("*-python.json")
    found = json.loads(note.read_text(encoding="utf-8"))
    assert (found["python"], found["process"]["program"]) == (["torch"], 'a "\\ \n\xe9')


@pytest.mark.parametrize("argv", ["[None]", "None", "[]"])
def test_a_note_disturbs_no_program(argv: str, tmp_path: Path) -> None:
    for name in ("torch", "json"):
        (tmp_path / f"{name}.py").write_text(f"print('{name}')", encoding="utf-8")
    done = python(tmp_path, f"import sys, torch; sys.argv = {argv}", str(tmp_path))
    assert (done.stdout, done.stderr) == ("torch\n", "")
    assert len(list(tmp_path.glob("*-python.json"))) == 1


def test_a_signal_that_is_ignored_stays_so_in_the_program() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert run(["sh", "-c", "kill -HUP $PPID; kill -HUP $$; exit 3"], "").code == 3
    finally:
        signal.signal(signal.SIGHUP, before)


SIGNALS = ("INT", "TERM", "HUP", "USR1", "USR2", "QUIT", "ALRM")
SENDS = f"""
import os, signal, sys
heard = []
for name in {SIGNALS}:
    signal.signal(getattr(signal, "SIG" + name), lambda number, _: heard.append(number))
    os.kill(os.getppid(), getattr(signal, "SIG" + name))
    while signal.Signals(heard[-1] if heard else 1).name[3:] != name and signal.sigtimedwait([], 0.01) is None:
        pass
sys.exit(len(heard))
"""


def test_signals_to_this_process_alone_reach_the_program() -> None:
    """Whatever ignores some of them round the tests, as nohup and a shell's background do."""
    numbers = [int(getattr(signal, f"SIG{name}")) for name in SIGNALS]
    code = f"import signal\nfor number in {numbers}: signal.signal(number, signal.SIG_DFL)\n"
    code += f"from warplens.capture.child import run; print(run([{sys.executable!r}, '-c', {SENDS!r}], '', 20).code)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert (done.stdout, done.stderr) == (f"{len(SIGNALS)}\n", "")


def test_ctrl_c_on_a_terminal_reaches_the_program_once() -> None:
    program = "import signal, time; signal.signal(2, lambda *_: print('heard')); print('ready'); time.sleep(0.5)"
    code = f"from warplens.capture.child import run; run([{sys.executable!r}, '-uc', {program!r}], '')"
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    shown = b""
    try:
        while data := os.read(terminal, 1000):
            if b"ready" in data:
                os.write(terminal, b"\x03")
            shown += data
    except OSError:  # how a terminal ends on Linux
        pass
    assert os.waitpid(child, 0)[1] == 0
    assert shown.count(b"heard") == 1


def test_a_signal_that_comes_while_the_program_is_started_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program may run, and send one, before the call that started it has returned."""
    start = subprocess.Popen

    def slow(*arguments: Any, **named: Any) -> Any:
        begun = start(*arguments, **named)
        time.sleep(1)
        return begun

    monkeypatch.setattr(subprocess, "Popen", slow)
    program = (
        "import os, signal, time; signal.signal(10, lambda *_: os._exit(7)); os.kill(os.getppid(), 10); time.sleep(9)"
    )
    assert run([sys.executable, "-c", program], "", 15).code == 7
