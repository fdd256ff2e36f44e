"""memlock for coroutines: asyncio, with or without uvloop, and trio, and so anyio.

    import memlock.aio

    client = memlock.aio.connect("memcached://127.0.0.1:11211")

    async def work():
        async with client.mutex("nightly-report", lease=30, renew=True) as mutex:
            print(mutex.fence)
        async with client.semaphore("downloads", permits=5):
            ...

The classes and arguments are those of memlock; what talks to the server is a coroutine. So `await
mutex.locked()`, and `await semaphore.available()`, which is a property there. The exceptions are
those of memlock.

Nothing blocks the event loop, also while a server does not answer, and nothing runs in the loop's
default executor: threads of the client do the work. A thousand waiting tasks need no more threads
than one.

Cancellation: a task that is cancelled while it acquires holds nothing; what it was granted at the
same moment is released, and the next waiter is woken. A release that has begun is carried out,
whether or not its task is cancelled. `asyncio.timeout()` and `trio.move_on_after()` work as with
any coroutine; `timeout=` is the same, and does not raise.

Owner: a lock belongs to the Mutex object, not to a thread or a task. Any task may release it, in
any loop.

Loops, threads and forks: a client may be used by several loops, at the same time and one after the
other, and by forked children. What a loop that was closed has left waiting is cancelled when its
tasks are deallocated.
"""

from memlock.aio._client import Client, connect
from memlock.aio._counter import Counter
from memlock.aio._distinct_list import DistinctList
from memlock.aio._guard import current_mutex
from memlock.aio._mutex import Mutex
from memlock.aio._semaphore import Permit, Semaphore

__all__ = [
    "Client",
    "Counter",
    "DistinctList",
    "Mutex",
    "Permit",
    "Semaphore",
    "connect",
    "current_mutex",
]

for _public in (Client, Counter, DistinctList, Mutex, Permit, Semaphore, connect, current_mutex):
    _public.__module__ = "memlock.aio"
