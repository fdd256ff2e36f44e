// memlock::renewed_lock and memlock::renewed_permit: renewed while they exist, and reported when they end.

#include "check.hpp"

#include "../c/freeze.h"
#include "../c/renewers.h"

#include <algorithm>
#include <atomic>
#include <mutex>

using namespace std::chrono_literals;
using memlock::errc;
using memlock::renewed_lock;
using memlock::renewed_permit;
using memlock::loss;

static_assert(!std::is_copy_constructible_v<renewed_lock> && !std::is_copy_assignable_v<renewed_lock>);
static_assert(std::is_nothrow_move_constructible_v<renewed_lock> && std::is_nothrow_move_assignable_v<renewed_lock>);
static_assert(std::is_nothrow_move_constructible_v<renewed_permit>);
static_assert(std::is_nothrow_move_assignable_v<renewed_permit>);
static_assert(std::is_nothrow_default_constructible_v<renewed_lock>);

namespace {

constexpr auto lease = 3s;

memlock::client here() { return memlock::client{check_url()}; }

/// The notices that a holder got, in order.
struct notices {
    std::mutex mutex;
    std::vector<std::string> said;

    void note(const std::string& what) {
        const std::lock_guard guard{mutex};
        said.push_back(what);
    }

    std::vector<std::string> all() {
        const std::lock_guard guard{mutex};
        return said;
    }

    /// On a busy machine, a lease may have been at risk.
    bool nothing_was_lost() {
        const auto told = all();
        return std::all_of(told.begin(), told.end(), [](const std::string& what) { return what == "at risk"; });
    }

    memlock::renewal keep() {
        memlock::renewal how;
        how.on_lease_at_risk = [this](std::chrono::milliseconds left) { note(left > 0ms ? "at risk" : "none left"); };
        how.on_lost = [this](loss why) { note(std::to_string(static_cast<int>(why))); };
        return how;
    }
};

std::string lost_by(loss why) { return std::to_string(static_cast<int>(why)); }

void a_lock_is_kept_beyond_its_lease() {
    const auto client = here();
    memlock::mutex mutex{client, "kept", lease};
    notices told;
    renewed_lock kept{mutex, told.keep()};
    const auto fence = kept.fence();
    CHECK(!mutex.try_lock_for(lease + 3500ms));
    CHECK(kept.is_held() && kept.check() && !kept.lost() && kept.fence() == fence);
    CHECK(!kept.wait_lost_for(10ms) && kept.remaining() > 0ms && kept.remaining() <= lease);
    THROWS(errc::busy, renewed_lock{mutex, 0s});
    THROWS(errc::timed_out, renewed_lock{mutex, 10ms});
    renewed_lock moved{std::move(kept)};
    CHECK(!kept && !kept.is_held() && kept.remaining() == 0ms && moved.is_held());
    THROWS(errc::not_held, kept.check());
    THROWS(errc::not_held, kept.unlock());
    moved.unlock();
    CHECK(!moved && told.nothing_was_lost());
    THROWS(errc::not_held, moved.unlock());
    THROWS(errc::not_held, moved.fence());
    CHECK(mutex.try_lock());
}

void permits_are_kept_beyond_their_lease() {
    const auto client = here();
    memlock::counting_semaphore semaphore{client, "kept", 5, lease};
    {
        const renewed_permit two{semaphore, memlock::request{2}};
        renewed_permit three{semaphore.acquire_permit(memlock::request{3})};
        CHECK(!semaphore.try_acquire_for(lease + 3500ms));
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

void what_was_taken_away_is_told() {
    const auto client = here();
    memlock::mutex mutex{client, "taken", 30s};
    notices told;
    renewed_lock kept{mutex, told.keep()};
    CHECK(plain_delete("lock:taken") && plain_add("lock:taken", 0));
    CHECK(!kept.check() && !kept.is_held() && kept.lost() == loss::gone);
    CHECK(kept.wait_lost_for(1h) == loss::gone);
    EVENTUALLY(told.all() == std::vector{lost_by(loss::gone)});
    THROWS(errc::lost, kept.unlock());
    CHECK(plain_delete("lock:taken"));
}

void a_program_that_hangs_does_not_hold_it_for_ever() {
    const auto client = here();
    memlock::mutex mutex{client, "longest", lease};
    notices told;
    auto how = told.keep();
    how.max_hold = 2s;
    const renewed_lock kept{mutex, how};
    CHECK(kept.wait_lost_for(20s) == loss::max_hold);
    EVENTUALLY((told.all() == std::vector<std::string>{"at risk", lost_by(loss::max_hold)}));
}

void what_a_callback_throws_is_dropped() {
    const auto client = here();
    memlock::mutex mutex{client, "throws", lease};
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
    memlock::mutex mutex{client, "slow", lease};
    std::atomic<bool> inside{false}, left{false};
    {
        memlock::renewal how;
        how.max_hold = 1ms;
        how.on_lease_at_risk = [&](auto) {
            inside = true;
            check_pause_ms(100);
            left = true;
        };
        const renewed_lock kept{mutex, how};
        EVENTUALLY(inside);
    }
    CHECK(left);
}

// The last one: there is no server afterwards.
void danger_comes_before_the_loss() {
    const auto client = here();
    memlock::mutex mutex{client, "killed", lease};
    notices told;
    renewed_lock kept{mutex, told.keep()};
    CHECK(kill(check_server(), SIGKILL) == 0);
    EVENTUALLY(told.all() == std::vector<std::string>{"at risk"});
    CHECK(kept.is_held());
    CHECK(kept.wait_lost_for(20s) == loss::expired);
    EVENTUALLY((told.all() == std::vector<std::string>{"at risk", lost_by(loss::expired)}));
    // The renewer has reported the loss, and then cleans up. Until then, unlocking would ask the server.
    EVENTUALLY(renewers() == 0);
    THROWS(errc::lost, kept.unlock());
}

}  // namespace

int main() {
    RUN(a_lock_is_kept_beyond_its_lease);
    RUN(permits_are_kept_beyond_their_lease);
    RUN(a_scopes_end_and_an_assignment_unlock);
    RUN(what_was_taken_away_is_told);
    RUN(a_program_that_hangs_does_not_hold_it_for_ever);
    RUN(what_a_callback_throws_is_dropped);
    RUN(a_callback_may_end_what_it_is_told_of);
    RUN(no_callback_runs_once_it_has_ended);
    RUN(danger_comes_before_the_loss);
}
