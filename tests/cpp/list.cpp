// memlock::distinct_list: its ranges and iterators. What all languages share is in tests/conformance.

#include "check.hpp"

#include <list>

using namespace std::string_view_literals;

static_assert(std::is_nothrow_move_constructible_v<memlock::distinct_list>);
static_assert(!std::is_copy_constructible_v<memlock::distinct_list>);
#if __cplusplus >= 202002L
static_assert(std::input_iterator<memlock::distinct_list::iterator>);
#endif

namespace list_tests {

void keys_are_any_bytes() {
    const auto client = here();
    memlock::distinct_list list{client, "bytes", 60s};
    for (const auto key : {"a\0b"sv, "\0"sv}) {
        const auto id = list.insert(key).id;
        CHECK(list.id(key) == id && list.contains(key));
    }
    CHECK(!list.contains("a") && !list.id("a") && list.size() == 2);
    CHECK(list.begin()->key == "a\0b"sv);
    THROWS(errc::invalid, list.insert(std::string_view{}));
    THROWS(errc::invalid, list.contains({}));
    THROWS(errc::invalid, memlock::distinct_list(client, std::string{"a\0b", 3}, 60s));
}

// A range whose keys live only while it stands on them.
struct counted {
    struct iterator {
        int number;
        std::string operator*() const { return "a key beyond the short ones " + std::to_string(number % 2); }
        iterator& operator++() { return ++number, *this; }
        bool operator!=(const iterator& other) const { return number != other.number; }
    };
    iterator begin() { return {0}; }
    iterator end() { return {3}; }
};

void a_batch_is_any_range_of_keys() {
    using pairs = std::vector<std::pair<std::uint64_t, bool>>;
    const auto client = here();
    memlock::distinct_list list{client, "ranges", 60s};
    const char* const array[] = {"a", "b"};
    std::vector<std::string> strings{"b", "c"};
    const std::list<std::string_view> views{"c", "d", "d"};
    const auto ids = [](const std::vector<memlock::insertion>& answers) {
        pairs all;
        for (const auto& [id, first] : answers) all.emplace_back(id, first);
        return all;
    };
    CHECK((ids(list.insert_many(array)) == pairs{{1, true}, {2, true}}));
    CHECK((ids(list.insert_many(strings)) == pairs{{2, false}, {3, true}}));
    CHECK((ids(list.insert_many(views)) == pairs{{3, false}, {4, true}, {4, false}}));
    CHECK((ids(list.insert_many({"d", "e"})) == pairs{{4, false}, {5, true}}));
    CHECK((ids(list.insert_many(std::vector<std::string>{"f"})) == pairs{{6, true}}));
    CHECK((ids(list.insert_many(counted{})) == pairs{{7, true}, {8, true}, {7, false}}));
    CHECK(list.insert_many(std::vector<std::string>{}).empty() && list.insert_many({}).empty());
    THROWS(errc::invalid, list.insert_many({"g", ""}));
    CHECK(list.size() == 8);
}

void a_walk_is_an_input_range() {
    const auto client = here();
    memlock::distinct_list list{client, "walk", 60s};
    CHECK(list.begin() == list.end());
    std::vector<std::string> keys(700);
    for (std::size_t i = 0; i < keys.size(); i++) keys[i] = "key " + std::to_string(i);
    list.insert_many(keys);
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
    const auto client = here();
    memlock::distinct_list list{client, "nowhere"};
    CHECK(!list.created());
    THROWS(errc::not_found, list.insert_many({"key"}));
    THROWS(errc::not_found, list.contains("key"));
    THROWS(errc::not_found, list.begin());
    CHECK(!list.tear_down());
}

void a_list_can_be_moved() {
    const auto client = here();
    memlock::distinct_list list{client, "moved", 60s};
    memlock::distinct_list moved{std::move(list)};
    CHECK(moved.created() && moved.insert("key").first);
    THROWS(errc::invalid, list.insert("key"));
    list = std::move(moved);
    CHECK(list.size() == 1 && list.tear_down());
}

}  // namespace list_tests

SUITE(list) {
    using namespace list_tests;
    RUN(keys_are_any_bytes);
    RUN(a_batch_is_any_range_of_keys);
    RUN(a_walk_is_an_input_range);
    RUN(without_a_session_it_throws_not_found);
    RUN(a_list_can_be_moved);
}
