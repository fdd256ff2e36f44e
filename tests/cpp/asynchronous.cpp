// Calls that do not block: with callbacks, and in C++20 in coroutines, on an event loop.

#include "check.hpp"

#include "../c/queue.h"

#include <poll.h>

#include <exception>

using namespace std::chrono_literals;
using memlock::errc;
using memlock::owned_lock;
using memlock::pending_call;

static_assert(!std::is_copy_constructible_v<owned_lock>);
static_assert(std::is_nothrow_move_constructible_v<owned_lock>);
static_assert(!std::is_copy_constructible_v<pending_call>);
static_assert(std::is_nothrow_move_constructible_v<pending_call>);

namespace {

bool readable(const memlock::client& client) {
    pollfd watched{client.event_fd(), POLLIN, 0};
    return poll(&watched, 1, 0) == 1;
}

/// An event loop, until `done` is true.
template <class Done>
void run(const memlock::client& client, const Done& done) {
    const long long began = check_now_ms();
    while (!done()) {
        pollfd watched{client.event_fd(), POLLIN, 0};
        poll(&watched, 1, 1000);
        client.dispatch();
        if (check_now_ms() - began > 20000) FAIL("the calls do not end");
    }
}

/// Nobody holds or waits for the lock any more, once what was cancelled has been given back.
void becomes_free(const char* name) {
    const std::string key = std::string{"lock:"} + name;
    EVENTUALLY(!plain_has(key.c_str()) && queue_length(name) == 0);
}

void a_callback_gets_the_lock() {
    const memlock::client client{check_url()};
    const memlock::mutex mutex{client, "callback", 30s};
    owned_lock held;
    int called = 0;
    const auto take = [&](const memlock::error* failed, owned_lock lock) {
        CHECK(failed == nullptr && lock && lock.remaining() > 0ms && lock.fence() > 0);
        held = std::move(lock);
        called++;
    };
    const pending_call call = mutex.async_lock(take);
    CHECK(call && called == 0);
    run(client, [&] { return called > 0; });
    CHECK(called == 1 && !call && held && !readable(client) && client.dispatch() == 0);

    bool timed_out = false, released = false;
    const pending_call second = mutex.async_try_lock_for(30ms, [&](const memlock::error* failed,
                                                                   owned_lock lock) {
        CHECK(failed != nullptr && failed->code() == errc::timed_out && !lock);
        CHECK(strstr(failed->what(), "\"callback\"") != nullptr);
        timed_out = true;
    });
    run(client, [&] { return timed_out; });
    const pending_call third = held.async_release([&](const memlock::error* failed) {
        CHECK(failed == nullptr);
        released = true;
    });
    CHECK(!held);
    run(client, [&] { return released; });
    becomes_free("callback");
    THROWS(errc::not_held, held.async_release([](const memlock::error*) {}));
    THROWS(errc::not_held, held.fence());
}

void a_call_that_is_destroyed_is_cancelled_and_its_callback_not_called() {
    const memlock::client client{check_url()}, another{check_url()};
    memlock::mutex mutex{client, "destroyed", 30s}, holder{another, "destroyed", 30s};
    const auto never = [](const memlock::error*, const owned_lock&) { FAIL("a callback"); };
    holder.lock();
    {
        const pending_call call = mutex.async_lock(never);
        QUEUE_BECOMES(1, "destroyed");
    }
    QUEUE_BECOMES(0, "destroyed");
    holder.unlock();
    {
        const pending_call call = mutex.async_lock(never);
        EVENTUALLY(readable(client));
    }
    CHECK(client.dispatch() == 0);
    becomes_free("destroyed");
}

void a_callback_may_destroy_its_call_and_throw() {
    const memlock::client client{check_url()}, another{check_url()};
    memlock::mutex mutex{client, "throws", 30s}, holder{another, "throws", 30s};
    pending_call first, second;
    bool interrupted = false;
    holder.lock();
    first = mutex.async_lock([&](const memlock::error* failed, const owned_lock& lock) {
        first = pending_call{};
        CHECK(failed != nullptr && failed->code() == errc::interrupted && !lock);
        throw *failed;
    });
    second = mutex.async_lock([&](const memlock::error* failed, const owned_lock&) {
        CHECK(failed != nullptr && failed->code() == errc::interrupted);
        interrupted = true;
    });
    QUEUE_BECOMES(1, "throws");
    first.cancel();
    THROWS(errc::interrupted, run(client, [] { return false; }));
    second.cancel();
    run(client, [&] { return interrupted; });
    holder.unlock();
    becomes_free("throws");
}

void a_lock_that_is_destroyed_is_released_without_waiting() {
    const memlock::client client{check_url()};
    {
        // The mutex is gone when the callback is called, and the lock outlives the client's calls.
        pending_call call;
        owned_lock held;
        {
            const memlock::mutex mutex{client, "outlives", 30s};
            call = mutex.async_lock(
                [&](const memlock::error*, owned_lock lock) { held = std::move(lock); });
        }
        run(client, [&] { return bool{held}; });
    }
    becomes_free("outlives");
}

void permits_are_acquired_without_blocking() {
    const memlock::client client{check_url()};
    const memlock::counting_semaphore semaphore{client, "permits", 3, 30s};
    memlock::permit held;
    bool busy = false, released = false;
    const pending_call first = semaphore.async_acquire_permit(
        [&](const memlock::error* failed, memlock::permit got) {
            CHECK(failed == nullptr && got.count() == 2);
            held = std::move(got);
        },
        {2});
    run(client, [&] { return bool{held}; });
    const pending_call second = semaphore.async_try_acquire_permit_for(
        0s,
        [&](const memlock::error* failed, const memlock::permit& got) {
            CHECK(failed != nullptr && failed->code() == errc::busy && !got);
            busy = true;
        },
        {2});
    run(client, [&] { return busy; });
    const pending_call third = held.async_release([&](const memlock::error* failed) {
        CHECK(failed == nullptr);
        released = true;
    });
    run(client, [&] { return released; });
    CHECK(semaphore.available() == 3U);
}

#ifdef __cpp_lib_coroutine

/// A coroutine that begins at once, and whose frame belongs to this object.
class task {
public:
    struct promise_type {
        task get_return_object() { return task{handle::from_promise(*this)}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() noexcept {}
        void unhandled_exception() noexcept { std::terminate(); }
    };
    using handle = std::coroutine_handle<promise_type>;

