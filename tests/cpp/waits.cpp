// Ending single waits: by a wait_handle, and in C++20 by a std::stop_token. That a cancelled wait leaves nothing
// behind and that the others go on is in tests/c/wait_handle.c.

#include "check.hpp"

static_assert(!std::is_copy_constructible_v<memlock::wait_handle>);
static_assert(std::is_nothrow_move_constructible_v<memlock::wait_handle>);
static_assert(std::is_nothrow_move_assignable_v<memlock::wait_handle>);
static_assert(noexcept(std::declval<const memlock::wait_handle&>().cancel()));

namespace waits_tests {

void a_handle_ends_the_waits_that_go_on() {
    const auto client = here();
    memlock::mutex mutex{client, "handle", 30s}, holder{client, "handle", 30s};
    const memlock::wait_handle handle{client};
    std::lock_guard held{holder};
    CHECK(!mutex.try_lock_for(20ms, handle) && !mutex.try_lock_for(0s, handle));
    queue_thread self{};
    std::thread waiter{[&] { THROWS(errc::interrupted, mutex.lock_unless(handle)); }};
    QUEUE_BECOMES(1, "handle");
    std::thread with_limit{[&] {
        queue_here(&self);
        THROWS(errc::interrupted, mutex.try_lock_for(1h, handle));
    }};
    EVENTUALLY(queue_sleeps(&self));
    handle.cancel();
    waiter.join();
    with_limit.join();
    CHECK(queue_length("handle") == 0 && mutex.remaining() == 0ms);
}

void a_cancelled_handle_ends_every_later_wait() {
    const auto client = here();
    memlock::mutex mutex{client, "later", 30s};
    const memlock::wait_handle handle{client};
    handle.cancel();
    handle.cancel();
    THROWS(errc::interrupted, mutex.lock_unless(handle));
    THROWS(errc::interrupted, mutex.try_lock_for(1h, handle));
    THROWS(errc::interrupted, mutex.try_lock_for(0s, handle));
    CHECK(!plain_has("lock:later"));
    // Waits without it, or with another one, are not touched.
    std::lock_guard guard{mutex};
}

void a_mutex_that_was_locked_so_is_taken_over_by_a_guard() {
    const auto client = here();
    memlock::mutex mutex{client, "guarded", 30s};
    const memlock::wait_handle handle{client};
    {
        mutex.lock_unless(handle);
        const std::unique_lock guard{mutex, std::adopt_lock};
        handle.cancel();
        CHECK(plain_has("lock:guarded") && mutex.remaining() > 0s);
        THROWS(errc::interrupted, mutex.lock_unless(handle));
    }
    CHECK(!plain_has("lock:guarded") && !mutex.last_unlock());
}

void a_handle_that_was_moved_away_or_is_anothers_is_refused() {
    const auto client = here(), copy{client}, other = here();
    memlock::mutex mutex{client, "moved", 30s};
    memlock::wait_handle handle{copy};
    mutex.lock_unless(handle);
    mutex.release();
    const memlock::wait_handle moved{std::move(handle)};
    handle.cancel();
    CHECK(handle.get() == nullptr);
    THROWS(errc::invalid, mutex.lock_unless(handle));
    THROWS(errc::invalid, mutex.try_lock_for(1s, handle));
    CHECK(mutex.try_lock_for(1h, moved));
    mutex.release();
    THROWS(errc::invalid, mutex.lock_unless(memlock::wait_handle{other}));
    auto gone = here();
    const memlock::client kept{std::move(gone)};
    THROWS(errc::invalid, memlock::wait_handle{gone});
}

#ifdef __cpp_lib_jthread

void a_stop_ends_the_wait() {
    const auto client = here();
    memlock::mutex mutex{client, "stopped", 30s}, holder{client, "stopped", 30s};
    std::lock_guard held{holder};
    std::jthread waiter{[&](const std::stop_token& stop) {
        THROWS(errc::interrupted, mutex.lock_unless(stop));
        // It stays requested.
        THROWS(errc::interrupted, mutex.lock_unless(stop));
    }};
    QUEUE_BECOMES(1, "stopped");
    waiter.request_stop();
    waiter.join();
    CHECK(queue_length("stopped") == 0);
}

void without_a_stop_it_is_locked() {
    const auto client = here();
    memlock::mutex mutex{client, "running", 30s};
    std::stop_source source;
    mutex.lock_unless(source.get_token());
    source.request_stop();
    mutex.release();
    mutex.lock_unless(std::stop_token{});
    mutex.release();
}

#endif

}  // namespace waits_tests

SUITE(waits) {
    using namespace waits_tests;
    RUN(a_handle_ends_the_waits_that_go_on);
    RUN(a_cancelled_handle_ends_every_later_wait);
    RUN(a_mutex_that_was_locked_so_is_taken_over_by_a_guard);
    RUN(a_handle_that_was_moved_away_or_is_anothers_is_refused);
#ifdef __cpp_lib_jthread
    RUN(a_stop_ends_the_wait);
    RUN(without_a_stop_it_is_locked);
#endif
}
