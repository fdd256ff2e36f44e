// memlock::counter: a counter without leases, which other programs may use too.

#include "check.hpp"

#include "../c/queue.h"

using namespace std::chrono_literals;
using memlock::errc;
using clock_type = std::chrono::steady_clock;

static_assert(std::is_copy_constructible_v<memlock::counter> && std::is_move_constructible_v<memlock::counter>);

namespace {

memlock::client here() { return memlock::client{check_url()}; }

void it_counts_down_to_none_and_up_again() {
    const auto client = here();
    memlock::counter counter{client, "counter"};
    CHECK(!counter.available() && counter.key() == "counter");
    CHECK(counter.set_up(2) && !counter.set_up(7));
    memlock::counter same{counter};
    CHECK(same.try_acquire());
    counter.retry();
    CHECK(!counter.try_acquire() && !counter.retry_for(10ms) && !counter.park_for(10ms, 3));
    CHECK(counter.available() == 0u);
    same.release();
    CHECK(counter.park_for(1h));
    same.release();
    CHECK(counter.retry_for(1h));
    // A second release adds a permit: that cannot be noticed.
    for (int i = 0; i < 3; i++) counter.release();
    CHECK(same.available() == 3u);
}

void who_is_parked_is_woken() {
    const auto client = here();
    memlock::counter counter{client, "parked"};
    CHECK(counter.set_up(0));
    std::thread parked{[&] { counter.park(5); }};
    QUEUE_AT_BECOMES(1, "parked");
    check_watch watch;
    check_watch_start(&watch);
    counter.release();
    parked.join();
    CHECK(check_watch_end_ms(&watch) < TOLD_MS);
}

void a_handle_ends_single_waits() {
    const auto client = here(), other = here();
    memlock::counter counter{client, "handle"};
    CHECK(counter.set_up(0));
    const memlock::wait_handle handle{client}, theirs{other};
    std::thread parked{[&] { THROWS(errc::interrupted, counter.park_unless(handle)); }};
    std::thread trying{[&] { THROWS(errc::interrupted, counter.retry_unless(handle)); }};
    QUEUE_AT_BECOMES(1, "handle");
    handle.cancel();
    parked.join();
    trying.join();
    THROWS(errc::invalid, counter.retry_unless(theirs));
    THROWS(errc::invalid, counter.park_unless(theirs));
}

void what_is_not_there_or_no_number_is_told() {
    const auto client = here();
    memlock::counter counter{client, "told"};
    THROWS(errc::not_found, counter.try_acquire());
    THROWS(errc::not_found, counter.retry());
    THROWS(errc::not_found, counter.park());
    THROWS(errc::not_found, counter.release());
    CHECK(strcmp(plain("set told 0 0 3\r\nhm?\r\n"), "STORED") == 0);
    THROWS(errc::protocol, counter.available());
    THROWS(errc::protocol, counter.try_acquire());
    THROWS(errc::invalid, memlock::counter(client, std::string{"a\0b", 3}));
    THROWS(errc::invalid, memlock::counter(client, "a b").set_up(1));
}

}  // namespace

int main() {
    RUN(it_counts_down_to_none_and_up_again);
    RUN(who_is_parked_is_woken);
    RUN(a_handle_ends_single_waits);
    RUN(what_is_not_there_or_no_number_is_told);
}
