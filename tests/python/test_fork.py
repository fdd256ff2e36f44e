"""A forked child holds nothing of its parent's, and its own calls just work."""

from __future__ import annotations

import re
import signal
import time
from functools import partial

import memlock
from support import Child, Memcached, MemcachedText, eventually, quick_once, run, safe

# Each program runs in a process of its own, because a test run has threads. `in_child` forks, runs
# the body in the child, and prints what it gave, or its exception.
PRELUDE = """
import gc, logging, multiprocessing, os, pathlib, sys, threading, time
import memlock
from memlock._deferral import defer
url, name = sys.argv[1:]
client = memlock.connect(url)
memlock.init(url)

def in_child(body):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            print(body(), flush=True)
        except memlock.NotHeld as error:
            words = (name, url.partition("//")[2].partition("?")[0], "by the parent")
            print("NotHeld", *(word in str(error) for word in words), flush=True)
        except BaseException as error:
            print(type(error).__name__, flush=True)
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


# What a child does that inherits a mutex, an acquisition of one permit of five, another one of two,
# and the same by the bare functions; and its answer. A refusal is followed by whether it names the
# lock, the server and the parent.
BODIES = {
    "mutex.release()": "NotHeld True True True",
    "mutex.extend()": "NotHeld True True True",
    "mutex.fence": "NotHeld True True True",
    "mutex.remaining": "0.0",
    "mutex.locked()": "True",
    "mutex.owner().pid == os.getppid()": "True",
    "mutex.acquire(blocking=False)": "False",
    "memlock.mutex_unlock(name + '-bare')": "NotHeld True True False",
    "memlock.mutex_lock_nonblock(name + '-bare', 30)": "False",
    "semaphore.release()": "NotHeld True True True",
    "semaphore.extend()": "NotHeld True True True",
    "semaphore.remaining": "0.0",
    "semaphore.available": "1",
    "'not held' in repr(semaphore)": "True",
    "{holder.pid for holder in semaphore.holders()} == {os.getppid()}": "True",
    "semaphore.acquire(permits=2, blocking=False)": "False",
    "semaphore.acquire() and semaphore.release() or semaphore.available": "1",
    "permit.release()": "NotHeld True True True",
    "permit.extend()": "NotHeld True True True",
    "permit.remaining": "0.0",
    "memlock.semaphore_release(name)": "NotHeld True True False",
    "(counter.try_acquire(), counter.release())": "(True, 1)",
    # What is renewed. No loss is reported in the child, except of its own.
    "renewers(), renewed.is_held, renewed.lost, renewed.wait_lost(0.1)": "(0, False, None, None)",
    "renewed.release()": "NotHeld True True True",
    "renewed.check()": "NotHeld True True True",
    "renewed_permit.is_held, renewed_permit.lost": "(False, None)",
    "renewed_permit.release()": "NotHeld True True True",
    "renewed_permit.check()": "NotHeld True True True",
    "renewed_permit.extend()": "NotHeld True True True",
    "report_of_its_own()": "(1, False, ['gone'], [])",
    # What was left to the end of a transaction.
    "deferred.release() or mutex.locked()": "True",
    # Garbage collection in the child leaves all of it alone.
    "forget()": "(True, 1)",
    # These keep what they get.
    "client.mutex(name + '-other').acquire()": "True",
    "client.semaphore(name + '-other', 1).acquire()": "True",
    "client.distinct_list(name, 30).add('x')": "True",
    "memlock.semaphore_acquire_nonblock(name, 30)": "True",
}


def test_a_child_does_not_hold_what_its_parent_holds(server: Memcached, name: str) -> None:
    program = """
