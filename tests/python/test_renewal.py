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
from support import KINDS, PATIENCE, MemcachedText, answered, eventually


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
def test_callbacks_are_called_in_a_thread_of_their_own(
    client: memlock.Client, plain: MemcachedText, name: str, kind: str
) -> None:
    told: list[object] = []
    threads: set[int] = set()

    def callback(what: object) -> None:
        threads.add(threading.get_native_id())
        told.append(what)

    callbacks = {"on_lease_at_risk": callback, "on_lost": callback}
    held = KINDS[kind](client, name, renew=True, max_hold=0.001, **callbacks)
    with pytest.raises(memlock.LockLost), held:
        with pytest.raises(memlock.Invalid, match="automatically"):
            held.extend()
        eventually(lambda: told)
        plain.take_away(name)
        assert not held.check()
        assert held.wait_lost() == held.lost == "gone"
        eventually(lambda: len(told) == 2)
    left, why = told
    assert isinstance(left, float)
    assert why == "gone"
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
