/* memlock for C++17: locks, semaphores and distinct lists for programs that share a memcached.
 *
 *     memlock::client client{"memcached://10.0.0.5"};
 *     client.on_lost([](const memlock::error& lost) { std::cerr << lost.what() << '\n'; });
 *     memlock::mutex mutex{client, "nightly-report", 30s};
 *
 *     {
 *         std::scoped_lock guard{mutex};   // waits; no other process holds it now
 *         report(mutex.fence());           // at most 30 seconds of work, or mutex.extend(30s)
 *     }                                    // unlocks; a loss is reported to on_lost()
 *
 *     {
 *         memlock::renewed_lock lock{mutex};    // its lease is renewed during its lifetime
 *         while (lock.is_held() && more()) step();
 *     }
 *
 *     memlock::counting_semaphore downloads{client, "downloads", 3, 30s};
 *     if (auto permit = downloads.try_acquire_permit_for(5s)) download();   // at most 3 at a time
 *
 *     memlock::distinct_list seen{client, "crawl-42", 1h};
 *     if (auto [id, first] = seen.insert(url); first) fetch(url, id);
 *     for (const auto& [id, key] : seen) std::cout << id << ' ' << key << '\n';
 *
 * A header-only wrapper of the C library of memlock.h: link with libmemlock. A mutex is *Lockable*
 * and *TimedLockable*, so std::unique_lock, std::scoped_lock (also of several mutexes),
 * std::lock_guard and std::lock work with it as with std::timed_mutex. The differences from
 * std::timed_mutex:
 *
 * - **A lease expires.** The lock is held until mutex::remaining() is zero; after that another
 *   holder may acquire it although this one has not unlocked. Work that may take longer calls
 *   extend(), or holds a renewed_lock, or passes fence() to the resource that it changes.
 * - **Locking can fail.** An unknown outcome is never reported as success: lock() and the try_
 *   functions throw memlock::error, a std::system_error with memlock::category(). "Busy" and "timed
 *   out" are plain false.
 * - **A wait can be ended** from another thread: all waits of a client by client::cancel_waits(),
 *   single waits by a wait_handle or, in C++20, a std::stop_token. The wait throws
 *   errc::interrupted, and nothing is held.
 * - **Unlocking can detect a loss**, for example because the work took longer than the lease:
 *   another holder may have held the lock meanwhile. If none has, unlocking shortly after the end
 *   of the lease may still succeed. unlock() does not throw, because guards call it in destructors:
 *   it calls the callback of client::on_lost(), and mutex::last_unlock() returns the outcome. If
 *   neither is used, a loss is silent. release() unlocks and throws. With a guard:
 *   `guard.release()->release();`.
 *
 * A counting_semaphore has the interface of std::counting_semaphore, with similar differences: a
 * permit expires with its lease, and is released where it was acquired. A permit object offers
 * more: its destructor releases it, its lease can be extended, and it may stand for several permits
 * at once, acquired with a priority.
 *
 * A callback that is given here may fork, and so may a signal handler that interrupts a call, but the
 * child may then only call async-signal-safe functions, exec or _exit: what else it does, also by
 * returning from the callback or handler, is undefined.
 *
 * The bare functions of memlock.h, the six of 2004 and the semaphore's five, are hidden here. A
 * program that uses them together with this header includes <memlock.h> *before* <memlock.hpp>.
 */

#ifndef MEMLOCK_HPP
#define MEMLOCK_HPP

#if !defined(MEMLOCK_H) && !defined(MEMLOCK_NO_BARE_NAMES)
#define MEMLOCK_NO_BARE_NAMES
#include "memlock.h"
#undef MEMLOCK_NO_BARE_NAMES
#else
#include "memlock.h"
#endif

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if __cplusplus >= 202002L
#include <stop_token>
#endif

namespace memlock {

/// The answers other than success, with the names and numbers of memlock.h.
enum class errc : int {
    busy = MEMLOCK_BUSY,
    timed_out = MEMLOCK_TIMED_OUT,
    duplicate = MEMLOCK_DUPLICATE,
    exists = MEMLOCK_EXISTS,
    not_held = MEMLOCK_NOT_HELD,
    lost = MEMLOCK_LOST,
    not_found = MEMLOCK_NOT_FOUND,
    interrupted = MEMLOCK_INTERRUPTED,
    recovering = MEMLOCK_RECOVERING,
    invalid = MEMLOCK_INVALID,
    unreachable = MEMLOCK_UNREACHABLE,
    unknown = MEMLOCK_UNKNOWN,
    protocol = MEMLOCK_PROTOCOL,
    config = MEMLOCK_CONFIG,
    deadlock = MEMLOCK_DEADLOCK,
    internal = MEMLOCK_INTERNAL,
};

}  // namespace memlock

template <>
struct std::is_error_code_enum<memlock::errc> : std::true_type {};

namespace memlock {

namespace detail {

// Visible from every shared library, because categories are compared by address.
class [[gnu::visibility("default")]] category_type final : public std::error_category {
public:
    const char* name() const noexcept override { return "memlock"; }
    std::string message(int answer) const override { return memlock_describe(answer); }

    std::error_condition default_error_condition(int answer) const noexcept override {
        switch (errc{answer}) {
            case errc::busy: return std::errc::device_or_resource_busy;
            case errc::timed_out: return std::errc::timed_out;
            case errc::duplicate: return std::errc::file_exists;
            case errc::exists: return std::errc::file_exists;
            case errc::not_held: return std::errc::operation_not_permitted;
            case errc::lost: return std::errc::no_lock_available;
            case errc::not_found: return std::errc::no_such_file_or_directory;
            case errc::interrupted: return std::errc::operation_canceled;
            case errc::recovering: return std::errc::resource_unavailable_try_again;
            case errc::invalid: return std::errc::invalid_argument;
            case errc::unreachable: return std::errc::host_unreachable;
            case errc::unknown: return std::errc::io_error;
            case errc::protocol: return std::errc::protocol_error;
            case errc::config: return std::errc::invalid_argument;
            case errc::deadlock: return std::errc::resource_deadlock_would_occur;
            case errc::internal: break;
        }
        return {answer, *this};
    }
};

}  // namespace detail

/// The category of memlock's answers. Each of its messages is one sentence.
[[gnu::visibility("default")]] inline const std::error_category& category() noexcept {
    static const detail::category_type instance;
    return instance;
}

inline std::error_code make_error_code(errc answer) noexcept {
    return {static_cast<int>(answer), category()};
}

/// The exception that this header throws. code() is the answer; what() is a message that names the
/// lock or list and the server and says what happened.
class [[gnu::visibility("default")]] error : public std::system_error {
public:
    error(errc answer, const std::string& sentence)
        : std::system_error{make_error_code(answer)}, sentence_{sentence} {}
    const char* what() const noexcept override { return sentence_.what(); }

private:
    std::runtime_error sentence_;  // Unlike a string, copied without throwing.
};

namespace detail {

/// The error for an answer of a C call that this thread has just made. `subject` is the name for
/// the message where no call was made, because the object holds nothing.
inline error failure(int answer, const std::string& subject) {
    const char* sentence = memlock_last_error();
    const bool made_a_call = answer != MEMLOCK_NOT_HELD && *sentence != '\0';
    return {errc{answer},
            made_a_call ? sentence : '"' + subject + "\": " + memlock_describe(answer)};
}

[[noreturn]] inline void fail(int answer, const std::string& subject) {
    throw failure(answer, subject);
}

/// Throws for a string with a NUL: C would read a shorter name, which is another lock.
inline const std::string& without_nul(const std::string& text) {
    if (text.find('\0') != std::string::npos) {
        throw error{errc::invalid, "The text \"" + std::string{text.c_str()} +
                                       "...\" contains a NUL byte, which no name and no URL may."};
    }
    return text;
}

/// A timeout as C expects it: rounded up, so that no wait ends early.
template <class Rep, class Period>
std::int64_t timeout_ms(const std::chrono::duration<Rep, Period>& timeout) {
    using std::chrono::milliseconds;
    if (!(timeout > timeout.zero())) return 0;
    // In floating point, because hours::max() overflows milliseconds. A century is for ever.
    constexpr milliseconds longest = std::chrono::hours{24 * 365 * 100};
    using exact = std::chrono::duration<double>;
    if (exact{timeout} >= exact{longest}) return longest.count();
    return std::chrono::ceil<milliseconds>(timeout).count();
}

/// Calls `attempt` with the time that is left until `deadline`, and returns its result: empty when
/// the deadline came first.
template <class Clock, class Duration, class Attempt>
auto until(const std::chrono::time_point<Clock, Duration>& deadline, const Attempt& attempt) {
    for (;;) {
        const auto now = Clock::now();
        if (deadline <= now) return attempt(std::int64_t{0});
        if (auto result = attempt(timeout_ms(deadline - now))) return result;
        // The wait uses another clock than Clock, which may have been set back meanwhile.
        if (Clock::now() >= deadline) return decltype(attempt(std::int64_t{0})){};
    }
}

/// The data of an empty view may be NULL, which C rejects with another error than an empty string.
inline const char* start_of(std::string_view bytes) noexcept {
    return bytes.data() ? bytes.data() : "";
}

template <class Handle, void (*close)(Handle*)>
struct closer {
    void operator()(Handle* handle) const noexcept { close(handle); }
};

}  // namespace detail

/// The severity of a message, the most severe first.
enum class log_level : int {
    off = MEMLOCK_LOG_OFF,          ///< for set_log(): no messages
    error = MEMLOCK_LOG_ERROR,      ///< a bug, in memlock or in a callback
    warning = MEMLOCK_LOG_WARNING,  ///< a lock or permit was lost or is at risk
    info = MEMLOCK_LOG_INFO,        ///< a server became (un)reachable; an operation was postponed
    debug = MEMLOCK_LOG_DEBUG,      ///< connections, and problems that were resolved at once
    trace = MEMLOCK_LOG_TRACE,      ///< everything
};

/// The log callback: receives the level, the part of memlock that logs, such as "memlock.renewal",
/// and one or more whole sentences. Both strings are valid until the callback returns.
///
/// Runs in the thread that logs, in several threads at once; that thread continues its work when
/// the callback returns. An exception that leaves the callback is dropped. The callback may use
/// memlock, but not the object whose call logs, and must not wait for what that call holds or waits
/// for. Messages that the callback itself causes are dropped.
using log_function =
    std::function<void(log_level, std::string_view part, std::string_view message)>;

namespace detail {

// A callback that was passed to set_log(). Never freed, because it may be running when it replaces
// itself.
struct log_listener {
    log_function callback;
    log_listener* older = nullptr;

