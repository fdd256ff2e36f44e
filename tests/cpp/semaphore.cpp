// memlock::counting_semaphore as std's, its permits, and what it has beyond them; and memlock::counter. What all
// languages share is in tests/conformance.

#include "check.hpp"

#include <limits>

#if __cplusplus >= 202002L
#include <semaphore>
#endif

using semaphore = memlock::counting_semaphore;

static_assert(!std::is_copy_constructible_v<semaphore> && !std::is_copy_assignable_v<semaphore>);
static_assert(!std::is_move_constructible_v<semaphore> && !std::is_move_assignable_v<semaphore>);
static_assert(semaphore::max() >= std::numeric_limits<std::int32_t>::max());
static_assert(!std::is_copy_constructible_v<memlock::permit> && !std::is_copy_assignable_v<memlock::permit>);
static_assert(std::is_nothrow_move_constructible_v<memlock::permit>);
static_assert(std::is_nothrow_move_assignable_v<memlock::permit>);
static_assert(std::is_nothrow_default_constructible_v<memlock::permit>);
static_assert(std::is_same_v<decltype(std::declval<semaphore&>().acquire_permit()), memlock::permit>);
static_assert(std::is_copy_constructible_v<memlock::counter> && std::is_move_constructible_v<memlock::counter>);

