"""Burton's six functions, and those of the semaphore; and how the default client is chosen, which
happens once in a process."""

from __future__ import annotations

from pathlib import Path

import memlock
import pytest
from support import Memcached, MemcachedText, run

PRELUDE = """
import logging, os, pathlib, sys, threading
import memlock
from memlock import *
url, name = sys.argv[1:]
address = url.partition("//")[2].partition("?")[0]

def says(call):
    try:
        print(call(), end=",")
    except memlock.Error as error:
        is_named = name in str(error) and address in str(error)
        print(type(error).__name__, error.code, end="," if is_named else " of no name,")
    except TypeError:
        print("TypeError", end=",")

def another_thread(call):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers
"""

# What cannot be a name or a number is not repeated.
NAMED, UNNAMED = "Invalid -1,", "Invalid -1 of no name,"

# Each part prints one line.
PARTS = {
    # The default client is chosen once; an attempt that fails is none.
    """
for given in ("nonsense", url, url):
    says(lambda: init(given))
""": "ConfigError -5 of no name,None,ConfigError -5 of no name,",
    # A mutex.
    """
for call in (lambda: mutex_unlock(name), lambda: mutex_lock(name, 30), lambda: mutex_lock(name, 30),
             lambda: mutex_lock_nonblock(name, 30), lambda: mutex_unlock(name),
             lambda: mutex_unlock(name), lambda: mutex_lock_nonblock(name, 30.5)):
    says(call)
""": "NotHeld 5,True,Deadlock -6,False,True,NotHeld 5,True,",
    # Another thread waits, and may unlock.
    """
thread, answers = another_thread(lambda: mutex_lock(name, 30))
says(lambda: mutex_unlock(name))
thread.join()
says(lambda: answers)
says(lambda: mutex_unlock(name))
""": "True,[True],True,",
    # A lock that is lost.
    """
mutex_lock(name, 30)
mutex = connect(url).mutex(name)
mutex.force_unlock(mutex.owner().token)
says(lambda: mutex_unlock(name))
""": "LockLost 6,",
    # A distinct list.
    """
for call in (lambda: distinct_list_insert(name, "a"), lambda: distinct_list_set_up(name, 30),
             lambda: distinct_list_set_up(name, 30), lambda: distinct_list_insert(name, "a"),
             lambda: distinct_list_insert(name, b"a"), lambda: distinct_list_tear_down(name),
             lambda: distinct_list_tear_down(name), lambda: distinct_list_insert(name, "a")):
    says(call)
""": "SessionNotFound 7,True,False,True,False,True,False,SessionNotFound 7,",
    # A semaphore. That it has another number of permits is a warning.
    """
warnings, listener = [], logging.Handler()
listener.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger("memlock").addHandler(listener)
for call in (lambda: semaphore_acquire(name, 30), lambda: semaphore_acquire_nonblock(name, 30),
             lambda: semaphore_release(name), lambda: semaphore_tear_down(name),
             lambda: semaphore_set_up(name, 2, 60), lambda: semaphore_set_up(name, 2, 60),
             lambda: semaphore_set_up(name, 3, 60), lambda: semaphore_acquire(name, 30),
             lambda: semaphore_acquire_nonblock(name, 30.5),
             lambda: semaphore_acquire_nonblock(name, 30), lambda: semaphore_release(name),
             lambda: semaphore_tear_down(name), lambda: semaphore_release(name),
             lambda: semaphore_release(name)):
    says(call)
logging.getLogger("memlock").removeHandler(listener)
says(lambda: ["opened with 3: 2 applies" in text for text in warnings])
""": "SemaphoreNotFound 7,SemaphoreNotFound 7,NotHeld 5,False,True,False,False,"
    "True,True,False,True,True,LockLost 6,NotHeld 5,[True],",
    # Another thread waits for a permit, and may release it.
    """
semaphore_set_up(name, 1, 60)
semaphore_acquire(name, 30)
thread, answers = another_thread(lambda: semaphore_acquire(name, 30))
says(lambda: semaphore_release(name))
thread.join()
says(lambda: answers)
says(lambda: semaphore_release(name))
says(lambda: connect(url).semaphore(name).available)
""": "True,[True],True,1,",
    # What cannot be a name, a duration or a number.
    """
for bad in ("", "a\\0b", "x" * 65537):
    for call in (lambda: mutex_lock(bad, 30), lambda: mutex_unlock(bad),
                 lambda: semaphore_set_up(bad, 1, 30), lambda: semaphore_acquire(bad, 30),
                 lambda: semaphore_release(bad), lambda: semaphore_tear_down(bad)):
        says(call)
for duration in (0, 0.9, -1, float("nan"), 1e300, 10**400):
    for call in (lambda: mutex_lock(name, duration), lambda: semaphore_set_up(name, 1, duration),
                 lambda: semaphore_acquire(name, duration)):
        says(call)
for permits in (0, -1, 2**32):
    says(lambda: semaphore_set_up(name, permits, 30))
for wrong in (lambda: mutex_lock(5, 30), lambda: mutex_lock(name, "30"), lambda: mutex_lock(name),
              lambda: semaphore_set_up(name, "1", 30)):
    says(wrong)
""": f"{UNNAMED * 18}{NAMED * 6}{UNNAMED * 12}{NAMED}{UNNAMED * 2}" + "TypeError," * 4,
    # The waits of the default client can be cancelled.
    """
def wait():
    try:
        mutex_lock(name, 30)
    except Interrupted as error:
        return name in str(error)
with connect(url).mutex(name):
    thread, answers = another_thread(wait)
    while thread.is_alive():
        memlock.cancel_waits()
        thread.join(0.05)
says(lambda: answers)
""": "[True],",
}


