// memlock::renewed_lock and memlock::renewed_permit: how they are moved and how they end. What all languages share,
// such as that they outlive their lease, is in tests/conformance.

#include "check.hpp"

using memlock::loss;
using memlock::renewed_lock;
using memlock::renewed_permit;

static_assert(!std::is_copy_constructible_v<renewed_lock> && !std::is_copy_assignable_v<renewed_lock>);
static_assert(std::is_nothrow_move_constructible_v<renewed_lock> && std::is_nothrow_move_assignable_v<renewed_lock>);
static_assert(std::is_nothrow_move_constructible_v<renewed_permit>);
static_assert(std::is_nothrow_move_assignable_v<renewed_permit>);
static_assert(std::is_nothrow_default_constructible_v<renewed_lock>);
static_assert(static_cast<int>(loss::expired) == MEMLOCK_LOST_EXPIRED);
static_assert(static_cast<int>(loss::gone) == MEMLOCK_LOST_GONE);
static_assert(static_cast<int>(loss::max_hold) == MEMLOCK_LOST_MAX_HOLD);

namespace renewal_tests {

void a_lock_can_be_moved() {
    const auto client = here();
    memlock::mutex mutex{client, "kept", 30s};
    renewed_lock kept{mutex};
    const auto fence = kept.fence();
    CHECK(kept.is_held() && kept.check() && !kept.lost());
    CHECK(!kept.wait_lost_for(10ms) && kept.remaining() > 0ms && kept.remaining() <= 30s);
    THROWS(errc::busy, renewed_lock{mutex, 0s});
    THROWS(errc::timed_out, renewed_lock{mutex, 10ms});
    renewed_lock moved{std::move(kept)};
    CHECK(!kept && !kept.is_held() && kept.remaining() == 0ms);
    CHECK(moved.is_held() && moved.fence() == fence);
    THROWS(errc::not_held, kept.check());
    THROWS(errc::not_held, kept.unlock());
    moved.unlock();
    CHECK(!moved && !plain_has("lock:kept"));
    THROWS(errc::not_held, moved.unlock());
    THROWS(errc::not_held, moved.fence());
}

void permits_become_renewed_ones() {
    const auto client = here();
    memlock::counting_semaphore semaphore{client, "kept", 5, 30s};
    {
        const renewed_permit two{semaphore, memlock::request{2}};
        renewed_permit three{semaphore.acquire_permit(memlock::request{3})};
        CHECK(two.is_held() && two.check() && two.count() == 2u && three.count() == 3u);
        three.release();
        CHECK(three.count() == 0u && semaphore.available() == 3u);
    }
    CHECK(semaphore.available() == 5u);
    THROWS(errc::not_held, renewed_permit{memlock::permit{}});
}

void a_scopes_end_and_an_assignment_unlock() {
    const auto client = here();
    memlock::mutex mutex{client, "scope", 30s};
    {
        const renewed_lock kept{mutex};
        CHECK(plain_has("lock:scope"));
    }
    CHECK(!plain_has("lock:scope"));
    renewed_lock kept{mutex};
    kept = renewed_lock{};
    CHECK(!kept && !plain_has("lock:scope"));
    memlock::renewal never;
    never.max_hold = 0ms;
    THROWS(errc::invalid, renewed_lock{mutex, never});
    CHECK(!plain_has("lock:scope"));
}

void what_a_callback_throws_is_dropped() {
    const auto client = here();
    memlock::mutex mutex{client, "throws", 6s};
    std::atomic<int> thrown{0};
    memlock::renewal how;
    how.max_hold = 1ms;
    how.on_lease_at_risk = [&](auto) { thrown++; throw std::runtime_error{"oh no"}; };
    how.on_lost = [&](auto) { thrown++; throw 5; };
    const renewed_lock kept{mutex, how};
    EVENTUALLY(thrown == 2);
}

void a_callback_may_end_what_it_is_told_of() {
    const auto client = here();
    memlock::mutex mutex{client, "ends", 30s};
    std::atomic<bool> done{false};
    auto kept = std::make_unique<renewed_lock>();
    memlock::renewal how;
    how.max_hold = 1ms;
    std::mutex made;
    how.on_lease_at_risk = [&](auto) {
        { const std::lock_guard until_it_is_there{made}; }
        CHECK(kept->is_held());
        kept.reset();
        done = true;
    };
    {
        const std::lock_guard guard{made};
        *kept = renewed_lock{mutex, how};
    }
    EVENTUALLY(done);
    CHECK(!plain_has("lock:ends"));
}

void no_callback_runs_once_it_has_ended() {
    const auto client = here();
    memlock::mutex mutex{client, "slow", 30s};
    for (const bool unlocks : {false, true}) {
        std::atomic<bool> inside{false}, left{false};
        memlock::renewal how;
        how.max_hold = 1ms;
        how.on_lease_at_risk = [&](auto) {
            inside = true;
            check_pause_ms(100);
            left = true;
        };
        auto kept = std::make_unique<renewed_lock>(mutex, how);
        EVENTUALLY(inside);
        if (unlocks) kept->unlock();
        else kept.reset();
        CHECK(left);
    }
}

}  // namespace renewal_tests

SUITE(renewal) {
    using namespace renewal_tests;
    RUN(a_lock_can_be_moved);
    RUN(permits_become_renewed_ones);
    RUN(a_scopes_end_and_an_assignment_unlock);
    RUN(what_a_callback_throws_is_dropped);
    RUN(a_callback_may_end_what_it_is_told_of);
    RUN(no_callback_runs_once_it_has_ended);
}
