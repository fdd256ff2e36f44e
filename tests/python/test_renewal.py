"""Leases that are renewed while they are wanted, and holders that are told when they end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import memlock
import pytest
from support import Child, Memcached, MemcachedText, eventually, run

# On a busy machine, a thread may have to wait for more than a second.
LEASE = 3


def is_renewer(task: Path) -> bool:
    try:
        return (task / "comm").read_text().startswith("memlock-renewer")
    except OSError:  # It has ended.
        return False


def renewers() -> int:
    """How many threads of this process renew leases."""
    return sum(is_renewer(task) for task in Path("/proc/self/task").iterdir())


class Told:
    """What a holder was told, in order, and in which threads."""

    def __init__(self) -> None:
        self.notices: list[tuple[str, object]] = []
        self.threads: set[int] = set()

    def at_risk(self, left: float) -> None:
        self.threads.add(threading.get_native_id())
        self.notices.append(("at risk", left))

    def lost(self, why: str) -> None:
        self.threads.add(threading.get_native_id())
        self.notices.append(("lost", why))

    def names(self) -> list[object]:
        return [what if what == "at risk" else why for what, why in self.notices]


def test_a_lock_is_kept_beyond_its_lease(any_client: memlock.Client, name: str) -> None:
    told = Told()
    mutex = any_client.mutex(
        name, lease=LEASE, renew=True, on_lease_at_risk=told.at_risk, on_lost=told.lost
    )
    with mutex:
        # For longer than the server keeps a lock that is not renewed.
        assert not any_client.mutex(name).acquire(timeout=LEASE + 3)
        assert mutex.is_held
        assert mutex.check()
        assert mutex.lost is None
        assert mutex.wait_lost(0.01) is None
        assert 0 < mutex.remaining <= LEASE
        with pytest.raises(memlock.Invalid, match="automatically"):
            mutex.extend()
    assert not mutex.is_held
    assert mutex.lost is None
    assert set(told.names()) <= {"at risk"}
    assert any_client.mutex(name).acquire(blocking=False)


def test_permits_are_kept_beyond_their_lease(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 3, lease=LEASE, renew=True)
    with semaphore, semaphore.permit(permits=2) as permit:
        assert not any_client.semaphore(name, 3).acquire(timeout=LEASE + 1)
        for held in (semaphore, permit):
            assert held.is_held
            assert held.check()
            assert held.lost is None
            assert held.wait_lost(0) is None
    assert semaphore.available == 3
    assert not permit.is_held
    assert permit.lost is None
    with pytest.raises(memlock.NotHeld):
        permit.extend()
    with pytest.raises(memlock.NotHeld):
        semaphore.check()


def test_what_is_not_renewed_answers_the_same_questions(
    any_client: memlock.Client, name: str
) -> None:
    semaphore = any_client.semaphore(name, 3, lease=2)
    mutex = any_client.mutex(name, lease=2)
    mutex.acquire()
    semaphore.acquire()
    permit = semaphore.permit()
    for held in (mutex, semaphore, permit):
        assert held.is_held
        assert held.check()
        assert held.lost is None
    for held in (mutex, semaphore, permit):
        assert held.wait_lost() == "expired"
        assert held.lost == "expired"
        assert not held.is_held
        assert not held.check()


def test_taken_away_is_lost(client: memlock.Client, plain: MemcachedText, name: str) -> None:
    told = Told()
    mutex = client.mutex(name, lease=30, renew=True, on_lost=told.lost)
    with pytest.raises(memlock.LockLost), mutex:
        plain.delete(f"lock:{name}")
        plain.add(f"lock:{name}", b"another's")
        assert mutex.is_held, "nobody has looked yet"
        assert not mutex.check()
        assert not mutex.is_held
        assert mutex.lost == "gone"
        eventually(lambda: told.notices)
        assert told.notices == [("lost", "gone")]
        assert threading.get_native_id() not in told.threads
    assert plain.get(f"lock:{name}") == b"another's"


def test_a_body_may_wait_for_the_loss(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    semaphore = client.semaphore(name, 3, lease=LEASE, renew=True)
    mutex = client.mutex(name, lease=LEASE, renew=True)
    with pytest.raises(memlock.LockLost), mutex:
        plain.delete(f"lock:{name}")
        assert mutex.wait_lost() == "gone"
    with pytest.raises(memlock.LockLost), semaphore.permit() as permit:
        plain.delete(f"semaphore:{name}")
        assert permit.wait_lost(20) == "gone"


def test_a_wait_for_the_loss_ends_with_the_release(client: memlock.Client, name: str) -> None:
    mutex = client.mutex(name, lease=30, renew=True)
    mutex.acquire()
    found: list[object] = ["nothing"]
    waiting = threading.Thread(target=lambda: found.append(mutex.wait_lost()))
    waiting.start()
    time.sleep(0.05)
    mutex.release()
    waiting.join(5)
    assert found == ["nothing", None]


def test_a_program_that_hangs_does_not_hold_it_for_ever(client: memlock.Client, name: str) -> None:
    told = Told()
    mutex = client.mutex(
        name, lease=2, renew=True, max_hold=2, on_lease_at_risk=told.at_risk, on_lost=told.lost
    )
    began = time.monotonic()
    with pytest.raises(memlock.LockLost), mutex:
        eventually(lambda: len(told.notices) == 2)
        assert mutex.lost == "max_hold"
        assert 1.9 < time.monotonic() - began < 8
    assert told.names() == ["at risk", "max_hold"]


def test_danger_comes_before_the_loss(mortal_server: Memcached, name: str) -> None:
    told = Told()
    client = memlock.connect(mortal_server.url)
    mutex = client.mutex(
        name, lease=3, renew=True, on_lease_at_risk=told.at_risk, on_lost=told.lost
    )
    mutex.acquire()
    mortal_server.kill()
    eventually(lambda: told.notices)
    ((what, left),) = told.notices
    assert what == "at risk"
    assert isinstance(left, float)
    assert 0 < left <= 1.5
    assert mutex.is_held
    assert mutex.wait_lost() == "expired"
    eventually(lambda: len(told.notices) == 2)
    assert told.notices[1] == ("lost", "expired")
    assert len(told.threads) == 1
    with pytest.raises(memlock.LockLost):
        mutex.release()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_a_callback_raises_goes_to_the_unraisablehook(
    client: memlock.Client, plain: MemcachedText, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: caught.append(str(args.exc_value)))

    def on_lost(why: str) -> None:
        raise RuntimeError(f"oh no: {why}")

    mutex = client.mutex(name, lease=30, renew=True, on_lost=on_lost)
    other = client.mutex(f"{name}-other", lease=LEASE, renew=True)
    other.acquire()
    mutex.acquire()
    plain.delete(f"lock:{name}")
    assert not mutex.check()
    eventually(lambda: caught)
    assert caught == ["oh no: gone"]
    assert other.wait_lost(LEASE + 0.5) is None, "the others are kept all the same"
    other.release()


def test_a_callback_may_release(client: memlock.Client, name: str) -> None:
    done = threading.Event()

    def on_lease_at_risk(left: float) -> None:
        assert left > 0
        mutex.release()
        done.set()

    mutex = client.mutex(
        name, lease=LEASE, renew=True, max_hold=0.001, on_lease_at_risk=on_lease_at_risk
    )
    mutex.acquire()
    assert done.wait(20)
    assert not mutex.locked()


@pytest.mark.parametrize("given", ["max_hold=5", "on_lost=print", "renew=True, max_hold=0"])
def test_what_makes_no_sense_is_invalid(client: memlock.Client, name: str, given: str) -> None:
    for call in ["mutex(name", "semaphore(name, 3"]:
        with pytest.raises(memlock.Invalid):
            eval(f"client.{call}, {given})", {"client": client, "name": name})
    with pytest.raises(TypeError):
        client.mutex(name, renew=True, on_lost=5)  # type: ignore[arg-type]


def test_one_thread_keeps_all_and_goes_with_the_last(server: Memcached, name: str) -> None:
    client = memlock.connect(server.url)
    eventually(lambda: renewers() == 0)
    mutexes = [client.mutex(f"{name}-{number}", lease=LEASE, renew=True) for number in range(20)]
    for mutex in mutexes:
        mutex.acquire()
    eventually(lambda: renewers() == 1)
    for mutex in mutexes[1:]:
        mutex.release()
    assert renewers() == 1
    mutexes[0].release()
    eventually(lambda: renewers() == 0)


def test_an_object_that_goes_releases_what_it_kept(client: memlock.Client, name: str) -> None:
    told = Told()
    mutex = client.mutex(name, lease=30, renew=True, on_lost=told.lost)
    permit = client.semaphore(name, 1, lease=30, renew=True).permit()
    mutex.acquire()
    del mutex, permit
    gc.collect()
    assert not client.mutex(name).locked()
    assert client.semaphore(name, 1).available == 1


class Job:
    """Whoever holds something, and is told of it by methods of its own."""

    def __init__(self, client: memlock.Client, name: str, what: str, lease: float = 30) -> None:
        self.told: list[object] = []
        if what == "mutex":
            self.mutex = client.mutex(
                name,
                lease,
                renew=True,
                on_lease_at_risk=self.on_lease_at_risk,
                on_lost=self.on_lost,
            )
            self.mutex.acquire()
            return
        semaphore = client.semaphore(
            name, 1, lease, renew=True, on_lease_at_risk=self.on_lease_at_risk, on_lost=self.on_lost
        )
        if what == "permit":
            self.permit = semaphore.permit()
        else:
            self.semaphore = semaphore
            semaphore.acquire()

    def on_lease_at_risk(self, left: float) -> None:
        self.told.append(left)

    def on_lost(self, why: str) -> None:
        self.told.append(why)


def is_free(client: memlock.Client, name: str, what: str) -> bool:
    if what == "mutex":
        return not client.mutex(name).locked()
    return client.semaphore(name, 1).available == 1


KINDS = ["mutex", "permit", "semaphore"]


@pytest.mark.parametrize("what", KINDS)
def test_what_its_own_callbacks_know_is_garbage_and_released(
    any_client: memlock.Client, name: str, what: str
) -> None:
    job = Job(any_client, name, what)
    there = weakref.ref(job)
    gc.collect()
    assert not is_free(any_client, name, what), "it is wanted yet"
    del job
    gc.collect()
    assert there() is None
    assert is_free(any_client, name, what)
    eventually(lambda: renewers() == 0)


@pytest.mark.parametrize("what", KINDS)
def test_a_callback_of_what_is_wanted_is_called(
    client: memlock.Client, plain: MemcachedText, name: str, what: str
) -> None:
    job = Job(client, name, what, lease=LEASE)
    gc.collect()
    plain.delete(f"lock:{name}" if what == "mutex" else f"semaphore:{name}")
    eventually(lambda: job.told)
    assert job.told == ["gone"]


def test_whose_method_is_called_is_there_until_it_returns(
    client: memlock.Client, name: str
) -> None:
    class Owner:
        def __init__(self) -> None:
            self.mutex = client.mutex(
                name, lease=30, renew=True, max_hold=0.001, on_lease_at_risk=self.on_lease_at_risk
            )
            self.mutex.acquire()

        def on_lease_at_risk(self, left: float) -> None:
            inside.set()
            assert alone.wait(20)
            held.append(self.mutex.is_held)

    inside, alone = threading.Event(), threading.Event()
    held: list[bool] = []
    owner = Owner()
    there = weakref.ref(owner)
    assert inside.wait(20)
    del owner
    gc.collect()
    alone.set()
    eventually(lambda: gc.collect() >= 0 and there() is None)
    assert held == [True]
    assert not client.mutex(name).locked()


def test_a_program_that_a_callback_starts_takes_the_signals_of_ours(
    client: memlock.Client, name: str
) -> None:
    masks: list[set[signal.Signals]] = []
    started: list[subprocess.Popen[bytes]] = []

    def on_lease_at_risk(left: float) -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        started.append(subprocess.Popen(["sleep", "60"]))

    ours = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        with client.mutex(
            name, lease=30, renew=True, max_hold=0.001, on_lease_at_risk=on_lease_at_risk
        ):
            eventually(lambda: started)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, ours)
    with started[0] as program:
        program.terminate()
        assert program.wait(20) == -signal.SIGTERM
    assert masks == [{*ours, signal.SIGUSR2}]


def test_what_is_held_can_be_looked_for_by_weak_references(
    client: memlock.Client, name: str
) -> None:
    semaphore = client.semaphore(name, 1)
    things = [client.mutex(name), semaphore.permit(), semaphore]
    there = [weakref.ref(thing) for thing in things]
    assert [known() for known in there] == things
    del things, semaphore
    assert [known() for known in there] == [None, None, None]


def test_releasing_while_a_renewal_is_under_way_releases(
    mortal_server: Memcached, name: str
) -> None:
    client = memlock.connect(f"{mortal_server.url}?io_timeout=10s")
    mutex = client.mutex(name, lease=3, renew=True)
    mutex.acquire()
    time.sleep(0.8)
    with mortal_server.paused():
        time.sleep(0.4)
        releasing = threading.Thread(target=mutex.release)
        releasing.start()
        time.sleep(0.1)
    releasing.join()
    assert not mutex.locked()
    time.sleep(0.1)
    assert not mutex.locked()


HOLDER = """
import logging, os, sys, threading, time
import memlock
logging.getLogger("memlock").setLevel(logging.CRITICAL)
url, name = sys.argv[1:]
client = memlock.connect(url)
told = []
mutex = client.mutex(name, lease=3, renew=True, on_lost=told.append)
"""


def test_a_holder_that_was_stopped_finds_it_lost_and_has_not_renewed_it(
    server: Memcached, client: memlock.Client, name: str
) -> None:
    program = """