def test_the_bare_functions(server: Memcached, plain: MemcachedText, name: str) -> None:
    program = PRELUDE + "print()".join(PARTS)
    assert run(program, server.url, name) == list(PARTS.values())
    assert plain.get(f"lock:{name}") is None


@pytest.mark.parametrize("set_in_python", [True, False])
def test_the_environment_names_the_servers(
    server: Memcached,
    plain: MemcachedText,
    name: str,
    set_in_python: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MEMLOCK_URL", "" if set_in_python else server.url)
    program = 'os.environ["MEMLOCK_URL"] = url\n' if set_in_python else ""
    program += """
says(lambda: mutex_lock(name, 30))
says(lambda: connect().mutex(name).locked())
"""
    assert run(PRELUDE + program, server.url, name) == ["True,True,"]
    assert plain.get(f"lock:{name}") is not None, "the end of the program releases it not"


def test_a_file_names_the_servers_and_what_is_wrong_is_named(
    server: Memcached, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file, so that a password need not be in the environment."""
    monkeypatch.setenv("MEMLOCK_URL", "carrier-pigeon://loft")
    monkeypatch.delenv("MEMLOCK_URL_FILE", raising=False)
    monkeypatch.setenv("FILE", str(tmp_path / "url"))
    program = """
def fails(*words):
    for call in (connect, lambda: mutex_lock(name, 30)):
        try:
            call()
        except ConfigError as error:
            print(*(word in str(error) for word in words), end=",")
    print()
fails("MEMLOCK_URL", "carrier-pigeon")
del os.environ["MEMLOCK_URL"]
os.environ["MEMLOCK_URL_FILE"] = os.environ["FILE"]
file = pathlib.Path(os.environ["FILE"])
fails("MEMLOCK_URL_FILE", "secret")
for content in ("", "\\n", "pigeon://u:secret@h"):
    file.write_text(content)
    fails("MEMLOCK_URL_FILE", "secret")
file.write_text(f"{url}\\n# the second line is ignored\\n")
says(lambda: mutex_lock(name, 30))
says(lambda: connect().mutex(name).locked())
"""
    refused = ["True True,True True,", *["True False,True False,"] * 4]
    assert run(PRELUDE + program, server.url, name) == [*refused, "True,True,"]


def test_without_any_choice_it_is_the_local_memcached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMLOCK_URL", raising=False)
    monkeypatch.delenv("MEMLOCK_URL_FILE", raising=False)
    assert repr(memlock.connect()) == '<memlock.Client "memcached://127.0.0.1:11211">'
