"""What memlock logs: Python's own logging, its levels, and handlers that do as they like."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator

import memlock
import pytest
from support import PATIENCE, Child, Memcached, MemcachedText, Unwanted, eventually, run, together


def fail(url: str = "memcached://127.0.0.1:1") -> None:
    """Has something to say: one message of level INFO."""
    with pytest.raises(memlock.Unreachable):
        memlock.connect(url).mutex("x").locked()


LOST = 'The lock "{}" on memcached at {}:{} is lost: it was gone from the server, or another\'s.'


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, str]]:
    return [(record.name, record.levelno, record.getMessage()) for record in caplog.records]


def test_a_semaphore_of_another_number_is_logged_once_as_a_warning(
    client: memlock.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.semaphore(name, 5).set_up(60)
    for _ in range(3):
        with client.semaphore(name, 8) as semaphore:
            assert semaphore.permits == 5
    with client.semaphore(name, 5), pytest.raises(memlock.Invalid, match="was opened with 8"):
        client.semaphore(name, 8, mismatch="refuse").acquire()
    ((logger, level, text),) = said(caplog)
    assert (logger, level) == ("memlock.semaphore", logging.WARNING)
    assert f'"{name}"' in text
    assert "has 5 permits, and was opened with 8: 5 applies" in text


class Calls(logging.Handler):
    """Calls a function for each record, and lets out what that raises."""

    def __init__(self, call: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self.call = call
        self.records: list[logging.LogRecord] = []

    def handle(self, record: logging.LogRecord) -> bool:
        self.records.append(record)
        self.call(record)
        return True

    # Without the handler's own lock, so that several threads are inside at once.
    emit = handle  # type: ignore[assignment]


@pytest.fixture
def listen() -> Iterator[Callable[[Callable[[logging.LogRecord], object]], Calls]]:
    """Adds such a handler for this test."""
    logger = logging.getLogger("memlock")
    added = []

    def add(call: Callable[[logging.LogRecord], object]) -> Calls:
        added.append(Calls(call))
        logger.addHandler(added[-1])
        logger.setLevel(logging.DEBUG)
        return added[-1]

    yield add
    logger.setLevel(logging.NOTSET)
    for handler in added:
        logger.removeHandler(handler)


Listen = Callable[[Callable[[logging.LogRecord], object]], Calls]


def raised_by(call: Callable[[], object]) -> None:
    """The call, and a little Python after it, in which exceptions of handlers are raised."""
    call()
    for _ in range(1000):
        time.sleep(0)


def test_levels_hold_from_the_moment_they_are_set(caplog: pytest.LogCaptureFixture) -> None:
    store = logging.getLogger("memlock.store")
    fail()
    assert not caplog.records
    with caplog.at_level(logging.INFO, "memlock"):
        fail()
        ((name, level, message),) = said(caplog)
        assert (name, level) == ("memlock.store", logging.INFO)
        assert message.startswith("memcached at 127.0.0.1:1: It cannot be connected to")
        store.setLevel(logging.WARNING)
        fail()
        assert len(caplog.records) == 1
        store.setLevel(logging.NOTSET)
        fail()
        assert len(caplog.records) == 2
    fail()
    assert len(caplog.records) == 2


def test_a_record_tells_which_line_has_called_memlock_and_its_message_is_no_template(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "memlock"):
        fail("redis+unix:///%25s-%25(name)s-{}")
    (record,) = caplog.records
    assert (record.pathname, record.funcName) == (__file__, "fail")
    assert record.threadName == "MainThread"
    assert "%s-%(name)s-{}" in record.getMessage()


def test_a_handler_may_use_memlock_and_that_is_not_logged(
    server: Memcached, name: str, listen: Listen
) -> None:
    client = memlock.connect(server.url)

    def use(_: logging.LogRecord) -> None:
        with client.mutex(name):
            fail()

    handler = listen(use)
    fail()
    assert len(handler.records) == 1
    assert not client.mutex(name).locked()


@pytest.mark.parametrize("call", ["release", "extend", "check"])
def test_a_handler_may_use_what_it_is_told_of(
    mortal_server: Memcached, name: str, listen: Listen, call: str
) -> None:
    mutex = memlock.connect(mortal_server.url).mutex(name)
    mutex.acquire()

    def use(_: logging.LogRecord) -> None:
        assert mutex.lost is None
        with pytest.raises(memlock.Error):
            mutex.check() or mutex.extend()

    def work() -> None:
        with pytest.raises(memlock.Error):
            getattr(mutex, call)()

    handler = listen(use)
    mortal_server.kill()
    working = threading.Thread(target=work, daemon=True)
    working.start()
    working.join(PATIENCE)
    assert not working.is_alive(), "it hangs"
    assert handler.records


def boom(_: logging.LogRecord) -> None:
    raise Unwanted


def test_what_a_handler_raises_ends_a_wait_of_the_main_thread(
    mortal_server: Memcached, name: str, listen: Listen
) -> None:
    held = memlock.connect(mortal_server.url).mutex(name)
    held.acquire()
    # The handler is called when a request has taken so long.
    client = memlock.connect(f"{mortal_server.bare_url}?io_timeout=5s&outage=60s")
    with mortal_server.plain() as plain:

        def stop() -> None:
            eventually(lambda: plain.queue(name))
            handler = listen(lambda _: boom(_) if len(handler.records) == 1 else None)
            with mortal_server.paused():
                eventually(lambda: handler.records)
                time.sleep(0.2)

        stopping = threading.Thread(target=stop)
        stopping.start()
        with pytest.raises(Unwanted):
            client.mutex(name).acquire()
        stopping.join()


def test_what_a_handler_raises_comes_after_the_call_or_goes_to_the_unraisablehook(
    client: memlock.Client,
    plain: MemcachedText,
    name: str,
    listen: Listen,
    unraisable: list[BaseException],
) -> None:
    handler = listen(boom)
    together(fail, 1)
    assert len(unraisable) == 1
    mutex = client.mutex(name, renew=True)
    with pytest.raises(Unwanted):
        # After the call that logged.
        raised_by(lambda: mutex.acquire(blocking=False))
    plain.delete(f"lock:{name}")
    assert not mutex.check()
    eventually(lambda: len(handler.records) == 3)
    eventually(lambda: list(map(type, unraisable)) == [Unwanted, Unwanted])


def test_threads_log_at_the_same_time(listen: Listen) -> None:
    handler = listen(lambda _: time.sleep(0.001))
    together(lambda: [fail() for _ in range(20)], 8)
    # Threads of earlier tests may have something to say, too.
    ours = [record for record in handler.records if "127.0.0.1:1:" in record.getMessage()]
    assert len(ours) == 8 * 20


PROGRAM = """
import logging, os, sys, threading, time
import memlock
url, name = sys.argv[1:]
def fail():
    try:
        memlock.connect("memcached://127.0.0.1:1").mutex("x").locked()
    except memlock.Unreachable:
        pass
