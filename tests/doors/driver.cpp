// Makes the calls of the conformance tests in C++. What it is told is said in driver.rs.

#include "objects.hpp"

#include <condition_variable>
#include <deque>
#include <iostream>
#include <sstream>

#include <sys/syscall.h>
#include <unistd.h>

namespace {

void say(const std::string& call, const std::string& how, const words& values) {
    static std::mutex saying;
    std::string line = call + ' ' + how;
    for (const auto& value : values) line += ' ' + value;
    const std::lock_guard guard{saying};
    std::cout << line << std::endl;
}

struct request {
    std::string call, thread, target, verb;
    words args;

    /// The object and its thread end with this call.
    bool is_last() const { return thread != "0" && (verb == "drop" || verb == "release"); }

    void run() const {
        say(call, "at", {text(syscall(SYS_gettid))});
        try {
            say(call, "ok", answer());
        } catch (const memlock::error& error) {
            say(call, "no", {text(error.code().value()), to_hex(error.what())});
        } catch (const plain_no& no) {
            say(call, "no", {text(static_cast<int>(no.answer)), to_hex(no.sentence)});
        }
    }

    words answer() const {
        if (verb == "open") return everything.add(args[0], std::make_shared<a_client>(from_hex(args[1]))), words{};
        if (verb == "drop") return everything.drop(target), words{};
        return everything[target]->call(verb, args);
    }
};

/// A thread that makes its calls in their order.
class worker {
public:
    void add(request next) {
        const std::lock_guard guard{mutex_};
        next_.push_back(std::move(next));
        changed_.notify_one();
    }

    void work() {
        for (;;) {
            std::unique_lock guard{mutex_};
            changed_.wait(guard, [this] { return !next_.empty(); });
            const request next = std::move(next_.front());
            next_.pop_front();
            guard.unlock();
            next.run();
            if (!next.is_last()) continue;
            everything.drop(next.target);
            return;
        }
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<request> next_;
};

}  // namespace

int main() {
    std::cout << "ready" << std::endl;
    std::map<std::string, std::shared_ptr<worker>> workers;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream fields{line};
        request next;
        fields >> next.call >> next.thread >> next.target >> next.verb;
        for (std::string arg; fields >> arg;) next.args.push_back(arg);
        if (next.thread == "0") {
            std::thread{[next] { next.run(); }}.detach();
            continue;
        }
        const std::string thread = next.thread;
        auto& own = workers[thread];
        if (!own) {
            own = std::make_shared<worker>();
            std::thread{[own] { own->work(); }}.detach();
        }
        const bool is_last = next.is_last();
        own->add(std::move(next));
        if (is_last) workers.erase(thread);
    }
    // Nothing is released: this is how a process dies.
    _exit(0);
}
