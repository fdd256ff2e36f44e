"""A memcached of our own, a plain client to look at it from outside, and Python children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import memlock

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from process_group import OWN_GROUP
from safety import MARKER

# For what must happen, however slow the machine.
PATIENCE = 60.0
PR_SET_PDEATHSIG = 1
USER = "nobody" if os.geteuid() == 0 else None


class Unwanted(Exception):  # noqa: N818
    """What a body or a handler raises."""


def safe(condition: bool, message: str) -> None:
    """Asserts what is a breach of safety if it is false."""
    __tracebackhide__ = True
    if not condition:
        raise AssertionError(f"{MARKER}{message}")


def eventually(true: Callable[[], object], limit: float = PATIENCE) -> None:
    """Looks until it is true: every few milliseconds at first, later less often."""
    began = time.monotonic()
    while not true():
        waited = time.monotonic() - began
        assert waited < limit, f"it did not become true within {limit} s"
        time.sleep(min(max(waited / 50, 0.002), 0.04))


def quick_once(attempt: Callable[[], float], limit: float) -> None:
    """Repeats what takes longer on a busy machine now and then, and longer each time if it is
    wrong, until it has taken less than the limit."""
    began, took = time.monotonic(), [attempt()]
    while took[-1] >= limit:
        assert time.monotonic() - began < PATIENCE, f"never less than {limit} s: {took}"
        took.append(attempt())


T = TypeVar("T")


def answered(call: Callable[[], T]) -> T:
    """What the call gives once a busy server answers within a timeout or a lease that are short."""
    began = time.monotonic()
    while True:
        try:
            return call()
        except (memlock.OutcomeUnknown, memlock.Unreachable):
            if time.monotonic() - began > PATIENCE:
                raise
            time.sleep(0.01)


def together(work: Callable[[], T], threads: int) -> list[T]:
    """What each of so many threads gives that do this at once."""
    with ThreadPoolExecutor(threads) as pool:
        return [done.result() for done in [pool.submit(work) for _ in range(threads)]]


class Witness:
    """A lock whose release looks at what another connection sees by then."""

    def __init__(self, look: Callable[[], object]) -> None:
        self.look, self.seen = look, list[object]()

    def __enter__(self) -> Witness:
        return self

    def __exit__(self, *_: object) -> None: ...

    def release(self) -> None:
        self.seen.append(self.look())


# What a `with` statement takes, as the README writes it.
Make = Callable[..., Any]
KINDS: dict[str, Make] = {
    "mutex": lambda client, name, **keep: client.mutex(name, **keep),
    "semaphore": lambda client, name, **keep: client.semaphore(name, 5, **keep),
    "permit": lambda client, name, **keep: client.semaphore(name, 5, **keep).permit(),
}


def is_free(client: memlock.Client, name: str) -> bool:
    """Whether nothing of these is held."""
    try:
        is_unused = client.semaphore(name).available == 5
    except memlock.SemaphoreNotFound:
        is_unused = True
    return is_unused and not client.mutex(name).locked()


class MemcachedText:
    """A memcached client that knows nothing of memlock: lines over a socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.input = self.socket.makefile("rb")

    def command(self, line: str, data: bytes | None = None) -> str:
        tail = b"" if data is None else data + b"\r\n"
        self.socket.sendall(line.encode() + b"\r\n" + tail)
        return self.line()

    def line(self) -> str:
        return self.input.readline().decode().rstrip("\r\n")

    def add(self, key: str, value: bytes = b"1", ttl: int = 0) -> bool:
        return self.command(f"add {key} 0 {ttl} {len(value)}", value) == "STORED"

    def delete(self, key: str) -> bool:
        return self.command(f"delete {key}") == "DELETED"

    def get(self, key: str) -> bytes | None:
        answer = self.command(f"get {key}")
        if answer == "END":
            return None
        value = self.input.read(int(answer.split()[3]))
        assert (self.line(), self.line()) == ("", "END")
        return value

    def take_away(self, name: str) -> None:
        """Delete the lock and the semaphore of this name."""
        self.delete(f"lock:{name}")
        self.delete(f"semaphore:{name}")

    def queue(self, name: str, kind: str = "lock:") -> list[str]:
        """Those who wait for the lock `name`, the next one first."""
        return (self.get(f"{kind}{name}%wait") or b"").decode().splitlines()

    def permit_queue(self, name: str) -> list[str]:
        """Those who wait for the semaphore `name`."""
        return self.queue(name, "semaphore:")

    def stats(self) -> dict[str, str]:
        found = {}
        line = self.command("stats")
        while line != "END":
            _, name, value = line.split(" ", 2)
            found[name] = value
            line = self.line()
        return found

    def close(self) -> None:
        self.input.close()
        self.socket.close()


