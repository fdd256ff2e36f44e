// memlock::mutex and counting_semaphore in a forked child: unlocked there, usable, and harmless to what the
// parent holds.

#include "check.hpp"

#include <sys/wait.h>

namespace {

int forks = 25;

template <class Body>
void in_a_child(const Body& body) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);  // A child that hangs is what this is about: it must end, and badly.
        body();
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) FAIL("the child ended with status %#x", status);
}

void a_child_has_the_object_but_not_the_lock() {
    const auto client = here();
    auto held = std::make_unique<memlock::mutex>(client, "held", 300s);
    memlock::mutex guarded{client, "guarded", 300s};
    memlock::mutex free{client, "free", 300s};
    memlock::distinct_list list{client, "session", 300s};
    held->lock();
    auto guard = std::make_unique<std::unique_lock<memlock::mutex>>(guarded);
    in_a_child([&] {
        CHECK(held->remaining() == 0ms);
        CHECK(!held->try_lock());
        THROWS(errc::not_held, held->extend(30s));
        held->unlock();
        CHECK(held->last_unlock() == errc::not_held);
        CHECK(!held->try_lock_for(20ms));
        held.reset();   // The destructors of both leave the parent's locks alone.
        guard.reset();
        std::scoped_lock own{free};
        CHECK(free.owner()->pid == static_cast<std::uint32_t>(getpid()));
        CHECK(list.insert("child's").first);
    });
    CHECK(plain_has("lock:held") && plain_has("lock:guarded") && !plain_has("lock:free"));
    CHECK(!list.insert("child's").first);
    held->release();
    guard->release()->release();
    list.tear_down();
}

void a_child_has_the_semaphore_but_no_permit() {
    const auto client = here();
    auto three = std::make_unique<memlock::counting_semaphore>(client, "three", 3, 300s);
    auto held = three->acquire_permit();
    three->acquire();
    in_a_child([&] {
        CHECK(held.remaining() == 0ms);
        THROWS(errc::not_held, held.extend(30s));
        THROWS(errc::not_held, held.release());
        CHECK(three->available() == 1u);
        three->acquire();
        CHECK(!three->try_acquire());
        three->release();
        // Only what the parent acquired is left of this.
        THROWS(errc::not_held, three->release());
        CHECK(three->available() == 1u);
        three->acquire();
        three.reset();  // Gives the child's back, and leaves the parent's alone.
        CHECK(memlock::counting_semaphore(client, "three", 3, 300s).available() == 1u);
    });
    CHECK(three->available() == 1u && held.remaining() > 0ms);
    held.release();
    three->release();
    CHECK(three->available() == 3u);
}

void a_fork_may_come_while_other_threads_use_the_object() {
    const auto client = here();
    memlock::mutex shared{client, "shared", 300s};
    memlock::counting_semaphore two{client, "two", 2, 300s};
    std::atomic<bool> stop{false};
    std::vector<std::thread> users;
    for (int i = 0; i < 3; i++) {
        users.emplace_back([&] {
            while (!stop) {
                std::scoped_lock guard{shared};
                two.acquire();
                two.release();
            }
        });
    }
    for (int i = 0; i < forks; i++) {
        in_a_child([&] {
            std::scoped_lock guard{shared};
            CHECK(shared.owner()->pid == static_cast<std::uint32_t>(getpid()));
            two.acquire();
            two.release();
            { const auto permit = two.acquire_permit(); }
            const std::string said{memlock_last_error()};
            for (const auto& holder : two.holders()) {
                if (holder.pid == static_cast<std::uint32_t>(getpid())) FAIL("it is left: %s", said.c_str());
            }
        });
    }
    stop = true;
    for (auto& user : users) user.join();
    CHECK(!shared.last_unlock());
    CHECK(two.available() == 2u);
}

}  // namespace

// Usage: fork NAME [number of forks]
int main(int argc, char** argv) {
    if (argc > 2) forks = atoi(argv[2]);
    RUN(a_child_has_the_object_but_not_the_lock);
    RUN(a_child_has_the_semaphore_but_no_permit);
    RUN(a_fork_may_come_while_other_threads_use_the_object);
}
