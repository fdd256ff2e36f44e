// `quorum=majority`: a lock on three servers, of which any one may be killed or started anew.

#include "check.hpp"

#include "../c/members.h"

#include <string>

using namespace std::chrono_literals;
using memlock::errc;

namespace {

constexpr auto guard = 4s;

std::string url;

// Or a majority was started anew a moment ago, and gives nothing yet.
bool is_not_given(memlock::mutex &mutex) {
    try {
        return !mutex.try_lock();
    } catch (const memlock::error &error) {
        return error.code() == errc::recovering;
    }
}

void a_lock_is_taken_extended_and_released_without_one_of_three() {
    const memlock::client client{url}, others{url};
    memlock::mutex mutex{client, "m", guard}, other{others, "m", guard};
    std::uint64_t last = 0;
    for (int place = 0; place < MEMBERS; place++) {
        kill_member(place);
        CHECK(mutex.try_lock_for(60s));
        mutex.extend(guard);
        CHECK(is_not_given(other));
        CHECK(mutex.fence() > last);
        last = mutex.fence();
        start_member(place);
        mutex.extend(guard);
        mutex.release();
    }
    CHECK(other.try_lock_for(60s) && other.fence() > last);
    other.release();
}

void what_a_quorum_has_not_is_refused() {
    const memlock::client client{url};
    THROWS(errc::config, memlock::counting_semaphore{client, "s", 2, guard});
    THROWS(errc::config, memlock::client{"memcached://a,b?quorum=majority&guard=60s"});
    THROWS(errc::config, memlock::client{"memcached://a,b,c?quorum=majority"});
}

}  // namespace

int main() {
    char text[256];
    start_members(text, sizeof text);
    url = text;
    RUN(a_lock_is_taken_extended_and_released_without_one_of_three);
    RUN(what_a_quorum_has_not_is_refused);
    for (int place = 0; place < MEMBERS; place++) kill_member(place);
    return 0;
}