def listen(level=logging.DEBUG):
    logging.basicConfig(stream=sys.stdout, level=level, format="%(name)s %(levelname)s %(message)s")
"""


def test_a_program_that_says_nothing_of_logging_sees_warnings_only(
    server: Memcached, plain: MemcachedText, name: str
) -> None:
    program = """
fail()
mutex = memlock.connect(url).mutex(name, renew=True)
mutex.acquire()
print("held")
sys.stdin.readline()
print(mutex.check())
sys.stdin.readline()
"""
    with Child(PROGRAM + program, server.url, name) as child:
        assert child.reads() == "held"
        plain.delete(f"lock:{name}")
        child.says("check")
        assert child.reads() == "False"
        assert child.process.stderr is not None
        assert child.process.stderr.readline() == LOST.format(name, "127.0.0.1", server.port) + "\n"
        child.says("end")
        assert child.process.stderr.read() == ""


def test_ctrl_c_in_a_handler_is_not_swallowed(server: Memcached, name: str) -> None:
    program = """
def handle(record):
    print("inside", flush=True)
    time.sleep(60)
    return True
handler = logging.Handler()
handler.handle = handle
logging.getLogger("memlock").addHandler(handler)
logging.getLogger("memlock").setLevel(logging.DEBUG)
mutex = memlock.connect(url).mutex(name)
try:
    mutex.acquire(blocking=False)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", mutex.is_held)
