"""The semaphore behaves like threading.BoundedSemaphore, and says what happened."""

from __future__ import annotations

import gc
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import memlock
import pytest
from support import Memcached, MemcachedText, answered, eventually


class BodyError(Exception):
    pass


def test_a_permit_is_taken_and_released(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, permits=3)
    assert (semaphore.available, semaphore.permits, semaphore.holders()) == (3, 3, [])
    assert semaphore.acquire() is True
    assert (semaphore.available, semaphore.permits) == (2, 3)
    assert semaphore.release() is None
    assert semaphore.available == 3


def test_with_gives_the_semaphore(any_client: memlock.Client, name: str) -> None:
    with any_client.semaphore(name, 3, lease=20) as semaphore:
        assert semaphore.available == 2
        assert 19 < semaphore.remaining <= 20
    assert semaphore.available == 3
    assert semaphore.remaining == 0.0


def test_no_more_are_given_than_there_are(any_client: memlock.Client, name: str) -> None:
    semaphores = [any_client.semaphore(name, 2) for _ in range(3)]
    assert [each.acquire(blocking=False) for each in semaphores] == [True, True, False]
    semaphores[0].release()
    assert semaphores[2].acquire(False) is True


def test_one_object_holds_several_acquisitions(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 2)
    with semaphore, semaphore:
        assert semaphore.available == 0
        assert semaphore.acquire(blocking=False) is False
        assert len({holder.token for holder in semaphore.holders()}) == 2
    assert semaphore.available == 2


def test_several_permits_are_taken_together_or_not_at_all(
    any_client: memlock.Client, name: str
) -> None:
    semaphore = any_client.semaphore(name, 3)
    assert semaphore.acquire(permits=2) is True
    assert semaphore.acquire(blocking=False, permits=2) is False
    assert semaphore.available == 1
    assert semaphore.acquire(permits=1) is True
    # The latest first: the single one, and then both of the others by one release.
    semaphore.release()
    assert semaphore.available == 1
    semaphore.release()
    assert semaphore.available == 3


def test_release_n_undoes_n_acquisitions_or_none(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 5)
    for permits in (1, 2, 1):
        semaphore.acquire(permits=permits)
    with pytest.raises(memlock.NotHeld):
        semaphore.release(4)
    assert semaphore.available == 1
    semaphore.release(2)
    assert semaphore.available == 4
    semaphore.release(n=1)
    assert semaphore.available == 5
    for n in (0, -1):
        with pytest.raises(ValueError):
            semaphore.release(n)
    with pytest.raises(memlock.NotHeld):
        semaphore.release(2**62)


def test_releasing_what_is_not_held_is_an_error(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 2)
    with any_client.semaphore(name, 2):
        for nothing in [semaphore.release, semaphore.extend]:
            with pytest.raises(memlock.NotHeld) as caught:
                nothing()
            assert isinstance(caught.value, RuntimeError)
        assert semaphore.available == 1, "another object's is left alone"


def test_timeouts_are_those_of_threadings_semaphores_and_locks(
    any_client: memlock.Client, name: str
) -> None:
    semaphore = any_client.semaphore(name, 1)
    for blocking, timeout in [(True, None), (True, -1), (False, None), (False, -1), (1, 0)]:
        assert semaphore.acquire(blocking, timeout) is True  # type: ignore[arg-type]
        semaphore.release()
    for blocking, timeout in [(False, 1.0), (False, 0), (True, -2), (True, float("nan"))]:
        with pytest.raises(ValueError):
            semaphore.acquire(blocking, timeout)
    with pytest.raises(OverflowError):
        semaphore.acquire(timeout=1e20)
    with pytest.raises(TypeError):
        semaphore.acquire(timeout="1")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        semaphore.acquire(True, 1, 1)  # type: ignore[call-overload, misc]
    assert semaphore.available == 1


def test_a_wait_ends_at_its_limit(any_client: memlock.Client, name: str) -> None:
    with any_client.semaphore(name, 1) as semaphore:
        for timeout in [0.05, 0.4]:
            began = time.monotonic()
            assert semaphore.acquire(timeout=timeout) is False
            assert timeout <= time.monotonic() - began < timeout + 1
        for timeout in [0, 0.1, timedelta(milliseconds=100)]:
            impatient = any_client.semaphore(name, 1, timeout=timeout)
            assert impatient.acquire() is False
            assert impatient.acquire(timeout=None) is False
            with pytest.raises(memlock.TimedOut, match=name), impatient:
                raise AssertionError("the body ran without a permit")
            with pytest.raises(TimeoutError, match=name):
                impatient.permit()


@pytest.mark.parametrize("permits", [0, -1, 2**32, 10**30])
def test_unusable_numbers_of_permits_are_refused(
    any_client: memlock.Client, name: str, permits: int
) -> None:
    for call in [
        lambda: any_client.semaphore(name, permits),
        lambda: any_client.semaphore(name, 3).acquire(permits=permits),
        lambda: any_client.semaphore(name, 3).permit(permits=permits),
        lambda: any_client.semaphore(name, 3).resize(permits),
    ]:
        with pytest.raises(memlock.Invalid):
            call()


