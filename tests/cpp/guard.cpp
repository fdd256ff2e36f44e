// `guard=`: a server that was started anew gives nothing new until its holders have put back what they hold.

#include "check.hpp"

#include "../c/restart.h"

#include <string>

using namespace std::chrono_literals;
using memlock::errc;

namespace {

constexpr auto guard = 6s;

std::string url() { return std::string{"memcached://127.0.0.1:"} + std::to_string(plain_port()); }

memlock::client here() { return memlock::client{url() + "?guard=6s"}; }

// Under valgrind, the first call of each function takes long.
void warm_up() {
    const auto client = here();
    memlock::mutex mutex{client, "m", guard};
    memlock::counting_semaphore semaphore{client, "s", 2, guard};
    THROWS(errc::not_held, mutex.release());
    CHECK(mutex.try_lock_for(30s) && semaphore.try_acquire_for(30s));
    mutex.extend(guard);
    CHECK(plain_has("lock:m") && mutex.fence() > 0);
    mutex.release();
    semaphore.release();
}

void tries_throw_that_the_server_recovers_and_what_is_held_survives() {
    const auto client = here();
    memlock::mutex mutex{client, "m", guard}, other{client, "n", guard};
    memlock::counting_semaphore semaphore{client, "s", 2, guard};
    restart_server();
    THROWS(errc::recovering, mutex.try_lock());
    THROWS(errc::recovering, semaphore.try_acquire());
    CHECK(static_cast<int>(errc::recovering) == 9);
    CHECK(!mutex.try_lock_for(100ms));
    CHECK(mutex.try_lock_for(30s) && semaphore.try_acquire_for(30s));
    mutex.extend(guard);
    const auto fence = mutex.fence();
    restart_server();
    mutex.extend(guard);
    CHECK(plain_has("lock:m") && mutex.fence() == fence);
    THROWS(errc::recovering, other.try_lock());
    mutex.release();
    semaphore.release();
    CHECK(!plain_has("lock:m"));
}

void what_does_not_fit_is_refused() {
    const auto client = here();
    THROWS(errc::invalid, memlock::mutex{client, "m", guard + 1s}.lock());
    const memlock::client none{url()};
    memlock::mutex mutex{none, "m", 1s};
    THROWS(errc::config, mutex.lock());
    THROWS(errc::config, memlock::client{"memcached://h?guard=x"});
}

}  // namespace

int main() {
    RUN(warm_up);
    RUN(tries_throw_that_the_server_recovers_and_what_is_held_survives);
    RUN(what_does_not_fit_is_refused);
    kill_server();
    return 0;
}
