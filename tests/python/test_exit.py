"""A program that ends while daemon threads wait leaves nothing held, and ends at once."""

from __future__ import annotations

import sys
from itertools import count

import memlock
import pytest
from support import PATIENCE, Child, Memcached, MemcachedText, eventually, quick_once, run

# The functions in `late` are called when memlock has begun to end: atexit goes backwards.
PROGRAM = """
import atexit, os, sys, threading, time
late = []
atexit.register(lambda: [call() for call in late])
import memlock
url, name, *more = sys.argv[1:]
memlock.init(url)
client = memlock.connect(url)
def start(target, *args, **more):
    thread = threading.Thread(target=target, args=args, kwargs=more, daemon=True)
    thread.start()
    return thread
"""

# None of these functions is written in Python: such a thread keeps no global variable alive.
WAYS = [
    "start(client.mutex(name, 60).acquire)",
    "start(client.mutex(name, 60).acquire, timeout=60)",
    "start(client.mutex(name, 60, renew=True).acquire)",
    "start(client.mutex(name, 60).__enter__)",
    "start(memlock.connect(url).mutex(name, 60).acquire)",
    "start(client.semaphore(name, 1, 60).acquire)",
    "start(client.semaphore(name, 1, 60).__enter__)",
    "start(client.semaphore(name, 1, 60).permit)",
    "start(memlock.connect(url).semaphore(name, 1, 60).acquire)",
    "start(memlock.mutex_lock, name, 60)",
    "start(memlock.semaphore_acquire, name, 60)",
]

# Tells how long the exit has waited for such threads.
TIMED = """
began = []
atexit.register(lambda: began.append(time.monotonic()))
late.append(lambda: print(time.monotonic() - began[0]))
# They keep silent for a second, by which a program has ended unless its machine is busy.
complain = threading.excepthook
threading.excepthook = lambda args: time.monotonic() - began[0] >= 1 or complain(args)
"""
# After half a second it waits no longer, and leaves what a busy machine has not removed by then.
PATIENT = 0.45

HOLDER = """
ways, threads, close = more
held = [client.mutex(name, 60), client.semaphore(name, 1, 60)]
for thing in held:
    thing.acquire()
for way in ways.splitlines():
    for _ in range(int(threads)):
        exec(way)
time.sleep(0.2)  # Most are in their wait by then.
sys.stdin.readline()
if close:
    threading.excepthook = lambda args: None
    client.close()
"""


def nothing_is_left(server: Memcached, plain: MemcachedText, name: str) -> None:
    client = memlock.connect(server.url)
    assert client.mutex(name).owner() is None
    assert client.semaphore(name, 1).holders() == []
    assert plain.queue(name) == plain.permit_queue(name) == plain.queue(name, "") == []


@pytest.mark.parametrize("how", [("1", ""), ("3", ""), ("1", "close")], ids="-".join)
def test_a_lock_that_is_released_by_the_exit_is_not_given_to_a_thread_that_never_runs_again(
    server: Memcached, plain: MemcachedText, name: str, how: tuple[str, str]
) -> None:
    names = (f"{name}-{number}" for number in count())

    def end() -> float:
        name = next(names)
        with Child(PROGRAM + TIMED + HOLDER, server.url, name, "\n".join(WAYS), *how) as child:
            eventually(lambda: plain.queue(name) and plain.permit_queue(name))
            child.says("end")
            took = float(child.reads())
            assert child.ends() == 0
        if took < PATIENT:
            nothing_is_left(server, plain, name)
        return took

    quick_once(end, PATIENT)


ONCE = [
    "client.mutex(name, 60).acquire()",
    "client.mutex(name, 60).acquire(blocking=False)",
    "client.semaphore(name, 1, 60).acquire(blocking=False)",
    "memlock.mutex_lock(name, 60)",
    "memlock.mutex_lock_nonblock(name, 60)",
    "memlock.semaphore_acquire_nonblock(name, 60)",
    "client.counter(name).try_acquire()",
]


def test_a_thread_acquires_nothing_once_the_exit_has_begun_but_ends_if_it_is_waited_for(
    server: Memcached, plain: MemcachedText, name: str
) -> None:
    program = """
memlock.semaphore_set_up(name, 1, 60)
client.counter(name).set_up(1)
begun = threading.Event()
def acquire(way):
    begun.wait()
    try:
        said = f"{eval(way)} without an exception"
    except memlock.Interrupted as error:
        said = "The interpreter is exiting" in str(error)
    os.write(1, f"{said}\\n".encode())
for way in more[0].splitlines():
    late.append(start(acquire, way).join)
late.insert(0, begun.set)
"""
    answers = run(PROGRAM + program, server.url, name, "\n".join(ONCE))
    assert answers == ["True"] * len(ONCE)
    nothing_is_left(server, plain, name)
    assert memlock.connect(server.url).counter(name).available == 1


def test_exit_handlers_can_use_locks_and_what_they_release_stays_free(
    server: Memcached, name: str
) -> None:
    program = """
def use():
    with client.mutex(name, timeout=10), client.semaphore(name, 1, timeout=10):
        print(memlock.mutex_lock(name + "-bare", 30), memlock.mutex_unlock(name + "-bare"))
held = client.mutex(name)
held.acquire()
retried, parked = client.counter(name), client.counter(name + "-parked")
for counter in (retried, parked):
    counter.set_up(0)
start(client.mutex(name).acquire)
start(client.counter(name).acquire)
start(client.counter(name + "-parked").acquire, priority=1)
time.sleep(0.2)
# The pause is what a waiter would need to take a permit.
late += [held.release, use, retried.release, parked.release, lambda: time.sleep(0.2)]
late.append(lambda: print(retried.available, parked.available))
"""
    names = (f"{name}-{number}" for number in count())

    def end() -> float:
        took, *said = run(PROGRAM + TIMED + program, server.url, next(names))
        assert said == ["True True", "1 1"] or float(took) >= PATIENT
        return float(took)

    quick_once(end, PATIENT)


