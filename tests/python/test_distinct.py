"""The distinct list as a Python object: `in`, len(), iteration, and keys of str and bytes."""

from __future__ import annotations

import memlock
import pytest
from support import safe, together


@pytest.fixture
def words(any_client: memlock.Client, name: str) -> memlock.DistinctList:
    return any_client.distinct_list(name, 60)


def test_it_is_a_collection(words: memlock.DistinctList) -> None:
    # Sets call it add.
    for insert, key in [(words.insert, "a"), (words.add, "b")]:
        assert insert(key) is True
        safe(insert(key) is False, "accepted twice")
    assert ("a" in words, "c" in words, len(words)) == (True, False, 2)
    assert (words.id("a"), words.id("b")) == (1, 2)
    with pytest.raises(KeyError, match=r"^'c'$"):
        words.id("c")
    assert words.add_many(["a", "d"]) == [(1, False), (3, True)]
    assert list(words) == ["a", "b", "d"]
    assert list(words.items()) == [(1, "a"), (2, "b"), (3, "d")]


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


@pytest.mark.parametrize(
    "key", ["a b", "ü", "\n", "a\0b", "x" * 65536, b"\xff\xfe", b"caf\xc3", "\udcff", "%41"]
)
def test_any_key_comes_back_as_it_is(words: memlock.DistinctList, key: str | bytes) -> None:
    assert words.insert(key) is True
    (back,) = words
    encoded = key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")
    assert back.encode("utf-8", "surrogateescape") == encoded
    for same in (key, encoded, back):
        assert same in words
        assert words.insert(same) is False


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
    walk = iter(words)
    assert (words.tear_down(), words.tear_down()) == (True, False)
    for call in [lambda: "a" in words, lambda: words.id("a"), lambda: next(walk), words.items]:
        with pytest.raises(memlock.SessionNotFound, match=name) as caught:
            call()
        assert not isinstance(caught.value, KeyError)


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

    drawn = [key for keys in together(draw, 3) for key in keys]
    assert sorted(drawn) == sorted(map(str, range(600)))
