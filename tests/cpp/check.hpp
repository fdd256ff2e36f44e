// What the C++ tests say "must" with, beside tests/c/check.h.

#ifndef CHECK_HPP
#define CHECK_HPP

#include <memlock.hpp>

#include "../c/server.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>

using namespace std::chrono_literals;
using memlock::errc;
using clock_type = std::chrono::steady_clock;

inline memlock::client here() { return memlock::client{check_url()}; }

/// The expression must throw a memlock::error of this code.
#define THROWS(expected, ...)                                                         \
    do {                                                                              \
        try {                                                                         \
            static_cast<void>(__VA_ARGS__);                                           \
            FAIL("this must throw %s: %s", #expected, #__VA_ARGS__);                  \
        } catch (const memlock::error& caught) {                                      \
            if (caught.code() != (expected)) FAIL("%s: %s", #__VA_ARGS__, caught.what()); \
        }                                                                             \
    } while (false)

/// The suites of this program, by their names.
inline std::map<std::string, void (*)()>& suites() {
    static std::map<std::string, void (*)()> all;
    return all;
}

/// SUITE(name) { RUN(a_test); ... } says what the file of this name runs, with a server of its own.
#define SUITE(name)                                                      \
    static void suite_##name();                                          \
    static const bool name##_is_known = (suites()[#name] = suite_##name, true); \
    static void suite_##name()

#endif
