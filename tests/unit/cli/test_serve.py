"""`warplens export --open`: who gets the file, who does not, and when it ends."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import synthesis
from warplens.cli import main
from warplens.cli.serve import UI, TraceServer
from warplens.errors import UsageError
from warplens.trace import Trace


@pytest.fixture
def served(tmp_path: Path) -> Iterator[TraceServer]:
    """A server of a file with an odd name, on any port; it answers in a thread."""
    file = tmp_path / "a b#%é.gz"
    file.write_bytes(b"trace")
    with TraceServer(file, port=0) as server:
        thread = threading.Thread(target=server.serve_once)
        thread.start()
        yield server
        server.fetched.set()
        thread.join()


def ask(server: TraceServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=5)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return found


def test_the_page_may_fetch_the_file_and_then_it_ends(served: TraceServer) -> None:
    assert served.here == f"http://127.0.0.1:{served.server_address[1]}/a_b___.gz"
    assert served.url == f"https://ui.perfetto.dev/#!/?url={served.here}"
    status, data, headers = ask(served, "/a_b___.gz")
    assert (status, data) == (200, b"trace")
    assert headers["Access-Control-Allow-Origin"] == UI == "https://ui.perfetto.dev"
    assert served.fetched.wait(5)


def test_what_is_not_the_file_or_asked_under_another_name_is_not_found(served: TraceServer) -> None:
    for path in ("/", "/a_b___.gz/", "/../a_b___.gz", "/etc/passwd", "/a%20b%23%25%C3%A9.gz"):
        assert ask(served, path)[:2] == (404, b"")
    for host in ("evil.example:9001", "evil.example", "127.0.0.1.evil.example:9001", ""):
        assert ask(served, served.name, Host=host)[:2] == (404, b"")
    assert not served.fetched.is_set()


def test_questions_before_the_fetch_are_answered_and_do_not_end_it(served: TraceServer) -> None:
    status, _, headers = ask(served, served.name, "OPTIONS", Origin=UI)
    assert status == 204
    assert headers["Access-Control-Allow-Private-Network"] == "true"
    status, data, headers = ask(served, served.name, "HEAD")
    assert (status, data, headers["Content-Length"]) == (200, b"", "5")
    assert not served.fetched.is_set()
    assert ask(served, served.name, Host="localhost:1")[1] == b"trace"


def test_a_connection_that_says_nothing_keeps_nobody_waiting(served: TraceServer) -> None:
    with socket.create_connection(("127.0.0.1", served.server_address[1])):
        assert ask(served, served.name)[1] == b"trace"


def test_a_port_that_is_taken_is_told_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} of 127.0.0.1.* is taken .*drop the file on it"):
            TraceServer(tmp_path / "a.gz", port=port)


def test_the_port_is_free_again_at_once(tmp_path: Path) -> None:
    file = tmp_path / "a.gz"
    file.write_bytes(b"trace")
    port = 0
    for _ in range(2):
        with TraceServer(file, port=port) as server:
            port = server.server_address[1]
            thread = threading.Thread(target=server.serve_once)
            thread.start()
            assert ask(server, "/a.gz")[1] == b"trace"
            thread.join()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warplens.cli.serve.TraceServer.__init__.__kwdefaults__", {"port": 0})
    Trace.from_recording(synthesis.fake_recording()).save("run.wlens")
    return Path("run.wlens")


def test_the_command_opens_the_page_and_ends_when_it_has_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[bytes] = []
    threads: list[threading.Thread] = []

    def browse(url: str) -> None:
        host, _, name = url.partition("?url=http://")[2].partition("/")

        def fetch() -> None:
            connection = http.client.HTTPConnection(host, timeout=5)
            connection.request("GET", f"/{name}")
            fetched.append(connection.getresponse().read())
            connection.close()

        threads.append(threading.Thread(target=fetch))
        threads[0].start()

    monkeypatch.setattr("warplens.cli.export.show", browse)
    result = CliRunner().invoke(main, ["export", str(file), "-t", "perfetto", "--open"])
    threads[0].join(5)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "wrote run.pftrace.gz\n"
    assert fetched == [Path("run.pftrace.gz").read_bytes()]
    said = result.stderr.splitlines()
    assert said[0].startswith("serving http://127.0.0.1:")
    assert said[1].startswith("opening https://ui.perfetto.dev/#!/?url=http://127.0.0.1:")
    assert said[-1] == "fetched; the page has all it needs"


@pytest.mark.skipif(os.name != "posix", reason="raise_signal of SIGINT does not end a wait on Windows")
def test_ctrl_c_ends_it_and_leaves_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def browse(_: str) -> None:
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()

    monkeypatch.setattr("warplens.cli.export.show", browse)
    result = CliRunner().invoke(main, ["export", str(file), "-t", "perfetto", "--open"])
    assert result.exit_code == 0
    assert result.stderr.endswith("stopped; the file was not fetched\n")
    assert Path("run.pftrace.gz").stat().st_size > 0


def test_open_is_for_perfetto(file: Path) -> None:
    result = CliRunner().invoke(main, ["export", str(file), "-t", "csv", "--open"])
    assert result.exit_code == 2
    assert "--open are for -t perfetto" in result.stderr
