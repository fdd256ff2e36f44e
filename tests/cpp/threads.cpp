// One memlock::mutex object in many threads, and many objects of one name.

#include "check.hpp"

#include <functional>
#include <mutex>

using namespace std::chrono_literals;
using memlock::errc;

namespace {

constexpr int threads = 8;
constexpr int rounds = 40;

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
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "one object", 30s};
    turnstile gate;
    in_threads([&](int) {
        for (int i = 0; i < rounds; i++) {
            std::scoped_lock guard{mutex};
            gate.pass();
        }
    });
    CHECK(gate.passed() == threads * rounds);
    CHECK(!mutex.last_unlock());
}

void threads_exclude_each_other_by_objects_of_their_own() {
    const memlock::client client{check_url()};
    turnstile gate;
    in_threads([&](int) {
        memlock::mutex mutex{client, "own objects", 30s};
        for (int i = 0; i < rounds; i++) {
            std::unique_lock guard{mutex};
            gate.pass();
            guard.release()->release();
        }
    });
    CHECK(gate.passed() == threads * rounds);
}

void timed_attempts_exclude_too() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "timed", 30s};
    turnstile gate;
    std::atomic<int> got{0};
    in_threads([&](int) {
        for (int i = 0; i < rounds; i++) {
            std::unique_lock guard{mutex, 5ms};
            if (!guard) continue;
            got++;
            gate.pass();
        }
    });
    CHECK(gate.passed() == got && got > 0);
}

void opposite_orders_do_not_deadlock() {
    const memlock::client client{check_url()};
    memlock::mutex left{client, "left", 30s}, right{client, "right", 30s};
    turnstile gate;
    std::thread one{[&] {
        for (int i = 0; i < rounds; i++) {
            std::scoped_lock guard{left, right};
            gate.pass();
        }
    }};
    std::thread two{[&] {
        for (int i = 0; i < rounds; i++) {
            std::scoped_lock guard{right, left};
            gate.pass();
        }
    }};
    one.join();
    two.join();
    CHECK(gate.passed() == 2 * rounds);
}

// The case for which every thread has its own handle: unlock() must not end the successor's lock.
void who_overslept_its_lease_does_not_unlock_its_successor() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "overslept", 30s};
    mutex.lock();
    const auto fence = mutex.fence();
    CHECK(plain_delete("lock:overslept"));  // as if the lease had run out
    std::atomic<bool> locked{false}, checked{false};
    std::thread successor{[&] {
        mutex.lock();
        CHECK_SAFE(mutex.fence() > fence);
        locked = true;
        while (!checked) std::this_thread::yield();
        mutex.release();
    }};
    while (!locked) std::this_thread::yield();
    CHECK(mutex.fence() == fence);
    THROWS(errc::lost, mutex.release());
    CHECK_SAFE(plain_has("lock:overslept"));
    CHECK(!mutex.try_lock());
    checked = true;
    successor.join();
    CHECK(!plain_has("lock:overslept"));
}

void only_the_thread_that_locked_unlocks() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "whose", 30s};
    mutex.lock();
    std::thread{[&] {
        CHECK(mutex.remaining() == 0ms);
        THROWS(errc::not_held, mutex.fence());
        THROWS(errc::not_held, mutex.release());
        CHECK(!mutex.try_lock());
    }}.join();
    CHECK(plain_has("lock:whose"));
    mutex.release();
}

void all_waits_can_be_cancelled() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "cancelled", 30s};
    CHECK(plain_add("lock:cancelled", 60));
    std::atomic<int> ended{0};
    std::thread canceller{[&] {
        // Only waits that go on are cancelled, and some may not have begun.
        while (ended < threads) {
            client.cancel_waits();
            std::this_thread::sleep_for(5ms);
        }
    }};
    in_threads([&](int number) {
        if (number % 2 == 0) THROWS(errc::interrupted, mutex.lock());
        else THROWS(errc::interrupted, mutex.try_lock_for(1h));
        ended++;
    });
    canceller.join();
    CHECK(plain_delete("lock:cancelled"));
    CHECK(!plain_has("lock:cancelled"));
    CHECK(mutex.try_lock());
    mutex.release();
}

// A thread leaves its place in the object to the next one: the list must not grow, nor lose a place.
void many_short_lived_threads_share_one_object() {
    const memlock::client client{check_url()};
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

}  // namespace

int main() {
    RUN(threads_exclude_each_other_by_one_object);
    RUN(threads_exclude_each_other_by_objects_of_their_own);
    RUN(timed_attempts_exclude_too);
    RUN(opposite_orders_do_not_deadlock);
    RUN(who_overslept_its_lease_does_not_unlock_its_successor);
    RUN(only_the_thread_that_locked_unlocks);
    RUN(all_waits_can_be_cancelled);
    RUN(many_short_lived_threads_share_one_object);
}
