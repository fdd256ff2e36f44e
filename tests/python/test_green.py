"""Programs whose threads are greenlets of gevent or eventlet. Each is a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest
from support import Memcached

LIBRARIES = {
    "gevent": """
        from gevent import monkey; monkey.patch_all()
        import gevent as green
        def join(greenlet): return greenlet.get(timeout=30)
        """,
    "eventlet": """
        import eventlet as green; green.monkey_patch()
        def join(greenlet): return greenlet.wait()
        """,
}
COMMON = """
    import sys
    import memlock
    client, name = memlock.connect(sys.argv[1]), sys.argv[2]
    """


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


def run(library: str, server: Memcached, name: str, program: str) -> None:
    parts = (LIBRARIES[library], COMMON, program)
    text = "\n".join(textwrap.dedent(part) for part in parts)
    arguments = [sys.executable, "-W", "ignore", "-c", text, server.url, name]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_wait_lets_the_holder_run(library: str, server: Memcached, name: str) -> None:
    program = """
        order, most, held = [], 0, 0

        def work(place, make):
            global most, held
            with make():
                held += 1; most = max(most, held)
                green.sleep(0.01)
                held -= 1
                order.append(place)

        for make, many in (
            (lambda: client.mutex(name, renew=True), 1),
            (lambda: client.semaphore(name, 2), 2),
        ):
            order, most = [], 0
            for greenlet in [green.spawn(work, place, make) for place in range(12)]:
                join(greenlet)
            assert sorted(order) == list(range(12)) and 1 <= most <= many, (order, most)
        shared = client.mutex(name)
        for greenlet in [green.spawn(work, place, lambda: shared) for place in range(12)]:
            join(greenlet)

        counter = client.counter(name + "-counter"); counter.set_up(1)
        counter.acquire()
        waiting = green.spawn(counter.acquire)
        green.sleep(0.05); counter.release()
        assert join(waiting) is True
        assert counter.acquire(timeout=0.05) is False
        """
    run(library, server, name, program)


def test_a_time_limit_ends_a_wait(library: str, server: Memcached, name: str) -> None:
    program = """
        holder, waiter = client.mutex(name), client.mutex(name)
        holder.acquire()
        assert waiter.acquire(timeout=0.05) is False and waiter.acquire(blocking=False) is False
        for _ in range(3):
            try:
                with green.Timeout(0.05):
                    waiter.acquire()
                raise SystemExit("it was acquired")
            except green.Timeout:
                pass
        handle = client.cancel_handle()
        cancelled = green.spawn(waiter.acquire, cancel=handle)
        green.sleep(0.05); handle.cancel()
        try:
            join(cancelled)
            raise SystemExit("it was acquired")
        except memlock.Interrupted as error:
            assert name in str(error), error
        holder.release()
        # Nothing is left of the waits.
        assert holder.acquire(timeout=10); holder.release()
        """
    run(library, server, name, program)


def test_each_greenlet_is_a_holder(library: str, server: Memcached, name: str) -> None:
    program = """
        mutex, overslept = client.mutex(name, lease=2), []

        def oversleeps():
            mutex.acquire()
            while not overslept: green.sleep(0.01)
            try:
                mutex.release()
                raise SystemExit("it has released the next one's lock")
            except memlock.LockLost:
                pass

        first = green.spawn(oversleeps)
        green.sleep(0.05)
        mutex.acquire(timeout=30)
        overslept.append(True)
        join(first)
        assert mutex.is_held
        mutex.release()
        """
    run(library, server, name, program)


def test_waiting_for_a_loss(library: str, server: Memcached, name: str) -> None:
    program = """
        mutex = client.mutex(name, renew=True, lease=2)
        mutex.acquire()
        waiting = green.spawn(mutex.wait_lost, 30)
        green.sleep(0.1)
        assert mutex.force_unlock(mutex.owner().token)
        assert join(waiting) == "gone"
        """
    run(library, server, name, program)


def test_native_threads_beside_greenlets(library: str, server: Memcached, name: str) -> None:
    program = """
        mutex = client.mutex(name); mutex.acquire()
        if green.__name__ == "gevent":
            waiting = green.get_hub().threadpool.spawn(client.mutex(name).acquire)
            wait = waiting.get
        else:
            from eventlet import tpool
            wait = green.spawn(tpool.execute, client.mutex(name).acquire).wait
        green.sleep(0.1); mutex.release()
        assert wait() is True
        """
    run(library, server, name, program)
