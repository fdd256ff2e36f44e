// memlock::client and the errors.

#include "check.hpp"

static_assert(std::is_nothrow_move_constructible_v<memlock::client>);
static_assert(std::is_nothrow_move_assignable_v<memlock::client>);
static_assert(std::is_nothrow_copy_constructible_v<memlock::error>);
static_assert(std::is_base_of_v<std::system_error, memlock::error>);
static_assert(noexcept(std::declval<const memlock::client&>().cancel_waits()));

namespace client_tests {

void a_mutex_and_a_list_do_not_mind_where_their_client_went() {
    memlock::client client{check_url()};
    memlock::mutex mutex{client, "moved", 30s};
    memlock::distinct_list list{client, "moved", 60s};
    {
        std::unique_lock guard{mutex};
        const memlock::client moved{std::move(client)};
        CHECK(moved.get() != nullptr);
        mutex.extend(30s);
    }
    CHECK(!mutex.last_unlock());
    // Now every client object is gone.
    std::scoped_lock guard{mutex};
    CHECK(list.insert("key").first);
    CHECK(list.tear_down());
}

void a_client_that_was_moved_away_is_refused_and_a_copy_is_the_same() {
    memlock::client client{check_url()};
    memlock::client moved{std::move(client)};
    memlock::mutex mutex{client, "nobody's", 30s};
    THROWS(errc::invalid, mutex.lock());
    THROWS(errc::invalid, mutex.owner());
    THROWS(errc::invalid, memlock::distinct_list(client, "nobody's", 60s));
    THROWS(errc::invalid, memlock::distinct_list(client, "nobody's"));
    client.cancel_waits();
    client = std::move(moved);
    const memlock::client copy{client};
    CHECK(copy.get() == client.get());
    memlock::mutex again{client, "somebody's", 30s};
    std::scoped_lock guard{again};
}

void a_bad_url_is_told() {
    THROWS(errc::config, memlock::client{""});
    THROWS(errc::invalid, memlock::client{std::string{"memory://a\0b", 12}});
    try {
        memlock::client client{"carrier-pigeon://coop"};
    } catch (const std::system_error& error) {
        CHECK(strstr(error.what(), "memcached://") != nullptr);
    }
}

void an_error_is_the_librarys_sentence_and_the_standards_condition() {
    const memlock::client client{"memcached://127.0.0.1:1?connect_timeout=200ms"};
    memlock::mutex mutex{client, "nowhere", 30s};
    try {
        mutex.lock();
        FAIL("there is no server at port 1");
    } catch (const std::system_error& error) {
        CHECK(error.code() == errc::unreachable);
        CHECK(error.code() == std::errc::host_unreachable);
        CHECK(error.code() != std::errc::timed_out);
        CHECK(error.code().category() == memlock::category());
        CHECK(std::string{error.what()} == memlock_last_error());
        CHECK(strstr(error.what(), "127.0.0.1:1") != nullptr);
    }
    try {
        mutex.release();
        FAIL("it is not held");
    } catch (const memlock::error& error) {
        const memlock::error copy{error};
        CHECK(copy.code() == std::errc::operation_not_permitted);
        CHECK(strstr(copy.what(), "nowhere") != nullptr);
    }
}

void every_answer_has_a_name_a_message_and_a_condition() {
    CHECK(std::string{memlock::category().name()} == "memlock");
    for (int answer = MEMLOCK_INTERNAL; answer <= MEMLOCK_INTERRUPTED; answer++) {
        if (answer == MEMLOCK_OK || answer == MEMLOCK_INTERNAL) continue;
        const std::error_code code = static_cast<errc>(answer);
        CHECK(code && code.value() == answer && code.category() == memlock::category());
        CHECK(code.message() == memlock_describe(answer));
        CHECK(code.default_error_condition().category() == std::generic_category());
    }
    CHECK(make_error_code(errc::internal).default_error_condition().category() == memlock::category());
    CHECK(make_error_code(errc::deadlock) == std::errc::resource_deadlock_would_occur);
    CHECK(make_error_code(errc::interrupted) == std::errc::operation_canceled);
}

}  // namespace client_tests

SUITE(client) {
    using namespace client_tests;
    RUN(a_mutex_and_a_list_do_not_mind_where_their_client_went);
    RUN(a_client_that_was_moved_away_is_refused_and_a_copy_is_the_same);
    RUN(a_bad_url_is_told);
    RUN(an_error_is_the_librarys_sentence_and_the_standards_condition);
    RUN(every_answer_has_a_name_a_message_and_a_condition);
}