mutex.acquire()
print("held")
print(mutex.wait_lost())
try:
    mutex.release()
except memlock.LockLost:
    print("lost")
"""
    with Child(HOLDER + program, server.url, name) as child:
        assert child.reads() == "held"
        os.kill(child.process.pid, 19)  # SIGSTOP
        with client.mutex(name, lease=30) as ours:
            os.kill(child.process.pid, 18)  # SIGCONT
            assert [child.reads(), child.reads()] == ["expired", "lost"]
            assert child.ends() == 0
            assert ours.check()


def test_a_child_of_a_fork_holds_nothing_and_has_no_keeper(server: Memcached, name: str) -> None:
    program = """
from pathlib import Path
def is_renewer(task):
    try:
        return "memlock-renewer" in (task / "comm").read_text()
    except OSError:
        return False
def renewers():
    return sum(is_renewer(task) for task in Path("/proc/self/task").iterdir())
mutex.acquire()
permit = client.semaphore(name, 1, lease=3, renew=True).permit()
pid = os.fork()
if pid == 0:
    said = [renewers(), mutex.is_held, mutex.lost, mutex.wait_lost(1), permit.is_held, permit.lost]
    for call in (mutex.release, mutex.check, permit.release, permit.check, permit.extend):
        try:
            call()
        except memlock.NotHeld:
            said.append("no")
    own = client.mutex(name + "-child", lease=3, renew=True)
    with own:
        time.sleep(3.5)
        said.append(own.check())
    print(said, told, flush=True)
    del mutex, permit
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(mutex.check(), permit.check(), told)
mutex.release()
permit.release()
"""
    said = "[0, False, None, None, False, None, 'no', 'no', 'no', 'no', 'no', True] []"
    assert run(HOLDER + program, server.url, name) == [said, "True True []"]


@pytest.mark.parametrize("released", [True, False])
def test_a_program_ends_while_a_lock_is_kept(
    server: Memcached, client: memlock.Client, name: str, released: bool
) -> None:
    program = f"""
