"""Locks, semaphores and distinct lists for programs that share nothing but a memcached.

    import memlock

    client = memlock.connect("memcached://127.0.0.1:11211")
    with client.mutex("nightly-report", lease=30) as mutex:
        print(mutex.fence)
    with client.semaphore("downloads", permits=5):
        ...

Durations are seconds, as int or float, or a datetime.timedelta. Names are str (encoded in UTF-8)
or bytes: 1 byte to 64 KiB, without NUL. Every failure is a memlock.Error, and most are also the
built-in exception that says the same: an unreachable server is a ConnectionError, a timeout a
TimeoutError.

Threads: every object may be used from any number of threads. The interpreter's lock is released
around all waits and all input and output. Ctrl-C ends a wait for a lock or a permit in the main
thread; Python runs signal handlers nowhere else. Another thread ends waits by
Client.cancel_waits(), Client.close(), or a CancelHandle that the wait was given as `cancel`.

Forks: a child made by os.fork or multiprocessing may use the objects that it inherited. It dials
its own connections, and it neither holds nor releases what its parent holds.

Logging: the logger "memlock" of the module logging, and below it one for each part, such as
"memlock.renewal". WARNING is for what is lost or about to be (a lock that was renewed, say), INFO
for servers that go away and come back, DEBUG for connections and troubles that were mended at
once. Records are handled in the thread that has something to say, which goes on afterwards. A
handler may use memlock, and that is not logged; but it must not wait for what the call that logs
holds or waits for. What it raises in the main thread ends a wait, or is raised when the call has
returned; in other threads it goes to sys.unraisablehook. When the interpreter ends, only the main
thread logs.
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
    "Semaphore",
    "SemaphoreNotFound",
    "SessionNotFound",
    "TimedOut",
    "Unreachable",
    "__version__",
    "cancel_waits",
    "connect",
    "distinct_list_insert",
    "distinct_list_set_up",
    "distinct_list_tear_down",
    "init",
    "mutex_lock",
    "mutex_lock_nonblock",
    "mutex_unlock",
    "semaphore_acquire",
    "semaphore_acquire_nonblock",
    "semaphore_release",
    "semaphore_set_up",
    "semaphore_tear_down",
]
