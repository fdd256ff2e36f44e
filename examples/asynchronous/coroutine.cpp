// Many acquisitions in flight on one thread, in C++20 coroutines on a bare poll(): see epoll.c, which does the same.
//
//     coroutine URL [TASKS]

#include <memlock.hpp>

#include <poll.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>

using namespace std::chrono_literals;

namespace {

// A loop of the calls of one client, and of timers.
class event_loop {
public:
    explicit event_loop(const memlock::client& client) : client_{client} {}

    // `co_await loop.sleep(3ms)`.
    auto sleep(std::chrono::milliseconds time) {
        struct sleeper {
            event_loop& loop;
            clock::time_point end;
            bool await_ready() const noexcept { return false; }
            void await_suspend(std::coroutine_handle<> task) { loop.timers_.emplace(end, task); }
            void await_resume() const noexcept {}
        };
        return sleeper{*this, clock::now() + time};
    }

    // Runs until `done` is true.
    template <class Done>
    void run(const Done& done) {
        while (!done()) {
            pollfd calls{client_.event_fd(), POLLIN, 0};
            poll(&calls, 1, until_next());
            client_.dispatch();
            while (!timers_.empty() && timers_.begin()->first <= clock::now()) {
                const std::coroutine_handle<> task = timers_.begin()->second;
                timers_.erase(timers_.begin());
                task.resume();
            }
        }
    }

private:
    using clock = std::chrono::steady_clock;

    int until_next() const {
        if (timers_.empty()) return -1;
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - clock::now());
        return std::max(0, static_cast<int>(left.count()));
    }

    memlock::client client_;
    std::multimap<clock::time_point, std::coroutine_handle<>> timers_;
};

// A coroutine that begins at once, and whose frame is freed when it has ended.
struct task {
    struct promise_type {
        task get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() { throw; }  // Leaves client::dispatch().
    };
};

struct counts {
    int held = 0, inside = 0, most = 0, left = 0;
};

task work(event_loop& loop, counts& all, memlock::mutex& mutex, bool shares) {
    memlock::owned_lock lock = co_await mutex.async_lock();
    all.held++;
    if (shares) all.most = std::max(all.most, ++all.inside);
    co_await loop.sleep(3ms);
    if (shares) all.inside--;
    co_await lock.async_release();
    all.left--;
}

}  // namespace

int main(int count, char** arguments) try {
    const int tasks = count > 2 ? std::atoi(arguments[2]) : 100;
    if (count < 2 || tasks < 1) {
        std::cerr << "usage: coroutine URL [TASKS]\n";
        return 2;
    }
    const memlock::client client{arguments[1]};
    event_loop loop{client};
    counts all;
    all.left = tasks;
    memlock::mutex shared{client, "shared", 30s};
    std::vector<std::unique_ptr<memlock::mutex>> own;
    for (int i = 0; i < tasks; i++) {
        if (i % 2 == 0) {
            work(loop, all, shared, true);
        } else {
            own.push_back(
                std::make_unique<memlock::mutex>(client, "own-" + std::to_string(i), 30s));
            work(loop, all, *own.back(), false);
        }
    }
    loop.run([&] { return all.left == 0; });
    std::cout << all.held << " tasks held their locks, at most " << all.most << " the shared one.\n";
    return 0;
} catch (const std::exception& failed) {
    std::cerr << failed.what() << '\n';
    return 1;
}
