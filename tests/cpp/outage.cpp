// What guards do when the server does not answer: none of them ends the program.

#include "check.hpp"

namespace outage_tests {

memlock::client impatient() {
    return memlock::client{std::string{check_url()} + "?io_timeout=1s&outage=300ms"};
}

void is_in_doubt(const std::error_code& code) {
    if (code != errc::unknown && code != errc::unreachable) FAIL("%s", code.message().c_str());
}

void a_guard_survives_a_server_that_does_not_answer() {
    const auto client = impatient();
    memlock::mutex mutex{client, "frozen", 30s};
    {
        std::scoped_lock guard{mutex};
        freeze();
    }
    is_in_doubt(mutex.last_unlock());
    thaw();
    // It is given up, and removed at the next contact at the latest.
    CHECK(mutex.try_lock_for(1h));
    mutex.release();
}

void a_guard_survives_a_server_that_died() {
    const auto client = impatient();
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

}  // namespace outage_tests

SUITE(outage) {
    using namespace outage_tests;
    RUN(a_guard_survives_a_server_that_does_not_answer);
    RUN(a_guard_survives_a_server_that_died);
}