import atexit
mutex.acquire()
sys.mutex = mutex  # so that it is there to the last
if {released}:
    atexit.register(mutex.release)
print("end", flush=True)
"""
    began = time.monotonic()
    assert run(HOLDER + program, server.url, name) == ["end"]
    assert time.monotonic() - began < 10
    assert client.mutex(name).acquire(timeout=20), "it ends with its lease at the latest"


def test_a_program_ends_while_callbacks_are_called(server: Memcached, name: str) -> None:
    program = """
kept = []
for number in range(200):
    one = client.mutex(f"{name}-{number}", lease=2, renew=True, max_hold=0.5,
                       on_lease_at_risk=lambda left: time.sleep(0.001), on_lost=told.append)
    one.acquire()
    kept.append(one)
sys.kept = kept
while not told:
    time.sleep(0.001)
"""
    for _ in range(3):
        assert run(HOLDER + program, server.url, name) == []


def test_the_interpreters_end_waits_for_a_callback(server: Memcached, name: str) -> None:
    program = """
begun = threading.Event()
def on_lease_at_risk(left):
    begun.set()
    time.sleep(0.5)
    print("done", flush=True)
options = {"renew": True, "max_hold": 0.001, "on_lease_at_risk": on_lease_at_risk}
sys.mutex = client.mutex(name, lease=3, **options)
sys.mutex.acquire()
begun.wait()
"""
    assert run(HOLDER + program, server.url, name) == ["done"]