mutex, semaphore = client.mutex(name, lease=300), client.semaphore(name, 5, lease=300)
counter = client.counter(name)
mutex.acquire()
memlock.mutex_lock(name + "-bare", 300)
semaphore.acquire()
permit = semaphore.permit(permits=2)
memlock.semaphore_acquire(name, 300)
counter.set_up(1)
deferred = defer(mutex)
logging.getLogger("memlock").setLevel(logging.CRITICAL)
told = []
renewed = client.mutex(name + "-renewed", renew=True, on_lost=told.append)
renewed.acquire()
renewed_permit = client.semaphore(name + "-renewed", 1, renew=True).permit()
def renewers():
    tasks = pathlib.Path("/proc/self/task").iterdir()
    return sum("memlock-renewer" in (task / "comm").read_text() for task in tasks)
def report_of_its_own():
    its = []
    own = client.mutex(name + "-own", renew=True, on_lost=its.append)
    own.acquire()
    own.force_unlock(own.owner().token)
    # A thread names itself once it runs.
    while not renewers():
        time.sleep(0.001)
    found = renewers(), own.check()
    while not its:
        time.sleep(0.001)
    return *found, its, told
def forget():
    global mutex, semaphore, permit, deferred
    del mutex, semaphore, permit, deferred
    gc.collect()
    return client.mutex(name).locked(), client.semaphore(name).available
for body in iter(sys.stdin.readline, "end\\n"):
    in_child(lambda: eval(body))
assert client.mutex(name).locked() and renewed.check() and renewed_permit.check() and not told
mutex.release()
deferred.release()
memlock.mutex_unlock(name + "-bare")
semaphore.release()
permit.release()
memlock.semaphore_release(name)
print("released")
"""
    with Child(PRELUDE + program, server.url, name) as child:
        told = {}
        for body in BODIES:
            child.says(body)
            told[body] = child.reads()
        # An exception in the child is no breach of safety.
        is_released = re.match(r"\(False|\(True, [2-5]", told["forget()"])
        safe(not is_released, "the child released what its parent holds")
        assert told == BODIES
        child.says("end")
        assert child.reads() == "released"


def test_a_childs_end_leaves_what_its_parent_holds(server: Memcached, name: str) -> None:
    program = """
mutex, semaphore = client.mutex(name), client.semaphore(name, 5)
permit = semaphore.permit(permits=2)
def tell(who):
    print(who, mutex.locked(), semaphore.available, flush=True)
try:
    with mutex, semaphore:
        pid = os.fork()
        if pid == 0:
            sys.exit()  # with all the destructors of the interpreter's end
        assert os.waitpid(pid, 0)[1] == 0
        tell("after the exit")
    with mutex:
        pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
            tell("parent")
except memlock.NotHeld:
    # It has left the `with` statement that its parent entered.
    assert pid == 0
    tell("child")
    os._exit(0)
permit.release()
tell("released")
"""
    told = run(PRELUDE + program, server.url, name)
    safe("False" not in "".join(told[:3]), "the child released its parent's lock")
    assert told == [
        "after the exit True 2",
        "child True 3",
        "parent True 3",
        "released False 5",
    ]


def test_forking_while_threads_are_inside_calls_hangs_nobody(server: Memcached, name: str) -> None:
    program = """
stop = threading.Event()
shared, words = client.mutex(name), client.distinct_list(name, 60)
semaphore = client.semaphore(name, 5)
semaphore.acquire()
permit = semaphore.permit()
def work(number):
    while not stop.is_set():
        with shared:
            shared.extend()
        semaphore.extend()
        permit.extend()
        words.add(str(number))
        with client.mutex(f"{name}-{number}"):
            pass
        memlock.mutex_lock(name + "-bare", 30)
        memlock.mutex_unlock(name + "-bare")
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
done = []
for turn in range(20):
    pid = os.fork()
    if pid == 0:
        refused = 0
        for call in (semaphore.extend, semaphore.release, permit.extend, permit.release):
            try:
                call()
            except memlock.NotHeld:
                refused += 1
        for lock in (shared, client.mutex(f"{name}-child"), semaphore):
            assert lock.acquire(timeout=60)
            lock.extend()
            lock.release()
        words.add("child")
        memlock.mutex_lock(name + "-bare", 30)
        memlock.mutex_unlock(name + "-bare")
        del semaphore, permit, call, lock
        gc.collect()
        os._exit(refused)
    done.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
