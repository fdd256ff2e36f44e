"""Burton's six functions, and those of the semaphore. Each test has a process of its own, since
the default client is chosen once."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Memcached, MemcachedText, run

PRELUDE = """
import os, sys, threading
import memlock
from memlock import *
url, name = sys.argv[1:]

def says(call):
    try:
        print(call())
    except memlock.Error as error:
        print(type(error).__name__, error.code)
"""


def lines(program: str, server: Memcached, name: str) -> list[str]:
    return run(PRELUDE + program, server.url, name)


def test_a_mutex_is_locked_and_unlocked(server: Memcached, plain: MemcachedText, name: str) -> None:
    program = """
init(url)
says(lambda: mutex_unlock(name))
says(lambda: mutex_lock(name, 30))
says(lambda: mutex_lock(name, 30))
says(lambda: mutex_lock_nonblock(name, 30))
says(lambda: mutex_unlock(name))
says(lambda: mutex_unlock(name))
says(lambda: mutex_lock_nonblock(name, 30.5))
"""
    answers = ["NotHeld 5", "True", "Deadlock -6", "False", "True", "NotHeld 5", "True"]
    assert lines(program, server, name) == answers
    assert plain.get(f"lock:{name}") is not None


def test_another_thread_waits_and_may_unlock(server: Memcached, name: str) -> None:
    program = """
init(url)
mutex_lock(name, 30)
locked = []
thread = threading.Thread(target=lambda: locked.append(mutex_lock(name, 30)))
thread.start()
says(lambda: mutex_unlock(name))
thread.join()
print(locked)
says(lambda: mutex_unlock(name))
"""
    assert lines(program, server, name) == ["True", "[True]", "True"]


def test_a_lost_lock_is_said_to_be_lost(server: Memcached, name: str) -> None:
    program = """
init(url)
mutex_lock(name, 30)
mutex = connect(url).mutex(name)
mutex.force_unlock(mutex.owner().token)
says(lambda: mutex_unlock(name))
"""
    assert lines(program, server, name) == ["LockLost 6"]


def test_a_distinct_list(server: Memcached, name: str) -> None:
    program = """
init(url)
says(lambda: distinct_list_insert(name, "a"))
says(lambda: distinct_list_set_up(name, 30))
says(lambda: distinct_list_set_up(name, 30))
says(lambda: distinct_list_insert(name, "a"))
says(lambda: distinct_list_insert(name, b"a"))
says(lambda: distinct_list_tear_down(name))
says(lambda: distinct_list_tear_down(name))
says(lambda: distinct_list_insert(name, "a"))
"""
    answers = ["SessionNotFound 7", "True", "False", "True", "False", "True", "False"]
    assert lines(program, server, name) == [*answers, "SessionNotFound 7"]


def test_a_semaphore(server: Memcached, name: str) -> None:
    program = """
init(url)
says(lambda: semaphore_acquire(name, 30))
says(lambda: semaphore_acquire_nonblock(name, 30))
says(lambda: semaphore_release(name))
says(lambda: semaphore_tear_down(name))
says(lambda: semaphore_set_up(name, 2, 60))
says(lambda: semaphore_set_up(name, 2, 60))
says(lambda: semaphore_set_up(name, 3, 60))
says(lambda: semaphore_acquire(name, 30))
says(lambda: semaphore_acquire_nonblock(name, 30.5))
says(lambda: semaphore_acquire_nonblock(name, 30))
says(lambda: semaphore_release(name))
says(lambda: semaphore_tear_down(name))
says(lambda: semaphore_release(name))
says(lambda: semaphore_release(name))
"""
    answers = ["SemaphoreNotFound 7"] * 2 + ["NotHeld 5", "False", "True", "False", "Invalid -1"]
    answers += ["True", "True", "False", "True", "True", "LockLost 6", "NotHeld 5"]
    assert lines(program, server, name) == answers


def test_another_thread_waits_for_a_permit_and_may_release_it(server: Memcached, name: str) -> None:
    program = """
