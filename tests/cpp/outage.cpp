// What guards do when the server does not answer: none of them ends the program.

#include "check.hpp"

#include "../c/freeze.h"

#include <csignal>
#include <memory>
#include <mutex>
#include <vector>

using namespace std::chrono_literals;
using memlock::errc;

namespace {

std::string impatient_url() {
    return "memcached://127.0.0.1:" + std::to_string(plain_port()) + "?io_timeout=1s&outage=300ms";
}

void is_in_doubt(const std::error_code& code) {
    if (code != errc::unknown && code != errc::unreachable) FAIL("%s", code.message().c_str());
}

void a_guard_survives_a_server_that_does_not_answer() {
    const memlock::client client{impatient_url()};
    memlock::mutex mutex{client, "frozen", 30s};
    {
        std::scoped_lock guard{mutex};
        freeze();
    }
    is_in_doubt(mutex.last_unlock());
    thaw();
    // It is given up, and removed at the next contact at the latest.
    CHECK(mutex.try_lock_for(10s));
    mutex.release();
}

void a_guard_survives_a_server_that_died() {
    const memlock::client client{impatient_url()};
    memlock::mutex one{client, "one", 30s}, two{client, "two", 30s};
    two.lock();
    {
        std::scoped_lock guard{one};
        CHECK(kill(check_server(), SIGKILL) == 0);
    }
    is_in_doubt(one.last_unlock());
    try {
        two.release();
        FAIL("there is no server to confirm it");
    } catch (const std::system_error& error) {
        is_in_doubt(error.code());
    }
    THROWS(errc::unreachable, one.lock());
    THROWS(errc::unreachable, one.try_lock());
    THROWS(errc::unreachable, one.try_lock_for(1h));
    THROWS(errc::unreachable, one.owner());
    THROWS(errc::unreachable, std::scoped_lock(one, two));
    THROWS(errc::unreachable, memlock::distinct_list(client, "session", 60s));
    CHECK(one.remaining() == 0ms);
}

void the_end_of_many_objects_waits_once_for_a_server_that_does_not_answer() {
    const memlock::client client{impatient_url()};
    memlock::counting_semaphore semaphore{client, "permits", 100, 30s};
    std::vector<std::unique_ptr<memlock::mutex>> mutexes;
    std::vector<memlock::permit> permits;
    std::vector<memlock::renewed_lock> kept;
    for (int number = 0; number < 20; number++) {
        const auto name = std::to_string(number);
        mutexes.push_back(std::make_unique<memlock::mutex>(client, "mutex " + name, 30s));
        mutexes.back()->lock();
        permits.push_back(semaphore.acquire_permit());
        const memlock::mutex other{client, "kept " + name, 30s};
        kept.emplace_back(other);
    }
    freeze();
    check_watch watch;
    check_watch_start(&watch);
    mutexes.clear();
    permits.clear();
    kept.clear();
    CHECK(check_watch_end_ms(&watch) < 6000);
    thaw();
}

}  // namespace

int main() {
    RUN(a_guard_survives_a_server_that_does_not_answer);
    RUN(the_end_of_many_objects_waits_once_for_a_server_that_does_not_answer);
    RUN(a_guard_survives_a_server_that_died);
}