def test_other_unusable_arguments_are_refused(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 3)
    with pytest.raises(memlock.Invalid, match="there are 3"):
        semaphore.acquire(permits=4)
    with pytest.raises(memlock.Invalid):
        semaphore.acquire(priority=2**63)
    for wrong in ["3", 1.5]:
        with pytest.raises(TypeError):
            any_client.semaphore(name, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            semaphore.acquire(priority=wrong)  # type: ignore[arg-type]
    for bad in ["", "a\0b", "x" * 65537]:
        with pytest.raises(memlock.Invalid):
            any_client.semaphore(bad, 3)
    with pytest.raises(memlock.Invalid):
        any_client.semaphore(name, 3, lease=0.5)
    assert semaphore.acquire(priority=-(2**63), ages=False) is True
    assert semaphore.acquire(priority=2**63 - 1) is True


def test_the_number_of_permits_is_shared(any_client: memlock.Client, name: str) -> None:
    stranger = any_client.semaphore(name)
    unknown = [
        stranger.acquire,
        stranger.permit,
        stranger.holders,
        lambda: stranger.available,
        lambda: stranger.permits,
        lambda: stranger.resize(3),
    ]
    for call in unknown:
        with pytest.raises(memlock.SemaphoreNotFound, match=name):
            call()
    any_client.semaphore(name, 2).acquire()
    assert (stranger.permits, stranger.acquire(), stranger.acquire(False)) == (2, True, True)
    with pytest.raises(memlock.Invalid, match="opened with 3"):
        any_client.semaphore(name, 3).acquire()


def test_it_is_set_up_once_and_torn_down_for_everybody(
    any_client: memlock.Client, name: str
) -> None:
    semaphore = any_client.semaphore(name, 2)
    stranger = any_client.semaphore(name)
    with pytest.raises(memlock.SemaphoreNotFound):
        stranger.set_up(60)
    assert semaphore.set_up(60) is True
    assert semaphore.set_up(timedelta(minutes=1)) is False
    assert stranger.set_up(60) is False
    for unusable in [
        lambda: semaphore.set_up(0.5),
        lambda: any_client.semaphore(name, 3).set_up(9),
    ]:
        with pytest.raises(memlock.Invalid):
            unusable()
    stranger.acquire()
    assert semaphore.tear_down() is True
    assert semaphore.tear_down() is False
    with pytest.raises(memlock.LockLost):
        stranger.release()
    with pytest.raises(memlock.SemaphoreNotFound):
        stranger.acquire()
    assert semaphore.acquire() is True, "who knows the number sets it up again"


def test_resizing_is_for_everybody(any_client: memlock.Client, name: str) -> None:
    semaphore, other = any_client.semaphore(name, 1), any_client.semaphore(name, 1)
    with pytest.raises(memlock.SemaphoreNotFound):
        semaphore.resize(2)
    semaphore.acquire()
    assert other.acquire(blocking=False) is False
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.acquire)
        assert semaphore.resize(2) == 1
        assert waiting.result(20) is True
    assert semaphore.resize(1) == 2
    assert (semaphore.permits, semaphore.available) == (1, 0)
    semaphore.release()
    assert other.available == 0, "two were held of one that there is"
    other.release()
    assert other.available == 1


def test_holders_are_told(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 5, lease=60)
    with semaphore.permit(permits=3) as permit:
        (holder,) = semaphore.holders()
        assert holder.token == permit.token
        assert holder.host == socket.gethostname()[:32]
        assert (holder.pid, holder.permits) == (os.getpid(), 3)
        assert abs(holder.since - time.time()) < 10
        assert 55 <= holder.remaining <= 62
        assert f"pid={holder.pid}" in repr(holder)
        assert holder == holder  # noqa: PLR0124
        with semaphore:
            (first, second) = semaphore.holders()
            assert first != second


def test_a_permit_is_an_acquisition_of_its_own(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 5, lease=10)
    with semaphore.permit(permits=2, priority=5) as permit, semaphore:
        assert (permit.permits, semaphore.available) == (2, 2)
        assert 8 < permit.remaining <= 10
        permit.extend(60)
        assert 58 < permit.remaining <= 60
        assert 8 < semaphore.remaining <= 10
        permit.extend()
        assert 8 < permit.remaining <= 10
        with pytest.raises(memlock.Invalid):
            permit.extend(0.5)
        assert "permits=2" in repr(permit)
        semaphore.release()
        with pytest.raises(memlock.NotHeld):
            semaphore.release()
        assert semaphore.available == 3
        semaphore.acquire()
    assert semaphore.available == 5
    assert permit.remaining == 0.0
    assert "expired or released" in repr(permit)
    for over in [permit.release, permit.extend]:
        with pytest.raises(memlock.NotHeld):
            over()


