// memlock::distinct_list.

#include "check.hpp"

#include <algorithm>
#include <list>
#include <numeric>

using namespace std::chrono_literals;
using namespace std::string_view_literals;
using memlock::errc;

static_assert(std::is_nothrow_move_constructible_v<memlock::distinct_list>);
static_assert(!std::is_copy_constructible_v<memlock::distinct_list>);
#if __cplusplus >= 202002L
static_assert(std::input_iterator<memlock::distinct_list::iterator>);
#endif

namespace {

void the_first_sets_up_and_the_others_join() {
    const memlock::client client{check_url()};
    memlock::distinct_list one{client, "session", 60s}, two{client, "session", 60s};
    CHECK(one.created() && !two.created());
    const auto [id, first] = one.insert("key");
    CHECK(id == 1 && first);
    const auto again = two.insert("key");
    CHECK(again.id == 1 && !again.first);
    CHECK(one.tear_down());
    CHECK(!two.tear_down());
}

void keys_are_any_bytes() {
    const memlock::client client{check_url()};
    memlock::distinct_list list{client, "bytes", 60s};
    const std::vector<std::string_view> keys{"a\0b"sv, "a\0c"sv, "a"sv, "\0"sv, "\r\n"sv, "\xff"sv};
    for (std::size_t i = 0; i < keys.size(); i++) {
        CHECK(list.insert(keys[i]).id == i + 1);
        CHECK(list.id(keys[i]) == i + 1);
        CHECK(list.contains(keys[i]));
    }
    CHECK(!list.contains("b") && !list.id("b"));
    CHECK(list.count() == keys.size() && list.size() == keys.size());
    std::size_t walked = 0;
    for (const auto& [id, key] : list) {
        CHECK(key == keys[walked] && id == ++walked);
    }
    CHECK(walked == keys.size());
    THROWS(errc::invalid, list.insert(""));
    THROWS(errc::invalid, list.insert(std::string_view{}));
    THROWS(errc::invalid, list.contains({}));
    THROWS(errc::invalid, list.insert(std::string(65537, 'x')));
    list.tear_down();
}

void a_batch_is_any_range_of_keys() {
    const memlock::client client{check_url()};
    memlock::distinct_list list{client, "ranges", 60s};
    const char* const array[] = {"a", "b"};
    std::vector<std::string> strings{"b", "c"};
    const std::list<std::string_view> views{"c", "d", "d"};
    const auto ids = [](const std::vector<memlock::insertion>& answers) {
        std::vector<std::pair<std::uint64_t, bool>> all;
        for (const auto& [id, first] : answers) all.emplace_back(id, first);
        return all;
    };
    using pairs = std::vector<std::pair<std::uint64_t, bool>>;
    CHECK((ids(list.insert_many(array)) == pairs{{1, true}, {2, true}}));
    CHECK((ids(list.insert_many(strings)) == pairs{{2, false}, {3, true}}));
    CHECK((ids(list.insert_many(views)) == pairs{{3, false}, {4, true}, {4, false}}));
    CHECK((ids(list.insert_many({"d", "e"})) == pairs{{4, false}, {5, true}}));
    CHECK((ids(list.insert_many(std::vector<std::string>{"f"})) == pairs{{6, true}}));
    CHECK(list.insert_many(std::vector<std::string>{}).empty());
    CHECK(list.insert_many({}).empty());
    THROWS(errc::invalid, list.insert_many({"g", ""}));
    CHECK(list.size() == 6);
    list.tear_down();
}

// A range whose keys live only while it stands on them.
struct counted {
    struct iterator {
        int number;
        std::string operator*() const { return "key " + std::to_string(number % 2000); }
        iterator& operator++() { return ++number, *this; }
        bool operator!=(const iterator& other) const { return number != other.number; }
    };
    iterator begin() { return {0}; }
    iterator end() { return {2500}; }
};

void a_large_batch_keeps_its_order_and_finds_its_duplicates() {
    const memlock::client client{check_url()};
    memlock::distinct_list list{client, "large", 60s};
    const auto answers = list.insert_many(counted{});
    CHECK(answers.size() == 2500 && list.count() == 2000);
    for (std::size_t i = 0; i < answers.size(); i++) {
        CHECK(answers[i].first == (i < 2000));
        CHECK(answers[i].id == answers[i % 2000].id);
    }
    CHECK(list.id("key 1999") == answers[1999].id);
    list.tear_down();
}

void a_walk_streams_in_the_order_of_ids() {
    const memlock::client client{check_url()};
    memlock::distinct_list list{client, "walk", 60s};
    for (const auto& [id, key] : list) FAIL("an empty list has %d", static_cast<int>(id + key.size()));
    std::vector<std::string> keys(700);
    for (std::size_t i = 0; i < keys.size(); i++) keys[i] = "key " + std::to_string(i);
    list.insert_many(keys);
    std::uint64_t last = 0;
    for (const auto& entry : list) {
        CHECK(entry.id == last + 1 && entry.key == keys[last]);
        last = entry.id;
    }
    CHECK(last == keys.size());
    const auto is_even = [](const memlock::entry& entry) { return entry.id % 2 == 0; };
    CHECK(std::count_if(list.begin(), list.end(), is_even) == 350);
    // Left early, by a break and by its list's end.
    for (const auto& entry : list) {
        if (entry.id == 3) break;
    }
    auto one = list.begin();
    auto other = list.begin();
    ++one;
    CHECK(one->id == 2 && other->id == 1 && one != other && one != list.end());
    list.tear_down();
    THROWS(errc::not_found, std::for_each(one, list.end(), [](const auto&) {}));
}

void without_a_session_it_throws_not_found() {
    const memlock::client client{check_url()};
    memlock::distinct_list list{client, "nowhere"};
    CHECK(!list.created());
    THROWS(errc::not_found, list.insert("key"));
    THROWS(errc::not_found, list.insert_many({"key"}));
    THROWS(errc::not_found, list.id("key"));
    THROWS(errc::not_found, list.contains("key"));
    THROWS(errc::not_found, list.count());
    THROWS(errc::not_found, list.begin());
    CHECK(!list.tear_down());
    memlock::distinct_list creator{client, "nowhere", 60s};
    CHECK(list.insert("key").first);
    CHECK(creator.tear_down());
    memlock::distinct_list next{client, "nowhere", 60s};
    THROWS(errc::not_found, creator.insert("late"));
    CHECK(list.insert("key").first);
    next.tear_down();
}

void bad_sessions_are_refused() {
    const memlock::client client{check_url()};
    THROWS(errc::invalid, memlock::distinct_list(client, "", 60s));
    THROWS(errc::invalid, memlock::distinct_list(client, ""));
    THROWS(errc::invalid, memlock::distinct_list(client, std::string{"a\0b", 3}, 60s));
    THROWS(errc::invalid, memlock::distinct_list(client, "x", 999ms));
    THROWS(errc::invalid, memlock::distinct_list(client, "x", 367 * 24h));
}

void a_list_can_be_moved() {
    const memlock::client client{check_url()};
    memlock::distinct_list list{client, "moved", 60s};
    memlock::distinct_list moved{std::move(list)};
    CHECK(moved.created() && moved.insert("key").first);
    THROWS(errc::invalid, list.insert("key"));
    list = std::move(moved);
    CHECK(list.size() == 1 && list.tear_down());
}

}  // namespace

int main() {
    RUN(the_first_sets_up_and_the_others_join);
    RUN(keys_are_any_bytes);
    RUN(a_batch_is_any_range_of_keys);
    RUN(a_large_batch_keeps_its_order_and_finds_its_duplicates);
    RUN(a_walk_streams_in_the_order_of_ids);
    RUN(without_a_session_it_throws_not_found);
    RUN(bad_sessions_are_refused);
    RUN(a_list_can_be_moved);
}
