"""The distinct list: one first, one id, and order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import memlock
import pytest
from support import Memcached, run, safe


@pytest.fixture
def words(any_client: memlock.Client, name: str) -> Iterator[memlock.DistinctList]:
    words = any_client.distinct_list(name, 60)
    yield words
    words.tear_down()


def test_the_first_is_told_and_later_ones_too(words: memlock.DistinctList) -> None:
    assert words.insert("a") is True
    safe(words.insert("a") is False, "accepted twice")
    assert words.insert("b") is True
    assert "a" in words
    assert "c" not in words
    assert len(words) == 2
    assert (words.id("a"), words.id("b")) == (1, 2)
    with pytest.raises(KeyError, match=r"^'c'$"):
        words.id("c")


def test_who_joins_sees_the_same_list(any_client: memlock.Client, name: str) -> None:
    first = any_client.distinct_list(name, 60)
    first.insert("a")
    second = any_client.distinct_list(name, 60)
    assert (first.created, second.created) == (True, False)
    safe(second.insert("a") is False, "accepted twice")
    safe(second.id("a") == first.id("a"), "a key has two ids")


def test_add_is_an_alias_of_insert(words: memlock.DistinctList) -> None:
    assert words.add("a") is True
    assert words.insert("a") is False
    assert words.add_many(["a", "b"]) == [(1, False), (2, True)]
    assert words.insert_many(["b"]) == [(2, False)]


def test_iteration_is_in_the_order_of_ids(words: memlock.DistinctList) -> None:
    keys = [f"word-{number}" for number in range(700)]
    assert words.insert_many(keys) == [(number + 1, True) for number in range(700)]
    assert list(words) == keys
    assert list(words.items()) == [(number + 1, key) for number, key in enumerate(keys)]
    assert len(words) == 700


def test_iteration_can_be_left_and_begun_anew(words: memlock.DistinctList) -> None:
    words.insert_many(["a", "b"])
    walk = iter(words)
    assert next(walk) == "a"
    assert list(words) == ["a", "b"]
    assert list(walk) == ["b"]
    assert list(walk) == []


def test_insert_many_takes_any_iterable_and_tells_duplicates(words: memlock.DistinctList) -> None:
    assert words.insert_many(key for key in ["a", b"b", "a"]) == [(1, True), (2, True), (1, False)]
    assert words.insert_many([]) == []
    for one in ["abc", b"abc", 5]:
        with pytest.raises(TypeError):
            words.insert_many(one)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        words.insert_many(["x", 5])  # type: ignore[list-item]
    with pytest.raises(ZeroDivisionError):
        words.insert_many(str(1 // number) for number in [1, 0])
    assert list(words) == ["a", "b"]


def test_insert_many_goes_beyond_one_batch(words: memlock.DistinctList) -> None:
    added = words.insert_many(f"{number % 2500}" for number in range(3000))
    assert sum(first for _, first in added) == 2500
    assert added[2700] == (added[200][0], False)


@pytest.mark.parametrize(
    "key", ["a b", "ü", "\n", "a\0b", "x" * 65536, b"\xff\xfe", b"caf\xc3", "\udcff", "%41"]
)
def test_any_key_comes_back_as_it_is(words: memlock.DistinctList, key: str | bytes) -> None:
    assert words.insert(key) is True
    (back,) = words
    encoded = key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")
    assert back.encode("utf-8", "surrogateescape") == encoded
    assert key in words
    assert encoded in words
    assert words.insert(back) is False


def test_str_and_bytes_are_the_same_key(words: memlock.DistinctList) -> None:
    assert words.insert("ü") is True
    assert words.insert("ü".encode()) is False


def test_unusable_keys_are_refused(words: memlock.DistinctList) -> None:
    for key in ["", b"", "x" * 65537, "\ud800"]:
        with pytest.raises(memlock.Invalid):
            words.insert(key)
    for key in [5, None, bytearray(b"x")]:
        with pytest.raises(TypeError):
            words.insert(key)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            assert key in words  # type: ignore[operator]


def test_a_session_that_is_gone_refuses_everything(any_client: memlock.Client, name: str) -> None:
    words = any_client.distinct_list(name, 60)
    words.insert("a")
    assert words.tear_down() is True
    assert words.tear_down() is False
    # Even beside a new session of the same name.
    other = any_client.distinct_list(name, 60)
    assert other.created
    calls = [
        lambda: words.insert("b"),
        lambda: words.insert_many(["b"]),
        lambda: "a" in words,
        lambda: words.id("a"),
        lambda: len(words),
        lambda: list(words),
        words.items,
    ]
    for call in calls:
        with pytest.raises(memlock.SessionNotFound) as caught:
            call()
        assert isinstance(caught.value, LookupError)
        assert not isinstance(caught.value, KeyError)
    assert list(other) == []


def test_durations_are_checked(any_client: memlock.Client, name: str) -> None:
    for duration in [0, 0.5, -1, float("nan"), 1e30, 367 * 86400]:
        with pytest.raises(memlock.Invalid):
            any_client.distinct_list(name, duration)


def test_of_many_threads_one_is_first(any_client: memlock.Client, name: str) -> None:
    words = any_client.distinct_list(name, 60)
    start = threading.Barrier(6)
    keys = [f"word-{number}" for number in range(30)]

    def work() -> list[tuple[bool, int]]:
        start.wait()
        return [(words.insert(key), words.id(key)) for key in keys]

    with ThreadPoolExecutor(6) as pool:
        told = [each.result() for each in [pool.submit(work) for _ in range(6)]]
    for answers in zip(*told):
        safe(sum(first for first, _ in answers) == 1, f"accepted twice: {answers}")
        safe(len({number for _, number in answers}) == 1, f"a key has two ids: {answers}")


def test_an_iterator_is_advanced_by_one_thread_at_a_time(words: memlock.DistinctList) -> None:
    words.insert_many(map(str, range(600)))
    walk = iter(words)

    def draw() -> list[str]:
        drawn = []
        while True:
            try:
                drawn.append(next(walk))
            except StopIteration:
                return drawn
            except ValueError:
                pass

    with ThreadPoolExecutor(3) as pool:
        drawn = [each.result() for each in [pool.submit(draw) for _ in range(3)]]
    assert sorted(drawn[0] + drawn[1] + drawn[2]) == sorted(map(str, range(600)))


WORKER = """
import sys
import memlock
url, session, order = sys.argv[1:]
words = memlock.connect(url).distinct_list(session, 60)
keys = [f"word-{number}" for number in range(300)][::int(order)]
firsts = sum(words.insert(key) for key in keys[:150])
firsts += sum(first for _, first in words.insert_many(keys[150:]))
print(firsts)
print([words.id(key) for key in sorted(keys)])
print(list(words))
"""


def test_two_processes_that_insert_the_same_words_agree(server: Memcached, name: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run, WORKER, server.url, name, order) for order in ["1", "-1"]]
        (firsts, ids, keys), (other_firsts, other_ids, other_keys) = [
            each.result() for each in runs
        ]
    safe(int(firsts) + int(other_firsts) == 300, f"{firsts} and {other_firsts} of 300 accepted")
    safe(ids == other_ids, "a key has two ids")
    assert keys == other_keys
