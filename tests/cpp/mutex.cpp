// memlock::mutex under the standard's guards, and what it has beyond them. What all languages share is in
// tests/conformance.

#include "check.hpp"

#include <limits>

static_assert(!std::is_copy_constructible_v<memlock::mutex> && !std::is_copy_assignable_v<memlock::mutex>);
static_assert(!std::is_move_constructible_v<memlock::mutex> && !std::is_move_assignable_v<memlock::mutex>);
static_assert(noexcept(std::declval<memlock::mutex&>().unlock()));
static_assert(!noexcept(std::declval<memlock::mutex&>().release()));

namespace mutex_tests {

void every_guard_locks_and_unlocks() {
    const auto client = here();
    memlock::mutex mutex{client, "guards", 30s};
    const auto is_locked = [] { return plain_has("lock:guards"); };
    {
        std::lock_guard guard{mutex};
        CHECK(is_locked());
    }
    CHECK(!is_locked());
    {
        std::unique_lock guard{mutex, std::defer_lock};
        CHECK(!guard.owns_lock());
        guard.lock();
        CHECK(is_locked());
        guard.unlock();
        CHECK(!is_locked() && guard.try_lock());
    }
    CHECK((std::unique_lock{mutex, std::try_to_lock}.owns_lock()));
    {
        std::scoped_lock guard{mutex};
        CHECK(is_locked());
    }
    {
        mutex.lock();
        std::lock_guard guard{mutex, std::adopt_lock};
    }
    CHECK(!is_locked() && !mutex.last_unlock());
}

void several_are_locked_together() {
    const auto client = here();
    memlock::mutex one{client, "one", 30s}, two{client, "two", 30s};
    std::mutex three;
    {
        std::scoped_lock guard{one, three, two};
        CHECK(plain_has("lock:one") && plain_has("lock:two"));
    }
    CHECK(!plain_has("lock:one") && !plain_has("lock:two"));
    // With one of them taken, none is kept.
    CHECK(plain_add("lock:two", 60));
    CHECK(std::try_lock(one, three, two) == 2);
    CHECK(!plain_has("lock:one"));
    CHECK(plain_delete("lock:two"));
}

void a_try_is_false_when_another_has_it() {
    const auto client = here();
    memlock::mutex mutex{client, "try", 30s}, other{client, "try", 30s};
    std::lock_guard guard{other};
    CHECK(!mutex.try_lock());
    CHECK(!mutex.try_lock_for(0s) && !mutex.try_lock_for(-1h) && !mutex.try_lock_for(1ns));
    CHECK(!mutex.try_lock_for(std::chrono::nanoseconds::min()));
    const auto began = clock_type::now();
    CHECK(!mutex.try_lock_for(100ms));
    CHECK(clock_type::now() - began >= 99ms);
    CHECK(!mutex.try_lock_until(clock_type::now() + 50ms));
    CHECK(!mutex.try_lock_until(std::chrono::system_clock::now() + 50ms));
    CHECK(!mutex.try_lock_until(std::chrono::system_clock::time_point::min()));
    CHECK(!(std::unique_lock{mutex, 20ms}.owns_lock()));
}

void the_longest_waits_take_a_free_mutex() {
    const auto client = here();
    memlock::mutex mutex{client, "longest", 30s};
    const auto is_taken = [&](bool answer) {
        mutex.release();
        return answer;
    };
    CHECK(is_taken(mutex.try_lock_for(std::chrono::hours::max())));
    CHECK(is_taken(mutex.try_lock_for(std::chrono::nanoseconds::max())));
    using seconds = std::chrono::duration<double>;
    CHECK(is_taken(mutex.try_lock_for(seconds{1e300})));
    CHECK(is_taken(mutex.try_lock_for(seconds{std::numeric_limits<double>::infinity()})));
    CHECK(is_taken(mutex.try_lock_until(clock_type::time_point::max())));
    CHECK(is_taken(mutex.try_lock_until(std::chrono::system_clock::time_point::max())));
    CHECK(is_taken(mutex.try_lock_until(std::chrono::system_clock::time_point::min())));
}

void an_exception_unlocks() {
    const auto client = here();
    memlock::mutex mutex{client, "thrown", 30s};
    try {
        std::scoped_lock guard{mutex};
        throw std::runtime_error{"out of the critical section"};
    } catch (const std::runtime_error&) {
    }
    CHECK(!plain_has("lock:thrown") && !mutex.last_unlock());
}

void what_is_not_held_is_told() {
    const auto client = here();
    memlock::mutex mutex{client, "not held", 30s};
    mutex.unlock();
    CHECK(mutex.last_unlock() == errc::not_held);
    THROWS(errc::not_held, mutex.release());
    THROWS(errc::not_held, mutex.extend(30s));
    THROWS(errc::not_held, mutex.release_sql());
    THROWS(errc::not_held, mutex.fence());
    CHECK(mutex.remaining() == 0ms);
    // Held by another object, it is not held by this one.
    memlock::mutex other{client, "not held", 30s};
    std::lock_guard guard{other};
    CHECK(!mutex.try_lock());
    THROWS(errc::not_held, mutex.release());
    CHECK_SAFE(plain_has("lock:not%20held"));
}

void a_thread_does_not_wait_for_itself() {
    const auto client = here();
    memlock::mutex mutex{client, "mine", 30s}, same{here(), "mine", 30s};
    {
        std::lock_guard guard{mutex};
        for (memlock::mutex* one : {&mutex, &same}) {
            THROWS(errc::deadlock, one->lock());
            CHECK(!one->try_lock() && !one->try_lock_for(10ms));
        }
        CHECK(mutex.remaining() > 0s && same.remaining() == 0s);
        std::thread{[&] { CHECK(!same.try_lock_for(10ms)); }}.join();
    }
    CHECK(!mutex.last_unlock());
    std::lock_guard guard{same};
}

void a_handle_is_waited_for_unless_it_is_bound_to_the_thread() {
    const auto client = here();
    memlock::mutex mutex{client, "bound", 30s};
    memlock_lock* lock = nullptr;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client.get(), "bound", 1000, 0, &lock));
    ANSWERS(MEMLOCK_OK, memlock_lock_bind(lock));
    THROWS(errc::deadlock, mutex.lock());
    // Bound anew, by another thread: this one may have to wait for that.
    std::thread{[&] { ANSWERS(MEMLOCK_OK, memlock_lock_bind(lock)); }}.join();
    mutex.lock();
    CHECK(memlock_lock_is_held(lock) == 0);
    ANSWERS(MEMLOCK_LOST, memlock_unlock(lock));
}