namespace semaphore_tests {

/// What is written against the standard's semaphore.
template <class Semaphore>
void use_as_the_standards(Semaphore& three) {
    three.acquire();
    CHECK(three.try_acquire());
    CHECK(three.try_acquire_for(1h));
    CHECK(!three.try_acquire());
    CHECK(!three.try_acquire_for(10ms));
    CHECK(!three.try_acquire_until(clock_type::now() + 10ms));
    three.release();
    CHECK(three.try_acquire_until(clock_type::now() + 1h));
    three.release(2);
    three.release();
    three.release(0);
    CHECK(Semaphore::max() >= 3);
}

void it_is_used_as_the_standards() {
    const auto client = here();
    semaphore ours{client, "standard", 3, 30s};
    use_as_the_standards(ours);
    CHECK(ours.available() == 3u);
#if __cplusplus >= 202002L
    std::counting_semaphore<3> theirs{3};
    use_as_the_standards(theirs);
#endif
}

void a_try_is_false_when_there_is_none() {
    const auto client = here();
    semaphore one{client, "try", 1, 30s}, same{client, "try", 1, 30s};
    same.acquire();
    CHECK(!one.try_acquire() && !one.try_acquire_permit());
    CHECK(!one.try_acquire_for(0s) && !one.try_acquire_for(-1h) && !one.try_acquire_for(1ns));
    CHECK(!one.try_acquire_for(std::chrono::nanoseconds::min()));
    const auto began = clock_type::now();
    CHECK(!one.try_acquire_for(100ms));
    CHECK(clock_type::now() - began >= 99ms);
    CHECK(!one.try_acquire_until(std::chrono::system_clock::now() + 50ms));
    CHECK(!one.try_acquire_until(std::chrono::system_clock::time_point::min()));
    CHECK(!one.try_acquire_permit_for(20ms) && !one.try_acquire_permit_until(clock_type::now() + 20ms));
    same.release();
    CHECK(one.try_acquire_for(std::chrono::hours::max()));
    one.release();
    CHECK(one.try_acquire_until(std::chrono::system_clock::time_point::max()));
    one.release();
    CHECK(one.try_acquire_permit_until(clock_type::time_point::max()));
}

void no_more_is_released_than_was_acquired() {
    const auto client = here();
    semaphore two{client, "not held", 2, 30s}, same{client, "not held", 2, 30s};
    THROWS(errc::not_held, two.release());
    THROWS(errc::invalid, two.release(-1));
    same.acquire();
    // Acquired by another object or as a permit, it is not this one's to give back.
    const auto permit = two.acquire_permit();
    THROWS(errc::not_held, two.release());
    same.release();
    two.acquire();
    THROWS(errc::not_held, two.release(std::numeric_limits<std::ptrdiff_t>::max()));
    CHECK(two.available() == 1u);
}

void a_thread_releases_its_own_first() {
    const auto client = here();
    semaphore longer{client, "own first", 2, 300s};
    longer.acquire();
    const auto ours = longer.holders().at(0).token;
    const auto is_held = [&] { return longer.holders().size() == 1 && longer.holders()[0].token == ours; };
    std::thread{[&] {
        longer.acquire();
        longer.release();
        CHECK(is_held());
    }}.join();
    // Of several, the last one.
    longer.acquire();
    longer.release();
    CHECK(is_held());
    // And one that has none, another thread's.
    std::thread{[&] { longer.release(); }}.join();
    THROWS(errc::not_held, longer.release());
    CHECK(longer.available() == 2u);
}

void threads_share_an_object() {
    const auto client = here();
    semaphore three{client, "shared", 3, 30s};
    std::atomic<int> inside{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++) {
        threads.emplace_back([&, i] {
            for (int turn = 0; turn < 10; turn++) {
                memlock::permit held;
                if (i % 2 == 0) held = three.acquire_permit();
                else three.acquire();
                CHECK_SAFE(++inside <= 3);
                std::this_thread::yield();
                inside--;
                if (i % 2 != 0) three.release();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    CHECK(three.available() == 3u);
    THROWS(errc::not_held, three.release());
}

void permits_that_were_lost_are_told() {
    const auto client = here();
    semaphore four{client, "lost", 4, 30s};
    four.acquire();
    four.acquire();
    auto held = four.acquire_permit(), other = four.acquire_permit();
    CHECK(plain_delete("semaphore:lost"));
    THROWS(errc::lost, four.release(2));
    THROWS(errc::lost, held.extend(30s));
    CHECK(held && held.remaining() == 0ms);
    THROWS(errc::lost, held.release());
    THROWS(errc::not_held, held.release());
    THROWS(errc::lost, other.release());
    CHECK(!held && !other);
}

void what_ends_gives_back_what_it_holds() {
    const auto client = here();
    semaphore five{client, "scoped", 5, 30s};
    {
        const auto three = five.acquire_permit({3, 0, false});
        CHECK(three && three.count() == 3 && three.get() != nullptr);
        CHECK(!five.try_acquire_permit({3, 0, false}));
        const auto two = five.try_acquire_permit({2, 0, false});
        CHECK(two && two->count() == 2 && five.available() == 0u);
    }
    CHECK(five.available() == 5u);
    try {
        const auto held = five.acquire_permit();
        throw std::runtime_error{"out of the section"};
    } catch (const std::runtime_error&) {
    }
    CHECK(five.available() == 5u);
    {
        semaphore same{client, "scoped", 5, 30s};
        for (int i = 0; i < 3; i++) same.acquire();
        CHECK(five.available() == 2u);
    }
    CHECK(five.available() == 5u);
}

void a_permit_can_be_moved_and_outlives_the_others() {
    auto client = std::make_unique<memlock::client>(check_url());
    auto made = std::make_unique<semaphore>(*client, "moved", 2, 30s);
    memlock::permit empty;
    CHECK(!empty && empty.count() == 0 && empty.remaining() == 0ms && empty.get() == nullptr);
    THROWS(errc::not_held, empty.release());
    THROWS(errc::not_held, empty.extend(30s));
    auto held = made->acquire_permit();
    memlock::permit moved{std::move(held)};
    CHECK(!held && moved);
    // What is assigned to gives back what it holds.
    moved = made->acquire_permit();
    CHECK(made->available() == 1u);
    empty = std::move(moved);
    made.reset();
    client.reset();
    empty.extend(1h);
    CHECK(empty.remaining() > 30s && empty.remaining() <= 1h);
    std::thread{[held = std::move(empty)]() mutable { held.release(); }}.join();
    const auto other = here();
    CHECK(semaphore(other, "moved", 2, 30s).available() == 2u);
}

// More than there is room for at first.
void all_holders_are_known() {
    const auto client = here();
    semaphore forty{client, "holders", 40, 30s};
    CHECK(!forty.available() && forty.holders().empty());
    std::vector<memlock::permit> held;
    for (int i = 0; i < 19; i++) held.push_back(forty.acquire_permit({i % 2 == 0 ? 1u : 2u, 0, false}));
    std::map<std::string, std::uint32_t> permits;
    for (const auto& holder : forty.holders()) {
        CHECK(!holder.host.empty() && holder.pid == static_cast<std::uint32_t>(getpid()));
        permits[holder.token] = holder.permits;
    }
    CHECK(permits.size() == 19);
    CHECK(std::count_if(permits.begin(), permits.end(), [](auto& one) { return one.second == 2; }) == 9);
}

void names_and_clients_are_checked() {
    const auto client = here();
    const semaphore one{client, "a b\r\n", 1, 30s};
    CHECK(one.name() == "a b\r\n" && one.get() != nullptr);
    THROWS(errc::invalid, semaphore(client, std::string{"a\0b", 3}, 1, 30s));
    THROWS(errc::invalid, semaphore(client, std::string{"a\0b", 3}, 30s));
    THROWS(errc::invalid, semaphore(client, "none", 0, 30s));
    auto gone = here();
    const memlock::client kept{std::move(gone)};
    THROWS(errc::invalid, semaphore(gone, "moved away", 1, 30s));
}

void a_handle_ends_single_waits() {
    const auto client = here(), other = here();
    semaphore one{client, "handle", 1, 30s};
    memlock::wait_handle handle{client}, goes_on{client};
    one.acquire();
    queue_thread selves[4]{};
    std::thread waiter{[&] {
        queue_here(&selves[0]);
        THROWS(errc::interrupted, one.acquire_unless(handle));
    }};
    QUEUE_AT_BECOMES(1, "semaphore:handle");
    std::thread with_limit{[&] {
        queue_here(&selves[1]);
        THROWS(errc::interrupted, one.try_acquire_for(1h, handle));
    }};
    std::thread for_permits{[&] {
        queue_here(&selves[2]);
        THROWS(errc::interrupted, one.acquire_permit_unless(handle));
    }};
    std::thread stays{[&] {
        queue_here(&selves[3]);
        one.acquire_unless(goes_on);
        one.release();
    }};
    for (const auto& self : selves) EVENTUALLY(queue_sleeps(&self));
    handle.cancel();
    waiter.join();
    with_limit.join();
    for_permits.join();
    QUEUE_AT_BECOMES(1, "semaphore:handle");
    THROWS(errc::interrupted, one.try_acquire_permit_for(0s, handle));
    one.release();
    stays.join();
    CHECK(one.available() == 1u);
    THROWS(errc::invalid, one.acquire_unless(memlock::wait_handle{other}));
    const memlock::wait_handle moved{std::move(handle)};
    THROWS(errc::invalid, one.acquire_unless(handle));
}

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

void a_handle_ends_single_waits_for_a_counter() {
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

#ifdef __cpp_lib_jthread

void a_stop_ends_the_wait() {
    const auto client = here();
    semaphore one{client, "stopped", 1, 30s};
    one.acquire();
    std::jthread waiter{[&](const std::stop_token& stop) {
        THROWS(errc::interrupted, one.acquire_unless(stop));
        THROWS(errc::interrupted, one.acquire_permit_unless(stop, {.priority = 3}));
    }};
    QUEUE_AT_BECOMES(1, "semaphore:stopped");
    waiter.request_stop();
    waiter.join();
    one.release();
    one.acquire_unless(std::stop_token{});
    one.release();
}

#endif

}  // namespace semaphore_tests

SUITE(semaphore) {
    using namespace semaphore_tests;
    RUN(it_is_used_as_the_standards);
    RUN(a_try_is_false_when_there_is_none);
    RUN(no_more_is_released_than_was_acquired);
    RUN(a_thread_releases_its_own_first);
    RUN(threads_share_an_object);
    RUN(permits_that_were_lost_are_told);
    RUN(what_ends_gives_back_what_it_holds);
    RUN(a_permit_can_be_moved_and_outlives_the_others);
    RUN(all_holders_are_known);
    RUN(names_and_clients_are_checked);
    RUN(a_handle_ends_single_waits);
    RUN(a_copy_is_the_same_counter);
    RUN(a_handle_ends_single_waits_for_a_counter);
#ifdef __cpp_lib_jthread
    RUN(a_stop_ends_the_wait);
#endif
}