init(url)
semaphore_set_up(name, 1, 60)
semaphore_acquire(name, 30)
acquired = []
thread = threading.Thread(target=lambda: acquired.append(semaphore_acquire(name, 30)))
thread.start()
says(lambda: semaphore_release(name))
thread.join()
print(acquired)
says(lambda: semaphore_release(name))
print(connect(url).semaphore(name).available)
"""
    assert lines(program, server, name) == ["True", "[True]", "True", "1"]


def test_arguments_are_checked(server: Memcached, name: str) -> None:
    program = """
init(url)
for bad in ("", "a\\0b", "x" * 65537):
    says(lambda: mutex_lock(bad, 30))
    says(lambda: mutex_unlock(bad))
    says(lambda: semaphore_set_up(bad, 1, 30))
    says(lambda: semaphore_acquire(bad, 30))
    says(lambda: semaphore_release(bad))
    says(lambda: semaphore_tear_down(bad))
for duration in (0, 0.9, -1, float("nan"), 1e300, 10**400):
    says(lambda: mutex_lock(name, duration))
    says(lambda: semaphore_set_up(name, 1, duration))
    says(lambda: semaphore_acquire(name, duration))
for permits in (0, -1, 2**32):
    says(lambda: semaphore_set_up(name, permits, 30))
for wrong in (
    lambda: mutex_lock(5, 30),
    lambda: mutex_lock(name, "30"),
    lambda: mutex_lock(name),
    lambda: semaphore_set_up(name, "1", 30),
):
    try:
        wrong()
    except TypeError:
        print("TypeError")
"""
    assert lines(program, server, name) == ["Invalid -1"] * 39 + ["TypeError"] * 4


def test_the_default_client_is_chosen_once(server: Memcached, name: str) -> None:
    program = """
says(lambda: init("nonsense"))
says(lambda: init(url))
says(lambda: init(url))
"""
    assert lines(program, server, name) == ["ConfigError -5", "None", "ConfigError -5"]


@pytest.mark.parametrize("set_in_python", [True, False])
def test_the_environment_names_the_servers(
    server: Memcached, name: str, set_in_python: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMLOCK_URL", "" if set_in_python else server.url)
    program = 'os.environ["MEMLOCK_URL"] = url\n' if set_in_python else ""
    program += """
says(lambda: mutex_lock(name, 30))
says(lambda: connect().mutex(name).locked())
"""
    assert lines(program, server, name) == ["True", "True"]


def test_a_file_names_the_servers(
    server: Memcached, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a password need not be in the environment."""
    file = tmp_path / "url"
    file.write_text(f"{server.url}\n# the second line is ignored\n")
    monkeypatch.delenv("MEMLOCK_URL", raising=False)
    monkeypatch.setenv("MEMLOCK_URL_FILE", str(file))
    program = """
says(lambda: mutex_lock(name, 30))
says(lambda: connect().mutex(name).locked())
"""
    assert lines(program, server, name) == ["True", "True"]
    program = """
for call in (connect, lambda: mutex_lock(name, 30)):
    try:
        call()
    except ConfigError as error:
        print("MEMLOCK_URL_FILE" in str(error), "secret" in str(error))
"""
    for content in ("", "\n", "pigeon://u:secret@h", None):
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        assert lines(program, server, name) == ["True False", "True False"], content


def test_a_broken_environment_is_named(
    server: Memcached, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMLOCK_URL", "carrier-pigeon://loft")
    program = """
for call in (connect, lambda: mutex_lock(name, 30)):
    try:
        call()
    except ConfigError as error:
        print("MEMLOCK_URL" in str(error), "carrier-pigeon" in str(error))
"""
    assert lines(program, server, name) == ["True True", "True True"]


def test_without_any_choice_it_is_the_local_memcached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMLOCK_URL", raising=False)
    (line,) = run("import memlock; print(memlock.connect())")
    assert line == '<memlock.Client "memcached://127.0.0.1:11211">'
