/* memlock for C++17: locks, semaphores and distinct lists for programs that share nothing but a memcached.
 *
 *     memlock::client client{"memcached://10.0.0.5"};
 *     client.on_lost([](const memlock::error& lost) { std::cerr << lost.what() << '\n'; });
 *     memlock::mutex mutex{client, "nightly-report", 30s};
 *
 *     {
 *         std::scoped_lock guard{mutex};            // waits; nobody else in the fleet has it now
 *         report(mutex.fence());                    // at most 30 seconds of work, or mutex.extend(30s)
 *     }                                             // unlocks; on_lost() is told if it was lost
 *
 *     {
 *         memlock::renewed_lock kept{mutex};           // its lease is renewed for as long as it is there
 *         while (kept.is_held() && more()) step();
 *     }
 *
 *     memlock::counting_semaphore downloads{client, "downloads", 3, 30s};
 *     if (auto permit = downloads.try_acquire_permit_for(5s)) download();    // at most 3 in the fleet
 *
 *     memlock::distinct_list seen{client, "crawl-42", 1h};
 *     if (auto [id, first] = seen.insert(url); first) fetch(url, id);
 *     for (const auto& [id, key] : seen) std::cout << id << ' ' << key << '\n';
 *
 * This is the C library of memlock.h with C++ manners; there is nothing to link but libmemlock. A mutex is
 * *Lockable* and *TimedLockable*, so std::unique_lock, std::scoped_lock (of several, too), std::lock_guard
 * and std::lock take it as they take std::timed_mutex. What differs from std::timed_mutex:
 *
 * - **A lease ends.** The lock is yours until mutex::remaining() is zero; then others may have it although
 *   you have not unlocked. Work that may take longer calls extend(), or holds a renewed_lock, or hands fence() to
 *   what it changes.
 * - **Locking can fail.** An "I could not find out" is never a lock: lock() and the try_ functions throw
 *   memlock::error, a std::system_error in memlock::category(). "Busy" and "timed out" are plain false.
 * - **A wait can be ended** from another thread: all of a client's by client::cancel_waits(), single ones by
 *   a wait_handle or, in C++20, a std::stop_token. It throws errc::interrupted, and nothing is held.
 * - **Unlocking can find the lock lost**, because the work took longer than the lease, say: then another
 *   may have held it meanwhile. unlock() does not throw, because guards call it in destructors: the
 *   callback of client::on_lost() is told, and mutex::last_unlock() has the answer. Without either of
 *   them a loss is silent. release() unlocks and throws. With a guard: `guard.release()->release();`.
 *
 * A counting_semaphore has what std::counting_semaphore has, and differs likewise: a permit ends with its
 * lease, and is given back where it was acquired. A permit object knows more: it is given back when it ends,
 * has a lease that can be extended, and may be several permits at once, acquired by priority.
 *
 * The bare functions of memlock.h, the six of 2004 and the semaphore's five, stay out of the way here. A
 * program that wants them beside this header includes <memlock.h> *before* <memlock.hpp>.
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

/// The answers other than "done", by the names and numbers of memlock.h.
enum class errc : int {
    busy = MEMLOCK_BUSY,
    timed_out = MEMLOCK_TIMED_OUT,
    duplicate = MEMLOCK_DUPLICATE,
    exists = MEMLOCK_EXISTS,
    not_held = MEMLOCK_NOT_HELD,
    lost = MEMLOCK_LOST,
    not_found = MEMLOCK_NOT_FOUND,
    interrupted = MEMLOCK_INTERRUPTED,
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

// Visible from every shared library, because categories are compared by their address.
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

/// The category of memlock's answers. Its messages are one plain sentence each.
[[gnu::visibility("default")]] inline const std::error_category& category() noexcept {
    static const detail::category_type instance;
    return instance;
}

inline std::error_code make_error_code(errc answer) noexcept {
    return {static_cast<int>(answer), category()};
}

/// What this header throws: code() says which answer it was, what() the whole sentence: which lock or list,
/// which server, and what to do.
class [[gnu::visibility("default")]] error : public std::system_error {
public:
    error(errc answer, const std::string& sentence)
        : std::system_error{make_error_code(answer)}, sentence_{sentence} {}
    const char* what() const noexcept override { return sentence_.what(); }

private:
    std::runtime_error sentence_;  // Holds the text because, unlike a string, it is copied without throwing.
};

namespace detail {

/// The answer of a C call that this thread has just made. `subject` names what it was about where
/// there was no such call, since the object holds nothing.
inline error failure(int answer, const std::string& subject) {
    const char* sentence = memlock_last_error();
    const bool made_a_call = answer != MEMLOCK_NOT_HELD && *sentence != '\0';
    return {errc{answer}, made_a_call ? sentence : '"' + subject + "\": " + memlock_describe(answer)};
}

[[noreturn]] inline void fail(int answer, const std::string& subject) { throw failure(answer, subject); }

/// C would read a name with a NUL as a shorter name: another lock.
inline const std::string& without_nul(const std::string& text) {
    if (text.find('\0') != std::string::npos) {
        throw error{errc::invalid, "The text \"" + std::string{text.c_str()} +
                                       "...\" contains a NUL byte, which no name and no URL may."};
    }
    return text;
}

/// How long to wait, as C wants it: rounded up, so that no wait ends early.
template <class Rep, class Period>
std::int64_t wait_ms(const std::chrono::duration<Rep, Period>& limit) {
    using std::chrono::milliseconds;
    if (!(limit > limit.zero())) return 0;
    // As floating-point numbers, because hours::max() does not fit into milliseconds. A century is for ever.
    constexpr milliseconds longest = std::chrono::hours{24 * 365 * 100};
    using exact = std::chrono::duration<double>;
    if (exact{limit} >= exact{longest}) return longest.count();
    return std::chrono::ceil<milliseconds>(limit).count();
}

/// Lets `attempt` wait until a moment, and gives what it got: something, or nothing when the moment came
/// first.
template <class Clock, class Duration, class Attempt>
auto until(const std::chrono::time_point<Clock, Duration>& moment, const Attempt& attempt) {
    for (;;) {
        const auto now = Clock::now();
        if (moment <= now) return attempt(std::int64_t{0});
        if (auto got = attempt(wait_ms(moment - now))) return got;
        // The wait is counted on another clock than this one, which may have been set back meanwhile.
        if (Clock::now() >= moment) return decltype(attempt(std::int64_t{0})){};
    }
}

/// An empty view may be of nowhere, which C takes for a mistake other than "empty".
inline const char* start_of(std::string_view bytes) noexcept { return bytes.data() ? bytes.data() : ""; }

template <class Handle, void (*close)(Handle*)>
struct closer {
    void operator()(Handle* handle) const noexcept { close(handle); }
};

}  // namespace detail

/// How grave a message is, the gravest first.
enum class log_level : int {
    off = MEMLOCK_LOG_OFF,          ///< for set_log(): nothing is told
    error = MEMLOCK_LOG_ERROR,      ///< a bug, of memlock or of a callback
    warning = MEMLOCK_LOG_WARNING,  ///< something is lost or about to be
    info = MEMLOCK_LOG_INFO,        ///< a server is out of reach, or back; something is left to be done later
    debug = MEMLOCK_LOG_DEBUG,      ///< connections, and troubles that were mended at once
    trace = MEMLOCK_LOG_TRACE,      ///< everything
};

/// What is called for each message: its level, the part of memlock that it comes from, such as "memlock.renewal",
/// and one or more whole sentences. Both texts are gone when it returns.
///
/// It is called by whichever thread has something to say, by several at once, and what that thread was doing
/// goes on when it returns. An exception that leaves it is dropped. It may use memlock, but not the object whose
/// call logs, nor wait for what that call holds or waits for; what memlock would log of that is not told.
using log_function = std::function<void(log_level, std::string_view part, std::string_view message)>;

namespace detail {

// What was given to set_log(). It stays for good, since it may be running when it is replaced from within.
struct log_listener {
    log_function tell_it;
    log_listener* older = nullptr;

    static void tell(int level, const char* part, const char* message, void* arg) noexcept {
        try {
            static_cast<const log_listener*>(arg)->tell_it(log_level{level}, part, message);
        } catch (...) {  // Not through a thread of Rust's.
        }
    }
};

[[gnu::visibility("default")]] inline std::atomic<log_listener*> log_listeners{nullptr};

}  // namespace detail

/// Has messages up to `most` told to `tell`, for all clients of this process and of children that it forks; an
/// empty function or log_level::off ends that. When this returns, what was set before is not running and is
/// called no more, unless this is called from within it: see memlock_log_set(). What is set once is kept
/// until the program ends, with all that the function holds, so this is not for every now and then. Throws
/// errc::config when a Rust program around this has a logger already.
inline void set_log(log_level most, log_function tell) {
    detail::log_listener* listener = nullptr;
    if (tell && most != log_level::off) {
        listener = new detail::log_listener{std::move(tell)};
        listener->older = detail::log_listeners.load();
        while (!detail::log_listeners.compare_exchange_weak(listener->older, listener)) continue;
    }
    const auto callback = listener != nullptr ? detail::log_listener::tell : nullptr;
    const int answer = memlock_log_set(static_cast<int>(most), callback, listener);
    if (answer != MEMLOCK_OK) detail::fail(answer, "set_log");
}

namespace detail {

/// The callbacks for locks that are found lost where nothing can be thrown. What was set once stays
/// until its client is gone, since it may be running when it is replaced.
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

    void set(std::function<void(const error&)> tell) {
        auto fresh = std::make_unique<listener>(listener{std::move(tell), newest_.load()});
        while (!newest_.compare_exchange_weak(fresh->older, fresh.get())) continue;
        static_cast<void>(fresh.release());
    }

    /// Whether `answer`, of a call that this thread has just made, is "lost": then that is told.
    void tell_if_lost(int answer) const noexcept {
        const listener* told = newest_;
        if (answer != MEMLOCK_LOST || told == nullptr || !told->tell) return;
        try {
            told->tell(error{errc::lost, memlock_last_error()});
        } catch (...) {  // There may be one on its way already.
        }
    }

private:
    struct listener {
        std::function<void(const error&)> tell;
        listener* older;
    };
    std::atomic<listener*> newest_{nullptr};
};

/// Gives back what is held, and tells when it was lost.
template <class Handle, int (*release)(Handle*)>
struct gives_back {
    std::shared_ptr<const lost_listeners> listeners;
    void operator()(Handle* held) const noexcept {
        const int answer = release(held);
        if (listeners) listeners->tell_if_lost(answer);
    }
};

}  // namespace detail

/// The way to one set of locks. Any number of threads may use it at once, and so may forked children. A copy
/// is the same client, and so is what a client was moved to; it stays open for as long as there is a copy or
/// a mutex, semaphore or counter made from it.
class client {
public:
    /// As memlock_client_open(): dials nothing. Throws errc::config for an URL that cannot be read.
    explicit client(const std::string& url) {
        memlock_client* opened = nullptr;
        const int answer = memlock_client_open(detail::without_nul(url).c_str(), &opened);
        if (answer != MEMLOCK_OK) detail::fail(answer, url);
        handle_.reset(opened, memlock_client_close);
    }

    /// Ends every wait that is going on in this client, in any thread: they throw errc::interrupted, at once.
    /// Waits that begin later are not touched: see wait_handle. May be called from a signal handler.
    void cancel_waits() const noexcept {
        // For C, NULL is the default client; a client that was moved away is none.
        if (handle_) memlock_client_cancel_waits(handle_.get());
    }

    /// Has `tell` called when a lock or permits of this client and its copies are found lost where
    /// nothing can be thrown: in mutex::unlock(), and so by std::scoped_lock and its kin, and where
    /// a mutex, a semaphore, a permit, a renewed_lock or a renewed_permit ends. Its error is errc::lost,
    /// and what() says which lock, and why. An empty function ends that. What is thrown or answered
    /// is not told.
    ///
    /// It is called in the thread that unlocks, when that is done, maybe while an exception is on
    /// its way; by several threads at once, if need be. It should be brief; an exception that
    /// leaves it is dropped. It may use memlock. What it holds is kept until the client and all
    /// that was made from it are gone: set it once, before the client is used.
    void on_lost(std::function<void(const error&)> tell) const {
        if (listeners_) listeners_->set(std::move(tell));
    }

    /// For the functions of memlock.h; NULL after this client was moved away.
    memlock_client* get() const noexcept { return handle_.get(); }

private:
    friend class mutex;
    friend class counting_semaphore;
    friend class renewed_lock;

    void tell_if_lost(int answer) const noexcept {
        if (listeners_) listeners_->tell_if_lost(answer);
    }

    std::shared_ptr<memlock_client> handle_;
    std::shared_ptr<detail::lost_listeners> listeners_{std::make_shared<detail::lost_listeners>()};
};

/// Ends single waits of one client from outside: those that are given it, by mutex::lock_unless(),
/// mutex::try_lock_for() and their likes of the others. Any number of threads may use it at once.
///
/// In a child made by fork() it is a handle of its own, as cancelled as its parent's was at the fork.
class wait_handle {
public:
    /// Sends nothing. For waits of this client and its copies; another's throw errc::invalid.
    explicit wait_handle(const client& where) {
        memlock_wait* opened = nullptr;
        const int answer = memlock_wait_open(where.get(), &opened);
        if (answer != MEMLOCK_OK) detail::fail(answer, "wait_handle");
        handle_.reset(opened);
    }

    /// Ends the waits that go on with this handle, at once, and every later one: they throw errc::interrupted
    /// and hold nothing. It is done once and for all. May be called from a signal handler.
    void cancel() const noexcept {
        if (handle_) memlock_wait_cancel(handle_.get());
    }

    /// For the functions of memlock.h; NULL after this handle was moved away.
    memlock_wait* get() const noexcept { return handle_.get(); }

private:
    std::unique_ptr<memlock_wait, detail::closer<memlock_wait, memlock_wait_close>> handle_;
};

namespace detail {

/// For C, NULL is no handle; one that was moved away is a mistake.
inline const memlock_wait* given(const wait_handle& handle) {
    if (handle.get() == nullptr) throw error{errc::invalid, "The wait handle was moved away."};
    return handle.get();
}

}  // namespace detail

/// Who was seen to hold a mutex.
struct holder {
    std::string token;                                   ///< names this acquisition, for force_unlock()
    std::string host;                                    ///< empty when a plain memcached client holds it
    std::uint32_t pid;                                   ///< 0 when a plain memcached client holds it
    std::chrono::system_clock::time_point since;         ///< by the holder's clock; 1970 for a plain client
    std::optional<std::chrono::milliseconds> remaining;  ///< how long the server keeps it; nothing: for ever
};

/// A mutex by its name, for std::unique_lock and its kin.
///
/// Any number of threads may use one object at once. They exclude each other as with std::mutex, and as with
/// std::mutex the thread that locked it is the one to unlock it. Other objects of the same name, here or in
/// another process, are other competitors.
///
/// In a child made by fork() it is unlocked, whatever it is in the parent, and works.
class mutex {
public:
    /// Sends nothing. `lease`: for how long it is locked at most, from 1 second to 366 days; lock() throws
    /// errc::invalid for another one, and for an empty name or one above 64 KiB.
    mutex(const client& where, std::string name, std::chrono::milliseconds lease)
        : client_{where}, name_{std::move(name)}, lease_{lease} {
        detail::without_nul(name_);
    }

    mutex(const mutex&) = delete;
    mutex& operator=(const mutex&) = delete;

    /// Nobody may be using it any more. What is still locked is unlocked, as by memlock_lock_drop(): a server
    /// that hangs costs one timeout, however many locks are held there.
    ~mutex() {
        end(first_.lock);
        for (slot* next = first_.next; next != nullptr;) {
            const std::unique_ptr<slot> gone{next};
            end(gone->lock);
            next = gone->next;
        }
    }

    /// Waits for as long as it takes. Throws errc::interrupted when client::cancel_waits() ended the wait,
    /// errc::deadlock when this thread has it already, and errc::unreachable, unknown, protocol or invalid;
    /// nothing is held then.
    void lock() {
        const int answer = acquire(-1);
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// As lock(), but throws errc::interrupted also when `handle` is cancelled, or was before. What it
    /// locked, `std::unique_lock guard{mutex, std::adopt_lock};` takes over.
    void lock_unless(const wait_handle& handle) {
        const int answer = acquire(-1, detail::given(handle));
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// False when somebody has it, this thread included. One round trip. Throws as lock().
    [[nodiscard]] bool try_lock() { return acquired(0); }

    /// False when `limit` passed first. Throws as lock().
    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period>& limit) {
        return acquired(detail::wait_ms(limit));
    }

    /// As try_lock_for(limit), but throws errc::interrupted also when `handle` is cancelled, or was before.
    template <class Rep, class Period>
    [[nodiscard]]
    bool try_lock_for(const std::chrono::duration<Rep, Period>& limit, const wait_handle& handle) {
        return acquired(detail::wait_ms(limit), detail::given(handle));
    }

#ifdef __cpp_lib_jthread
    /// As lock_unless() with a handle that is cancelled when the stop is requested, as by a std::jthread.
    void lock_unless(const std::stop_token& stop) {
        const wait_handle handle{client_};
        const std::stop_callback cancelled{stop, [&handle]() noexcept { handle.cancel(); }};
        lock_unless(handle);
    }
#endif

    /// False when the moment came first. Throws as lock().
    template <class Clock, class Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration>& moment) {
        return detail::until(moment, [this](std::int64_t wait_ms) { return acquired(wait_ms); });
    }

    /// Unlocks, if it is still ours, and never throws: last_unlock() has the answer. When the server cannot
    /// be reached, the lock is taken off at the client's next contact with it, or ends with its lease.
    /// Where it was lost, client::on_lost()'s callback is told.
    void unlock() noexcept {
        const int answer = give_back();
        last_unlock_.store(answer, std::memory_order_relaxed);
        client_.tell_if_lost(answer);
    }

    /// As unlock(), but throws errc::lost when it was no longer ours, errc::not_held when this thread had not
    /// locked it, or errc::unreachable or unknown. It is unlocked for this thread whatever happens.
    void release() {
        const int answer = give_back();
        last_unlock_.store(answer, std::memory_order_relaxed);
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// How the last unlock() or release() of this object went, by whichever thread: false if all was well.
    [[nodiscard]] std::error_code last_unlock() const noexcept {
        return {last_unlock_.load(std::memory_order_relaxed), category()};
    }

    /// Gives this thread's lock a new lease, counted from now; the fence stays. Throws errc::lost when it was
    /// no longer ours, errc::not_held, and errc::unreachable or unknown: then look at remaining().
    void extend(std::chrono::milliseconds lease) {
        const int answer = memlock_lock_extend(mine(), lease.count());
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// How long this thread's lock is certainly its own yet; zero when it is not. No I/O.
    [[nodiscard]] std::chrono::milliseconds remaining() const noexcept {
        const slot* found = find();
        return std::chrono::milliseconds{found != nullptr ? remaining_ms(found->lock) : 0};
    }

    /// The fencing token of this thread's lock: greater than that of every earlier holder. No I/O. Throws
    /// errc::not_held.
    [[nodiscard]] std::uint64_t fence() const {
        std::uint64_t number = 0;
        const int answer = memlock_lock_fence(mine(), &number);
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
        return number;
    }

    /// Who holds the mutex, here or anywhere, if anybody. What is read is already past: it is for people.
    std::optional<holder> owner() const {
        memlock_owner seen;
        const int answer = memlock_mutex_owner(client_.get(), name_.c_str(), &seen);
        if (answer == MEMLOCK_NOT_HELD) return std::nullopt;
        if (answer != MEMLOCK_BUSY) detail::fail(answer, name_);
        holder known{seen.token, seen.host, seen.pid,
                     std::chrono::system_clock::time_point{std::chrono::seconds{seen.since}}, std::nullopt};
        if (seen.remaining_ms >= 0) known.remaining = std::chrono::milliseconds{seen.remaining_ms};
        return known;
    }

    /// Takes the mutex away from the acquisition that holder::token names: for operators who know that it is
    /// dead. False when that acquisition does not hold it any more; a later holder is never touched.
    bool force_unlock(const std::string& token) {
        const int answer =
            memlock_mutex_force_unlock(client_.get(), name_.c_str(), detail::without_nul(token).c_str());
        if (answer != MEMLOCK_OK && answer != MEMLOCK_NOT_HELD) detail::fail(answer, name_);
        return answer == MEMLOCK_OK;
    }

    /// The name.
    const std::string& name() const noexcept { return name_; }

private:
    // What one thread has, or waits for. There may be several: a thread that overslept its lease still has
    // its handle when the next one locks, and must not unlock with that one's. Only the thread that a slot
    // names touches its handle. This is a list without a lock because a fork could catch a lock.
    struct slot {
        explicit slot(std::thread::id whose = {}) noexcept : thread{whose} {}
        std::atomic<std::thread::id> thread;
        std::atomic<slot*> next{nullptr};
        memlock_lock* lock = nullptr;
    };

    friend class renewed_lock;

    // A lock that is no thread's: for an object that keeps it.
    memlock_lock* lock_once(std::int64_t wait_ms) const {
        memlock_lock* locked = nullptr;
        const int answer =
            memlock_mutex_lock(client_.get(), name_.c_str(), lease_.count(), wait_ms, &locked);
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
        return locked;
    }

    void end(memlock_lock* held) const noexcept {
        if (held != nullptr) client_.tell_if_lost(memlock_lock_drop(held));
    }

    static std::int64_t remaining_ms(const memlock_lock* held) noexcept {
        std::int64_t left = 0;
        if (held != nullptr) memlock_lock_remaining_ms(held, &left);
        return left;
    }

    int acquire(std::int64_t wait_ms, const memlock_wait* unless = nullptr) {
        slot& ours = claim();
        if (remaining_ms(ours.lock) > 0) {
            if (wait_ms == 0) return MEMLOCK_BUSY;
            throw error{errc::deadlock,
                        "This thread already holds the mutex \"" + name_ + "\" and would wait for itself."};
        }
        // What is left of a lease that ran out, or of the parent of this process.
        static_cast<void>(memlock_lock_drop(std::exchange(ours.lock, nullptr)));
        const int answer = memlock_mutex_lock_wait(client_.get(), name_.c_str(), lease_.count(), wait_ms,
                                                   unless, &ours.lock);
        if (answer != MEMLOCK_OK) vacate(ours);
        return answer;
    }

    bool acquired(std::int64_t wait_ms, const memlock_wait* unless = nullptr) {
        const int answer = acquire(wait_ms, unless);
        if (answer == MEMLOCK_OK) return true;
        if (answer == MEMLOCK_BUSY || answer == MEMLOCK_TIMED_OUT) return false;
        detail::fail(answer, name_);
    }

    int give_back() noexcept {
        slot* ours = find();
        if (ours == nullptr) return MEMLOCK_NOT_HELD;
        const int answer = memlock_unlock(std::exchange(ours->lock, nullptr));
        vacate(*ours);
        return answer;
    }

    memlock_lock* mine() const {
        const slot* found = find();
        if (found == nullptr) detail::fail(MEMLOCK_NOT_HELD, name_);
        return found->lock;
    }

    slot* find() const noexcept {
        const auto me = std::this_thread::get_id();
        for (slot* next = &first_; next != nullptr; next = next->next.load(std::memory_order_acquire)) {
            if (next->thread.load(std::memory_order_relaxed) == me) return next;
        }
        return nullptr;
    }

    slot& claim() {
        if (slot* ours = find()) return *ours;
        const auto me = std::this_thread::get_id();
        for (slot* here = &first_;;) {
            std::thread::id nobody;
            if (here->thread.compare_exchange_strong(nobody, me, std::memory_order_acquire)) return *here;
            slot* next = here->next.load(std::memory_order_acquire);
            if (next == nullptr) {
                auto fresh = std::make_unique<slot>(me);
                if (here->next.compare_exchange_strong(next, fresh.get())) return *fresh.release();
            }
            here = next;
        }
    }

    static void vacate(slot& ours) noexcept { ours.thread.store({}, std::memory_order_release); }

    client client_;
    std::string name_;
    std::chrono::milliseconds lease_;
    std::atomic<int> last_unlock_{MEMLOCK_OK};
    mutable slot first_;  // Enough, and no allocation, where one thread uses the object.
};

/// What to acquire of a semaphore, and in which order with others.
struct request {
    std::uint32_t permits = 1;  ///< together or not at all; at most as many as there are
    std::int64_t priority = 0;  ///< higher comes first, and among equals who came first
    bool strict = false;        ///< never comes before a higher priority, however often it was overtaken
};

/// Who was seen to hold permits.
struct permit_holder {
    std::string token;                            ///< names this acquisition
    std::string host;                             ///< cut at 32 characters
    std::uint32_t pid;                            ///< on that host
    std::uint32_t permits;                        ///< how many it holds
    std::chrono::system_clock::time_point since;  ///< by the holder's clock
    std::chrono::milliseconds remaining;          ///< how long the server keeps them for it yet
};

/// One or several permits that are held, or nothing. They are given back when it ends, by whichever thread,
/// as well as that can be done; release() tells how it went. It may outlive its semaphore and its client. Use
/// an object from one thread at a time.
///
/// In a child made by fork() it holds nothing, and leaves what the parent holds alone.
class [[nodiscard]] permit {
public:
    /// Holds nothing.
    permit() noexcept = default;

    /// Gives the permits back. Throws errc::lost when they were no longer ours, errc::not_held when there are
    /// none, or errc::unreachable or unknown: then they are given back at the client's next contact with the
    /// server, or come back when the lease ends. This holds nothing afterwards, whatever happens.
    void release() {
        if (!held_) detail::fail(MEMLOCK_NOT_HELD, name_);
        const int answer = memlock_permit_release(held_.release());
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// Gives them a new lease, counted from now. Throws errc::lost when they were no longer ours,
    /// errc::not_held, errc::invalid for a lease out of range, and errc::unreachable or unknown: then look at
    /// remaining().
    void extend(std::chrono::milliseconds lease) {
        if (!held_) detail::fail(MEMLOCK_NOT_HELD, name_);
        const int answer = memlock_permit_extend(held_.get(), lease.count());
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// How long they are certainly ours yet; zero when they are not. No I/O.
    [[nodiscard]] std::chrono::milliseconds remaining() const noexcept {
        std::int64_t left = 0;
        if (held_) memlock_permit_remaining_ms(held_.get(), &left);
        return std::chrono::milliseconds{left};
    }

    /// How many permits these are; 0 for none.
    std::uint32_t count() const noexcept {
        std::uint32_t permits = 0;
        if (held_) memlock_permit_count(held_.get(), &permits);
        return permits;
    }

    /// Whether there are any to be given back, ours still or not: see remaining().
    explicit operator bool() const noexcept { return held_ != nullptr; }

    /// For the functions of memlock.h; NULL when this holds nothing.
    memlock_permit* get() const noexcept { return held_.get(); }

private:
    friend class counting_semaphore;
    friend class renewed_permit;

    using gives_back = detail::gives_back<memlock_permit, memlock_permit_drop>;

    permit(memlock_permit* held, const std::string& name,
           std::shared_ptr<const detail::lost_listeners> listeners)
        : held_{held, gives_back{std::move(listeners)}}, name_{name} {}

    std::unique_ptr<memlock_permit, gives_back> held_;
    std::string name_;
};

/// A semaphore by its name: so many may hold a permit of it at once, in the whole fleet.
///
/// Any number of threads may use one object at once. Who waits is served in the order of coming, or by
/// priority. As with std::counting_semaphore any thread may release(); but no more than was acquired by the
/// same object: it is no means of telling others something. Other objects of the same name, here or in
/// another process, are of the same semaphore.
///
/// In a child made by fork() it holds nothing, whatever it holds in the parent, and works.
class counting_semaphore {
public:
    /// Sends nothing. `permits`: how many there are, from 1 up, which is part of what all share: the first
    /// one to acquire sets the semaphore up with as many, and who uses it with another number gets
    /// errc::invalid. `lease`: for how long a permit is held at most, from 1 second to 366 days. Throws
    /// errc::invalid for another one, for no permits, and for an empty name or one above 64 KiB.
    counting_semaphore(const client& where, std::string name, std::uint32_t permits,
                       std::chrono::milliseconds lease)
        : client_{where}, name_{std::move(name)} {
        if (permits == 0) throw error{errc::invalid, "A semaphore has at least one permit."};
        open(permits, lease);
    }

    /// As above, with however many permits it has: somebody else is to set it up, and until then acquiring
    /// throws errc::not_found.
    counting_semaphore(const client& where, std::string name, std::chrono::milliseconds lease)
        : client_{where}, name_{std::move(name)} {
        open(0, lease);
    }

    counting_semaphore(const counting_semaphore&) = delete;
    counting_semaphore& operator=(const counting_semaphore&) = delete;

    /// Nobody may be using it any more. What acquire() and its kin took, and nobody released, is given back;
    /// permit objects are not touched.
    ~counting_semaphore() {
        drop(first_);
        for (slot* next = first_.next; next != nullptr;) {
            const std::unique_ptr<slot> gone{next};
            drop(*gone);
            next = gone->next;
        }
    }

    /// The most permits that there can be.
    static constexpr std::ptrdiff_t max() noexcept {
        return sizeof(std::ptrdiff_t) > 4 ? static_cast<std::ptrdiff_t>(0xffffffff) : PTRDIFF_MAX;
    }

    /// Waits for one permit, for as long as it takes. Throws errc::interrupted when client::cancel_waits()
    /// ended the wait, errc::not_found, and errc::unreachable, unknown, protocol or invalid; nothing is held
    /// then. A thread that waits for what it holds itself waits until the lease ends.
    void acquire() { hold_one(take(-1)); }

    /// As acquire(), but throws errc::interrupted also when `handle` is cancelled, or was before.
    void acquire_unless(const wait_handle& handle) { hold_one(take(-1, {}, detail::given(handle))); }

    /// False when no permit is available, or all that are are being gathered for a waiter that wants several.
    /// Throws as acquire().
    [[nodiscard]] bool try_acquire() { return hold(try_take(0)); }

    /// False when `limit` passed first. Throws as acquire().
    template <class Rep, class Period>
    [[nodiscard]] bool try_acquire_for(const std::chrono::duration<Rep, Period>& limit) {
        return hold(try_take(detail::wait_ms(limit)));
    }

    /// As try_acquire_for(limit), but throws errc::interrupted also when `handle` is cancelled, or was
    /// before.
    template <class Rep, class Period>
    [[nodiscard]]
    bool try_acquire_for(const std::chrono::duration<Rep, Period>& limit, const wait_handle& handle) {
        return hold(try_take(detail::wait_ms(limit), {}, detail::given(handle)));
    }

    /// False when the moment came first. Throws as acquire().
    template <class Clock, class Duration>
    [[nodiscard]] bool try_acquire_until(const std::chrono::time_point<Clock, Duration>& moment) {
        return hold(try_acquire_permit_until(moment));
    }

    /// Gives back `update` permits that acquire() and its kin took, one after the other: the one that this
    /// thread took last, or if it has none, the one that was taken first. Throws errc::not_held when there is
    /// none any more; errc::lost when one was no longer ours; errc::unreachable or unknown, when it is given
    /// back at the client's next contact with the server, or comes back when its lease ends. Where several
    /// things went wrong, the first one is thrown, after all that could be given back was.
    void release(std::ptrdiff_t update = 1) {
        if (update < 0) throw error{errc::invalid, "A negative number of permits cannot be released."};
        std::optional<error> failed;
        for (; update > 0; update--) {
            const int answer = give_back();
            if (answer != MEMLOCK_OK && !failed) failed = detail::failure(answer, name_);
            if (answer == MEMLOCK_NOT_HELD) break;
        }
        if (failed) throw *failed;
    }

    /// Waits for what is wanted, for as long as it takes, and gives an object that holds it. Throws as
    /// acquire(), and errc::invalid for no permits and for more than there are.
    [[nodiscard]] permit acquire_permit(const request& wanted = {}) { return take(-1, wanted); }

    /// As acquire_permit(), but throws errc::interrupted also when `handle` is cancelled, or was before.
    [[nodiscard]]
    permit acquire_permit_unless(const wait_handle& handle, const request& wanted = {}) {
        return take(-1, wanted, detail::given(handle));
    }

#ifdef __cpp_lib_jthread
    /// As acquire_unless() with a handle that is cancelled when the stop is requested, as by a std::jthread.
    void acquire_unless(const std::stop_token& stop) { hold_one(acquire_permit_unless(stop)); }

    [[nodiscard]]
    permit acquire_permit_unless(const std::stop_token& stop, const request& wanted = {}) {
        const wait_handle handle{client_};
        const std::stop_callback cancelled{stop, [&handle]() noexcept { handle.cancel(); }};
        return acquire_permit_unless(handle, wanted);
    }
#endif

    /// Nothing when what is wanted is not available. Throws as acquire_permit().
    [[nodiscard]]
    std::optional<permit> try_acquire_permit(const request& wanted = {}) { return try_take(0, wanted); }

    /// Nothing when `limit` passed first. Throws as acquire_permit().
    template <class Rep, class Period>
    [[nodiscard]]
    std::optional<permit> try_acquire_permit_for(const std::chrono::duration<Rep, Period>& limit,
                                                 const request& wanted = {}) {
        return try_take(detail::wait_ms(limit), wanted);
    }

    /// As above, but throws errc::interrupted also when `handle` is cancelled, or was before.
    template <class Rep, class Period>
    [[nodiscard]]
    std::optional<permit> try_acquire_permit_for(const std::chrono::duration<Rep, Period>& limit,
                                                 const wait_handle& handle, const request& wanted = {}) {
        return try_take(detail::wait_ms(limit), wanted, detail::given(handle));
    }

    /// Nothing when the moment came first. Throws as acquire_permit().
    template <class Clock, class Duration>
    [[nodiscard]]
    std::optional<permit> try_acquire_permit_until(const std::chrono::time_point<Clock, Duration>& moment,
                                                   const request& wanted = {}) {
        return detail::until(moment, [&](std::int64_t wait_ms) { return try_take(wait_ms, wanted); });
    }

    /// Sets the semaphore up, to be kept for `life` (1 second to 366 days) after it was used last. Where
    /// nobody does, the first to acquire sets it up, to be kept for a day. False when it was set up already:
    /// then its life stays as it is. Throws errc::not_found when it was not, and this object does not know
    /// the number of permits.
    bool set_up(std::chrono::milliseconds life) {
        const int answer = memlock_semaphore_set_up(handle_.get(), life.count());
        if (answer != MEMLOCK_OK && answer != MEMLOCK_EXISTS) detail::fail(answer, name_);
        return answer == MEMLOCK_OK;
    }

    /// Removes it for everybody: who holds permits finds them lost. False when there was none.
    bool tear_down() { return found(memlock_semaphore_tear_down(handle_.get())); }

    /// Changes how many permits there are, for everybody. Fewer than are held is allowed: nobody loses any,
    /// and no more are given until enough came back. Objects that are made afterwards need the new number.
    /// False when there is no such semaphore.
    bool resize(std::uint32_t permits) { return found(memlock_semaphore_resize(handle_.get(), permits)); }

    /// How many permits nobody holds; nothing when there is no such semaphore, also when nobody has acquired
    /// of it yet. What is read is already past: it is for people, not for decisions.
    std::optional<std::uint32_t> available() const {
        std::uint32_t number = 0;
        if (!found(memlock_semaphore_available(handle_.get(), &number))) return std::nullopt;
        return number;
    }

    /// Who holds permits, here or anywhere. What is read is already past: it is for people.
    std::vector<permit_holder> holders() const {
        std::vector<memlock_holder> seen(16);
        for (std::size_t count = 0;; seen.resize(count)) {
            if (!found(memlock_semaphore_holders(handle_.get(), seen.data(), seen.size(), &count))) return {};
            if (count > seen.size()) continue;
            seen.resize(count);
            break;
        }
        std::vector<permit_holder> known;
        known.reserve(seen.size());
        for (const memlock_holder& holder : seen) {
            known.push_back({holder.token, holder.host, holder.pid, holder.permits,
                             std::chrono::system_clock::time_point{std::chrono::seconds{holder.since}},
                             std::chrono::milliseconds{holder.remaining_ms}});
        }
        return known;
    }

    /// The name.
    const std::string& name() const noexcept { return name_; }

    /// For the functions of memlock.h.
    memlock_semaphore* get() const noexcept { return handle_.get(); }

private:
    // What acquire() took and release() gives back. `number` is 0 where there is nothing, 1 while one thread
    // is at it, and else tells this permit from every other one that is or was here: who exchanges it for 1
    // has got that permit. This is a list without a lock because a fork could catch a lock.
    struct slot {
        explicit slot(std::uint64_t start = 0) noexcept : number{start} {}
        std::atomic<std::uint64_t> number;
        std::atomic<std::thread::id> thread{};
        std::atomic<slot*> next{nullptr};
        memlock_permit* held = nullptr;
    };

    void drop(slot& here) const noexcept {
        if (here.number > 1) client_.tell_if_lost(memlock_permit_drop(here.held));
    }

    void open(std::uint32_t permits, std::chrono::milliseconds lease) {
        memlock_semaphore* opened = nullptr;
        const int answer = memlock_semaphore_open(client_.get(), detail::without_nul(name_).c_str(), permits,
                                                  lease.count(), &opened);
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
        handle_.reset(opened);
    }

    bool found(int answer) const {
        if (answer != MEMLOCK_OK && answer != MEMLOCK_NOT_FOUND) detail::fail(answer, name_);
        return answer == MEMLOCK_OK;
    }

    std::optional<permit> try_take(std::int64_t wait_ms, const request& wanted = {},
                                   const memlock_wait* unless = nullptr) {
        const memlock_request asked{wanted.permits, wanted.priority, wanted.strict};
        memlock_permit* got = nullptr;
        const int answer = memlock_semaphore_acquire_wait(handle_.get(), &asked, wait_ms, unless, &got);
        if (answer == MEMLOCK_OK) return permit{got, name_, client_.listeners_};
        if (answer == MEMLOCK_BUSY || answer == MEMLOCK_TIMED_OUT) return std::nullopt;
        detail::fail(answer, name_);
    }

    permit take(std::int64_t wait_ms, const request& wanted = {}, const memlock_wait* unless = nullptr) {
        return *try_take(wait_ms, wanted, unless);
    }

    bool hold(std::optional<permit> got) {
        if (got) hold_one(std::move(*got));
        return got.has_value();
    }

    void hold_one(permit got) {
        slot& ours = claim();
        ours.thread.store(std::this_thread::get_id(), std::memory_order_relaxed);
        ours.held = got.held_.release();
        ours.number.store(last_.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_release);
    }

    // One in which there is nothing, and of which nobody else makes use meanwhile.
    slot& claim() {
        for (slot* here = &first_;;) {
            std::uint64_t nothing = 0;
            if (here->number.compare_exchange_strong(nothing, 1, std::memory_order_acquire)) return *here;
            slot* next = here->next.load(std::memory_order_acquire);
            if (next == nullptr) {
                auto fresh = std::make_unique<slot>(1);
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
            // What the parent of this process held is not ours to give back.
            if (answer != MEMLOCK_NOT_HELD) return answer;
        }
    }

    // This thread's latest; without one, the oldest of all.
    memlock_permit* pick() noexcept {
        const auto me = std::this_thread::get_id();
        for (;;) {
            slot* best = nullptr;
            std::uint64_t best_number = 0;
            bool is_mine = false;
            for (slot* next = &first_; next != nullptr; next = next->next.load(std::memory_order_acquire)) {
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
            if (!best->number.compare_exchange_strong(best_number, 1, std::memory_order_acquire)) continue;
            memlock_permit* held = std::exchange(best->held, nullptr);
            best->number.store(0, std::memory_order_release);
            return held;
        }
    }

    client client_;
    std::string name_;
    std::unique_ptr<memlock_semaphore, detail::closer<memlock_semaphore, memlock_semaphore_close>> handle_;
    std::atomic<std::uint64_t> last_{1};
    slot first_;  // Enough, and no allocation, where one permit is held at a time.
};

/// Why what was kept is not held any more.
enum class loss : int {
    expired = MEMLOCK_LOST_EXPIRED,    ///< not renewed before its lease was over: no server, or we stood still
    gone = MEMLOCK_LOST_GONE,          ///< found to be gone from the server, or another's
    max_hold = MEMLOCK_LOST_MAX_HOLD,  ///< held for as long as was allowed
};

/// How a lease is renewed. The functions are called on the renewer's thread, which renews nothing of the same
/// client until they return; an exception that leaves them is dropped. They may use what they are told of,
/// and end it.
struct renewal {
    /// For how long at most, counted from when it is kept; then it ends with its lease. Nothing: no bound.
    std::optional<std::chrono::milliseconds> max_hold{};
    /// It could not be renewed so far, or is not to be, and is certainly ours for so long.
    std::function<void(std::chrono::milliseconds)> on_lease_at_risk{};
    /// It was lost. Not called when release() or the end of the object is the first to find that out; the
    /// end of the object tells client::on_lost()'s callback.
    std::function<void(loss)> on_lost{};
};

namespace detail {

/// What the callback is given. It stays while it runs, whatever becomes of the object.
struct told : std::enable_shared_from_this<told> {
    explicit told(renewal given) : how{std::move(given)} {}
    renewal how;

    static void tell(int what, std::int64_t left_ms, void* arg) noexcept {
        try {
            const auto self = static_cast<told*>(arg)->shared_from_this();
            if (what == MEMLOCK_LEASE_AT_RISK) {
                if (self->how.on_lease_at_risk) self->how.on_lease_at_risk(std::chrono::milliseconds{left_ms});
            } else if (self->how.on_lost) {
                self->how.on_lost(loss{what});
            }
        } catch (...) {  // Not through a thread of Rust's.
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

/// What renewed_lock and renewed_permit share.
template <class Calls>
class renewed {
public:
    /// Whether it is certainly ours, unless the server has lost it. No I/O.
    [[nodiscard]] bool is_held() const noexcept { return Calls::is_held(held_.get()) != 0; }

    /// Asks the server whether it is ours, in one round trip; if not, it is lost from now on. Throws
    /// errc::not_held when this holds nothing, and errc::unreachable or protocol.
    [[nodiscard]] bool check() const {
        const int answer = Calls::check(mine());
        if (answer != MEMLOCK_OK && answer != MEMLOCK_LOST) fail(answer, name_);
        return answer == MEMLOCK_OK;
    }

    /// Why it was lost; nothing when it was not, as far as is known. No I/O.
    [[nodiscard]] std::optional<loss> lost() const noexcept { return wait_lost(0); }

    /// Waits until it is lost; nothing when `limit` passed first. Nobody may end it meanwhile.
    template <class Rep, class Period>
    std::optional<loss> wait_lost_for(const std::chrono::duration<Rep, Period>& limit) const noexcept {
        return wait_lost(wait_ms(limit));
    }

    /// How long it is certainly ours yet, if it is not renewed; zero when it is not. No I/O.
    [[nodiscard]] std::chrono::milliseconds remaining() const noexcept {
        std::int64_t left = 0;
        if (held_) Calls::remaining(held_.get(), &left);
        return std::chrono::milliseconds{left};
    }

    /// Whether there is anything to be ended, ours still or not: see is_held().
    explicit operator bool() const noexcept { return held_ != nullptr; }

    /// For the functions of memlock.h; NULL when this holds nothing.
    typename Calls::handle* get() const noexcept { return held_.get(); }

protected:
    using handle = typename Calls::handle;

    renewed() noexcept = default;

    renewed(handle* acquired, const std::string& name, std::shared_ptr<const lost_listeners> listeners, renewal how)
        : held_{acquired, closes{std::move(listeners)}}, name_{name} {
        const std::int64_t longest = how.max_hold ? how.max_hold->count() : -1;
        if (how.max_hold && longest <= 0) throw error{errc::invalid, "max_hold is a time above zero."};
        if (how.on_lease_at_risk || how.on_lost) told_ = std::make_shared<told>(std::move(how));
        const int answer = Calls::renew(acquired, longest, told_ ? told::tell : nullptr, told_.get());
        if (answer != MEMLOCK_OK) fail(answer, name_);
    }

    renewed(renewed&&) noexcept = default;

    // What is held is ended before what its callback is given.
    renewed& operator=(renewed&& other) noexcept {
        held_ = std::move(other.held_);
        told_ = std::move(other.told_);
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
    using closes = gives_back<handle, Calls::drop>;

    std::optional<loss> wait_lost(std::int64_t limit_ms) const noexcept {
        int why = 0;
        if (!held_ || Calls::wait_lost(held_.get(), limit_ms, &why) != MEMLOCK_LOST) return std::nullopt;
        return loss{why};
    }

    std::shared_ptr<told> told_;
    std::unique_ptr<handle, closes> held_;
    std::string name_;
};

}  // namespace detail

/// A lock of a mutex whose lease is renewed for as long as this object is there, or nothing. It is unlocked
/// when it ends, as well as that can be done; unlock() tells how it went. It competes with the mutex's own
/// lock() as with any other, and may outlive the mutex and its client.
///
/// Any number of threads may use it at once; but unlocking, moving and destroying are for one when no other
/// uses it. What ends it waits for a callback that is running, unless that is where it is ended; so it must
/// not hold a std::mutex that the callback wants.
///
/// In a child made by fork() it holds nothing and is not kept, and leaves the parent's lock alone.
class [[nodiscard]] renewed_lock : public detail::renewed<detail::lock_calls> {
public:
    /// Holds nothing.
    renewed_lock() noexcept = default;

    /// Locks, and waits for that for as long as it takes. Throws as mutex::lock(); errc::internal when no
    /// thread can be started: nothing is held then.
    explicit renewed_lock(const mutex& of, renewal how = {})
        : renewed{of.lock_once(-1), of.name(), of.client_.listeners_, std::move(how)} {}

    /// Locks if that takes no longer than `limit`, zero for a single try; errc::timed_out or errc::busy
    /// otherwise.
    template <class Rep, class Period>
    renewed_lock(const mutex& of, const std::chrono::duration<Rep, Period>& limit, renewal how = {})
        : renewed{of.lock_once(detail::wait_ms(limit)), of.name(), of.client_.listeners_, std::move(how)} {}

    /// The fencing token: greater than that of every earlier holder. No I/O. Throws errc::not_held.
    [[nodiscard]] std::uint64_t fence() const {
        std::uint64_t number = 0;
        const int answer = memlock_lock_fence(mine(), &number);
        if (answer != MEMLOCK_OK) detail::fail(answer, subject());
        return number;
    }

    /// Unlocks. Throws errc::lost when it was no longer ours, errc::not_held when there is nothing to
    /// unlock, or errc::unreachable or unknown: then it is taken off at the client's next contact with the
    /// server, or ends with its lease. This holds nothing afterwards, whatever happens.
    void unlock() { end(); }
};

/// Permits whose lease is renewed for as long as this object is there, or nothing. Otherwise as renewed_lock.
class [[nodiscard]] renewed_permit : public detail::renewed<detail::permit_calls> {
public:
    /// Holds nothing.
    renewed_permit() noexcept = default;

    /// Acquires what is wanted, and waits for that for as long as it takes. Throws as
    /// counting_semaphore::acquire_permit(); errc::internal when no thread can be started: nothing is held
    /// then.
    explicit renewed_permit(counting_semaphore& of, const request& wanted = {}, renewal how = {})
        : renewed_permit{of.acquire_permit(wanted), std::move(how)} {}

    /// Keeps what was acquired. Throws errc::not_held when that is nothing, errc::lost when its lease is
    /// over, or errc::internal; nothing is held then.
    explicit renewed_permit(permit acquired, renewal how = {})
        : renewed{taken(acquired), acquired.name_, acquired.held_.get_deleter().listeners, std::move(how)} {}

    /// How many permits these are; 0 for none.
    std::uint32_t count() const noexcept {
        std::uint32_t permits = 0;
        if (get() != nullptr) memlock_permit_count(get(), &permits);
        return permits;
    }

    /// Gives them back. Throws as permit::release(). This holds nothing afterwards, whatever happens.
    void release() { end(); }

private:
    static memlock_permit* taken(permit& acquired) {
        if (!acquired) detail::fail(MEMLOCK_NOT_HELD, acquired.name_);
        return acquired.held_.release();
    }
};

/// A plain counter of free permits in one item of memcached, in decimal, for use beside programs that have
/// such an item already. **It has no leases**: what a program had that died is gone until somebody writes the
/// item anew, and whoever releases twice makes a permit up. Take a counting_semaphore wherever you are free
/// to.
///
/// Any number of threads may use one object at once. Everything but set_up() and available() throws
/// errc::not_found where there is no such item, and everything errc::protocol where it is not a number,
/// errc::unreachable, unknown or invalid. After errc::unknown a permit may have been taken that nobody has,
/// or given back, or not.
class counter {
public:
    /// Sends nothing. `key`: the item's key as it is, with the URL's prefix before it: 1 to 245 visible ASCII
    /// characters; others throw errc::invalid at the first use.
    counter(const client& where, std::string key) : client_{where}, key_{std::move(key)} {
        detail::without_nul(key_);
    }

    /// Creates the item with so many free permits, to be kept for ever. False when there is one, which stays
    /// as it is.
    bool set_up(std::uint64_t permits) {
        const int answer = memlock_counter_set_up(client_.get(), key_.c_str(), permits);
        if (answer != MEMLOCK_OK && answer != MEMLOCK_EXISTS) detail::fail(answer, key_);
        return answer == MEMLOCK_OK;
    }

    /// Takes one permit. False when none is free.
    [[nodiscard]]
    bool try_acquire() { return acquired(memlock_counter_try(client_.get(), key_.c_str())); }

    /// Tries until one was free, with pauses that grow from 1 to 50 milliseconds: nobody's turn is kept.
    /// Throws errc::interrupted when client::cancel_waits() ended the wait.
    void retry() { acquired(try_again(-1)); }

    /// As retry(), but throws errc::interrupted also when `handle` is cancelled, or was before.
    void retry_unless(const wait_handle& handle) { acquired(try_again(-1, detail::given(handle))); }

    /// As retry(); false when `limit` passed first.
    template <class Rep, class Period>
    [[nodiscard]] bool retry_for(const std::chrono::duration<Rep, Period>& limit) {
        return acquired(try_again(detail::wait_ms(limit)));
    }

    /// Waits in a queue until one was free, those of higher priority first, and among equals who came first.
    /// Whoever releases by memlock, in any process, wakes the next one. Throws errc::interrupted as retry().
    void park(std::int64_t priority = 0) { acquired(wait_parked(priority, -1)); }

    /// As park(), but throws errc::interrupted also when `handle` is cancelled, or was before.
    void park_unless(const wait_handle& handle, std::int64_t priority = 0) {
        acquired(wait_parked(priority, -1, detail::given(handle)));
    }

    /// As park(); false when `limit` passed first.
    template <class Rep, class Period>
    [[nodiscard]]
    bool park_for(const std::chrono::duration<Rep, Period>& limit, std::int64_t priority = 0) {
        return acquired(wait_parked(priority, detail::wait_ms(limit)));
    }

    /// Gives one permit back, whoever took it, and wakes the next one who is parked.
    void release() {
        const int answer = memlock_counter_release(client_.get(), key_.c_str());
        if (answer != MEMLOCK_OK) detail::fail(answer, key_);
    }

    /// How many permits are free; nothing when there is no such item. What is read is already past.
    std::optional<std::uint64_t> available() const {
        std::uint64_t number = 0;
        const int answer = memlock_counter_available(client_.get(), key_.c_str(), &number);
        if (answer == MEMLOCK_NOT_FOUND) return std::nullopt;
        if (answer != MEMLOCK_OK) detail::fail(answer, key_);
        return number;
    }

    /// The item's key.
    const std::string& key() const noexcept { return key_; }

private:
    int try_again(std::int64_t wait_ms, const memlock_wait* unless = nullptr) {
        return memlock_counter_retry(client_.get(), key_.c_str(), wait_ms, unless);
    }

    int wait_parked(std::int64_t priority, std::int64_t wait_ms, const memlock_wait* unless = nullptr) {
        return memlock_counter_park(client_.get(), key_.c_str(), priority, wait_ms, unless);
    }

    bool acquired(int answer) const {
        if (answer == MEMLOCK_OK) return true;
        if (answer == MEMLOCK_BUSY || answer == MEMLOCK_TIMED_OUT) return false;
        detail::fail(answer, key_);
    }

    client client_;
    std::string key_;
};

/// What became of a key.
struct insertion {
    std::uint64_t id;  ///< the key's id, from 1 up: the same whoever asks
    bool first;        ///< true for exactly one of all who insert the key
};

/// A key of a list.
struct entry {
    std::uint64_t id;
    std::string_view key;  ///< valid until the iterator it came from moves on or ends
};

/// A named set of keys with ids. Use an object from one thread at a time; every thread may have its own.
/// Everything throws errc::not_found where there is no such session (never set up, expired or torn down), and
/// errc::unreachable, unknown, protocol or invalid.
class distinct_list {
public:
    /// Sets the session up, or joins it if it is: created() says which. The object belongs to that very
    /// session: once it is torn down, inserts are refused even if somebody sets up another of the same name.
    /// `duration`: how long the session and its keys live, 1 second to 366 days from the first set-up.
    distinct_list(const client& where, const std::string& session, std::chrono::milliseconds duration)
        : session_{session} {
        memlock_list* opened = nullptr;
        const int answer = memlock_list_set_up(where.get(), detail::without_nul(session).c_str(),
                                               duration.count(), &opened);
        if (answer != MEMLOCK_OK && answer != MEMLOCK_EXISTS) detail::fail(answer, session_);
        handle_.reset(opened);
        created_ = answer == MEMLOCK_OK;
    }

    /// Sends nothing and sets up nothing: follows whatever session of that name there is.
    distinct_list(const client& where, const std::string& session) : session_{session} {
        memlock_list* opened = nullptr;
        const int answer = memlock_list_open(where.get(), detail::without_nul(session).c_str(), &opened);
        if (answer != MEMLOCK_OK) detail::fail(answer, session_);
        handle_.reset(opened);
    }

    /// Whether this object set the session up, and did not join it.
    bool created() const noexcept { return created_; }

    /// Inserts a key of 1 to 65536 bytes, any bytes. After errc::unknown it may be in the list or not, and
    /// inserting it again is safe.
    insertion insert(std::string_view key) {
        std::uint64_t id = 0;
        const int answer = memlock_list_insert(handle_.get(), detail::start_of(key), key.size(), &id);
        if (answer != MEMLOCK_OK && answer != MEMLOCK_DUPLICATE) detail::fail(answer, session_);
        return {id, answer == MEMLOCK_OK};
    }

    /// Inserts the keys of any range of what a std::string_view can be made from, and answers for each, in
    /// their order. Three round trips for each 1,000 keys, and one more if some of them are duplicates.
    template <class Range>
    std::vector<insertion> insert_many(Range&& keys) {
        // Copied together first: a range may make its keys as it goes, and they would be gone again.
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
        const int answer = memlock_list_insert_many(handle_.get(), given.data(), given.size(), done.data());
        if (answer != MEMLOCK_OK) detail::fail(answer, session_);
        std::vector<insertion> answers;
        answers.reserve(done.size());
        for (const auto& [id, became] : done) answers.push_back({id, became == MEMLOCK_OK});
        return answers;
    }

    std::vector<insertion> insert_many(std::initializer_list<std::string_view> keys) {
        return insert_many<const std::initializer_list<std::string_view>&>(keys);
    }

    /// The id of a key; nothing when the key is not in the list. One round trip.
    std::optional<std::uint64_t> id(std::string_view key) {
        std::uint64_t found = 0;
        const int answer = memlock_list_id(handle_.get(), detail::start_of(key), key.size(), &found);
        if (answer != MEMLOCK_OK) detail::fail(answer, session_);
        return found != 0 ? std::optional{found} : std::nullopt;
    }

    /// Whether a key is in the list. One round trip.
    bool contains(std::string_view key) { return id(key).has_value(); }

    /// How many ids were given out: the number of keys, plus one for every inserter that died half-way.
    std::uint64_t count() {
        std::uint64_t found = 0;
        const int answer = memlock_list_count(handle_.get(), &found);
        if (answer != MEMLOCK_OK) detail::fail(answer, session_);
        return found;
    }

    /// As count().
    std::uint64_t size() { return count(); }

    /// Ends the session for everybody, in one atomic step. False when there was none, or another one than
    /// this object set up.
    bool tear_down() {
        const int answer = memlock_list_tear_down(handle_.get());
        if (answer != MEMLOCK_OK && answer != MEMLOCK_NOT_FOUND) detail::fail(answer, session_);
        return answer == MEMLOCK_OK;
    }

    /// A walk through the keys that were in the list at begin(), in the order of their ids, read in batches
    /// as it goes on; a step throws errc::not_found where the session has ended. An input iterator: one pass,
    /// and copies are the same walk.
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
