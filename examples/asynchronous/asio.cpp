// Many acquisitions in flight on one thread, with Asio and callbacks: see epoll.c, which does the same.
//
//     asio URL [TASKS]

#include <memlock.hpp>

#include <asio.hpp>

#include <cstdlib>
#include <iostream>

using namespace std::chrono_literals;

namespace {

// Calls client.dispatch() whenever calls of the client have ended.
class dispatcher {
public:
    dispatcher(asio::io_context& loop, const memlock::client& client)
        : client_{client}, descriptor_{loop, client.event_fd()} {
        watch();
    }

    // The descriptor is the client's, who closes it.
    ~dispatcher() { descriptor_.release(); }

private:
    void watch() {
        descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                               [this](const asio::error_code& failed) {
                                   if (failed) return;
                                   client_.dispatch();
                                   watch();
                               });
    }

    memlock::client client_;
    asio::posix::stream_descriptor descriptor_;
};

struct counts {
    int held = 0, inside = 0, most = 0, left = 0;
};

class task {
public:
    task(asio::io_context& loop, counts& all, memlock::mutex& mutex, bool shares,
         std::function<void()> all_done)
        : timer_{loop}, counts_{all}, shares_{shares}, all_done_{std::move(all_done)} {
        call_ = mutex.async_try_lock_for(
            60s, [this](const memlock::error* failed, memlock::owned_lock lock) {
                if (failed != nullptr) throw *failed;
                lock_ = std::move(lock);
                hold();
            });
    }

private:
    void hold() {
        counts_.held++;
        if (shares_) counts_.most = std::max(counts_.most, ++counts_.inside);
        timer_.expires_after(3ms);
        timer_.async_wait([this](const asio::error_code& failed) {
            if (failed) return;
            if (shares_) counts_.inside--;
            call_ = lock_.async_release([this](const memlock::error* lost) {
                if (lost != nullptr) throw *lost;
                if (--counts_.left == 0) all_done_();
            });
        });
    }

    asio::steady_timer timer_;
    counts& counts_;
    bool shares_;
    std::function<void()> all_done_;
    memlock::owned_lock lock_;
    memlock::pending_call call_;
};

}  // namespace

int main(int count, char** arguments) try {
    const int tasks = count > 2 ? std::atoi(arguments[2]) : 100;
    if (count < 2 || tasks < 1) {
        std::cerr << "usage: asio URL [TASKS]\n";
        return 2;
    }
    asio::io_context loop;
    const memlock::client client{arguments[1]};
    const dispatcher calls{loop, client};
    counts all;
    all.left = tasks;
    memlock::mutex shared{client, "shared", 30s};
    std::vector<std::unique_ptr<memlock::mutex>> own;
    std::vector<std::unique_ptr<task>> running;
    for (int i = 0; i < tasks; i++) {
        const bool shares = i % 2 == 0;
        if (!shares) {
            own.push_back(
                std::make_unique<memlock::mutex>(client, "own-" + std::to_string(i), 30s));
        }
        running.push_back(std::make_unique<task>(loop, all, shares ? shared : *own.back(), shares,
                                                 [&loop] { loop.stop(); }));
    }
    loop.run();
    std::cout << all.held << " tasks held their locks, at most " << all.most << " the shared one.\n";
    return 0;
} catch (const std::exception& failed) {
    std::cerr << failed.what() << '\n';
    return 1;
}
