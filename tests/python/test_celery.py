"""memlock.celery: tasks that hold a lock, run by a real worker."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memlock
import pytest
from celery import Celery
from memlock.celery import lock_task
from support import PATIENCE, PR_SET_PDEATHSIG, Memcached, eventually

# The tasks work until they get the mutex "gate:…", which the test holds.
TASKS = """
import json, os, sys
import memlock
from celery import Celery
from memlock.celery import lock_task

with open("config.json") as file:
    config = json.load(file)
app = Celery("tasks")
app.conf.update(config["celery"])
client = memlock.connect(config["url"])


def inside(key):
    # Fails if another task is inside.
    os.close(os.open(f"inside-{key}", os.O_CREAT | os.O_EXCL))
    try:
        with client.mutex(f"gate:{key}"):
            return os.getpid()
    finally:
        os.unlink(f"inside-{key}")


@app.task(name="wait", bind=True, max_retries=0)
@lock_task(client, "wait:{key}", lease=4, countdown=0.05)
def wait(self, key):
    inside(key)
    return self.request.retries


@app.task(name="skip")
@lock_task(client, "skip:{key}", lease=4, busy="skip")
def skip(key):
    return inside(key)


@lock_task(client, "part:{key}")
def part(key):
    return memlock.current_mutex().fence


@app.task(name="whole")
def whole(key):
    return part(key)


@app.task(
    name="again",
    acks_late=True,
    reject_on_worker_lost=True,
    autoretry_for=(memlock.Unreachable,),
)
@lock_task(client, "again:{key}", lease=3, countdown=0.05)
def again(key):
    with client.mutex(f"gate:{key}"):
        return os.getpid()
