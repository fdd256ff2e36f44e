"""Leases that are renewed while they are wanted, and holders that are told when they end."""

from __future__ import annotations

import gc
import signal
import subprocess
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import memlock
import pytest
from support import KINDS, PATIENCE, Memcached, MemcachedText, answered, eventually, run


def is_renewer(task: Path) -> bool:
    try:
        return (task / "comm").read_text().startswith("memlock-renewer")
    except OSError:  # It has ended.
        return False


def renewers() -> int:
    """How many threads of this process renew leases."""
    return sum(is_renewer(task) for task in Path("/proc/self/task").iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_renewed_answers_the_same_questions(
    any_client: memlock.Client, name: str, kind: str
) -> None:
    held = KINDS[kind](any_client, name, lease=60)
    with held:
        assert (held.is_held, held.check(), held.lost) == (True, True, None)
        assert held.wait_lost(0.01) is None
    brief = answered(lambda: KINDS[kind](any_client, f"{name}-brief", lease=1))
    answered(brief.__enter__)
    assert brief.wait_lost() == brief.lost == "expired"
    assert (brief.is_held, brief.check()) == (False, False)


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_are_told_in_a_thread_of_their_own(
    client: memlock.Client, plain: MemcachedText, name: str, kind: str
) -> None:
    told: list[object] = []
    threads: set[int] = set()

    def callback(what: object) -> None:
        threads.add(threading.get_native_id())
        told.append(what)

    callbacks = {"on_lease_at_risk": callback, "on_lost": callback}
    held = KINDS[kind](client, name, renew=True, **callbacks)
    with pytest.raises(memlock.LockLost), held:
        with pytest.raises(memlock.Invalid, match="automatically"):
            held.extend()
        plain.take_away(name)
        assert held.is_held, "nobody has looked yet"
        assert not held.check()
        assert held.wait_lost() == held.lost == "gone"
        eventually(lambda: told == ["gone"])
    told.clear()
    options = {"lease": 1.5, "renew": True, "max_hold": 0.001, **callbacks}
    hung = answered(lambda: KINDS[kind](client, f"{name}-hung", **options))
    answered(hung.__enter__)
    with pytest.raises(memlock.LockLost):
        assert hung.wait_lost() == "max_hold"
        eventually(lambda: len(told) == 2)
        hung.release()
    left, why = told
    assert isinstance(left, float)
    assert why == "max_hold"
    assert threading.get_native_id() not in threads


def test_a_wait_for_the_loss_ends_with_the_release(client: memlock.Client, name: str) -> None:
    mutex = client.mutex(name, renew=True)
    mutex.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(mutex.wait_lost)
        time.sleep(0.05)
        mutex.release()
        assert waiting.result(PATIENCE) is None


def test_what_a_callback_raises_goes_to_the_unraisablehook(
    client: memlock.Client, plain: MemcachedText, name: str, unraisable: list[BaseException]
) -> None:
    def on_lost(why: str) -> None:
        raise RuntimeError(f"oh no: {why}")

    told: list[str] = []
    mutex = client.mutex(name, renew=True, on_lost=on_lost)
    other = client.mutex(f"{name}-other", renew=True, on_lost=told.append)
    for held in (mutex, other):
        held.acquire()
    plain.take_away(name)
    assert not mutex.check()
    eventually(lambda: list(map(str, unraisable)) == ["oh no: gone"])
    # The others are looked after all the same.
    plain.take_away(f"{name}-other")
    assert not other.check()
    eventually(lambda: told == ["gone"])


def test_a_callback_may_release(client: memlock.Client, name: str) -> None:
    done = threading.Event()

    def on_lease_at_risk(left: float) -> None:
        assert left > 0
        mutex.release()
        done.set()

    mutex = client.mutex(name, renew=True, max_hold=0.001, on_lease_at_risk=on_lease_at_risk)
    mutex.acquire()
    assert done.wait(PATIENCE)
    assert not mutex.locked()


@pytest.mark.parametrize("given", ["max_hold=5", "on_lost=print", "renew=True, max_hold=0"])
def test_what_makes_no_sense_is_invalid(client: memlock.Client, name: str, given: str) -> None:
    for call in ["mutex(name", "semaphore(name, 3"]:
        with pytest.raises(memlock.Invalid):
            eval(f"client.{call}, {given})", {"client": client, "name": name})
    with pytest.raises(TypeError):
        client.mutex(name, renew=True, on_lost=5)  # type: ignore[arg-type]


class Job:
    """Holds something, and is told of it by methods of its own."""

    def __init__(self, client: memlock.Client, name: str, kind: str) -> None:
        self.told: list[object] = []
        callbacks = {"on_lease_at_risk": self.on_lease_at_risk, "on_lost": self.on_lost}
        self.held = KINDS[kind](client, name, renew=True, **callbacks)
        self.held.__enter__()

    def on_lease_at_risk(self, left: float) -> None:
        self.told.append(left)

    def on_lost(self, why: str) -> None:
        self.told.append(why)


@pytest.mark.parametrize("kind", KINDS)
def test_what_its_own_callbacks_know_is_garbage_and_released(
    any_client: memlock.Client, plain: MemcachedText, name: str, kind: str
) -> None:
    job, lost = Job(any_client, name, kind), Job(any_client, f"{name}-lost", kind)
    there = weakref.ref(job)
    gc.collect()
    eventually(lambda: renewers() == 1)
    assert job.held.check(), "it is wanted yet"
    if "memcached" in repr(any_client):
        plain.take_away(f"{name}-lost")
        assert not lost.held.check()
        eventually(lambda told=lost.told: told == ["gone"])
    del job, lost
    gc.collect()
    assert there() is None
    assert not any_client.mutex(name).locked()
    assert kind == "mutex" or any_client.semaphore(name).available == 5
    eventually(lambda: renewers() == 0)


def test_whose_method_is_called_is_there_until_it_returns(
    client: memlock.Client, name: str
) -> None:
    class Owner:
        def __init__(self) -> None:
            callbacks = {"on_lease_at_risk": self.on_lease_at_risk}
            self.mutex = client.mutex(name, renew=True, max_hold=0.001, **callbacks)
            self.mutex.acquire()

        def on_lease_at_risk(self, left: float) -> None:
            inside.set()
            assert alone.wait(PATIENCE)
            held.append(self.mutex.is_held)

    inside, alone = threading.Event(), threading.Event()
    held: list[bool] = []
    owner = Owner()
    there = weakref.ref(owner)
    assert inside.wait(PATIENCE)
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
        with client.mutex(name, renew=True, max_hold=0.001, on_lease_at_risk=on_lease_at_risk):
            eventually(lambda: started)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, ours)
    with started[0] as program:
        program.terminate()
        assert program.wait(PATIENCE) == -signal.SIGTERM
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


