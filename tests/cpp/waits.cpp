// Ending single waits: by a wait_handle, and in C++20 by a std::stop_token.

#include "check.hpp"

#include "../c/queue.h"

#include <mutex>

using namespace std::chrono_literals;
using memlock::errc;

static_assert(!std::is_copy_constructible_v<memlock::wait_handle>);
static_assert(std::is_nothrow_move_constructible_v<memlock::wait_handle>);
static_assert(std::is_nothrow_move_assignable_v<memlock::wait_handle>);
static_assert(noexcept(std::declval<const memlock::wait_handle&>().cancel()));

namespace {

using clock_type = std::chrono::steady_clock;

void a_handle_ends_the_wait_that_goes_on() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "handle", 30s}, holder{client, "handle", 30s};
    const memlock::wait_handle handle{client};
    std::lock_guard held{holder};
    std::thread waiter{[&] { THROWS(errc::interrupted, mutex.lock_unless(handle)); }};
    QUEUE_BECOMES(1, "handle");
    check_watch watch;
    check_watch_start(&watch);
    handle.cancel();
    waiter.join();
    CHECK(check_watch_end_ms(&watch) < TOLD_MS);
    CHECK(queue_length("handle") == 0);
    CHECK(mutex.remaining() == 0ms);
}

void a_handle_ends_a_wait_with_a_limit() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "limit", 30s}, holder{client, "limit", 30s};
    const memlock::wait_handle handle{client};
    std::lock_guard held{holder};
    CHECK(!mutex.try_lock_for(20ms, handle));
    CHECK(!mutex.try_lock_for(0s, handle));
    std::thread waiter{[&] { THROWS(errc::interrupted, mutex.try_lock_for(1h, handle)); }};
    QUEUE_BECOMES(1, "limit");
    handle.cancel();
    waiter.join();
    CHECK(queue_length("limit") == 0);
}

void a_cancelled_handle_ends_every_later_wait() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "later", 30s};
    const memlock::wait_handle handle{client};
    handle.cancel();
    handle.cancel();
    for (int i = 0; i < 2; i++) {
        THROWS(errc::interrupted, mutex.lock_unless(handle));
        THROWS(errc::interrupted, mutex.try_lock_for(1h, handle));
        THROWS(errc::interrupted, mutex.try_lock_for(0s, handle));
    }
    CHECK(!plain_has("lock:later"));
    // Waits without it, or with another one, are not touched.
    std::lock_guard guard{mutex};
}

void a_mutex_that_was_locked_so_is_taken_over_by_a_guard() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "guarded", 30s};
    const memlock::wait_handle handle{client};
    {
        mutex.lock_unless(handle);
        const std::unique_lock guard{mutex, std::adopt_lock};
        handle.cancel();
        CHECK(plain_has("lock:guarded") && mutex.remaining() > 20s);
        THROWS(errc::deadlock, mutex.lock_unless(memlock::wait_handle{client}));
    }
    CHECK(!plain_has("lock:guarded") && !mutex.last_unlock());
}

void the_other_waits_of_a_mutex_go_on() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "others", 30s};
    std::vector<memlock::wait_handle> handles;
    for (int i = 0; i < 3; i++) handles.emplace_back(client);
    std::atomic<int> ended{0}, locked{0};
    std::unique_lock held{mutex};
    std::vector<std::thread> waiters;
    for (const auto& handle : handles) {
        waiters.emplace_back([&] {
            try {
                mutex.lock_unless(handle);
                const std::lock_guard guard{mutex, std::adopt_lock};
                locked++;
            } catch (const memlock::error& error) {
                CHECK(error.code() == std::errc::operation_canceled);
                ended++;
            }
        });
    }
    handles[1].cancel();
    EVENTUALLY(ended == 1);
    CHECK(locked == 0);
    held.unlock();
    for (auto& waiter : waiters) waiter.join();
    CHECK(ended == 1 && locked == 2);
    CHECK(queue_length("others") == 0);
}

void a_handle_that_was_moved_away_or_is_anothers_is_refused() {
    const memlock::client client{check_url()}, copy{client}, other{check_url()};
    memlock::mutex mutex{client, "moved", 30s};
    memlock::wait_handle handle{copy};
    mutex.lock_unless(handle);
    mutex.release();
    const memlock::wait_handle moved{std::move(handle)};
    handle.cancel();
    CHECK(handle.get() == nullptr);
    THROWS(errc::invalid, mutex.lock_unless(handle));
    THROWS(errc::invalid, mutex.try_lock_for(1s, handle));
    CHECK(mutex.try_lock_for(1s, moved));
    mutex.release();
    THROWS(errc::invalid, mutex.lock_unless(memlock::wait_handle{other}));
    memlock::client gone{check_url()};
    const memlock::client kept{std::move(gone)};
    THROWS(errc::invalid, memlock::wait_handle{gone});
}

#ifdef __cpp_lib_jthread

void a_stop_ends_the_wait() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "stopped", 30s}, holder{client, "stopped", 30s};
    std::lock_guard held{holder};
    std::jthread waiter{[&](const std::stop_token& stop) {
        THROWS(errc::interrupted, mutex.lock_unless(stop));
        // It stays requested.
        THROWS(errc::interrupted, mutex.lock_unless(stop));
    }};
    QUEUE_BECOMES(1, "stopped");
    check_watch watch;
    check_watch_start(&watch);
    waiter.request_stop();
    waiter.join();
    CHECK(check_watch_end_ms(&watch) < TOLD_MS);
    CHECK(queue_length("stopped") == 0);
}

void without_a_stop_it_is_locked() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "running", 30s};
    std::stop_source source;
    mutex.lock_unless(source.get_token());
    source.request_stop();
    mutex.release();
    mutex.lock_unless(std::stop_token{});
    mutex.release();
}

#endif

}  // namespace

int main() {
    RUN(a_handle_ends_the_wait_that_goes_on);
    RUN(a_handle_ends_a_wait_with_a_limit);
    RUN(a_cancelled_handle_ends_every_later_wait);
    RUN(a_mutex_that_was_locked_so_is_taken_over_by_a_guard);
    RUN(the_other_waits_of_a_mutex_go_on);
    RUN(a_handle_that_was_moved_away_or_is_anothers_is_refused);
#ifdef __cpp_lib_jthread
    RUN(a_stop_ends_the_wait);
    RUN(without_a_stop_it_is_locked);
#endif
}
