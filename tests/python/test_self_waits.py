"""A thread inside a `with` statement does not wait without a limit for what it holds itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import greenlet
import memlock
import pytest
from support import Memcached, MemcachedText, eventually, run, safe

# If it waits for itself all the same, the lease ends, and the test fails.
LEASE = 2.0
Lock = Any
Makers = dict[str, Callable[[memlock.Client, str], Lock]]
SINGLE: Makers = {
    "mutex": lambda client, name: client.mutex(name, LEASE),
    "semaphore": lambda client, name: client.semaphore(name, 1, LEASE),
    "permit": lambda client, name: client.semaphore(name, 1, LEASE).permit(),
}


@contextlib.contextmanager
def within(lock: Lock) -> Iterator[None]:
    with lock:
        yield


@pytest.mark.parametrize("kind", SINGLE)
@pytest.mark.parametrize("enter", [lambda lock: lock, within])
def test_a_nested_with_statement_raises(
    client: memlock.Client, server: Memcached, name: str, kind: str, enter: Callable[[Lock], Any]
) -> None:
    make = SINGLE[kind]
    for other in (client, memlock.connect(server.url)):
        with enter(make(client, name)):
            with pytest.raises(memlock.Deadlock) as raised, make(other, name):
                pass
            assert name in str(raised.value)
            assert f"127.0.0.1:{server.port}" in str(raised.value)
        with make(other, name):
            pass


def test_one_object_that_is_entered_twice_raises(mutex: memlock.Mutex) -> None:
    with mutex:
        with pytest.raises(memlock.Deadlock), mutex:
            pass
        with pytest.raises(memlock.Deadlock):
            mutex.acquire()
        assert mutex.check()
    assert not mutex.locked()


def test_permits_that_are_left_are_waited_for(client: memlock.Client, name: str) -> None:
    semaphore = client.semaphore(name, 3, LEASE)
    with semaphore, semaphore, semaphore, pytest.raises(memlock.Deadlock):
        semaphore.acquire()
    with semaphore, pytest.raises(memlock.Deadlock):
        semaphore.acquire(permits=3)
    with ThreadPoolExecutor(1) as pool, semaphore:
        other = client.semaphore(name, 3, LEASE).permit(permits=2)
        waiting = pool.submit(semaphore.acquire, permits=2)
        eventually(lambda: semaphore.available == 0)
        other.release()
        assert waiting.result()


def test_bare_functions_and_objects_exclude_each_other(server: Memcached, name: str) -> None:
    program = f"""
import memlock
memlock.init({server.url!r})
mutex = memlock.connect({server.url!r}).mutex({name!r}, {LEASE})
semaphore = memlock.connect({server.url!r}).semaphore({name!r}, 1, {LEASE})
def is_refused(call, *arguments):
    try:
        call(*arguments)
    except memlock.Deadlock:
        return True
    return False
with mutex, semaphore:
    print(is_refused(memlock.mutex_lock, {name!r}, {LEASE}))
    print(is_refused(memlock.semaphore_acquire, {name!r}, {LEASE}))
memlock.mutex_lock({name!r}, {LEASE})
print(is_refused(mutex.acquire))
memlock.mutex_unlock({name!r})
with mutex, semaphore:
    print(mutex.is_held and semaphore.is_held)