HOLDER = """
import logging, os, sys, threading, time
import memlock
logging.getLogger("memlock").setLevel(logging.CRITICAL)
url, name = sys.argv[1:]
client = memlock.connect(url)
told = []
mutex = client.mutex(name, renew=True, on_lost=told.append)
"""


def test_a_child_of_a_fork_holds_nothing_and_has_no_keeper(server: Memcached, name: str) -> None:
    program = """
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
def is_renewer(task):
    try:
        return "memlock-renewer" in (task / "comm").read_text()
    except OSError:
        return False
def renewers():
    return sum(is_renewer(task) for task in Path("/proc/self/task").iterdir())
mutex.acquire()
permit = client.semaphore(name, 1, renew=True).permit()
pid = os.fork()
if pid == 0:
    said = [renewers(), mutex.is_held, mutex.lost, mutex.wait_lost(0.1)]
    said += [permit.is_held, permit.lost]
    for call in (mutex.release, mutex.check, permit.release, permit.check, permit.extend):
        try:
            call()
        except memlock.NotHeld:
            said.append("no")
    # Its own renewer notifies it.
    its = []
    own = client.mutex(name + "-child", renew=True, on_lost=its.append)
    own.acquire()
    own.force_unlock(own.owner().token)
    said += [renewers(), own.check()]
    while not its:
        time.sleep(0.001)
    print(said + its, told, flush=True)
    del mutex, permit
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(mutex.check(), permit.check(), told)
mutex.release()
permit.release()
"""
    said = "[0, False, None, None, False, None, 'no', 'no', 'no', 'no', 'no', 1, False, 'gone'] []"
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
    assert run(HOLDER + program, server.url, name) == ["end"]
    assert client.mutex(name).acquire(timeout=PATIENCE), "it ends with its lease at the latest"


def test_a_program_ends_while_callbacks_are_called(server: Memcached, name: str) -> None:
    program = """
kept = []
for number in range(100):
    one = client.mutex(f"{name}-{number}", lease=2, renew=True, max_hold=0.05,
                       on_lease_at_risk=lambda left: time.sleep(0.001), on_lost=told.append)
    one.acquire()
    kept.append(one)
sys.kept = kept
while not told:
    time.sleep(0.001)
"""
    for _ in range(2):
        assert run(HOLDER + program, server.url, name) == []