    static void call(int level, const char* part, const char* message, void* arg) noexcept {
        try {
            static_cast<const log_listener*>(arg)->callback(log_level{level}, part, message);
        } catch (...) {  // Must not unwind into Rust.
        }
    }
};

[[gnu::visibility("default")]] inline std::atomic<log_listener*> log_listeners{nullptr};

}  // namespace detail

/// Sets the log callback: messages up to `max_level` are passed to `callback`, for all clients of
/// this process and of children that it forks. An empty function or log_level::off turns logging
/// off. When this returns, the previous callback is not running and is never called again, unless
/// this was called within it: see memlock_log_set(). The callback and all that it owns are kept
/// until the program ends, so call this rarely. Throws errc::config in a Rust program that already
/// has a logger. Thread-safe.
inline void set_log(log_level max_level, log_function callback) {
    detail::log_listener* listener = nullptr;
    if (callback && max_level != log_level::off) {
        listener = new detail::log_listener{std::move(callback)};
        listener->older = detail::log_listeners.load();
        while (!detail::log_listeners.compare_exchange_weak(listener->older, listener)) continue;
    }
    const auto function = listener != nullptr ? detail::log_listener::call : nullptr;
    const int answer = memlock_log_set(static_cast<int>(max_level), function, listener);
    if (answer != MEMLOCK_OK) detail::fail(answer, "set_log");
}

namespace detail {

/// The callbacks for losses that are detected where nothing can be thrown. A callback is kept until
/// its client is destroyed, because it may be running when it is replaced.
class lost_listeners {
public:
    lost_listeners() = default;
    lost_listeners(const lost_listeners&) = delete;
    lost_listeners& operator=(const lost_listeners&) = delete;

    ~lost_listeners() {
        for (listener* next = newest_; next != nullptr;) {
            const std::unique_ptr<listener> gone{next};
            next = gone->older;
        }
    }

    void set(std::function<void(const error&)> callback) {
        auto fresh = std::make_unique<listener>(listener{std::move(callback), newest_.load()});
        while (!newest_.compare_exchange_weak(fresh->older, fresh.get())) continue;
        static_cast<void>(fresh.release());
    }

    /// Calls the callback if `answer`, of a call that this thread has just made, is "lost".
    void report_if_lost(int answer) const noexcept {
        const listener* current = newest_;
        if (answer != MEMLOCK_LOST || current == nullptr || !current->callback) return;
        try {
            current->callback(error{errc::lost, memlock_last_error()});
        } catch (...) {  // Another exception may already be in flight.
        }
    }

private:
    struct listener {
        std::function<void(const error&)> callback;
        listener* older;
    };
    std::atomic<listener*> newest_{nullptr};
};

/// Releases what a handle holds, and reports a loss.
template <class Handle, int (*release)(Handle*)>
struct releaser {
    std::shared_ptr<const lost_listeners> listeners;
    void operator()(Handle* held) const noexcept {
        const int answer = release(held);
        if (listeners) listeners->report_if_lost(answer);
    }
};

}  // namespace detail

/// A client of one memcached server, a group of servers, or a file. Any number of threads may use
/// it at once, and so may forked children. A copy is the same client, and so is the target of a
/// move. The client stays open as long as a copy exists, or a mutex, semaphore or counter that was
/// made from it. A daemon that closes all descriptors does so before its first call, or destroys its
/// clients first: see docs/threads-and-forks.md.
class client {
public:
    /// `url` names memcached servers ("memcached://host"), a file ("sqlite:///path") or locks
    /// within this process ("memory://name"): see memlock_client_open(). Opens no connection.
    /// Throws errc::config for an invalid URL.
    explicit client(const std::string& url) {
        memlock_client* opened = nullptr;
        const int answer = memlock_client_open(detail::without_nul(url).c_str(), &opened);
        if (answer != MEMLOCK_OK) detail::fail(answer, url);
        handle_.reset(opened, memlock_client_close);
    }

    /// Ends all waits of this client that are in progress, in all threads, at once: they throw
    /// errc::interrupted. Waits that begin later are not affected: see wait_handle.
    /// Async-signal-safe.
    void cancel_waits() const noexcept {
        // For C, NULL is the default client; a moved-from client is not.
        if (handle_) memlock_client_cancel_waits(handle_.get());
    }

    /// Sets the callback for losses that are detected where nothing can be thrown: in
    /// mutex::unlock(), and thus by std::scoped_lock and the other guards, and in the destructors
    /// of mutex, counting_semaphore, permit, renewed_lock and renewed_permit, for this client and
    /// its copies. The error has the code errc::lost, and its what() names the lock and the cause.
    /// An empty function removes the callback. Losses that are thrown or returned are not reported.
    ///
    /// The callback runs in the thread that unlocks, after unlocking, possibly during stack
    /// unwinding, and in several threads at once. It should be short; an exception that leaves it
    /// is dropped. It may use memlock. What it owns is kept until the client and everything that
    /// was made from it are destroyed: set it once, before the client is used.
    void on_lost(std::function<void(const error&)> callback) const {
        if (listeners_) listeners_->set(std::move(callback));
    }

    /// For the functions of memlock.h; NULL after this client was moved from.
    memlock_client* get() const noexcept { return handle_.get(); }

private:
    friend class mutex;
    friend class counting_semaphore;
    friend class renewed_lock;

    void report_if_lost(int answer) const noexcept {
        if (listeners_) listeners_->report_if_lost(answer);
    }

    std::shared_ptr<memlock_client> handle_;
    std::shared_ptr<detail::lost_listeners> listeners_{std::make_shared<detail::lost_listeners>()};
};

/// Ends single waits of one client: those to which it is passed, by mutex::lock_unless(),
/// mutex::try_lock_for() and the like. Any number of threads may use it at once.
///
/// A child made by fork() has its own copy, which is cancelled if the parent's was cancelled at the
/// fork.
class wait_handle {
public:
    /// For waits of `where` and its copies; waits of other clients throw errc::invalid. Sends
    /// nothing.
    explicit wait_handle(const client& where) {
        memlock_wait* opened = nullptr;
        const int answer = memlock_wait_open(where.get(), &opened);
        if (answer != MEMLOCK_OK) detail::fail(answer, "wait_handle");
        handle_.reset(opened);
    }

    /// Ends all waits that use this handle, at once, and every later one: they throw
    /// errc::interrupted and hold nothing. A cancelled handle stays cancelled. Async-signal-safe.
    void cancel() const noexcept {
        if (handle_) memlock_wait_cancel(handle_.get());
    }

