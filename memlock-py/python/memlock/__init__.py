"""Locks, semaphores and distinct lists for programs that share a memcached server.

    import memlock

    client = memlock.connect("memcached://127.0.0.1:11211")
    with client.mutex("nightly-report", lease=30) as mutex:
        print(mutex.fence)
    with client.semaphore("downloads", permits=5):
        ...

Durations are seconds, as int or float, or a datetime.timedelta. Names are str (encoded in UTF-8)
or bytes: 1 byte to 64 KiB, without NUL. Every failure is a memlock.Error, and most are also a
subclass of the corresponding built-in exception: Unreachable of ConnectionError, TimedOut of
TimeoutError.

Threads: every object may be used from any number of threads. The interpreter lock (GIL) is
released during all waits and all I/O. Ctrl-C ends a wait for a lock or a permit in the main
thread; Python runs signal handlers in no other thread. Another thread ends waits by
Client.cancel_waits(), Client.close(), or a CancelHandle that was passed to the wait as `cancel`.

Exit: when the interpreter exits, waits of other threads end, and these threads acquire nothing any
more. Daemon threads usually end in silence; if one still runs, its call raises Interrupted. What
the main thread holds is released. Sub-interpreters cannot import this module.

Forks: a child made by os.fork or multiprocessing may use the objects that it inherited. It opens
its own connections, and it neither holds nor releases what its parent holds. A callback, a handler
of logging, and a signal handler that runs during a call of memlock may fork, but the child may then
only call os.exec*() or os._exit(): what else it does, also by returning from the callback, is
undefined. A daemon that closes all descriptors does so before it uses memlock, or closes its
clients first.

Transactions: a lock must be held until the transaction of the work has been committed. Use
memlock.transaction() for a connection of the DB-API, memlock.django or memlock.sqlalchemy; and
check_fence() against holders that continue after their lease: see docs/transactions.md.

Logging: messages go to the logger "memlock" of the module logging, and to one child logger for
each part, such as "memlock.renewal". WARNING: a lock or permit was lost or is at risk. INFO: a
server became unreachable or reachable. DEBUG: connections, and problems that were resolved at
once. A record is handled in the thread that logs, which continues afterwards. A handler may use
memlock, and that is not logged; but it must not wait for what the logging call holds or waits
for. An exception of a handler ends a wait of the main thread, or is raised in the main thread
when the call has returned; in other threads it goes to sys.unraisablehook. While the interpreter
exits, only the main thread logs.
"""

from memlock._memlock import (
    CancelHandle,
    Client,
    ClientClosed,
    ConfigError,
    Counter,
    CounterNotFound,
    Deadlock,
    DistinctList,
    Error,
    Holder,
    InternalError,
    Interrupted,
    Invalid,
    LockLost,
    Mutex,
    NotFound,
    NotHeld,
    OutcomeUnknown,
    Owner,
    Permit,
    ProtocolError,
    Recovering,
    Semaphore,
    SemaphoreNotFound,
    SessionNotFound,
    TimedOut,
    Unreachable,
    __version__,
    cancel_waits,
    connect,
    distinct_list_insert,
    distinct_list_set_up,
    distinct_list_tear_down,
    init,
    mutex_lock,
    mutex_lock_nonblock,
    mutex_unlock,
    semaphore_acquire,
    semaphore_acquire_nonblock,
    semaphore_release,
    semaphore_set_up,
    semaphore_tear_down,
)
from memlock.fences import Fenced, check_fence, fence_table_ddl
from memlock.transactions import transaction

__all__ = [
    "CancelHandle",
    "Client",
    "ClientClosed",
    "ConfigError",
    "Counter",
    "CounterNotFound",
    "Deadlock",
    "DistinctList",
    "Error",
    "Fenced",
    "Holder",
    "InternalError",
    "Interrupted",
    "Invalid",
    "LockLost",
    "Mutex",
    "NotFound",
    "NotHeld",
    "OutcomeUnknown",
    "Owner",
    "Permit",
    "ProtocolError",
    "Recovering",
    "Semaphore",
    "SemaphoreNotFound",
    "SessionNotFound",
    "TimedOut",
    "Unreachable",
    "__version__",
    "cancel_waits",
    "check_fence",
    "connect",
    "distinct_list_insert",
    "distinct_list_set_up",
    "distinct_list_tear_down",
    "fence_table_ddl",
    "init",
    "mutex_lock",
    "mutex_lock_nonblock",
    "mutex_unlock",
    "semaphore_acquire",
    "semaphore_acquire_nonblock",
    "semaphore_release",
    "semaphore_set_up",
    "semaphore_tear_down",
    "transaction",
]
