// Log records for a function.

#include "check.hpp"

using memlock::log_level;

namespace log_tests {

struct line {
    log_level level;
    std::string part, message;
};

class lines {
public:
    void operator()(log_level level, std::string_view part, std::string_view message) {
        const std::lock_guard guard{mutex_};
        said_.push_back({level, std::string{part}, std::string{message}});
    }

    std::vector<line> all() {
        const std::lock_guard guard{mutex_};
        return said_;
    }

private:
    std::mutex mutex_;
    std::vector<line> said_;
};

void fail() {
    const memlock::client dead{"memcached://127.0.0.1:1"};
    memlock::mutex mutex{dead, "dead", std::chrono::seconds{1}};
    THROWS(memlock::errc::unreachable, mutex.try_lock());
}

void messages_are_told_up_to_their_level() {
    lines told;
    memlock::set_log(log_level::warning, std::ref(told));
    fail();
    CHECK(told.all().empty());
    memlock::set_log(log_level::info, std::ref(told));
    fail();
    memlock::set_log(log_level::off, std::ref(told));
    fail();
    memlock::set_log(log_level::trace, nullptr);
    fail();
    const auto said = told.all();
    CHECK(said.size() == 1 && said[0].level == log_level::info && said[0].part == "memlock.store");
    CHECK(said[0].message.find("127.0.0.1:1") != std::string::npos);
    THROWS(memlock::errc::invalid, memlock::set_log(log_level{99}, std::ref(told)));
}

void what_it_throws_is_dropped() {
    int thrown = 0;
    memlock::set_log(log_level::info, [&](auto...) { thrown++; throw std::runtime_error{"oh no"}; });
    fail();
    memlock::set_log(log_level::info, [&](auto...) { thrown++; throw 5; });
    fail();
    memlock::set_log(log_level::off, nullptr);
    CHECK(thrown == 2);
}

void it_may_be_replaced_from_within() {
    lines told;
    int called = 0;
    memlock::set_log(log_level::info, [&, mine = std::string(100, 'x')](auto...) {
        called++;
        memlock::set_log(log_level::info, std::ref(told));
        CHECK(mine == std::string(100, 'x'));
    });
    fail();
    fail();
    memlock::set_log(log_level::off, nullptr);
    CHECK(called == 1 && told.all().size() == 1);
}

}  // namespace log_tests

SUITE(log) {
    using namespace log_tests;
    RUN(messages_are_told_up_to_their_level);
    RUN(what_it_throws_is_dropped);
    RUN(it_may_be_replaced_from_within);
}
