// memlock::mutex under the standard's guards, and what it has beyond them.

#include "check.hpp"

#include <limits>
#include <mutex>
#include <new>

using namespace std::chrono_literals;
using memlock::errc;

static_assert(!std::is_copy_constructible_v<memlock::mutex> && !std::is_copy_assignable_v<memlock::mutex>);
static_assert(!std::is_move_constructible_v<memlock::mutex> && !std::is_move_assignable_v<memlock::mutex>);
static_assert(noexcept(std::declval<memlock::mutex&>().unlock()));
static_assert(!noexcept(std::declval<memlock::mutex&>().release()));

namespace {

memlock::client here() { return memlock::client{check_url()}; }

void every_guard_locks_and_unlocks() {
    const auto client = here();
    memlock::mutex mutex{client, "guards", 30s};
    {
        std::lock_guard guard{mutex};
        CHECK(plain_has("lock:guards"));
    }
    CHECK(!plain_has("lock:guards"));
    {
        std::unique_lock guard{mutex, std::defer_lock};
        CHECK(!guard.owns_lock());
        guard.lock();
        CHECK(plain_has("lock:guards"));
        guard.unlock();
        CHECK(!plain_has("lock:guards"));
        CHECK(guard.try_lock());
    }
    {
        std::unique_lock guard{mutex, std::try_to_lock};
        CHECK(guard.owns_lock());
    }
    {
        std::scoped_lock guard{mutex};
        CHECK(plain_has("lock:guards"));
    }
    {
        mutex.lock();
        std::lock_guard guard{mutex, std::adopt_lock};
    }
    CHECK(!plain_has("lock:guards"));
    CHECK(!mutex.last_unlock());
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

void a_try_is_false_when_somebody_has_it() {
    const auto client = here();
    memlock::mutex mutex{client, "try", 30s}, other{client, "try", 30s};
    std::lock_guard guard{other};
    CHECK(!mutex.try_lock());
    CHECK(!mutex.try_lock_for(0s) && !mutex.try_lock_for(-1h) && !mutex.try_lock_for(1ns));
    CHECK(!mutex.try_lock_for(std::chrono::nanoseconds::min()));
    auto began = std::chrono::steady_clock::now();
    CHECK(!mutex.try_lock_for(100ms));
    CHECK(std::chrono::steady_clock::now() - began >= 99ms);
    CHECK(!mutex.try_lock_until(std::chrono::steady_clock::now() + 50ms));
    CHECK(!mutex.try_lock_until(std::chrono::system_clock::now() + 50ms));
    CHECK(!mutex.try_lock_until(std::chrono::system_clock::time_point::min()));
    std::unique_lock waiting{mutex, 20ms};
    CHECK(!waiting.owns_lock());
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
    CHECK(is_taken(mutex.try_lock_until(std::chrono::steady_clock::time_point::max())));
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
    CHECK(!plain_has("lock:thrown"));
    CHECK(!mutex.last_unlock());
    CHECK(mutex.try_lock());
    mutex.unlock();
}

void a_guard_survives_the_loss_of_its_lock() {
    const auto client = here();
    memlock::mutex mutex{client, "lost", 30s};
    {
        std::scoped_lock guard{mutex};
        CHECK(plain_delete("lock:lost") && plain_add("lock:lost", 60));
    }
    CHECK(mutex.last_unlock() == errc::lost);
    CHECK(plain_delete("lock:lost"));
    // And it can be asked to tell.
    {
        std::unique_lock guard{mutex};
        CHECK(plain_delete("lock:lost"));
        THROWS(errc::lost, guard.release()->release());
    }
    CHECK(mutex.last_unlock() == errc::lost);
    CHECK(mutex.try_lock());
    mutex.release();
    CHECK(!mutex.last_unlock());
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
    CHECK(plain_has("lock:not%20held"));
}

void a_thread_does_not_wait_for_itself() {
    const auto client = here();
    memlock::mutex mutex{client, "mine", 30s};
    std::lock_guard guard{mutex};
    THROWS(errc::deadlock, mutex.lock());
    THROWS(errc::deadlock, mutex.try_lock_for(1h));
    CHECK(!mutex.try_lock());
    CHECK(mutex.remaining() > 20s);
}

void a_lease_that_ran_out_can_be_locked_anew() {
    const auto client = here();
    memlock::mutex mutex{client, "anew", 2s};
    mutex.lock();
    const auto before = mutex.fence();
    while (mutex.remaining() > 0ms) check_pause_ms(10);
    mutex.lock();
    CHECK(mutex.fence() > before && mutex.remaining() > 0ms);
    mutex.release();
    CHECK(!plain_has("lock:anew"));
}

void a_lock_tells_its_time_and_its_fence() {
    const auto client = here();
    memlock::mutex mutex{client, "tells", 10s};
    std::uint64_t fence = 0;
    for (int i = 0; i < 10; i++) {
        std::scoped_lock guard{mutex};
        CHECK(mutex.remaining() > 8s && mutex.remaining() <= 10s);
        CHECK(mutex.fence() > fence);
        fence = mutex.fence();
        mutex.extend(1h);
        CHECK(mutex.remaining() > 59min && mutex.remaining() <= 1h);
        CHECK(mutex.fence() == fence);
    }
    std::scoped_lock guard{mutex};
    THROWS(errc::invalid, mutex.extend(999ms));
    THROWS(errc::invalid, mutex.extend(-1s));
    THROWS(errc::invalid, mutex.extend(367 * 24h));
    CHECK(mutex.remaining() > 5s);
    plain_flush();
    THROWS(errc::lost, mutex.extend(30s));
    CHECK(mutex.remaining() == 0ms);
}

void an_operator_sees_and_takes_off_a_holder() {
    const auto client = here();
    memlock::mutex mutex{client, "operated", 30s};
    CHECK(!mutex.owner());
    {
        std::scoped_lock guard{mutex};
        const auto owner = mutex.owner();
        CHECK(owner && owner->pid == static_cast<std::uint32_t>(getpid()) && !owner->host.empty());
        CHECK(owner->remaining && *owner->remaining > 20s && *owner->remaining <= 32s);
        CHECK(std::chrono::system_clock::now() - owner->since < 5s);
        CHECK(!mutex.force_unlock("another"));
        CHECK(mutex.force_unlock(owner->token));
        CHECK(!mutex.force_unlock(owner->token));
    }
    CHECK(mutex.last_unlock() == errc::lost);
    CHECK(plain_add("lock:operated", 0));
    const auto plain = mutex.owner();
    CHECK(plain && plain->host.empty() && plain->pid == 0 && !plain->remaining);
    CHECK(mutex.force_unlock(plain->token));
    CHECK(!plain_has("lock:operated"));
    THROWS(errc::invalid, mutex.force_unlock(std::string{"a\0b", 3}));
}

void names_are_any_bytes_but_nul() {
    const auto client = here();
    for (const std::string& name : {std::string{"a b\r\n"}, std::string{"\xff"}, std::string(65536, 'x')}) {
        memlock::mutex mutex{client, name, 30s};
        CHECK(mutex.name() == name);
        std::scoped_lock guard{mutex};
    }
    // C would lock "a" for this one.
    THROWS(errc::invalid, memlock::mutex(client, std::string{"a\0b", 3}, 30s));
    for (const std::string& name : {std::string{}, std::string(65537, 'x')}) {
        memlock::mutex mutex{client, name, 30s};
        THROWS(errc::invalid, mutex.lock());
        THROWS(errc::invalid, mutex.try_lock());
    }
    for (const auto lease : {0ms, 999ms, -1ms, std::chrono::milliseconds::max()}) {
        memlock::mutex mutex{client, "lease", lease};
        THROWS(errc::invalid, mutex.lock());
    }
    memlock::mutex month{client, "lease", 31 * 24h};
    std::scoped_lock guard{month};
    CHECK(month.remaining() > 30 * 24h);
}

void a_mutex_that_ends_unlocks() {
    const auto client = here();
    {
        memlock::mutex mutex{client, "ends", 30s};
        mutex.lock();
        CHECK(plain_has("lock:ends"));
    }
    CHECK(!plain_has("lock:ends"));
}

}  // namespace

int main() {
    RUN(every_guard_locks_and_unlocks);
    RUN(several_are_locked_together);
    RUN(a_try_is_false_when_somebody_has_it);
    RUN(the_longest_waits_take_a_free_mutex);
    RUN(an_exception_unlocks);
    RUN(a_guard_survives_the_loss_of_its_lock);
    RUN(what_is_not_held_is_told);
    RUN(a_thread_does_not_wait_for_itself);
    RUN(a_lease_that_ran_out_can_be_locked_anew);
    RUN(a_lock_tells_its_time_and_its_fence);
    RUN(an_operator_sees_and_takes_off_a_holder);
    RUN(names_are_any_bytes_but_nul);
    RUN(a_mutex_that_ends_unlocks);
}
