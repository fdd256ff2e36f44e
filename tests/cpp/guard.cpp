// `guard=`: a server that was started a short while ago grants nothing new. Its guard is longer than this test.

#include "check.hpp"

namespace guard_tests {

std::string url() { return "memcached://127.0.0.1:" + std::to_string(plain_port()) + "?io_timeout=20s"; }

memlock::client guarded() { return memlock::client{url() + "&guard=3600s"}; }

void tries_throw_that_the_server_recovers_and_waits_wait() {
    const auto client = guarded();
    memlock::mutex mutex{client, "m", 30s};
    memlock::counting_semaphore semaphore{client, "s", 2, 30s};
    THROWS(errc::recovering, mutex.try_lock());
    THROWS(errc::recovering, semaphore.try_acquire());
    CHECK(static_cast<int>(errc::recovering) == 9);
    CHECK(std::error_code{errc::recovering} == std::errc::resource_unavailable_try_again);
    CHECK(!mutex.try_lock_for(200ms) && !semaphore.try_acquire_for(200ms));
    CHECK(!plain_has("lock:m"));
}

void what_does_not_fit_is_refused() {
    const auto client = guarded();
    THROWS(errc::invalid, memlock::mutex{client, "m", 3601s}.lock());
    memlock::mutex{client, "m", 30s}.owner();
    const memlock::client none{url()};
    memlock::mutex mutex{none, "m", 1s};
    THROWS(errc::config, mutex.lock());
    THROWS(errc::config, memlock::client{"memcached://h?guard=x"});
}

}  // namespace guard_tests

SUITE(guard) {
    using namespace guard_tests;
    RUN(tries_throw_that_the_server_recovers_and_waits_wait);
    RUN(what_does_not_fit_is_refused);
}
