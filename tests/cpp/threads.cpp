// One memlock::mutex object in many threads. Objects of their own are in tests/conformance.

#include "check.hpp"

namespace threads_tests {

constexpr int threads = 8;

void in_threads(const std::function<void(int)>& body) {
    std::vector<std::thread> all;
    for (int i = 0; i < threads; i++) all.emplace_back(body, i);
    for (auto& one : all) one.join();
}

// Not for more than one at a time.
class turnstile {
public:
    void pass() {
        CHECK_SAFE(inside_.fetch_add(1) == 0);
        std::this_thread::yield();
        CHECK_SAFE(inside_.fetch_sub(1) == 1);
        passed_++;
    }
    int passed() const { return passed_; }

private:
    std::atomic<int> inside_{0};
    std::atomic<int> passed_{0};
};

void threads_exclude_each_other_by_one_object() {
    constexpr int rounds = 40;
    const auto client = here();
    memlock::mutex mutex{client, "one object", 30s};
    turnstile gate;
    std::atomic<int> in_vain{0};
    in_threads([&](int number) {
        for (int i = 0; i < rounds; i++) {
            std::unique_lock guard{mutex, std::defer_lock};
            if (number % 2 == 0) guard.lock();
            else if (!guard.try_lock_for(5ms)) {
                in_vain++;
                continue;
            }
            gate.pass();
        }
    });
    CHECK(gate.passed() + in_vain == threads * rounds && gate.passed() >= threads / 2 * rounds);
    CHECK(!mutex.last_unlock());
}

// The case for which every thread has its own handle: unlock() must not end the successor's lock.
void who_overslept_its_lease_does_not_unlock_its_successor() {
    const auto client = here();
    memlock::mutex mutex{client, "overslept", 30s};
    mutex.lock();
    const auto fence = mutex.fence();
    CHECK(plain_delete("lock:overslept"));  // as if the lease had run out
    std::atomic<bool> locked{false}, checked{false};
    std::thread successor{[&] {
        mutex.lock();
        CHECK_SAFE(mutex.fence() > fence);
        locked = true;
        EVENTUALLY(checked);
        mutex.release();
    }};
    EVENTUALLY(locked);
    CHECK(mutex.fence() == fence);
    THROWS(errc::lost, mutex.release());
    CHECK_SAFE(plain_has("lock:overslept"));
    CHECK(!mutex.try_lock());
    checked = true;
    successor.join();
    CHECK(!plain_has("lock:overslept"));
}

void only_the_thread_that_locked_unlocks() {
    const auto client = here();
    memlock::mutex mutex{client, "whose", 30s};
    mutex.lock();
    std::thread{[&] {
        CHECK(mutex.remaining() == 0ms);
        THROWS(errc::not_held, mutex.fence());
        THROWS(errc::not_held, mutex.release());
        CHECK(!mutex.try_lock());
    }}.join();
    CHECK_SAFE(plain_has("lock:whose"));
    mutex.release();
}

// A thread leaves its place in the object to the next one: the list must not grow, nor lose a place.
void many_short_lived_threads_share_one_object() {
    const auto client = here();
    memlock::mutex mutex{client, "short-lived", 30s};
    turnstile gate;
    for (int i = 0; i < 25; i++) {
        in_threads([&](int) {
            std::scoped_lock guard{mutex};
            gate.pass();
        });
    }
    CHECK(gate.passed() == 25 * threads);
}

}  // namespace threads_tests

SUITE(threads) {
    using namespace threads_tests;
    RUN(threads_exclude_each_other_by_one_object);
    RUN(who_overslept_its_lease_does_not_unlock_its_successor);
    RUN(only_the_thread_that_locked_unlocks);
    RUN(many_short_lived_threads_share_one_object);
}