"""
    assert run(program) == ["True"] * 4


def test_a_permit_that_is_entered_again_is_bound_again(client: memlock.Client, name: str) -> None:
    semaphore = client.semaphore(name, 1, LEASE)
    permit = semaphore.permit()
    with pytest.raises(memlock.NotHeld), permit, permit, pytest.raises(memlock.Deadlock):
        semaphore.acquire()
    assert semaphore.acquire()


def test_a_limited_wait_ends_as_ever(client: memlock.Client, mutex: memlock.Mutex) -> None:
    handle = client.cancel_handle()
    with mutex:
        assert not mutex.acquire(blocking=False)
        assert not mutex.acquire(timeout=0.01)
        handle.cancel()
        with pytest.raises(memlock.Interrupted):
            mutex.acquire(cancel=handle)


def test_tasks_of_one_loop_raise(client: memlock.Client, name: str) -> None:
    async def hold(entered: asyncio.Event, done: asyncio.Event) -> None:
        with client.mutex(name, LEASE):
            entered.set()
            await done.wait()

    async def wait(entered: asyncio.Event, done: asyncio.Event) -> None:
        await entered.wait()
        with pytest.raises(memlock.Deadlock), client.mutex(name, LEASE):
            pass
        done.set()

    async def both() -> None:
        entered, done = asyncio.Event(), asyncio.Event()
        await asyncio.gather(wait(entered, done), hold(entered, done))

    asyncio.run(both())


def test_greenlets_of_one_thread_raise(client: memlock.Client, name: str) -> None:
    main = greenlet.getcurrent()

    def hold() -> None:
        with client.mutex(name, LEASE):
            main.switch()

    holder = greenlet.greenlet(hold)
    holder.switch()
    with pytest.raises(memlock.Deadlock), client.mutex(name, LEASE):
        pass
    holder.switch()
    with client.mutex(name, LEASE):
        pass


def test_another_thread_waits(client: memlock.Client, plain: MemcachedText, name: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        with client.mutex(name):
            waiting = pool.submit(client.mutex(name).acquire)
            eventually(lambda: plain.queue(name))
        assert waiting.result()


Leave = Callable[[], object]


def entered_by_hand(lock: Lock) -> Leave:
    lock.__enter__()
    return lambda: lock.__exit__(None, None, None)


def entered_by_a_generator(lock: Lock) -> Leave:
    return entered_by_hand(within(lock))


def entered_by_a_stack(lock: Lock) -> Leave:
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock)
        return stack.pop_all().close


def entered_by_a_generator_in_a_stack(lock: Lock) -> Leave:
    return entered_by_a_stack(within(lock))


@pytest.mark.parametrize(
    "enter",
    [
        entered_by_hand,
        entered_by_a_generator,
        entered_by_a_stack,
        entered_by_a_generator_in_a_stack,
    ],
)
@pytest.mark.parametrize("kind", SINGLE)
def test_what_another_thread_may_leave_is_waited_for(
    client: memlock.Client,
    plain: MemcachedText,
    name: str,
    kind: str,
    enter: Callable[[Lock], Leave],
) -> None:
    """As a framework does that runs both ends of a generator in threads of a pool, and a program
    that passes an `ExitStack` to another thread."""
    first = SINGLE[kind](client, name)
    queue = plain.queue if kind == "mutex" else plain.permit_queue
    with ThreadPoolExecutor(1) as pool:
        leave = pool.submit(enter, first).result()
        waiting = pool.submit(lambda: SINGLE[kind](client, name).__enter__())
        eventually(lambda: queue(name))
        leave()
        assert waiting.result()
    safe(not first.is_held, "both hold it")


@contextlib.contextmanager
def a_loop_that_goes_on_in_another_thread(lock: Lock) -> Iterator[Leave]:
    loop = asyncio.new_event_loop()

    async def hold(entered: asyncio.Event, done: asyncio.Event) -> None:
        with lock:
            entered.set()
            await done.wait()

    async def begin() -> tuple[asyncio.Task[None], asyncio.Event]:
        entered, done = asyncio.Event(), asyncio.Event()
        task = asyncio.ensure_future(hold(entered, done))
        await entered.wait()
        return task, done

    task, done = loop.run_until_complete(begin())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop.run_forever)
        try:
            yield lambda: loop.call_soon_threadsafe(done.set)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            running.result()
    loop.run_until_complete(task)
    loop.close()


@contextlib.contextmanager
def a_coroutine_that_another_thread_resumes(lock: Lock) -> Iterator[Leave]:
    @types.coroutine
    def pause() -> Iterator[None]:
        yield

    async def hold() -> None:
        with lock:
            await pause()

    coroutine = hold()
    coroutine.send(None)

    def resume() -> None:
        with contextlib.suppress(StopIteration):
            coroutine.send(None)

    yield resume


def in_another_loop(call: Callable[[], object]) -> object:
    async def run() -> object:
        return call()

    return asyncio.run(run())


@pytest.mark.parametrize("kind", SINGLE)
@pytest.mark.parametrize(
    "entered", [a_loop_that_goes_on_in_another_thread, a_coroutine_that_another_thread_resumes]
)
@pytest.mark.parametrize("wait", [lambda call: call(), in_another_loop])
def test_a_coroutine_that_goes_on_in_another_thread_is_waited_for(
    server: Memcached,
    name: str,
    kind: str,
    entered: Callable[[Lock], contextlib.AbstractContextManager[Leave]],
    wait: Callable[[Callable[[], object]], object],
) -> None:
    def leave_when_waited_for(leave: Leave) -> None:
        with server.plain() as plain:
            queue = plain.queue if kind == "mutex" else plain.permit_queue
            eventually(lambda: queue(name))
        leave()

    client = memlock.connect(server.url)
    with entered(SINGLE[kind](client, name)) as leave, ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(leave_when_waited_for, leave)
        assert wait(lambda: SINGLE[kind](client, name).__enter__())
        leaving.result()


def test_a_statement_whose_release_failed_is_over(mortal_server: Memcached, name: str) -> None:
    mutex = memlock.connect(mortal_server.url).mutex(name, LEASE)
    with pytest.raises(memlock.Error), mutex, mortal_server.plain() as plain:
        record = plain.get(f"lock:{name}")
        assert record is not None
        mortal_server.kill()
    mortal_server.start()
    with mortal_server.plain() as plain:
        assert plain.add(f"lock:{name}", record, 4)
    assert mutex.acquire(), "once what looks like its old lease has ended"


def test_a_child_waits_for_its_parent(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    with client.mutex(name):
        child = os.fork()
        if child == 0:
            # Also an exception must not get to the rest of the test.
            try:
                os._exit(0 if client.mutex(name).acquire() else 1)
            finally:
                os._exit(2)
        has_ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        eventually(lambda: plain.queue(name) or os.waitid(os.P_PID, child, has_ended))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("inside", [True, False])
def test_a_child_binds_nothing_of_its_parent(
    client: memlock.Client, plain: MemcachedText, name: str, inside: bool
) -> None:
    semaphore = client.semaphore(name, 1, 30)
    permit = semaphore.permit()
    child = os.fork()
    if child == 0:
        try:
            with contextlib.suppress(memlock.NotHeld), permit:
                assert not inside or semaphore.acquire()
            assert inside or semaphore.acquire()
            os._exit(0)
        finally:
            os._exit(1)
    has_ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    eventually(lambda: plain.permit_queue(name) or os.waitid(os.P_PID, child, has_ended))
    permit.release()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