stop.set()
for thread in threads:
    thread.join()
permit.release()
semaphore.release()
print(set(done), sorted(words), semaphore.available)
"""
    (line,) = run(PRELUDE + program, server.url, name)
    assert line == "{4} ['0', '1', '2', '3', 'child'] 5"


def test_children_acquire_by_the_objects_that_they_inherited(server: Memcached, name: str) -> None:
    program = """
mutex = client.mutex(name)
counter = multiprocessing.RawValue("i", 0)
def work():
    for _ in range(50):
        with mutex:
            assert mutex.fence > first and mutex.owner().pid == os.getpid()
            seen = counter.value
            for _ in range(50):
                pass
            counter.value = seen + 1
mutex.acquire()
first = mutex.fence
context = multiprocessing.get_context("fork")
workers = [context.Process(target=work) for _ in range(4)]
for worker in workers:
    worker.start()
mutex.release()
for worker in workers:
    worker.join()
print(counter.value, [worker.exitcode for worker in workers], mutex.locked())
"""
    (line,) = run(PRELUDE + program, server.url, name)
    count, _, ended = line.partition(" ")
    safe(ended != "[0, 0, 0, 0] False" or count == "200", f"{count} of 200 updates")
    assert line == "200 [0, 0, 0, 0] False"


# How the program waits, how it gives back what it got, and in which queue it stands.
WAITS = [
    ("mutex.acquire()", "mutex.release()", "lock:"),
    ("mutex.acquire(timeout=60)", "mutex.release()", "lock:"),
    ("memlock.mutex_lock(name, 30)", "memlock.mutex_unlock(name)", "lock:"),
    ("semaphore.acquire()", "semaphore.release()", "semaphore:"),
    ("semaphore.acquire(timeout=60)", "semaphore.release()", "semaphore:"),
    ("memlock.semaphore_acquire(name, 30)", "memlock.semaphore_release(name)", "semaphore:"),
    ("counter.acquire(priority=0)", "counter.release()", ""),
]

# Its signal handler forks while it waits, and the child ends in the handler.
FORKING = """
import os, signal, sys, time
import memlock
url, name = sys.argv[1:]
client = memlock.connect(url)
memlock.init(url)
mutex, semaphore, counter = client.mutex(name), client.semaphore(name), client.counter(name)
def fork(*_):
    child = os.fork()
    if child == 0:
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
signal.signal(signal.SIGUSR1, fork)
for line in sys.stdin:
    blocks, gives_back = line.split(" then ")
    print("blocking", flush=True)
    answer = eval(blocks)
    print(time.monotonic(), answer, flush=True)
    eval(gives_back)
    print("done", flush=True)
"""


def test_a_signal_handler_that_forks_leaves_the_wait_of_its_thread_alone(
    server: Memcached, client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    mutex, semaphore, counter = client.mutex(name), client.semaphore(name, 1), client.counter(name)
    counter.set_up(1)
    with Child(FORKING, server.url, name) as program:

        def takes(way: tuple[str, str, str]) -> float:
            blocks, gives_back, kind = way
            for one in (mutex, semaphore, counter):
                assert one.acquire(timeout=0)
            program.says(f"{blocks} then {gives_back}")
            assert program.reads() == "blocking"
            eventually(lambda: len(plain.queue(name, kind)) == 1)
            program.signal(signal.SIGUSR1)
            assert program.reads() == "7"
            assert len(plain.queue(name, kind)) == 1, "it has lost its place"
            released = time.monotonic()
            for one in (mutex, semaphore, counter):
                one.release()
            ended, answer = program.reads().split()
            assert answer in ("True", "None"), way
            assert program.reads() == "done"
            assert plain.queue(name, kind) == []
            return float(ended) - released

        # Without its wake-up, the waiter would ask the server after 0.85 s at the earliest.
        for way in WAITS:
            quick_once(partial(takes, way), 0.6)