    explicit task(handle coroutine) : coroutine_{coroutine} {}
    task(task&& other) noexcept : coroutine_{std::exchange(other.coroutine_, nullptr)} {}
    task& operator=(task&&) = delete;
    ~task() {
        if (coroutine_) coroutine_.destroy();
    }
    bool done() const { return coroutine_.done(); }

private:
    handle coroutine_;
};

task add(memlock::mutex& mutex, int& counter, int& inside) {
    owned_lock lock = co_await mutex.async_lock();
    CHECK(lock && inside++ == 0);
    counter++;
    inside--;
    co_await lock.async_release();
    CHECK(!lock);
}

void coroutines_exclude_each_other_on_one_thread() {
    enum { TASKS = 50 };
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "coroutines", 30s};
    int counter = 0, inside = 0;
    std::vector<task> tasks;
    for (int i = 0; i < TASKS; i++) tasks.push_back(add(mutex, counter, inside));
    run(client, [&] {
        for (const task& each : tasks) {
            if (!each.done()) return false;
        }
        return true;
    });
    CHECK(counter == TASKS);
    becomes_free("coroutines");
}

task find_out(memlock::mutex& mutex, memlock::counting_semaphore& semaphore) {
    const std::optional<owned_lock> none = co_await mutex.async_try_lock_for(20ms);
    CHECK(!none);
    const std::optional<memlock::permit> permit = co_await semaphore.async_try_acquire_permit_for(0s);
    CHECK(permit && permit->count() == 1);
    bool failed = false;
    try {
        co_await semaphore.async_acquire_permit({7});
    } catch (const memlock::error& error) {
        failed = error.code() == errc::invalid;
    }
    CHECK(failed);
    memlock::permit two = co_await semaphore.async_acquire_permit({2});
    co_await two.async_release();
    failed = false;
    try {
        co_await two.async_release();
    } catch (const memlock::error& error) {
        failed = error.code() == errc::not_held;
    }
    CHECK(failed);
}

void a_refusal_is_empty_or_thrown() {
    const memlock::client client{check_url()}, another{check_url()};
    memlock::mutex mutex{client, "tried", 30s}, holder{another, "tried", 30s};
    memlock::counting_semaphore semaphore{client, "tried", 3, 30s};
    holder.lock();
    const task running = find_out(mutex, semaphore);
    run(client, [&] { return running.done(); });
    holder.unlock();
    becomes_free("tried");
}

task wait_for_ever(memlock::mutex& mutex) {
    const owned_lock lock = co_await mutex.async_lock();
    FAIL("it was destroyed before");
}

void a_coroutine_that_is_destroyed_waits_no_more() {
    const memlock::client client{check_url()}, another{check_url()};
    memlock::mutex mutex{client, "frames", 30s}, holder{another, "frames", 30s};
    holder.lock();
    {
        const task running = wait_for_ever(mutex);
        QUEUE_BECOMES(1, "frames");
    }
    QUEUE_BECOMES(0, "frames");
    holder.unlock();
    becomes_free("frames");
    CHECK(client.dispatch() == 0);
}

void what_is_not_awaited_is_not_started() {
    const memlock::client client{check_url()};
    memlock::mutex mutex{client, "idle", 30s};
    static_cast<void>(mutex.async_lock());
    CHECK(!readable(client) && !plain_has("lock:idle"));
    owned_lock held;
    const pending_call call = mutex.async_lock(
        [&](const memlock::error*, owned_lock lock) { held = std::move(lock); });
    run(client, [&] { return bool{held}; });
    static_cast<void>(held.async_release());
    becomes_free("idle");
}

#endif

}  // namespace

int main() {
    RUN(a_callback_gets_the_lock);
    RUN(a_call_that_is_destroyed_is_cancelled_and_its_callback_not_called);
    RUN(a_callback_may_destroy_its_call_and_throw);
    RUN(a_lock_that_is_destroyed_is_released_without_waiting);
    RUN(permits_are_acquired_without_blocking);
#ifdef __cpp_lib_coroutine
    RUN(coroutines_exclude_each_other_on_one_thread);
    RUN(a_refusal_is_empty_or_thrown);
    RUN(a_coroutine_that_is_destroyed_waits_no_more);
    RUN(what_is_not_awaited_is_not_started);
#endif
}
