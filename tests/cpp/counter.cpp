// memlock::counter: what is particular to C++. What all languages share is in tests/conformance.

#include "check.hpp"

static_assert(std::is_copy_constructible_v<memlock::counter> && std::is_move_constructible_v<memlock::counter>);

namespace counter_tests {

void a_copy_is_the_same_counter() {
    const auto client = here();
    memlock::counter counter{client, "counter"};
    CHECK(!counter.available() && counter.key() == "counter");
    CHECK(counter.set_up(2) && !counter.set_up(7));
    memlock::counter same{counter};
    CHECK(same.try_acquire() && counter.park_for(1h));
    CHECK(!counter.try_acquire() && !counter.retry_for(10ms) && !counter.park_for(10ms, 3));
    same.release();
    counter.release();
    CHECK(same.available() == 2u);
    THROWS(errc::invalid, memlock::counter(client, std::string{"a\0b", 3}));
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

}  // namespace counter_tests

SUITE(counter) {
    using namespace counter_tests;
    RUN(a_copy_is_the_same_counter);
    RUN(a_handle_ends_single_waits);
}