"""
    with Child(PROGRAM + program, server.url, name) as child:
        assert child.reads() == "inside"
        child.signal(signal.SIGINT)
        assert child.reads() == "interrupted True"
        assert child.ends() == 0


def test_a_child_of_a_fork_logs_too(server: Memcached, name: str) -> None:
    program = """
listen()
inside, go_on = threading.Event(), threading.Event()
def wait(record):
    if threading.current_thread().name == "slow":
        inside.set()
        go_on.wait()
    return True
logging.getLogger("memlock.store").addFilter(wait)
client = memlock.connect(url)
slow = threading.Thread(target=fail, name="slow")
slow.start()
inside.wait()
pid = os.fork()
if pid == 0:
    with client.mutex(name):
        pass
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
go_on.set()
slow.join()
"""
    fork, connected, slow = run(PROGRAM + program, server.url, name)
    assert fork.startswith("memlock.client DEBUG This process is a fork")
    assert connected.startswith("memlock.store DEBUG Connected to")
    assert slow.startswith("memlock.store INFO memcached at 127.0.0.1:1: ")


def test_what_is_done_at_the_programs_end_is_logged(server: Memcached, name: str) -> None:
    # Registered before memlock is imported: so it is called after memlock has begun to end.
    program = """
import atexit
atexit.register(lambda: fail())
"""
    (line,) = run(program + PROGRAM + "listen()", server.url, name)
    assert line.startswith("memlock.store INFO memcached at 127.0.0.1:1: ")


def test_a_program_ends_while_threads_log_and_callbacks_are_called(
    server: Memcached, name: str
) -> None:
    program = """
handler = logging.Handler()
handler.handle = lambda record: time.sleep(0.0005)
logging.getLogger("memlock").addHandler(handler)
logging.getLogger("memlock").propagate = False
logging.getLogger("memlock").setLevel(logging.DEBUG)
def go_on():
    while True:
        fail()
client = memlock.connect(url)
told = []
callbacks = {"on_lease_at_risk": lambda left: time.sleep(0.001), "on_lost": told.append}
options = {"lease": 2, "renew": True, "max_hold": 0.01, **callbacks}
sys.kept = [client.mutex(f"{name}-{n}", **options) for n in range(100)]
for kept in sys.kept:
    while not kept.is_held:
        try:
            kept.acquire()
        except memlock.Unreachable:
            pass  # A busy server has taken longer than the lease.
for _ in range(4):
    threading.Thread(target=go_on, daemon=True).start()
while not told:
    time.sleep(0.001)
"""
    for _ in range(2):
        assert run(PROGRAM + program, server.url, name) == []


def test_a_lock_is_renewed_while_its_renewer_waits_for_a_busy_interpreter(
    mortal_server: Memcached, name: str
) -> None:
    program = """
mutex = memlock.connect(url).mutex(name, lease=3, renew=True)
mutex.acquire()
listen()
reading = threading.Thread(target=sys.stdin.readline)
reading.start()
print("held", flush=True)
while reading.is_alive():
    pass
print(mutex.check())
"""
    other = memlock.connect(mortal_server.url).mutex(name)

    def is_renewed() -> bool:
        left = [0.0]

        def rises() -> bool:
            owner = other.owner()
            left.append(owner.remaining or 0 if owner else 0)
            return owner is None or 0 < left[-2] < left[-1]

        url = f"{mortal_server.bare_url}?io_timeout=500ms"
        with Child(PROGRAM + program, url, name) as child:
            if child.reads() != "held":
                return False
            with mortal_server.paused():
                for line in iter(child.reads, ""):
                    if "Leases could not be renewed now" in line or "is lost" in line:
                        break
            eventually(rises)
            child.says("")
            return "True" in iter(child.reads, "")

    # On a busy machine an answer may take too long, and the lease may end before.
    eventually(is_renewed)