def test_a_permit_may_be_released_by_another_thread_and_by_being_forgotten(
    any_client: memlock.Client, name: str
) -> None:
    semaphore = any_client.semaphore(name, 1)
    with ThreadPoolExecutor(1) as pool:
        permit = pool.submit(semaphore.permit).result()
        with pytest.raises(memlock.TimedOut):
            semaphore.permit(0)
        permit.release()
        permit = pool.submit(semaphore.permit).result()
    assert semaphore.available == 0
    del permit
    gc.collect()
    assert semaphore.available == 1


def test_a_permits_with_hides_no_exception_of_its_body(
    any_client: memlock.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    semaphore = any_client.semaphore(name, 1)
    with pytest.raises(BodyError), semaphore.permit():
        raise BodyError
    assert semaphore.available == 1
    with pytest.raises(BodyError), semaphore:
        semaphore.release()
        raise BodyError
    assert not caplog.records
    with pytest.raises(memlock.NotHeld), semaphore.permit() as permit:
        permit.release()
    for open_one in [lambda: semaphore, semaphore.permit]:
        with pytest.raises(BodyError), open_one():  # type: ignore[attr-defined]
            semaphore.tear_down()
            raise BodyError
        assert name in caplog.records[-1].getMessage()
        assert "LockLost" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2


def test_extending_gives_a_new_lease(any_client: memlock.Client, name: str) -> None:
    with any_client.semaphore(name, 2, lease=timedelta(seconds=10)) as semaphore:
        semaphore.extend(60)
        assert 58 < semaphore.remaining <= 60
        semaphore.acquire()
        assert 8 < semaphore.remaining <= 10, "the latest is meant"
        semaphore.release()
        assert 55 < semaphore.remaining <= 60
        semaphore.extend()
        assert 8 < semaphore.remaining <= 10
        (holder,) = semaphore.holders()
        assert holder.remaining < 15


def test_a_lease_that_runs_out_gives_the_permit_back(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 1, lease=1)
    began = time.monotonic()
    answered(semaphore.acquire)
    other = any_client.semaphore(name, 1)
    assert other.acquire(timeout=10)
    # Up to four seconds after the lease, and a machine may be busy.
    assert 0.9 < time.monotonic() - began < 8
    assert semaphore.remaining == 0.0
    for _ in range(2):
        with pytest.raises(memlock.LockLost):
            semaphore.extend()
    with pytest.raises(memlock.LockLost):
        semaphore.release()
    with pytest.raises(memlock.NotHeld):
        semaphore.release()
    other.release()


def test_a_lost_permit_is_told_and_the_others_are_released(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    semaphore = client.semaphore(name, 3)
    semaphore.acquire()
    plain.delete(f"semaphore:{name}")
    semaphore.acquire()
    with pytest.raises(memlock.LockLost):
        semaphore.release(2)
    assert semaphore.available == 3
    with pytest.raises(memlock.NotHeld):
        semaphore.release()


def test_an_object_that_goes_gives_all_of_its_permits_back(
    any_client: memlock.Client, name: str
) -> None:
    semaphore = any_client.semaphore(name, 5)
    for _ in range(3):
        semaphore.acquire()
    del semaphore
    gc.collect()
    assert any_client.semaphore(name).available == 5


def test_an_unreachable_server_is_said_to_be_so(mortal_server: Memcached, name: str) -> None:
    mortal_server.kill()
    semaphore = memlock.connect(mortal_server.url).semaphore(name, 3)
    calls = [
        semaphore.acquire,
        semaphore.permit,
        semaphore.holders,
        semaphore.tear_down,
        lambda: semaphore.available,
        lambda: semaphore.resize(2),
        lambda: semaphore.set_up(60),
    ]
    for call in calls:
        with pytest.raises(memlock.Unreachable):
            call()
    with pytest.raises(memlock.Unreachable), semaphore:
        raise AssertionError("the body ran without a permit")


def test_a_failed_release_can_be_tried_again(mortal_server: Memcached, name: str) -> None:
    semaphore = memlock.connect(f"{mortal_server.url}?io_timeout=500ms").semaphore(name, 3)
    semaphore.acquire()
    semaphore.acquire()
    permit = semaphore.permit()
    unanswered = pytest.raises((memlock.OutcomeUnknown, memlock.Unreachable))
    with mortal_server.paused():
        with unanswered:
            semaphore.release(2)
        with unanswered:
            permit.release()
        assert "held 2 times" in repr(semaphore)
    eventually(mortal_server.answers)
    semaphore.release(2)
    permit.release()
    assert semaphore.available == 3
    for again in [semaphore.release, permit.release]:
        with pytest.raises(memlock.NotHeld):
            again()


def test_a_repr_says_what_is_held(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 3)
    assert repr(semaphore) == f'<memlock.Semaphore "{name}" not held>'
    with semaphore:
        assert repr(semaphore) == f'<memlock.Semaphore "{name}" held once>'
