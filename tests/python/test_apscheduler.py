"""APScheduler with guard(): the jobs of several schedulers run once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import memlock
import memlock.aio
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.util import obj_to_ref, ref_to_obj
from support import PATIENCE, Memcached


def test_schedulers_run_a_job_once_at_a_time(client: memlock.Client, name: str) -> None:
    is_in, goes = threading.Event(), threading.Event()
    calls: list[int] = []

    def work() -> str:
        calls.append(1)
        is_in.set()
        assert goes.wait(PATIENCE)
        return "done"

    ended: list[Any] = []
    all_ended = threading.Semaphore(0)

    def tell(event: Any) -> None:
        ended.append(event.retval)
        all_ended.release()

    # As in several processes: each has a client and a function of its own.
    schedulers = []
    for _ in range(3):
        scheduler = BackgroundScheduler()
        scheduler.add_listener(tell, EVENT_JOB_EXECUTED)
        job = client.mutex(name, renew=True).guard(skip_if_busy=True)(work)
        scheduler.start()
        schedulers.append((scheduler, job))
    try:
        first, job = schedulers[0]
        first.add_job(job, misfire_grace_time=None)
        assert is_in.wait(PATIENCE)
        for scheduler, job in schedulers[1:]:
            scheduler.add_job(job, misfire_grace_time=None)
        for _ in range(2):
            assert all_ended.acquire(timeout=PATIENCE)
        assert ended == [None, None]
        goes.set()
        assert all_ended.acquire(timeout=PATIENCE)
        assert ended[-1] == "done" and len(calls) == 1
    finally:
        goes.set()
        for scheduler, _ in schedulers:
            scheduler.shutdown()


def test_a_scheduler_of_an_event_loop_runs_coroutine_functions(
    server: Memcached, name: str
) -> None:
    client = memlock.aio.connect(server.url)

    async def main() -> None:
        done = asyncio.Event()

        @client.mutex(name, renew=True).guard(skip_if_busy=True)
        async def work() -> None:
            assert await client.mutex(name).locked()
            done.set()

        scheduler = AsyncIOScheduler()
        scheduler.start()
        scheduler.add_job(work, misfire_grace_time=None)
        await asyncio.wait_for(done.wait(), PATIENCE)
        scheduler.shutdown()

    asyncio.run(main())


@memlock.connect("memory://apscheduler").mutex("stored").guard
def stored_job() -> None: ...


def test_a_stored_job_is_found_by_its_name() -> None:
    """Persistent job stores keep "module:function"."""
    assert ref_to_obj(obj_to_ref(stored_job)) is stored_job