    /// For the functions of memlock.h; NULL after this handle was moved from.
    memlock_wait* get() const noexcept { return handle_.get(); }

private:
    std::unique_ptr<memlock_wait, detail::closer<memlock_wait, memlock_wait_close>> handle_;
};

namespace detail {

/// For C, NULL means that there is no handle; a moved-from handle is an error.
inline const memlock_wait* given(const wait_handle& handle) {
    if (handle.get() == nullptr) {
        throw error{errc::invalid, "The wait handle was moved from: pass the one it was moved to."};
    }
    return handle.get();
}

}  // namespace detail

/// The holder of a mutex, as read from the server.
struct holder {
    /// Identifies this acquisition, for force_unlock().
    std::string token;
    /// Empty when the holder does not use memlock.
    std::string host;
    /// 0 when the holder does not use memlock.
    std::uint32_t pid;
    /// The time of the acquisition, by the holder's clock; 1970 when the holder does not use
    /// memlock.
    std::chrono::system_clock::time_point since;
    /// The time until the mutex expires on the server; empty: never.
    std::optional<std::chrono::milliseconds> remaining;
};

/// A mutex by its name, for std::unique_lock and the other guards.
///
/// Any number of threads may use one object at once. They exclude each other as with std::mutex,
/// and as with std::mutex a lock is unlocked by the thread that locked it. Other objects of the
/// same name, in this or another process, compete with this one.
///
/// In a child made by fork() the object is unlocked, whatever its state in the parent, and can be
/// used.
class mutex {
public:
    /// `lease`: the maximum time for which the mutex is locked, 1 second to 366 days. Sends
    /// nothing. Throws errc::invalid for a name with a NUL byte; lock() throws errc::invalid for a
    /// lease out of range, an empty name and a name above 64 KiB.
    mutex(const client& where, std::string name, std::chrono::milliseconds lease)
        : client_{where}, name_{std::move(name)}, lease_{lease} {
        detail::without_nul(name_);
    }

    mutex(const mutex&) = delete;
    mutex& operator=(const mutex&) = delete;

    /// No thread may be using the object. A lock that is still held is released as by
    /// memlock_lock_drop(): an unresponsive server costs one timeout, however many locks are held
    /// there.
    ~mutex() {
        drop(first_.lock);
        for (held_lock* next = first_.next; next != nullptr;) {
            const std::unique_ptr<held_lock> gone{next};
            drop(gone->lock);
            next = gone->next;
        }
    }

    /// Locks, and waits without a timeout. Throws errc::interrupted when client::cancel_waits()
    /// ended the wait, and errc::unreachable, unknown, protocol or invalid; nothing new is held then.
    /// Throws errc::deadlock at once when this thread holds the mutex by this or another
    /// memlock::mutex, or has bound it by memlock_lock_bind(). A lock that the server has lost is
    /// forgotten.
    void lock() {
        const int answer = acquire(-1);
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// Like lock(), but throws errc::interrupted when `handle` is cancelled, or was cancelled before,
    /// and never errc::deadlock, since the handle can end the wait. To guard the lock, use
    /// `std::unique_lock guard{mutex, std::adopt_lock};`.
    void lock_unless(const wait_handle& handle) {
        const int answer = acquire(-1, detail::given(handle));
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// Returns false when the mutex is held, also by this thread. One round trip, and some more when
    /// this thread's lock was lost. Otherwise throws as lock(), and errc::recovering when the server
    /// gives no new locks yet.
    [[nodiscard]] bool try_lock() { return acquired(0); }

    /// Returns false when `timeout` expired first, also while this thread holds the mutex. Otherwise
    /// throws as lock(); with a timeout that is not positive, as try_lock().
    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period>& timeout) {
        return acquired(detail::timeout_ms(timeout));
    }

    /// Like try_lock_for(timeout), but also throws errc::interrupted when `handle` is cancelled, or
    /// was cancelled before.
    template <class Rep, class Period>
    [[nodiscard]]
    bool try_lock_for(const std::chrono::duration<Rep, Period>& timeout,
                      const wait_handle& handle) {
        return acquired(detail::timeout_ms(timeout), detail::given(handle));
    }

#ifdef __cpp_lib_jthread
    /// Like lock_unless() with a handle that is cancelled when a stop is requested, for
    /// std::jthread.
    void lock_unless(const std::stop_token& stop) {
        const wait_handle handle{client_};
        const std::stop_callback cancelled{stop, [&handle]() noexcept { handle.cancel(); }};
        lock_unless(handle);
    }
#endif

    /// Returns false when `deadline` was reached first. Throws as lock().
    template <class Clock, class Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration>& deadline) {
        return detail::until(deadline,
                             [this](std::int64_t timeout_ms) { return acquired(timeout_ms); });
    }

    /// Unlocks if this thread still holds the mutex. Never throws: last_unlock() returns the
    /// outcome. When the server is unreachable, the lock is released at the client's next contact
    /// with the server, or expires with its lease. A loss is reported to the callback of
    /// client::on_lost().
    void unlock() noexcept {
        const int answer = give_back();
        last_unlock_.store(answer, std::memory_order_relaxed);
        client_.report_if_lost(answer);
    }

