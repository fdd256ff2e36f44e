"""CPython's own tests of locks and semaphores, run with ours on a real memcached.

Left out are `repr`, which says where an object of threading's is in memory, and
`_at_fork_reinit`, which is private.
"""

from __future__ import annotations

import unittest
import uuid
from collections.abc import Iterator

import memlock
import pytest
from test import lock_tests

LEFT_OUT = {"test_repr", "test_locked_repr", "test_at_fork_reinit"}


def cases() -> Iterator[tuple[type[unittest.TestCase], str]]:
    for suite in [lock_tests.BaseLockTests, lock_tests.LockTests, lock_tests.BoundedSemaphoreTests]:
        for name in unittest.defaultTestLoader.getTestCaseNames(suite):
            if name not in LEFT_OUT:
                yield suite, name


def assert_timeout(case: unittest.TestCase, actual: float, expected: float) -> None:
    """As CPython's, without the upper bound, which a busy machine exceeds."""
    case.assertGreaterEqual(actual, expected * 0.6)


@pytest.mark.parametrize(
    ("suite", "case"), [*cases()], ids=lambda part: getattr(part, "__name__", part)
)
def test_what_holds_for_threading_holds_here(
    client: memlock.Client, suite: type[unittest.TestCase], case: str
) -> None:
    made = {
        "locktype": staticmethod(lambda: client.mutex(uuid.uuid4().hex)),
        "semtype": staticmethod(lambda value=1: client.semaphore(uuid.uuid4().hex, value)),
    }
    ours = type(suite.__name__, (suite,), {**made, "assertTimeout": assert_timeout})
    result = unittest.TestResult()
    ours(case).run(result)
    assert result.testsRun == 1
    assert not result.skipped
    assert result.wasSuccessful(), (result.failures + result.errors)[0][1]