class Server:
    """A server on a loopback port that stays its own while it is down."""

    process: subprocess.Popen[bytes] | None = None

    def __init__(self) -> None:
        # Bound but not listening: the server may bind beside it, and nobody else gets the port.
        self.reserved = socket.socket()
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.port: int = self.reserved.getsockname()[1]

    def launch(self, *command: str, answers: Callable[[], object], **settings: Any) -> None:
        """Starts it, by a user that is not root, and waits until it answers."""
        libc = ctypes.CDLL(None)
        self.process = process = subprocess.Popen(
            command,
            user=USER,
            stdin=subprocess.DEVNULL,
            # So that it dies with the test run. prctl takes no lock that a thread could hold.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
            **settings,
        )

        def is_up() -> bool:
            assert process.poll() is None, f"{command[0]} ended"
            with contextlib.suppress(OSError):
                return bool(answers())
            return False

        eventually(is_up)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.kill()
        self.reserved.close()


class Memcached(Server):
    """A memcached that may be killed, started again, and paused."""

    def __init__(self) -> None:
        super().__init__()
        self.bare_url = f"memcached://127.0.0.1:{self.port}"
        # For clients on a machine that may be busy. The server may evict, which is not the subject.
        self.url = f"{self.bare_url}?connect_timeout=20s&io_timeout=20s&evictions=allow"
        self.start()

    def start(self, *flags: str) -> None:
        words = ["memcached", "-l", "127.0.0.1", "-p", str(self.port), "-U", "0", *flags]
        self.launch(*words, answers=self.is_ours)

    def is_ours(self) -> bool:
        assert self.process is not None
        with self.plain() as plain:
            return plain.stats()["pid"] == str(self.process.pid)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stands still: connections are accepted, nobody answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def plain(self) -> contextlib.closing[MemcachedText]:
        return contextlib.closing(MemcachedText(self.port))


CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


class Child:
    """A Python program in a process of its own, which talks in lines."""

    def __init__(self, program: str, *arguments: str) -> None:
        # Forking with threads is the subject of some of them; newer Pythons warn of it.
        options = ["-u", "-W", "error", "-W", "ignore::DeprecationWarning"]
        # Whoever runs the tests in the background ignores SIGINT, and children inherit that.
        program = f"{CTRL_C}\n{program}"
        self.process = subprocess.Popen(
            [sys.executable, *options, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            # So that what it has forked ends with it.
            **OWN_GROUP,
        )

    def reads(self) -> str:
        """Its next line; empty if it ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def says(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        """Its exit code; it must not have complained."""
        _, complaints = self.process.communicate(timeout=PATIENCE)
        assert complaints == ""
        return self.process.returncode

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.returncode is None:
            _, complaints = self.process.communicate(timeout=PATIENCE)
            sys.stderr.write(complaints)


def run(program: str, *arguments: str) -> list[str]:
    """Runs a Python program to its end; gives the lines it printed."""
    with Child(program, *arguments) as child:
        output, complaints = child.process.communicate(timeout=PATIENCE)
        assert (child.process.returncode, complaints) == (0, ""), output
    return output.splitlines()
