// client::on_lost(): a loss is reported where nothing can be thrown. And what guards do when the server does not
// answer: none of them ends the program.

#include "check.hpp"

#include <cstring>

namespace lost_tests {

/// The notices that the callback got.
struct told {
    std::vector<std::string> sentences;
    std::vector<std::thread::id> threads;

    void listen(const memlock::client& client) {
        client.on_lost([this](const memlock::error& lost) {
            CHECK(lost.code() == errc::lost);
            sentences.emplace_back(lost.what());
            threads.push_back(std::this_thread::get_id());
        });
    }

    void is(std::size_t times, const char* last) const {
        if (sentences.size() != times) FAIL("told %zu times, not %zu", sentences.size(), times);
        const char* sentence = sentences.back().c_str();
        if (std::strstr(sentence, last) == nullptr) FAIL("no %s in: %s", last, sentence);
        CHECK(threads.back() == std::this_thread::get_id());
    }
};

void a_guard_that_ends_without_its_lock_tells() {
    const auto client = here();
    told told;
    told.listen(client);
    memlock::mutex mutex{client, "guarded", 30s};
    { std::scoped_lock guard{mutex}; }
    // What is thrown is not told.
    mutex.lock();
    CHECK(plain_delete("lock:guarded"));
    THROWS(errc::lost, mutex.release());
    CHECK(told.sentences.empty());
    {
        std::scoped_lock guard{mutex};
        CHECK(plain_delete("lock:guarded"));
    }
    told.is(1, "lock \"guarded\" on memcached at 127.0.0.1:");
    CHECK(mutex.last_unlock() == errc::lost);
    {
        memlock::mutex brief{client, "guarded", 6s};
        std::scoped_lock guard{brief};
        EVENTUALLY(brief.remaining() == 0ms);
        // That is rounded down.
        std::this_thread::sleep_for(2ms);
        CHECK(!plain_has("lock:guarded") || plain_delete("lock:guarded"));
    }
    told.is(2, "its lease of 6 s ended");
}

void everything_that_ends_without_what_it_held_tells() {
    const auto client = here();
    told told;
    told.listen(client);
    {
        memlock::mutex mutex{client, "ends", 30s};
        mutex.lock();
        CHECK(plain_delete("lock:ends"));
    }
    told.is(1, "\"ends\"");
    {
        const memlock::mutex mutex{client, "kept", 30s};
        memlock::renewed_lock kept{mutex};
        CHECK(plain_delete("lock:kept"));
    }
    told.is(2, "\"kept\"");
    {
        memlock::counting_semaphore semaphore{client, "permits", 2, 30s};
        memlock::permit outlives;
        {
            memlock::counting_semaphore another{client, "permits", 2, 30s};
            another.acquire();
            outlives = another.acquire_permit();
            CHECK(semaphore.tear_down());
        }
        told.is(3, "\"permits\"");
    }
    told.is(4, "permit of the semaphore \"permits\"");
    {
        memlock::counting_semaphore semaphore{client, "permits", 2, 30s};
        memlock::renewed_permit kept{semaphore};
        CHECK(semaphore.tear_down());
    }
    told.is(5, "\"permits\"");
}

void a_callback_may_throw_and_be_replaced() {
    const auto client = here();
    const auto copy = client;
    memlock::mutex mutex{client, "replaced", 30s};
    const auto lose = [&mutex] {
        std::scoped_lock guard{mutex};
        CHECK(plain_delete("lock:replaced"));
    };
    int thrown = 0;
    copy.on_lost([&](const auto&) {
        thrown++;
        copy.on_lost({});
        throw 5;
    });
    lose();
    lose();
    CHECK(thrown == 1);
    told told;
    told.listen(copy);
    lose();
    told.is(1, "\"replaced\"");
}

void a_client_that_was_moved_away_tells_nobody() {
    auto client = here();
    const auto moved = std::move(client);
    client.on_lost([](const auto&) { FAIL("nobody listens here"); });
    memlock::mutex mutex{client, "moved", 30s};
    THROWS(errc::invalid, mutex.lock());
    mutex.unlock();
    CHECK(mutex.last_unlock() == errc::not_held);
}

memlock::client impatient() {
    return memlock::client{"memcached://127.0.0.1:" + std::to_string(plain_port()) + "?io_timeout=5s&outage=300ms"};
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

}  // namespace lost_tests

SUITE(lost) {
    using namespace lost_tests;
    RUN(a_guard_that_ends_without_its_lock_tells);
    RUN(everything_that_ends_without_what_it_held_tells);
    RUN(a_callback_may_throw_and_be_replaced);
    RUN(a_client_that_was_moved_away_tells_nobody);
    RUN(a_guard_survives_a_server_that_does_not_answer);
    RUN(a_guard_survives_a_server_that_died);
}
