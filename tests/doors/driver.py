"""Makes the calls of the conformance tests in Python. What it is told is said in driver.rs."""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import memlock

OK, BUSY, TIMED_OUT, EXISTS, NOT_HELD, NOT_FOUND = 0, 1, 2, 4, 5, 7

Words = list[str]


class PlainAnswerError(Exception):
    """An answer that Python gives by False or None, without a sentence."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


def to_hex(data: bytes | str) -> str:
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    return "x" + data.hex()


def from_hex(word: str) -> bytes:
    return bytes.fromhex(word[1:])


def seconds(ms: str) -> float:
    return int(ms) / 1000


def timeout(ms: str) -> float:
    return -1 if ms == "-1" else seconds(ms)


def to_ms(duration: float) -> str:
    return str(int(duration * 1000))


def expect(done: bool, otherwise: int) -> None:
    if not done:
        raise PlainAnswerError(otherwise)


def refusal(wait: str) -> int:
    return BUSY if wait == "0" else TIMED_OUT


class ClientObject:
    def __init__(self, url: str) -> None:
        self.client = memlock.connect(from_hex(url).decode())

    def lock(self, new: str, name: str, lease: str, wait: str) -> None:
        mutex = self.client.mutex(from_hex(name), seconds(lease))
        if wait == "0":
            expect(mutex.acquire(blocking=False), BUSY)
        else:
            expect(mutex.acquire(timeout=timeout(wait)), TIMED_OUT)
        objects[new] = LockObject(mutex)

    def lock_renewed(self, new: str, name: str, lease: str, longest: str) -> None:
        watch = Watch(longest)
        mutex = self.client.mutex(from_hex(name), seconds(lease), **watch.options)
        mutex.acquire()
        objects[new] = RenewedObject(mutex, watch)

    def owner(self, name: str) -> Words:
        owner = self.client.mutex(from_hex(name)).owner()
        return [] if owner is None else [to_hex(owner.token), str(owner.pid), str(owner.since)]

    def force_unlock(self, name: str, token: str) -> None:
        mutex = self.client.mutex(from_hex(name))
        expect(mutex.force_unlock(from_hex(token).decode()), NOT_HELD)

    def semaphore(self, new: str, name: str, permits: str, lease: str, mismatch: str) -> None:
        number = None if permits == "-" else int(permits)
        arguments = (from_hex(name), number, seconds(lease))
        objects[new] = SemaphoreObject(self.client, arguments, mismatch)

    def counter(self, new: str, key: str) -> None:
        objects[new] = CounterObject(self.client, from_hex(key))

    def set_up_list(self, new: str, session: str, duration: str) -> Words:
        made = self.client.distinct_list(from_hex(session), seconds(duration))
        objects[new] = ListObject(made)
        return [str(OK if made.created else EXISTS)]

    def cancel_waits(self) -> None:
        self.client.cancel_waits()


class HeldObject:
    def __init__(self, held: memlock.Mutex | memlock.Permit) -> None:
        self.held = held

    def remaining(self) -> Words:
        return [to_ms(self.held.remaining)]

    def extend(self, lease: str) -> None:
        self.held.extend(seconds(lease))

    def release(self) -> None:
        self.held.release()


class LockObject(HeldObject):
    held: memlock.Mutex

    def fence(self) -> Words:
        return [str(self.held.fence)]


class Watch:
    """How something is renewed, and what its callbacks were told."""

    def __init__(self, longest: str) -> None:
        self.notices: Words = []
        self.options: dict[str, Any] = {
            "renew": True,
            "max_hold": None if longest == "-" else seconds(longest),
            "on_lease_at_risk": lambda left: self.notices.append(":" + to_ms(left)),
            "on_lost": self.notices.append,
        }


class RenewedObject:
    def __init__(self, held: memlock.Mutex | memlock.Permit, watch: Watch) -> None:
        self.held, self.watch = held, watch

    def is_held(self) -> Words:
        return [str(int(self.held.is_held))]

    def check(self) -> Words:
        return [str(int(self.held.check()))]

    def lost(self) -> Words:
        return [self.held.lost] if self.held.lost else []

    def wait_lost(self, limit: str) -> Words:
        lost = self.held.wait_lost(seconds(limit))
        return [lost] if lost else []

    def notices(self) -> Words:
        return list(self.watch.notices)

    def release(self) -> None:
        self.held.release()


class SemaphoreObject:
    def __init__(
        self, client: memlock.Client, arguments: tuple[bytes, int | None, float], mismatch: Any
    ) -> None:
        self.client, self.arguments, self.mismatch = client, arguments, mismatch
        self.semaphore = client.semaphore(*arguments, mismatch=mismatch)

    def acquire(self, new: str, permits: str, priority: str, ages: str, wait: str) -> None:
        objects[new] = HeldObject(
            self.permit(
                wait,
                permits=int(permits),
                priority=int(priority),
                ages=ages == "1",
            )
        )

    def permit(self, wait: str, **request: Any) -> memlock.Permit:
        try:
            return self.semaphore.permit(timeout(wait), **request)
        except memlock.TimedOut as error:
            # Not to wait is a timeout of zero here.
            error.code = refusal(wait)
            raise

    def acquire_renewed(self, new: str, permits: str, longest: str) -> None:
        watch = Watch(longest)
        renewing = self.client.semaphore(*self.arguments, mismatch=self.mismatch, **watch.options)
        objects[new] = RenewedObject(renewing.permit(permits=int(permits)), watch)

    def set_up(self, life: str) -> Words:
        return [str(OK if self.semaphore.set_up(seconds(life)) else EXISTS)]

    def tear_down(self) -> None:
        expect(self.semaphore.tear_down(), NOT_FOUND)

    def resize(self, permits: str) -> None:
        self.semaphore.resize(int(permits))

    def permits(self) -> Words:
        return [str(self.semaphore.permits)]

    def available(self) -> Words:
        return [str(self.semaphore.available)]

    def holders(self) -> Words:
        values = []
        for holder in self.semaphore.holders():
            values += [to_hex(holder.token), to_hex(holder.host), str(holder.pid)]
            values += [str(holder.permits), str(holder.since), to_ms(holder.remaining)]
        return values


class CounterObject:
    def __init__(self, client: memlock.Client, key: bytes) -> None:
        self.client, self.key = client, key

    @property
    def counter(self) -> memlock.Counter:
        return self.client.counter(self.key)

    def set_up(self, permits: str) -> Words:
        return [str(OK if self.counter.set_up(int(permits)) else EXISTS)]

    def try_acquire(self) -> None:
        expect(self.counter.try_acquire(), BUSY)

    def retry(self, wait: str) -> None:
        expect(self.counter.acquire(timeout(wait)), refusal(wait))

    def park(self, priority: str, wait: str) -> None:
        expect(self.counter.acquire(timeout(wait), int(priority)), refusal(wait))

    def release(self) -> None:
        self.counter.release()

    def available(self) -> Words:
        return [str(self.counter.available)]


class ListObject:
    def __init__(self, made: memlock.DistinctList) -> None:
        self.list = made

    def insert(self, key: str) -> Words:
        first = self.list.add(from_hex(key))
        return [str(self.list.id(from_hex(key))), str(int(first))]

    def insert_many(self, *keys: str) -> Words:
        pairs = self.list.add_many(from_hex(key) for key in keys)
        return [word for id_, first in pairs for word in (str(id_), str(int(first)))]

    def id(self, key: str) -> Words:
        try:
            return [str(self.list.id(from_hex(key)))]
        except KeyError:
            return []

    def count(self) -> Words:
        return [str(len(self.list))]

    def walk(self) -> Words:
        return [word for id_, key in self.list.items() for word in (str(id_), to_hex(key))]

    def tear_down(self) -> None:
        expect(self.list.tear_down(), NOT_FOUND)


objects: dict[str, Any] = {}
# The name of the lock, semaphore, counter or list that an object is about.
names: dict[str, str] = {}
MAKING = (
    "lock",
    "lock_renewed",
    "acquire",
    "acquire_renewed",
    "semaphore",
    "counter",
    "set_up_list",
)
threads: dict[str, queue.SimpleQueue[Callable[[], None] | None]] = {}
saying = threading.Lock()


def say(*words: str) -> None:
    with saying:
        os.write(1, (" ".join(words) + "\n").encode())


def is_named(error: memlock.Error, name: str) -> bool:
    """Whether it names what it is about, as every exception of a call does."""
    shown = from_hex(name).decode("utf-8", "replace")[:100]
    return f'"{shown}' in str(error) or f":{shown}" in str(error)


def call(number: str, target: str, verb: str, arguments: Words) -> None:
    say(number, "at", str(threading.get_native_id()))
    name = names.get(target) or next((word for word in arguments if word[0] == "x"), "")
    if verb in MAKING:
        names[arguments[0]] = name
    try:
        if verb == "open":
            objects[arguments[0]] = ClientObject(arguments[1])
            values = None
        elif verb == "drop":
            # There may be none, since what was to be acquired was not.
            objects.pop(target, None)
            values = None
        else:
            values = getattr(objects[target], verb)(*arguments)
    except PlainAnswerError as no:
        say(number, "no", str(no.code), "-")
    except memlock.Error as error:
        if not is_named(error, name):
            traceback.print_exc()
            os._exit(1)
        say(number, "no", str(error.code), to_hex(str(error)))
    except Exception:
        # No answer would come any more.
        traceback.print_exc()
        os._exit(1)
    else:
        say(number, "ok", *(values or []))


def call_the_last(number: str, target: str, verb: str, arguments: Words) -> None:
    """Calls an object that ends with this call."""
    call(number, target, verb, arguments)
    objects.pop(target, None)


def work(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (next_call := calls.get()) is not None:
        next_call()


def main() -> None:
    say("ready")
    for line in sys.stdin:
        number, thread, target, verb, *arguments = line.split()
        is_last = thread != "0" and verb in ("drop", "release")
        run = partial(call_the_last if is_last else call, number, target, verb, arguments)
        if thread == "0":
            threading.Thread(target=run, daemon=True).start()
            continue
        if thread not in threads:
            threads[thread] = queue.SimpleQueue()
            threading.Thread(target=work, args=(threads[thread],), daemon=True).start()
        threads[thread].put(run)
        if is_last:
            threads.pop(thread).put(None)
    # Nothing is released: this is how a process dies.
    os._exit(0)


if __name__ == "__main__":
    main()