void a_lease_that_ran_out_can_be_locked_anew() {
    const auto client = here();
    memlock::mutex mutex{client, "anew", 6s};
    mutex.lock();
    const auto before = mutex.fence();
    EVENTUALLY(mutex.remaining() == 0ms);
    // The server keeps the old one a little longer, which no other object of this name could take.
    CHECK(mutex.try_lock());
    CHECK_SAFE(mutex.fence() > before);
    mutex.unlock();
    CHECK(!plain_has("lock:anew"));
}

void a_lock_that_the_server_has_lost_can_be_locked_anew() {
    const auto client = here();
    memlock::mutex mutex{client, "forgotten", 30s}, next{here(), "forgotten", 30s};
    mutex.lock();
    CHECK(plain_delete("lock:forgotten"));
    CHECK(mutex.try_lock());
    CHECK(plain_delete("lock:forgotten"));
    std::thread holder{[&] {
        std::lock_guard guard{next};
        QUEUE_BECOMES(1, "forgotten");
    }};
    EVENTUALLY(plain_has("lock:forgotten"));
    mutex.lock();
    CHECK_SAFE(plain_has("lock:forgotten") && mutex.remaining() > 0s);
    holder.join();
    mutex.release();
}

void an_operator_sees_who_holds_it() {
    const auto client = here();
    memlock::mutex mutex{client, "operated", 30s};
    {
        std::scoped_lock guard{mutex};
        const auto owner = mutex.owner();
        CHECK(owner && !owner->host.empty());
        CHECK(owner->remaining && *owner->remaining > 0s && *owner->remaining <= 32s);
    }
    CHECK(plain_add("lock:operated", 0));
    const auto plain = mutex.owner();
    CHECK(plain && plain->host.empty() && plain->pid == 0 && !plain->remaining);
    CHECK(mutex.force_unlock(plain->token));
    CHECK(!plain_has("lock:operated"));
    THROWS(errc::invalid, mutex.force_unlock(std::string{"a\0b", 3}));
}

void a_name_has_no_nul() {
    const auto client = here();
    CHECK((memlock::mutex{client, "\xff\r\n", 30s}.name() == "\xff\r\n"));
    // C would lock "a" for this one.
    THROWS(errc::invalid, memlock::mutex(client, std::string{"a\0b", 3}, 30s));
}

}  // namespace mutex_tests

SUITE(mutex) {
    using namespace mutex_tests;
    RUN(every_guard_locks_and_unlocks);
    RUN(several_are_locked_together);
    RUN(a_try_is_false_when_another_has_it);
    RUN(the_longest_waits_take_a_free_mutex);
    RUN(an_exception_unlocks);
    RUN(what_is_not_held_is_told);
    RUN(a_thread_does_not_wait_for_itself);
    RUN(a_lease_that_ran_out_can_be_locked_anew);
    RUN(a_lock_that_the_server_has_lost_can_be_locked_anew);
    RUN(an_operator_sees_who_holds_it);
    RUN(a_name_has_no_nul);
}