def test_the_exit_waits_for_a_callback_whose_waits_end_and_which_keeps_what_it_gets(
    server: Memcached, name: str
) -> None:
    program = """
import logging
logging.disable()  # of the warning that the lock is lost
inside, go_on = threading.Event(), threading.Event()
def lost(reason):
    inside.set()
    go_on.wait()
    time.sleep(0.1)  # The exit has begun by then.
    with client.mutex(name + "-free"):
        print("got it")
    try:
        client.mutex(name).acquire()
    except memlock.Interrupted:
        print("interrupted")
held = client.mutex(name)
held.acquire()
renewed = client.mutex(name + "-renewed", renew=True, on_lost=lost)
renewed.acquire()
renewed.force_unlock(renewed.owner().token)
renewed.check()
inside.wait()
atexit.register(go_on.set)
"""
    assert run(PROGRAM + program, server.url, name) == ["got it", "interrupted"]


def test_ending_the_waits_takes_no_noticeable_time(
    server: Memcached, plain: MemcachedText, name: str
) -> None:
    def end() -> float:
        with Child(PROGRAM + TIMED + HOLDER, server.url, name, WAYS[0], "5", "") as child:
            eventually(lambda: plain.queue(name))
            child.says("end")
            took = float(child.reads())
            assert child.ends() == 0
            return took

    quick_once(end, PATIENT)


def test_a_silent_server_does_not_delay_the_end_of_the_waits(
    mortal_server: Memcached, name: str
) -> None:
    # For so long a request would wait for its answer.
    url = f"{mortal_server.bare_url}?io_timeout={2 * PATIENCE:.0f}s&evictions=allow"
    with (
        Child(PROGRAM + TIMED + HOLDER, url, name, WAYS[0], "5", "") as child,
        mortal_server.plain() as plain,
    ):
        eventually(lambda: plain.queue(name))
        with mortal_server.paused():
            child.says("end")
            child.reads()
        # What is held is released then.
        assert child.ends() == 0


def test_a_forked_child_that_ends_leaves_the_waits_of_its_parent_alone(
    server: Memcached, plain: MemcachedText, name: str
) -> None:
    program = """
held = client.mutex(name)
held.acquire()
waiter = client.mutex(name)
thread = start(waiter.acquire)
sys.stdin.readline()
pid = os.fork()
if pid == 0:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), thread.is_alive())
held.release()
thread.join()
print(waiter.is_held)
"""
    with Child(PROGRAM + program, server.url, name) as child:
        eventually(lambda: plain.queue(name))
        child.says("fork")
        assert child.reads() == "7 True"
        assert child.reads() == "True"
        assert child.ends() == 0


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="Python 3.12 refuses to fork then")
def test_a_child_that_is_forked_during_the_exit_by_another_thread_can_acquire(
    server: Memcached, name: str
) -> None:
    program = """
begun = threading.Event()
def fork():
    begun.wait()
    pid = os.fork()
    if pid == 0:
        with client.mutex(name):
            os.write(1, b"got it\\n")
        os._exit(0)
    os.waitpid(pid, 0)
thread = start(fork)
late += [begun.set, thread.join]
"""
    assert run(PROGRAM + program, server.url, name) == ["got it"]


def test_what_the_main_thread_holds_is_released_though_daemon_threads_refer_to_it(
    server: Memcached, plain: MemcachedText, name: str
) -> None:
    program = """
held = [client.mutex(name, 60), client.semaphore(name, 1, 60)]
held += [client.mutex(name + "-renewed", 60, renew=True)]
for thing in held:
    thing.acquire()
permits = client.semaphore(name + "-permit", 1, 60)
permit = permits.permit()
# Left to transactions that have no end.
from memlock._deferral import defer
kept = [client.mutex(name + "-deferred"), client.semaphore(name + "-deferred", 2)]
kept += [client.semaphore(name + "-deferred", 2).permit()]
with kept[0], kept[1], kept[2]:
    sys.modules["kept"] = list(map(defer, kept))
waiting = threading.Event()
def refer():
    waiting.set()
    held[0].wait_lost()
def sleep():
    own = client.mutex(name + "-daemon", 60)
    own.acquire()
    ready.set()
    time.sleep(60)
ready = threading.Event()
start(refer)
start(sleep)
waiting.wait()
ready.wait()
print(all(thing.check() for thing in [*held, permit]))
"""
    assert run(PROGRAM + program, server.url, name) == ["True"]
    nothing_is_left(server, plain, name)
    client = memlock.connect(server.url)
    assert client.mutex(f"{name}-renewed").owner() is None
    assert client.semaphore(f"{name}-permit", 1).holders() == []
    assert client.mutex(f"{name}-deferred").owner() is None
    assert client.semaphore(f"{name}-deferred", 2).holders() == []
    # It was stopped in the middle of what it did under its lock.
    assert client.mutex(f"{name}-daemon").owner() is not None