"""


def renewed(mutex: memlock.Mutex) -> Callable[[], bool]:
    """Whether the time that is left to the lock, as the server tells it, has grown."""
    least: list[float] = []

    def has_grown() -> bool:
        owner = mutex.owner()
        assert owner is not None and owner.remaining is not None
        least[:] = [min([owner.remaining, *least])]
        return owner.remaining > least[0]

    return has_grown


def gate(client: memlock.Client, name: str) -> memlock.Mutex:
    """What the tasks of this name wait for."""
    return client.mutex(f"gate:{name}", renew=True)


class Broker:
    """A Redis on a socket in a folder, which ends with the test run."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis"
        libc = ctypes.CDLL(None)
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", str(self.socket), "--save", ""],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
        )
        eventually(self.socket.exists)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Worker:
    """A Celery worker with its pool, in a process group of its own, and its broker."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.broker = Broker(folder)
        config = {
            "broker_url": f"redis+socket://{self.broker.socket}",
            "result_backend": f"redis+socket://{self.broker.socket}",
            "worker_prefetch_multiplier": 1,
            "worker_lost_wait": 0.1,
        }
        (folder / "config.json").write_text(json.dumps({"celery": config, "url": url}))
        (folder / "tasks.py").write_text(TASKS)
        self.app = Celery("test", set_as_current=False)
        self.app.conf.update(config)
        options = ["-P", "prefork", "-c", "2", "--without-gossip", "--without-mingle"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tasks", "worker", *options, "-l", "INFO"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def send(self, task: str, *arguments: Any, **options: Any) -> Any:
        return self.app.send_task(task, arguments, **options)

    def result(self, sent: Any) -> Any:
        return sent.get(timeout=3 * PATIENCE, interval=0.02)

    def eventually(self, true: Callable[[], object]) -> None:
        def is_true_or_ended() -> object:
            assert self.process.poll() is None, f"the worker has ended: {self.log()}"
            return true()

        eventually(is_true_or_ended, 3 * PATIENCE)

    def kill(self) -> None:
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.app.close()
            self.broker.close()

    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def worker(shared_server: Memcached, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("celery"), shared_server.url)
    yield worker
    worker.kill()
    print(worker.log())


def test_tasks_with_the_same_argument_run_one_after_the_other(
    worker: Worker, client: memlock.Client, name: str
) -> None:
    other = name + "-other"
    with gate(client, name):
        tasks = [worker.send("wait", name) for _ in range(3)]
        worker.eventually(client.mutex(f"wait:{name}").locked)
        # Those that wait occupy no process of the worker, and others are not concerned.
        worker.eventually(lambda: sorted(task.state for task in tasks)[1:] == ["RETRY", "RETRY"])
        assert worker.result(worker.send("wait", other)) == 0
        assert client.mutex(f"wait:{name}").locked()
    # max_retries is 0: to be busy is no retry.
    assert [worker.result(task) for task in tasks] == [0, 0, 0]
    assert not client.mutex(f"wait:{name}").locked()


def test_a_task_is_skipped(worker: Worker, client: memlock.Client, name: str) -> None:
    with gate(client, name):
        first = worker.send("skip", name)
        worker.eventually(client.mutex(f"skip:{name}").locked)
        assert worker.result(worker.send("skip", name)) is None
    assert worker.result(first) > 0
    assert f"skip:{name}" in worker.log()


def test_a_task_that_lost_its_lock_fails(
    worker: Worker, client: memlock.Client, server: Memcached, name: str
) -> None:
    with gate(client, name):
        task = worker.send("wait", name)
        worker.eventually(client.mutex(f"wait:{name}").locked)
        with server.plain() as plain:
            plain.delete(f"lock:wait:{name}")
    with pytest.raises(Exception, match=name):
        worker.result(task)
    assert "LockLost" in task.traceback


def test_the_lock_of_a_killed_process_ends_with_its_lease(
    worker: Worker, client: memlock.Client, name: str
) -> None:
    mutex = client.mutex(f"again:{name}")

    def pid() -> int | None:
        owner = mutex.owner()
        return owner.pid if owner else None

    with gate(client, name):
        task = worker.send("again", name)
        worker.eventually(pid)
        first = pid()
        assert first is not None and first != worker.process.pid
        worker.eventually(renewed(mutex))
        os.kill(first, signal.SIGKILL)
        assert pid() == first
        # It is delivered again, and waits for the end of the lease.
        worker.eventually(lambda: pid() not in (None, first))
    assert worker.result(task) != first


def test_the_lock_of_a_killed_worker_ends_with_its_lease(
    shared_server: Memcached, client: memlock.Client, name: str, tmp_path: Path
) -> None:
    worker = Worker(tmp_path, shared_server.url)
    mutex = client.mutex(f"again:{name}")
    try:
        with gate(client, name):
            worker.send("again", name)
            worker.eventually(mutex.locked)
            worker.kill()
            assert mutex.locked()
            assert mutex.acquire(timeout=PATIENCE)
    finally:
        worker.kill()
        print(worker.log())


# Without a worker.


@pytest.fixture
def app() -> Celery:
    return Celery("local", broker="memory://", set_as_current=False)


def test_a_task_that_cannot_be_sent_again_raises(
    app: Celery, client: memlock.Client, name: str
) -> None:
    @app.task
    @lock_task(client, name + ":{key}")
    def work(key: int) -> bool:
        """Works."""
        return client.mutex(f"{name}:{key}").locked()

    assert work(1) and work.apply((1,)).get() and work.__doc__ == "Works."
    with client.mutex(f"{name}:1"):
        with pytest.raises(memlock.TimedOut, match=name):
            work(1)
        with pytest.raises(memlock.TimedOut, match=name):
            work.apply((1,)).get()
        assert work(2)


def test_only_the_function_of_a_task_sends_it_again(
    worker: Worker, client: memlock.Client, name: str
) -> None:
    with client.mutex(f"part:{name}"):
        task = worker.send("whole", name)
        with pytest.raises(Exception, match=name):
            worker.result(task)
    assert "TimedOut" in task.traceback
    assert worker.result(worker.send("whole", name)) > 0


def test_skipping_is_logged(
    app: Celery, client: memlock.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    @lock_task(client, name, busy="skip")
    def work() -> str:
        return "done"

    with client.mutex(name), caplog.at_level(logging.INFO, "memlock"):
        assert work() is None
    assert "work() was skipped" in caplog.text and name in caplog.text
    assert work() == "done"


def test_arguments_are_checked_when_a_task_is_sent(app: Celery, client: memlock.Client) -> None:
    @app.task(bind=True)
    @lock_task(client, "import:{key}")
    def work(self: Any, key: int) -> None: ...

    work.apply_async((1,))
    with pytest.raises(TypeError, match="key"):
        work.apply_async(())


def test_a_server_that_is_away_is_not_busy(app: Celery, mortal_server: Memcached) -> None:
    client = memlock.connect(mortal_server.url)

    @app.task
    @lock_task(client, "x", busy="skip")
    def work() -> str:
        mortal_server.kill()
        return "done"

    # What is done is done.
    assert work() == "done"
    with pytest.raises(memlock.Unreachable):
        work()


def test_wrong_arguments_are_refused_when_the_module_is_imported(
    app: Celery, client: memlock.Client
) -> None:
    async def coroutine_function() -> None: ...

    def function() -> None: ...

    with pytest.raises(TypeError, match="busy"):
        lock_task(client, "x", busy="wait")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key"):
        lock_task(client, "import:{key}")(lambda: None)
    with pytest.raises(TypeError, match="coroutine function"):
        lock_task(client, "import")(coroutine_function)
    with pytest.raises(memlock.Invalid):
        lock_task(client, "import", lease=0)
    with pytest.raises(TypeError, match="below the decorator"):
        lock_task(client, "import")(app.task(function))
