/* memlock for C++17: locks and distinct lists for programs that share nothing but a memcached.
 *
 *     memlock::client client{"memcached://10.0.0.5"};
 *     memlock::mutex mutex{client, "nightly-report", 30s};
 *
 *     {
 *         std::scoped_lock guard{mutex};            // waits; nobody else in the fleet has it now
 *         report(mutex.fence());                    // at most 30 seconds of work, or mutex.extend(30s)
 *     }                                             // unlocks
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
 *   you have not unlocked. Work that may take longer calls extend(), or hands fence() to what it changes.
 * - **Locking can fail.** An "I could not find out" is never a lock: lock() and the try_ functions throw
 *   memlock::error, a std::system_error in memlock::category(). "Busy" and "timed out" are plain false.
 * - **A wait can be ended** from another thread: all of a client's by client::cancel_waits(), single ones by a
 *   wait_handle or, in C++20, a std::stop_token. It throws errc::interrupted, and nothing is held.
 * - **Unlocking can find the lock lost.** unlock() does not throw, because guards call it in destructors;
 *   release() does the same and throws. With a guard: `guard.release()->release();`.
 *
 * The six functions of 2004 stay out of the way here. A program that wants them beside this header includes
 * <memlock.h> *before* <memlock.hpp>.
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

/// Throws the answer of a C call that this thread has just made. `subject` names what it was about, where
/// the library has no sentence of its own: that is, for the ordinary "no".
[[noreturn]] inline void fail(int answer, const std::string& subject) {
    throw error{errc{answer},
                answer < 0 ? memlock_last_error() : '"' + subject + "\": " + memlock_describe(answer)};
}

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

/// An empty view may be of nowhere, which C takes for a mistake other than "empty".
inline const char* start_of(std::string_view bytes) noexcept { return bytes.data() ? bytes.data() : ""; }

template <class Handle, void (*close)(Handle*)>
struct closer {
    void operator()(Handle* handle) const noexcept { close(handle); }
};

}  // namespace detail

/// The way to one set of locks. Any number of threads may use it at once, and so may forked children. A copy
/// is the same client, and so is what a client was moved to; it stays open for as long as there is a copy or
/// a mutex made from it.
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

    /// For the functions of memlock.h; NULL after this client was moved away.
    memlock_client* get() const noexcept { return handle_.get(); }

private:
    std::shared_ptr<memlock_client> handle_;
};

/// Ends single waits of one client from outside: those that are given it, by mutex::lock_unless() or
/// mutex::try_lock_for(). Any number of threads may use it at once.
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

    /// Nobody may be using it any more. What is still locked is unlocked.
    ~mutex() {
        drop(first_.lock);
        for (slot* next = first_.next; next != nullptr;) {
            const std::unique_ptr<slot> gone{next};
            drop(gone->lock);
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

    /// As lock(), but throws errc::interrupted also when `handle` is cancelled, or was before. What it locked,
    /// `std::unique_lock guard{mutex, std::adopt_lock};` takes over.
    void lock_unless(const wait_handle& handle) {
        const int answer = acquire(-1, given(handle));
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// False when somebody has it, this thread included. One round trip. Throws as lock().
    bool try_lock() { return acquired(0); }

    /// False when `limit` passed first. Throws as lock().
    template <class Rep, class Period>
    bool try_lock_for(const std::chrono::duration<Rep, Period>& limit) {
        return acquired(detail::wait_ms(limit));
    }

    /// As try_lock_for(limit), but throws errc::interrupted also when `handle` is cancelled, or was before.
    template <class Rep, class Period>
    bool try_lock_for(const std::chrono::duration<Rep, Period>& limit, const wait_handle& handle) {
        return acquired(detail::wait_ms(limit), given(handle));
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
    bool try_lock_until(const std::chrono::time_point<Clock, Duration>& moment) {
        for (;;) {
            const auto now = Clock::now();
            if (moment <= now) return try_lock();
            if (try_lock_for(moment - now)) return true;
            // The wait is counted on another clock than this one, which may have been set back meanwhile.
            if (Clock::now() >= moment) return false;
        }
    }

    /// Unlocks, if it is still ours, and never throws: last_unlock() has the answer. When the server cannot
    /// be reached, the lock is taken off at the client's next contact with it, or ends with its lease.
    void unlock() noexcept { last_unlock_.store(give_back(), std::memory_order_relaxed); }

    /// As unlock(), but throws errc::lost when it was no longer ours, errc::not_held when this thread had not
    /// locked it, or errc::unreachable or unknown. It is unlocked for this thread whatever happens.
    void release() {
        const int answer = give_back();
        last_unlock_.store(answer, std::memory_order_relaxed);
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// How the last unlock() or release() of this object went, by whichever thread: false if all was well.
    std::error_code last_unlock() const noexcept {
        return {last_unlock_.load(std::memory_order_relaxed), category()};
    }

    /// Gives this thread's lock a new lease, counted from now; the fence stays. Throws errc::lost when it was
    /// no longer ours, errc::not_held, and errc::unreachable or unknown: then look at remaining().
    void extend(std::chrono::milliseconds lease) {
        const int answer = memlock_lock_extend(mine(), lease.count());
        if (answer != MEMLOCK_OK) detail::fail(answer, name_);
    }

    /// How long this thread's lock is certainly its own yet; zero when it is not. No I/O.
    std::chrono::milliseconds remaining() const noexcept {
        const slot* found = find();
        return std::chrono::milliseconds{found != nullptr ? remaining_ms(found->lock) : 0};
    }

    /// The fencing token of this thread's lock: greater than that of every earlier holder. No I/O. Throws
    /// errc::not_held.
    std::uint64_t fence() const {
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

    static void drop(memlock_lock* held) noexcept {
        if (held != nullptr) memlock_unlock(held);
    }

    static std::int64_t remaining_ms(const memlock_lock* held) noexcept {
        std::int64_t left = 0;
        if (held != nullptr) memlock_lock_remaining_ms(held, &left);
        return left;
    }

    // For C, NULL is no handle; one that was moved away is a mistake.
    static const memlock_wait* given(const wait_handle& handle) {
        if (handle.get() == nullptr) throw error{errc::invalid, "The wait handle was moved away."};
        return handle.get();
    }

    int acquire(std::int64_t wait_ms, const memlock_wait* unless = nullptr) {
        slot& ours = claim();
        if (remaining_ms(ours.lock) > 0) {
            if (wait_ms == 0) return MEMLOCK_BUSY;
            throw error{errc::deadlock,
                        "This thread already holds the mutex \"" + name_ + "\" and would wait for itself."};
        }
        // What is left of a lease that ran out, or of the parent of this process.
        drop(std::exchange(ours.lock, nullptr));
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
