// What the C++ tests say "must" with, beside tests/c/check.h.

#ifndef CHECK_HPP
#define CHECK_HPP

#include <memlock.hpp>

#include "../c/memcached_text.h"

/// The expression must throw a memlock::error of this code.
#define THROWS(expected, ...)                                                         \
    do {                                                                              \
        bool check_threw = false;                                                     \
        try {                                                                         \
            static_cast<void>(__VA_ARGS__);                                           \
        } catch (const memlock::error& caught) {                                      \
            check_threw = true;                                                       \
            if (caught.code() != (expected)) FAIL("%s: %s", #__VA_ARGS__, caught.what()); \
        }                                                                             \
        if (!check_threw) FAIL("this must throw %s: %s", #expected, #__VA_ARGS__);    \
    } while (false)

#endif