    /// Like unlock(), but throws errc::lost when another holder may have had the lock,
    /// errc::not_held when this thread had not locked it, or errc::unreachable, unknown or
    /// protocol. The mutex is unlocked for this thread in all cases.
    void release() {
        const int answer = give_back();
        last_unlock_.store(answer, std::memory_order_relaxed);
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// The outcome of the last unlock() or release() of this object, by any thread: false for
    /// success.
    [[nodiscard]] std::error_code last_unlock() const noexcept {
        return {last_unlock_.load(std::memory_order_relaxed), category()};
    }

    /// The SQL statement that releases this thread's lock as a part of a transaction of the caller's,
    /// on the PostgreSQL or MySQL that the lock is on. Run it as the last statement, and commit if it
    /// changes one row; if it changes none, the lock was lost: roll back. Then call unlock() in either
    /// case, which wakes the next waiter; or extend(), to keep the lock after a rollback. Until then
    /// remaining() is zero: see memlock_lock_release_sql(). Throws errc::not_held, errc::config when
    /// the lock is not on a database, and errc::invalid.
    [[nodiscard]] std::string release_sql() {
        std::string statement(MEMLOCK_SQL_SIZE, '\0');
        const int answer = memlock_lock_release_sql(mine(), statement.data(), statement.size());
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
        statement.resize(statement.find('\0'));
        return statement;
    }

    /// Gives this thread's lock a new lease, counted from now; the fence does not change. Throws
    /// errc::lost when another holder may have had the lock, errc::not_held, errc::invalid for a
    /// lease out of range, and errc::unreachable, unknown or protocol: remaining() then has the
    /// time that is guaranteed.
    void extend(std::chrono::milliseconds lease) {
        const int answer = memlock_lock_extend(mine(), lease.count());
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// The time for which this thread is guaranteed to hold the lock; zero when it does not. No
    /// I/O.
    [[nodiscard]] std::chrono::milliseconds remaining() const noexcept {
        const held_lock* found = find();
        return std::chrono::milliseconds{found != nullptr ? remaining_ms(found->lock) : 0};
    }

    /// The fencing token of this thread's lock: greater than the fence of every earlier holder. No
    /// I/O. Throws errc::not_held.
    [[nodiscard]] std::uint64_t fence() const {
        std::uint64_t number = 0;
        const int answer = memlock_lock_fence(mine(), &number);
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
        return number;
    }

    /// The holder of the mutex, in any process; empty when it is free. A snapshot, for diagnostics
    /// and not for decisions. One round trip.
    std::optional<holder> owner() const {
        memlock_owner owner;
        const int answer = memlock_mutex_owner(client_.get(), name_.c_str(), &owner);
        if (answer == MEMLOCK_NOT_HELD) return std::nullopt;
        if (answer != MEMLOCK_BUSY) detail::fail(answer, name_);
        holder result{owner.token, owner.host, owner.pid,
                      std::chrono::system_clock::time_point{std::chrono::seconds{owner.since}},
                      std::nullopt};
        if (owner.remaining_ms >= 0) {
            result.remaining = std::chrono::milliseconds{owner.remaining_ms};
        }
        return result;
    }

    /// Releases the mutex on behalf of the holder that holder::token identifies. For operators who
    /// know that this holder is dead. Returns false when that acquisition no longer holds the
    /// mutex; a later holder is never affected.
    bool force_unlock(const std::string& token) {
        const int answer = memlock_mutex_force_unlock(client_.get(), name_.c_str(),
                                                      detail::without_nul(token).c_str());
        if (answer != MEMLOCK_OK && answer != MEMLOCK_NOT_HELD) detail::fail(answer, name_);
        return answer == MEMLOCK_OK;
    }

    /// The name of the mutex.
    const std::string& name() const noexcept { return name_; }

private:
    // The lock that one thread holds or waits for. There may be several: a thread whose lease has
    // expired still has its handle when another thread locks, and must not unlock with the handle
    // of that thread. Only the thread that an entry names uses its handle. The list is lock-free,
    // because a fork could leave a lock held for ever in the child.
    struct held_lock {
        explicit held_lock(std::thread::id owner = {}) noexcept : thread{owner} {}
        std::atomic<std::thread::id> thread;
        std::atomic<held_lock*> next{nullptr};
        memlock_lock* lock = nullptr;
    };

    friend class renewed_lock;

    // A lock that belongs to no thread, for an object that holds it.
    memlock_lock* lock_once(std::int64_t timeout_ms) const {
        memlock_lock* locked = nullptr;
        const int answer =
            memlock_mutex_lock(client_.get(), name_.c_str(), lease_.count(), timeout_ms, &locked);
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
        return locked;
    }

    void drop(memlock_lock* held) const noexcept {
        if (held != nullptr) client_.report_if_lost(memlock_lock_drop(held));
    }

    static std::int64_t remaining_ms(const memlock_lock* held) noexcept {
        std::int64_t left = 0;
        if (held != nullptr) memlock_lock_remaining_ms(held, &left);
        return left;
    }

    int acquire(std::int64_t timeout_ms, const memlock_wait* unless = nullptr) {
        held_lock& entry = claim();
        // Left from a lease that is over, or from the parent of this process.
        if (remaining_ms(entry.lock) == 0) replace(entry, nullptr);
        memlock_lock* locked = nullptr;
        const int answer = memlock_mutex_lock_wait(client_.get(), name_.c_str(), lease_.count(),
                                                   timeout_ms, unless, &locked);
        if (answer == MEMLOCK_OK) {
            static_cast<void>(memlock_lock_bind(locked));
            // If there is another one, the server has lost it, or its lease is over.
            replace(entry, locked);
        } else if (entry.lock == nullptr) {
            vacate(entry);
        }
        return answer;
    }

    static void replace(held_lock& entry, memlock_lock* by) noexcept {
        static_cast<void>(memlock_lock_drop(std::exchange(entry.lock, by)));
    }

    bool acquired(std::int64_t timeout_ms, const memlock_wait* unless = nullptr) {
        const int answer = acquire(timeout_ms, unless);
        if (answer == MEMLOCK_OK) return true;
        if (answer == MEMLOCK_BUSY || answer == MEMLOCK_TIMED_OUT) return false;
        detail::fail(answer, name_);
    }

    int give_back() noexcept {
        held_lock* entry = find();
        if (entry == nullptr) return MEMLOCK_NOT_HELD;
        const int answer = memlock_unlock(std::exchange(entry->lock, nullptr));
        vacate(*entry);
        return answer;
    }

    memlock_lock* mine() const {
        const held_lock* found = find();
        if (found == nullptr) detail::fail(MEMLOCK_NOT_HELD, name_);
        return found->lock;
    }

    held_lock* find() const noexcept {
        const auto me = std::this_thread::get_id();
        for (held_lock* next = &first_; next != nullptr;
             next = next->next.load(std::memory_order_acquire)) {
            if (next->thread.load(std::memory_order_relaxed) == me) return next;
        }
        return nullptr;
    }

    held_lock& claim() {
        if (held_lock* entry = find()) return *entry;
        const auto me = std::this_thread::get_id();
        for (held_lock* here = &first_;;) {
            std::thread::id none;
            if (here->thread.compare_exchange_strong(none, me, std::memory_order_acquire))
                return *here;
            held_lock* next = here->next.load(std::memory_order_acquire);
            if (next == nullptr) {
                auto fresh = std::make_unique<held_lock>(me);
                if (here->next.compare_exchange_strong(next, fresh.get())) return *fresh.release();
            }
            here = next;
        }
    }

    static void vacate(held_lock& entry) noexcept {
        entry.thread.store({}, std::memory_order_release);
    }

    client client_;
    std::string name_;
    std::chrono::milliseconds lease_;
    std::atomic<int> last_unlock_{MEMLOCK_OK};
    mutable held_lock first_;  // Avoids an allocation when a single thread uses the object.
};

/// What to acquire of a semaphore, and with which priority.
struct request {
    std::uint32_t permits = 1;  ///< acquired together or not at all; at most as many as there are
    std::int64_t priority = 0;  ///< higher is served first; FIFO among equals
    bool strict = false;        ///< false: served next after it was overtaken 16 times; true: never
};

/// A holder of permits, as read from the server.
struct permit_holder {
    std::string token;                            ///< identifies this acquisition
    std::string host;                             ///< truncated to 32 characters
    std::uint32_t pid;                            ///< the process id on that host
    std::uint32_t permits;                        ///< the number of permits that it holds
    std::chrono::system_clock::time_point since;  ///< by the holder's clock
    std::chrono::milliseconds remaining;          ///< until the lease expires on the server
};

/// One or several permits that are held, or none. The destructor releases them, in any thread, on a
/// best-effort basis; release() reports the outcome. The object may outlive its semaphore and its
/// client. Not thread-safe: use an object from one thread at a time.
///
/// In a child made by fork() the object holds nothing, and the parent's permits are not affected.
class [[nodiscard]] permit {
public:
    /// An object that holds nothing.
    permit() noexcept = default;

    /// Releases the permits. Throws errc::lost when another holder may have had them,
    /// errc::not_held when there are none, or errc::unreachable, unknown or protocol: they are then
    /// released at the client's next contact with the server, or expire with their lease. The
    /// object holds nothing afterwards, in all cases.
    void release() {
        if (!held_) detail::fail(MEMLOCK_NOT_HELD, name_);
        const int answer = memlock_permit_release(held_.release());
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// Gives the permits a new lease, counted from now. Throws errc::lost when another holder may
    /// have had them, errc::not_held, errc::invalid for a lease out of range, and
    /// errc::unreachable, unknown or protocol: remaining() then has the time that is guaranteed.
    void extend(std::chrono::milliseconds lease) {
        if (!held_) detail::fail(MEMLOCK_NOT_HELD, name_);
        const int answer = memlock_permit_extend(held_.get(), lease.count());
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// The time for which the permits are guaranteed to be held; zero when they are not. No I/O.
    [[nodiscard]] std::chrono::milliseconds remaining() const noexcept {
        std::int64_t left = 0;
        if (held_) memlock_permit_remaining_ms(held_.get(), &left);
        return std::chrono::milliseconds{left};
    }

    /// The number of permits; 0 for none.
    std::uint32_t count() const noexcept {
        std::uint32_t permits = 0;
        if (held_) memlock_permit_count(held_.get(), &permits);
        return permits;
    }

    /// Whether there are permits to be released, held or lost: see remaining().
    explicit operator bool() const noexcept { return held_ != nullptr; }

    /// For the functions of memlock.h; NULL when the object holds nothing.
    memlock_permit* get() const noexcept { return held_.get(); }

private:
    friend class counting_semaphore;
    friend class renewed_permit;

    using releaser = detail::releaser<memlock_permit, memlock_permit_drop>;

    permit(memlock_permit* held, const std::string& name,
           std::shared_ptr<const detail::lost_listeners> listeners)
        : held_{held, releaser{std::move(listeners)}}, name_{name} {}

    std::unique_ptr<memlock_permit, releaser> held_;
    std::string name_;
};

/// What a counting_semaphore does at its first use if the semaphore has another number of permits
/// than the object was made with.
enum class on_mismatch : int {
    /// It goes on with the semaphore's number, and logs a warning: once for each client, semaphore
    /// and pair of numbers.
    follow = MEMLOCK_MISMATCH_FOLLOW,
    /// It changes the semaphore's number to its own, for all processes, as resize().
    resize = MEMLOCK_MISMATCH_RESIZE,
    /// It throws errc::invalid.
    refuse = MEMLOCK_MISMATCH_REFUSE,
};

/// A semaphore by its name: limits the number of permits that are held at the same time by all
/// processes.
///
/// Any number of threads may use one object at once. Waiters are served in FIFO order, or by
/// priority. As with std::counting_semaphore any thread may release(), but only permits that were
/// acquired by the same object: it cannot be used for signalling. Other objects of the same name,
/// in this or another process, share the semaphore.
///
/// In a child made by fork() the object holds nothing, whatever it holds in the parent, and can be
/// used.
class counting_semaphore {
public:
    /// `permits`: the number of permits, from 1 up, which all users share: the first process that
    /// acquires sets the semaphore up with it. `lease`: the maximum time for which a permit is
    /// held, 1 second to 366 days. `otherwise`: what to do if the semaphore has another number of
    /// permits. Sends nothing. Throws errc::invalid for a lease out of range, for 0 permits, and for
    /// an empty name or one above 64 KiB.
    counting_semaphore(const client& where, std::string name, std::uint32_t permits,
                       std::chrono::milliseconds lease, on_mismatch otherwise = on_mismatch::follow)
        : client_{where}, name_{std::move(name)} {
        if (permits == 0) {
            throw error{errc::invalid, "A semaphore has at least one permit: pass 1 or more."};
        }
        open(permits, lease, otherwise);
    }

    /// Opens an existing semaphore with any number of permits: while there is none, acquiring
    /// throws errc::not_found.
    counting_semaphore(const client& where, std::string name, std::chrono::milliseconds lease)
        : client_{where}, name_{std::move(name)} {
        open(0, lease, on_mismatch::follow);
    }

    counting_semaphore(const counting_semaphore&) = delete;
    counting_semaphore& operator=(const counting_semaphore&) = delete;

    /// No thread may be using the object. Permits of acquire() and try_acquire() that were not
    /// released are released; permit objects are not affected.
    ~counting_semaphore() {
        drop(first_);
        for (held_permit* next = first_.next; next != nullptr;) {
            const std::unique_ptr<held_permit> gone{next};
            drop(*gone);
            next = gone->next;
        }
    }

    /// The maximum number of permits.
    static constexpr std::ptrdiff_t max() noexcept {
        return sizeof(std::ptrdiff_t) > 4 ? static_cast<std::ptrdiff_t>(0xffffffff) : PTRDIFF_MAX;
    }

    /// Acquires one permit, and waits without a timeout. Throws errc::interrupted when
    /// client::cancel_waits() ended the wait, errc::not_found, and errc::unreachable, unknown,
    /// protocol or invalid; nothing is held then. A thread that waits for a permit which it holds
    /// itself waits until the lease expires.
    void acquire() { hold_one(take(-1)); }

    /// Like acquire(), but also throws errc::interrupted when `handle` is cancelled, or was
    /// cancelled before.
    void acquire_unless(const wait_handle& handle) {
        hold_one(take(-1, {}, detail::given(handle)));
    }

    /// Returns false when no permit is available, or when the available permits are reserved for a
    /// waiter that wants several. Throws as acquire(), and errc::recovering when the server gives no
    /// new permits yet.
    [[nodiscard]] bool try_acquire() { return hold(try_take(0)); }

    /// Returns false when `timeout` expired first. Throws as acquire(); with a timeout that is not
    /// positive, as try_acquire().
    template <class Rep, class Period>
    [[nodiscard]] bool try_acquire_for(const std::chrono::duration<Rep, Period>& timeout) {
        return hold(try_take(detail::timeout_ms(timeout)));
    }

    /// Like try_acquire_for(timeout), but also throws errc::interrupted when `handle` is cancelled,
    /// or was cancelled before.
    template <class Rep, class Period>
    [[nodiscard]]
    bool try_acquire_for(const std::chrono::duration<Rep, Period>& timeout,
                         const wait_handle& handle) {
        return hold(try_take(detail::timeout_ms(timeout), {}, detail::given(handle)));
    }

    /// Returns false when `deadline` was reached first. Throws as acquire().
    template <class Clock, class Duration>
    [[nodiscard]] bool try_acquire_until(const std::chrono::time_point<Clock, Duration>& deadline) {
        return hold(try_acquire_permit_until(deadline));
    }

    /// Releases `update` permits of acquire() and try_acquire(), one after the other: the one that
    /// this thread acquired last or, if it has none, the one that was acquired first. Throws
    /// errc::not_held when there are no more; errc::lost when another holder may have had one;
    /// errc::unreachable, unknown or protocol, after which the permit is released at the client's
    /// next contact with the server, or expires with its lease. If several failed, the first error
    /// is thrown, after all others were released.
    void release(std::ptrdiff_t update = 1) {
        if (update < 0) {
            throw error{errc::invalid, "A negative number of permits to release: pass 0 or more."};
        }
        std::optional<error> failed;
        for (; update > 0; update--) {
            const int answer = give_back();
            if (answer != MEMLOCK_OK && !failed) failed = detail::failure(answer, name_);
            if (answer == MEMLOCK_NOT_HELD) break;
        }
        if (failed) throw *failed;
    }

    /// Acquires what `wanted` describes, and waits without a timeout. Throws as acquire(), and
    /// errc::invalid for 0 permits and for more than the semaphore has.
    [[nodiscard]] permit acquire_permit(const request& wanted = {}) { return take(-1, wanted); }

    /// Like acquire_permit(), but also throws errc::interrupted when `handle` is cancelled, or was
    /// cancelled before.
    [[nodiscard]]
    permit acquire_permit_unless(const wait_handle& handle, const request& wanted = {}) {
        return take(-1, wanted, detail::given(handle));
    }

#ifdef __cpp_lib_jthread
    /// Like acquire_unless() with a handle that is cancelled when a stop is requested, for
    /// std::jthread.
    void acquire_unless(const std::stop_token& stop) { hold_one(acquire_permit_unless(stop)); }

    [[nodiscard]]
    permit acquire_permit_unless(const std::stop_token& stop, const request& wanted = {}) {
        const wait_handle handle{client_};
        const std::stop_callback cancelled{stop, [&handle]() noexcept { handle.cancel(); }};
        return acquire_permit_unless(handle, wanted);
    }
#endif

    /// Returns empty when the permits are not available. Throws as acquire_permit().
    [[nodiscard]]
    std::optional<permit> try_acquire_permit(const request& wanted = {}) {
        return try_take(0, wanted);
    }

    /// Returns empty when `timeout` expired first. Throws as acquire_permit().
    template <class Rep, class Period>
    [[nodiscard]]
    std::optional<permit> try_acquire_permit_for(const std::chrono::duration<Rep, Period>& timeout,
                                                 const request& wanted = {}) {
        return try_take(detail::timeout_ms(timeout), wanted);
    }

    /// As above, but also throws errc::interrupted when `handle` is cancelled, or was cancelled
    /// before.
    template <class Rep, class Period>
    [[nodiscard]]
    std::optional<permit> try_acquire_permit_for(const std::chrono::duration<Rep, Period>& timeout,
                                                 const wait_handle& handle,
                                                 const request& wanted = {}) {
        return try_take(detail::timeout_ms(timeout), wanted, detail::given(handle));
    }

    /// Returns empty when `deadline` was reached first. Throws as acquire_permit().
    template <class Clock, class Duration>
    [[nodiscard]]
    std::optional<permit> try_acquire_permit_until(
        const std::chrono::time_point<Clock, Duration>& deadline, const request& wanted = {}) {
        return detail::until(deadline,
                             [&](std::int64_t timeout_ms) { return try_take(timeout_ms, wanted); });
    }

    /// Sets the semaphore up; it expires `life` (1 second to 366 days) after its last use. If this
    /// is not called, the first process that acquires sets it up, with a lifetime of one day.
    /// Returns false when it was already set up; its lifetime is then unchanged. Throws
    /// errc::not_found when there is no semaphore and this object does not have the number of
    /// permits.
    bool set_up(std::chrono::milliseconds life) {
        const int answer = memlock_semaphore_set_up(handle_.get(), life.count());
        if (answer != MEMLOCK_OK && answer != MEMLOCK_EXISTS) detail::fail(answer, name_);
        return answer == MEMLOCK_OK;
    }

    /// Removes the semaphore for all processes: holders lose their permits. Returns false when
    /// there was none.
    bool tear_down() { return found(memlock_semaphore_tear_down(handle_.get())); }

    /// Changes the number of permits for all processes. The new number may be lower than the number
    /// of held permits: no holder loses any, and no permit is granted until enough were released.
    /// Returns false when there is no such semaphore.
    bool resize(std::uint32_t permits) {
        return found(memlock_semaphore_resize(handle_.get(), permits));
    }

    /// The number of permits of the semaphore, held or not, which may not be the number that this
    /// object was made with; empty when there is no such semaphore, also when it was neither set up
    /// nor acquired yet. A snapshot.
    std::optional<std::uint32_t> permits() const {
        std::uint32_t number = 0;
        if (!found(memlock_semaphore_permits(handle_.get(), &number))) return std::nullopt;
        return number;
    }

    /// The number of permits that no process holds; empty when there is no such semaphore, also
    /// when it was neither set up nor acquired yet. A snapshot, for diagnostics and not for
    /// decisions.
    std::optional<std::uint32_t> available() const {
        std::uint32_t number = 0;
        if (!found(memlock_semaphore_available(handle_.get(), &number))) return std::nullopt;
        return number;
    }

    /// The holders of permits, in all processes. A snapshot, for diagnostics.
    std::vector<permit_holder> holders() const {
        std::vector<memlock_holder> entries(16);
        for (std::size_t count = 0;; entries.resize(count)) {
            if (!found(memlock_semaphore_holders(handle_.get(), entries.data(), entries.size(),
                                                 &count)))
                return {};
            if (count > entries.size()) continue;
            entries.resize(count);
            break;
        }
        std::vector<permit_holder> result;
        result.reserve(entries.size());
        for (const memlock_holder& holder : entries) {
            result.push_back(
                {holder.token, holder.host, holder.pid, holder.permits,
                 std::chrono::system_clock::time_point{std::chrono::seconds{holder.since}},
                 std::chrono::milliseconds{holder.remaining_ms}});
        }
        return result;
    }

    /// The name of the semaphore.
    const std::string& name() const noexcept { return name_; }

    /// For the functions of memlock.h.
    memlock_semaphore* get() const noexcept { return handle_.get(); }

private:
    // A permit of acquire(), until release(). `number` is 0 for an unused entry, 1 while one thread
    // uses the entry exclusively, and otherwise unique among all permits of this object, past ones
    // included: the thread that exchanges it for 1 has taken that permit. The list is lock-free,
    // because a fork could leave a lock held for ever in the child.
    struct held_permit {
        explicit held_permit(std::uint64_t start = 0) noexcept : number{start} {}
        std::atomic<std::uint64_t> number;
        std::atomic<std::thread::id> thread{};
        std::atomic<held_permit*> next{nullptr};
        memlock_permit* held = nullptr;
    };

    void drop(held_permit& here) const noexcept {
        if (here.number > 1) client_.report_if_lost(memlock_permit_drop(here.held));
    }

    void open(std::uint32_t permits, std::chrono::milliseconds lease, on_mismatch otherwise) {
        memlock_semaphore* opened = nullptr;
        const int answer = memlock_semaphore_open_with(
            client_.get(), detail::without_nul(name_).c_str(), permits, lease.count(),
            static_cast<int>(otherwise), &opened);
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
        handle_.reset(opened);
    }

    bool found(int answer) const {
        if (answer != MEMLOCK_OK && answer != MEMLOCK_NOT_FOUND) detail::fail(answer, name_);
        return answer == MEMLOCK_OK;
    }

    std::optional<permit> try_take(std::int64_t timeout_ms, const request& wanted = {},
                                   const memlock_wait* unless = nullptr) {
        const memlock_request asked{wanted.permits, wanted.priority, wanted.strict};
        memlock_permit* got = nullptr;
        const int answer =
            memlock_semaphore_acquire_wait(handle_.get(), &asked, timeout_ms, unless, &got);
        if (answer == MEMLOCK_OK) return permit{got, name_, client_.listeners_};
        if (answer == MEMLOCK_BUSY || answer == MEMLOCK_TIMED_OUT) return std::nullopt;
        detail::fail(answer, name_);
    }

    permit take(std::int64_t timeout_ms, const request& wanted = {},
                const memlock_wait* unless = nullptr) {
        return *try_take(timeout_ms, wanted, unless);
    }

    bool hold(std::optional<permit> got) {
        if (got) hold_one(std::move(*got));
        return got.has_value();
    }

    void hold_one(permit got) {
        held_permit& entry = claim();
        entry.thread.store(std::this_thread::get_id(), std::memory_order_relaxed);
        entry.held = got.held_.release();
        entry.number.store(last_.fetch_add(1, std::memory_order_relaxed) + 1,
                           std::memory_order_release);
    }

    // Reserves an unused entry for this thread.
    held_permit& claim() {
        for (held_permit* here = &first_;;) {
            std::uint64_t nothing = 0;
            if (here->number.compare_exchange_strong(nothing, 1, std::memory_order_acquire))
                return *here;
            held_permit* next = here->next.load(std::memory_order_acquire);
            if (next == nullptr) {
                auto fresh = std::make_unique<held_permit>(1);
                if (here->next.compare_exchange_strong(next, fresh.get())) return *fresh.release();
            }
            here = next;
        }
    }

    int give_back() noexcept {
        for (;;) {
            memlock_permit* held = pick();
            if (held == nullptr) return MEMLOCK_NOT_HELD;
            const int answer = memlock_permit_release(held);
            // A permit of the parent of this process is not released here.
            if (answer != MEMLOCK_NOT_HELD) return answer;
        }
    }

    // The latest permit of this thread or, if it has none, the oldest one.
    memlock_permit* pick() noexcept {
        const auto me = std::this_thread::get_id();
        for (;;) {
            held_permit* best = nullptr;
            std::uint64_t best_number = 0;
            bool is_mine = false;
            for (held_permit* next = &first_; next != nullptr;
                 next = next->next.load(std::memory_order_acquire)) {
                const std::uint64_t number = next->number.load(std::memory_order_acquire);
                if (number <= 1) continue;
                const bool mine = next->thread.load(std::memory_order_relaxed) == me;
                const bool better = mine != is_mine ? mine : mine == (number > best_number);
                if (best != nullptr && !better) continue;
                best = next;
                best_number = number;
                is_mine = mine;
            }
            if (best == nullptr) return nullptr;
            if (!best->number.compare_exchange_strong(best_number, 1, std::memory_order_acquire))
                continue;
            memlock_permit* held = std::exchange(best->held, nullptr);
            best->number.store(0, std::memory_order_release);
            return held;
        }
    }

    client client_;
    std::string name_;
    std::unique_ptr<memlock_semaphore, detail::closer<memlock_semaphore, memlock_semaphore_close>>
        handle_;
    std::atomic<std::uint64_t> last_{1};
    held_permit first_;  // Avoids an allocation when one permit is held at a time.
};

/// Why a renewed lock or permit is not held any more.
enum class loss : int {
    expired = MEMLOCK_LOST_EXPIRED,    ///< the lease expired: server unreachable or process stopped
    gone = MEMLOCK_LOST_GONE,          ///< missing on the server, or held by another holder
    max_hold = MEMLOCK_LOST_MAX_HOLD,  ///< the maximum hold time has passed
};

/// How a lease is renewed. The callbacks run on the renewal thread, which renews no other lease of
/// the same client until they return; an exception that leaves them is dropped. They may use and
/// end the object that they report on.
struct renewal {
    /// The maximum hold time, counted from the start of the renewal; after it the lease expires.
    /// Empty: no limit.
    std::optional<std::chrono::milliseconds> max_hold{};
    /// The lease has not been renewed so far, or is not to be renewed any more, and is guaranteed
    /// for the given time.
    std::function<void(std::chrono::milliseconds)> on_lease_at_risk{};
    /// The lock or permits were lost. Not called for a loss that release(), unlock() or the
    /// destructor detects first; the destructor calls the callback of client::on_lost().
    std::function<void(loss)> on_lost{};
};

namespace detail {

/// The callbacks of a renewal. The object lives while one of them runs, even if its owner is
/// destroyed.
struct renewal_callbacks : std::enable_shared_from_this<renewal_callbacks> {
    explicit renewal_callbacks(renewal given) : options{std::move(given)} {}
    renewal options;

    static void call(int event, std::int64_t left_ms, void* arg) noexcept {
        try {
            const auto self = static_cast<renewal_callbacks*>(arg)->shared_from_this();
            if (event == MEMLOCK_LEASE_AT_RISK) {
                if (self->options.on_lease_at_risk) {
                    self->options.on_lease_at_risk(std::chrono::milliseconds{left_ms});
                }
            } else if (self->options.on_lost) {
                self->options.on_lost(loss{event});
            }
        } catch (...) {  // Must not unwind into Rust.
        }
    }
};

struct lock_calls {
    using handle = memlock_lock;
    static constexpr auto renew = memlock_lock_renew;
    static constexpr auto close = memlock_unlock;
    static constexpr auto drop = memlock_lock_drop;
    static constexpr auto remaining = memlock_lock_remaining_ms;
    static constexpr auto is_held = memlock_lock_is_held;
    static constexpr auto check = memlock_lock_check;
    static constexpr auto wait_lost = memlock_lock_wait_lost;
};

struct permit_calls {
    using handle = memlock_permit;
    static constexpr auto renew = memlock_permit_renew;
    static constexpr auto close = memlock_permit_release;
    static constexpr auto drop = memlock_permit_drop;
    static constexpr auto remaining = memlock_permit_remaining_ms;
    static constexpr auto is_held = memlock_permit_is_held;
    static constexpr auto check = memlock_permit_check;
    static constexpr auto wait_lost = memlock_permit_wait_lost;
};

/// The common part of renewed_lock and renewed_permit.
template <class Calls>
class renewed {
public:
    /// Whether the lock or permits are guaranteed to be held, provided that the server has not lost
    /// them. No I/O.
    [[nodiscard]] bool is_held() const noexcept { return Calls::is_held(held_.get()) != 0; }

    /// Asks the server whether the lock or permits are still held, in one round trip, or in none if
    /// the lease has expired; if they are not held, they are lost for good. Throws errc::not_held
    /// when the object holds nothing, and errc::unreachable or protocol.
    [[nodiscard]] bool check() const {
        const int answer = Calls::check(mine());
        if (answer != MEMLOCK_OK && answer != MEMLOCK_LOST) fail(answer, name_);
        return answer == MEMLOCK_OK;
    }

    /// Why the lock or permits were lost; empty when no loss is known. No I/O.
    [[nodiscard]] std::optional<loss> lost() const noexcept { return wait_lost(0); }

    /// Waits for a loss; returns empty when `timeout` expired first. The object must not be ended
    /// meanwhile.
    template <class Rep, class Period>
    std::optional<loss> wait_lost_for(
        const std::chrono::duration<Rep, Period>& timeout) const noexcept {
        return wait_lost(timeout_ms(timeout));
    }

    /// The time for which the lock or permits are guaranteed to be held without another renewal;
    /// zero when they are not held. No I/O.
    [[nodiscard]] std::chrono::milliseconds remaining() const noexcept {
        std::int64_t left = 0;
        if (held_) Calls::remaining(held_.get(), &left);
        return std::chrono::milliseconds{left};
    }

    /// Whether there is anything to be released, held or lost: see is_held().
    explicit operator bool() const noexcept { return held_ != nullptr; }

    /// For the functions of memlock.h; NULL when the object holds nothing.
    typename Calls::handle* get() const noexcept { return held_.get(); }

protected:
    using handle = typename Calls::handle;

    renewed() noexcept = default;

    renewed(handle* acquired, const std::string& name,
            std::shared_ptr<const lost_listeners> listeners, renewal options)
        : held_{acquired, closes{std::move(listeners)}}, name_{name} {
        const std::int64_t longest = options.max_hold ? options.max_hold->count() : -1;
        if (options.max_hold && longest <= 0) {
            throw error{errc::invalid, "max_hold is not positive: pass a time above 0, or none."};
        }
        if (options.on_lease_at_risk || options.on_lost) {
            callbacks_ = std::make_shared<renewal_callbacks>(std::move(options));
        }
        const int answer = Calls::renew(
            acquired, longest, callbacks_ ? renewal_callbacks::call : nullptr, callbacks_.get());
        if (answer != MEMLOCK_OK) fail(answer, name_);
    }

    renewed(renewed&&) noexcept = default;

    // The handle is released before its callbacks are destroyed.
    renewed& operator=(renewed&& other) noexcept {
        held_ = std::move(other.held_);
        callbacks_ = std::move(other.callbacks_);
        name_ = std::move(other.name_);
        return *this;
    }

    ~renewed() = default;

    handle* mine() const {
        if (!held_) fail(MEMLOCK_NOT_HELD, name_);
        return held_.get();
    }

    void end() {
        mine();
        const int answer = Calls::close(held_.release());
        if (answer != MEMLOCK_OK) fail(answer, name_);
    }

    const std::string& subject() const noexcept { return name_; }

private:
    using closes = releaser<handle, Calls::drop>;

    std::optional<loss> wait_lost(std::int64_t timeout_ms) const noexcept {
        int why = 0;
        if (!held_ || Calls::wait_lost(held_.get(), timeout_ms, &why) != MEMLOCK_LOST)
            return std::nullopt;
        return loss{why};
    }

    std::shared_ptr<renewal_callbacks> callbacks_;
    std::unique_ptr<handle, closes> held_;
    std::string name_;
};

}  // namespace detail

/// A lock of a mutex whose lease is renewed during the lifetime of this object, or nothing. The
/// destructor unlocks, on a best-effort basis; unlock() reports the outcome. The lock competes with
/// lock() of the same mutex object as with any other, and may outlive the mutex and its client.
///
/// Any number of threads may use the object at once, but unlocking, moving and destroying require
/// that no other thread uses it. Unlocking and destroying wait for a running callback, unless they
/// are called by that callback; therefore the calling thread must not hold a std::mutex for which
/// the callback waits.
///
/// In a child made by fork() the object holds nothing and is not renewed, and the parent's lock is
/// not affected.
class [[nodiscard]] renewed_lock : public detail::renewed<detail::lock_calls> {
public:
    /// An object that holds nothing.
    renewed_lock() noexcept = default;

    /// Locks, and waits without a timeout. Throws as mutex::lock(), and errc::internal when no
    /// thread can be started; nothing is held then.
    explicit renewed_lock(const mutex& of, renewal options = {})
        : renewed{of.lock_once(-1), of.name(), of.client_.listeners_, std::move(options)} {}

    /// Locks, and waits for at most `timeout`; zero tries once. Throws errc::timed_out or, for
    /// zero, errc::busy.
    template <class Rep, class Period>
    renewed_lock(const mutex& of, const std::chrono::duration<Rep, Period>& timeout,
                 renewal options = {})
        : renewed{of.lock_once(detail::timeout_ms(timeout)), of.name(), of.client_.listeners_,
                  std::move(options)} {}

    /// The fencing token: greater than the fence of every earlier holder. No I/O. Throws
    /// errc::not_held.
    [[nodiscard]] std::uint64_t fence() const {
        std::uint64_t number = 0;
        const int answer = memlock_lock_fence(mine(), &number);
        if (answer != MEMLOCK_OK) detail::fail(answer, subject());
        return number;
    }

    /// Unlocks. Throws errc::lost when the lock was lost, errc::not_held when the object holds
    /// nothing, or errc::unreachable, unknown or protocol: the lock is then released at the
    /// client's next contact with the server, or expires with its lease. The object holds nothing
    /// afterwards, in all cases.
    void unlock() { end(); }
};

/// Permits whose lease is renewed during the lifetime of this object, or nothing. Otherwise as
/// renewed_lock.
class [[nodiscard]] renewed_permit : public detail::renewed<detail::permit_calls> {
public:
    /// An object that holds nothing.
    renewed_permit() noexcept = default;

    /// Acquires what `wanted` describes, and waits without a timeout. Throws as
    /// counting_semaphore::acquire_permit(), and errc::internal when no thread can be started;
    /// nothing is held then.
    explicit renewed_permit(counting_semaphore& of, const request& wanted = {},
                            renewal options = {})
        : renewed_permit{of.acquire_permit(wanted), std::move(options)} {}

    /// Renews the lease of `acquired`. Throws errc::not_held when it holds nothing, errc::lost when
    /// its lease has expired, or errc::internal; nothing is held then.
    explicit renewed_permit(permit acquired, renewal options = {})
        : renewed{detach(acquired), acquired.name_, acquired.held_.get_deleter().listeners,
                  std::move(options)} {}

    /// The number of permits; 0 for none.
    std::uint32_t count() const noexcept {
        std::uint32_t permits = 0;
        if (get() != nullptr) memlock_permit_count(get(), &permits);
        return permits;
    }

    /// Releases the permits. Throws as permit::release(). The object holds nothing afterwards, in
    /// all cases.
    void release() { end(); }

private:
    static memlock_permit* detach(permit& acquired) {
        if (!acquired) detail::fail(MEMLOCK_NOT_HELD, acquired.name_);
        return acquired.held_.release();
    }
};

/// A plain counter of free permits in one memcached item, in decimal, for use beside programs that
/// already have such an item. **It has no leases**: the permits of a program that died are lost
/// until the item is written anew, and a program that releases twice creates a permit. Prefer a
/// counting_semaphore where you can.
///
/// Any number of threads may use one object at once. All functions except set_up() and available()
/// throw errc::not_found where there is no such item, and all throw errc::protocol where it is not
/// a number, errc::unreachable, unknown or invalid. After errc::unknown a permit may have been
/// acquired that no caller holds, or released, or neither.
class counter {
public:
    /// `key`: the key of the item itself, after the URL's prefix, together 1 to 245 visible ASCII
    /// characters; another key throws errc::invalid at its first use. Sends nothing.
    counter(const client& where, std::string key) : client_{where}, key_{std::move(key)} {
        detail::without_nul(key_);
    }

    /// Creates the item with the given number of free permits; it never expires. Returns false when
    /// there is already such an item, which stays unchanged.
    bool set_up(std::uint64_t permits) {
        const int answer = memlock_counter_set_up(client_.get(), key_.c_str(), permits);
        if (answer != MEMLOCK_OK && answer != MEMLOCK_EXISTS) detail::fail(answer, key_);
        return answer == MEMLOCK_OK;
    }

    /// Acquires one permit. Returns false when none is free.
    [[nodiscard]]
    bool try_acquire() { return acquired(memlock_counter_try(client_.get(), key_.c_str())); }

    /// Retries until a permit is free, with pauses that grow from 1 to 50 milliseconds; there is no
    /// queue and no fairness. Throws errc::interrupted when client::cancel_waits() ended the wait.
    void retry() { acquired(try_again(-1)); }

    /// Like retry(), but also throws errc::interrupted when `handle` is cancelled, or was cancelled
    /// before.
    void retry_unless(const wait_handle& handle) { acquired(try_again(-1, detail::given(handle))); }

    /// Like retry(); returns false when `timeout` expired first.
    template <class Rep, class Period>
    [[nodiscard]] bool retry_for(const std::chrono::duration<Rep, Period>& timeout) {
        return acquired(try_again(detail::timeout_ms(timeout)));
    }

    /// Waits for a free permit in a queue, in the order of priority, higher first, and of arrival
    /// among equals. A release by memlock, in any process, wakes the first waiter. Throws
    /// errc::interrupted as retry().
    void park(std::int64_t priority = 0) { acquired(wait_parked(priority, -1)); }

    /// Like park(), but also throws errc::interrupted when `handle` is cancelled, or was cancelled
    /// before.
    void park_unless(const wait_handle& handle, std::int64_t priority = 0) {
        acquired(wait_parked(priority, -1, detail::given(handle)));
    }

    /// Like park(); returns false when `timeout` expired first.
    template <class Rep, class Period>
    [[nodiscard]]
    bool park_for(const std::chrono::duration<Rep, Period>& timeout, std::int64_t priority = 0) {
        return acquired(wait_parked(priority, detail::timeout_ms(timeout)));
    }

    /// Releases one permit, whichever process acquired it, and wakes the first waiter in the queue.
    void release() {
        const int answer = memlock_counter_release(client_.get(), key_.c_str());
        if (answer != MEMLOCK_OK) detail::fail(answer, key_);
    }

    /// The number of free permits; empty when there is no such item. A snapshot.
    std::optional<std::uint64_t> available() const {
        std::uint64_t number = 0;
        const int answer = memlock_counter_available(client_.get(), key_.c_str(), &number);
        if (answer == MEMLOCK_NOT_FOUND) return std::nullopt;
        if (answer != MEMLOCK_OK) detail::fail(answer, key_);
        return number;
    }

    /// The key of the item.
    const std::string& key() const noexcept { return key_; }

private:
    int try_again(std::int64_t timeout_ms, const memlock_wait* unless = nullptr) {
        return memlock_counter_retry(client_.get(), key_.c_str(), timeout_ms, unless);
    }

    int wait_parked(std::int64_t priority, std::int64_t timeout_ms,
                    const memlock_wait* unless = nullptr) {
        return memlock_counter_park(client_.get(), key_.c_str(), priority, timeout_ms, unless);
    }

    bool acquired(int answer) const {
        if (answer == MEMLOCK_OK) return true;
        if (answer == MEMLOCK_BUSY || answer == MEMLOCK_TIMED_OUT) return false;
        detail::fail(answer, key_);
    }

    client client_;
    std::string key_;
};

/// The result of one insert.
struct insertion {
    std::uint64_t id;  ///< the key's id, from 1 up; all callers get the same
    bool first;        ///< true for exactly one of all inserts of the key
};

/// A key of a list.
struct entry {
    std::uint64_t id;
    std::string_view key;  ///< valid until its iterator advances or is destroyed
};

/// A named set of keys with ids. Not thread-safe: use an object from one thread at a time; each
/// thread may have its own. All functions throw errc::not_found where there is no such session
/// (never set up, expired or torn down), and errc::unreachable, unknown, protocol or invalid.
class distinct_list {
public:
    /// Sets the session up, or joins it: created() tells which. The object belongs to this
    /// particular session: once it is torn down, inserts are refused even if another session of the
    /// same name is set up. `duration`: the lifetime of the session and its keys, 1 second to 366
    /// days from the first set-up.
    distinct_list(const client& where, const std::string& session,
                  std::chrono::milliseconds duration)
        : session_{session} {
        memlock_list* opened = nullptr;
        const int answer = memlock_list_set_up(where.get(), detail::without_nul(session).c_str(),
                                               duration.count(), &opened);
        if (answer != MEMLOCK_OK && answer != MEMLOCK_EXISTS) detail::fail(answer, session_);
        handle_.reset(opened);
        created_ = answer == MEMLOCK_OK;
    }

    /// Refers to whatever session of that name exists at the time of each call. Sends nothing, sets
    /// nothing up.
    distinct_list(const client& where, const std::string& session) : session_{session} {
        memlock_list* opened = nullptr;
        const int answer =
            memlock_list_open(where.get(), detail::without_nul(session).c_str(), &opened);
        if (answer != MEMLOCK_OK) detail::fail(answer, session_);
        handle_.reset(opened);
    }

    /// Whether this object has set the session up, as opposed to joined it.
    bool created() const noexcept { return created_; }

    /// Inserts a key of 1 to 65536 bytes with any values. After errc::unknown the key may or may
    /// not be in the list; inserting it again is safe.
    insertion insert(std::string_view key) {
        std::uint64_t id = 0;
        const int answer =
            memlock_list_insert(handle_.get(), detail::start_of(key), key.size(), &id);
        if (answer != MEMLOCK_OK && answer != MEMLOCK_DUPLICATE) detail::fail(answer, session_);
        return {id, answer == MEMLOCK_OK};
    }

    /// Inserts the keys of a range whose elements convert to std::string_view, and returns the
    /// result of each, in the same order. Three round trips for each 1,000 keys, and one more if
    /// some of them are duplicates.
    template <class Range>
    std::vector<insertion> insert_many(Range&& keys) {
        // Copied first: the elements of a range may be temporaries.
        std::string bytes;
        std::vector<std::size_t> ends;
        for (const auto& key : keys) {
            bytes.append(std::string_view{key});
            ends.push_back(bytes.size());
        }
        std::vector<memlock_bytes> given;
        given.reserve(ends.size());
        std::size_t start = 0;
        for (const std::size_t end : ends) {
            given.push_back({bytes.data() + start, end - start});
            start = end;
        }
        std::vector<memlock_insertion> done(given.size());
        const int answer =
            memlock_list_insert_many(handle_.get(), given.data(), given.size(), done.data());
        if (answer != MEMLOCK_OK) detail::fail(answer, session_);
        std::vector<insertion> answers;
        answers.reserve(done.size());
        for (const auto& [id, became] : done) answers.push_back({id, became == MEMLOCK_OK});
        return answers;
    }

    std::vector<insertion> insert_many(std::initializer_list<std::string_view> keys) {
        return insert_many<const std::initializer_list<std::string_view>&>(keys);
    }

    /// The id of a key; empty when the key is not in the list. One round trip.
    std::optional<std::uint64_t> id(std::string_view key) {
        std::uint64_t found = 0;
        const int answer =
            memlock_list_id(handle_.get(), detail::start_of(key), key.size(), &found);
        if (answer != MEMLOCK_OK) detail::fail(answer, session_);
        return found != 0 ? std::optional{found} : std::nullopt;
    }

    /// Whether a key is in the list. One round trip.
    bool contains(std::string_view key) { return id(key).has_value(); }

    /// The number of assigned ids: the number of keys, plus one for each insert that was
    /// interrupted by the death of its process.
    std::uint64_t count() {
        std::uint64_t found = 0;
        const int answer = memlock_list_count(handle_.get(), &found);
        if (answer != MEMLOCK_OK) detail::fail(answer, session_);
        return found;
    }

    /// Equivalent to count().
    std::uint64_t size() { return count(); }

    /// Ends the session for all processes, in one atomic step. Returns false when there was no
    /// session, or another one than this object has set up.
    bool tear_down() {
        const int answer = memlock_list_tear_down(handle_.get());
        if (answer != MEMLOCK_OK && answer != MEMLOCK_NOT_FOUND) detail::fail(answer, session_);
        return answer == MEMLOCK_OK;
    }

    /// An iteration over the keys that were in the list at begin(), in the order of their ids, read
    /// in batches. Advancing throws errc::not_found when the session has ended. An input iterator:
    /// single-pass, and copies share the position.
    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = entry;
        using difference_type = std::ptrdiff_t;
        using pointer = const entry*;
        using reference = const entry&;

        iterator() = default;
        reference operator*() const noexcept { return current_; }
        pointer operator->() const noexcept { return &current_; }
        iterator& operator++() {
            step();
            return *this;
        }
        void operator++(int) { step(); }
        friend bool operator==(const iterator& one, const iterator& other) noexcept {
            return one.walk_ == other.walk_;
        }
        friend bool operator!=(const iterator& one, const iterator& other) noexcept {
            return !(one == other);
        }

    private:
        friend class distinct_list;

        iterator(memlock_walk* walk, const std::string& session)
            : walk_{walk, memlock_walk_close}, session_{session} {
            step();
        }

        void step() {
            const char* key = nullptr;
            std::size_t length = 0;
            const int answer = memlock_walk_next(walk_.get(), &current_.id, &key, &length);
            if (answer != MEMLOCK_OK) detail::fail(answer, session_);
            current_.key = {key, length};
            if (key == nullptr) walk_.reset();
        }

        std::shared_ptr<memlock_walk> walk_;
        std::string session_;
        entry current_{};
    };

    iterator begin() {
        memlock_walk* walk = nullptr;
        const int answer = memlock_list_walk(handle_.get(), &walk);
        if (answer != MEMLOCK_OK) detail::fail(answer, session_);
        return {walk, session_};
    }

    iterator end() noexcept { return {}; }

private:
    std::unique_ptr<memlock_list, detail::closer<memlock_list, memlock_list_close>> handle_;
    std::string session_;
    bool created_ = false;
};

}  // namespace memlock

#endif  // MEMLOCK_HPP
