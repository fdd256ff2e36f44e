// What the driver's calls are made with: a client and all that is made with one, each behind a number.

#ifndef OBJECTS_HPP
#define OBJECTS_HPP

#include <memlock.hpp>

#include <map>
#include <mutex>

using words = std::vector<std::string>;
using milliseconds = std::chrono::milliseconds;
using memlock::errc;

/// An answer that C++ gives by false or an empty optional. The sentence is that of the C library.
struct plain_no {
    errc answer;
    std::string sentence = memlock_last_error();
};

inline void expect(bool done, errc otherwise) {
    if (!done) throw plain_no{otherwise};
}

inline std::string to_hex(std::string_view bytes) {
    static const char digits[] = "0123456789abcdef";
    std::string hex = "x";
    for (const unsigned char byte : bytes) {
        hex += digits[byte >> 4];
        hex += digits[byte & 15];
    }
    return hex;
}

inline std::string from_hex(const std::string& hex) {
    std::string bytes;
    for (std::size_t i = 1; i + 1 < hex.size(); i += 2) {
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    return bytes;
}

inline milliseconds ms(const std::string& word) { return milliseconds{std::stoll(word)}; }

template <class Number>
std::string text(Number number) { return std::to_string(number); }

inline std::string since_1970(std::chrono::system_clock::time_point moment) {
    return text(std::chrono::duration_cast<std::chrono::seconds>(moment.time_since_epoch()).count());
}

inline errc refusal(const std::string& wait) { return wait == "0" ? errc::busy : errc::timed_out; }

/// What a number stands for.
struct object {
    virtual ~object() = default;
    virtual words call(const std::string& verb, const words& args) = 0;
};

[[noreturn]] inline void unknown(const std::string& verb) { throw std::logic_error{"there is no " + verb}; }

class objects {
public:
    std::shared_ptr<object> operator[](const std::string& number) {
        const std::lock_guard guard{mutex_};
        return all_.at(number);
    }

    void add(const std::string& number, std::shared_ptr<object> made) {
        const std::lock_guard guard{mutex_};
        all_[number] = std::move(made);
    }

    /// There may be none, since what was to be acquired was not.
    void drop(const std::string& number) {
        std::shared_ptr<object> dropped;
        const std::lock_guard guard{mutex_};
        dropped.swap(all_[number]);
        all_.erase(number);
    }

private:
    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<object>> all_;
};

inline objects everything;

struct held_lock : object {
    held_lock(const memlock::client& client, const words& args, const std::string& wait)
        : mutex{client, from_hex(args[1]), ms(args[2])} {
        if (wait == "-1") mutex.lock();
        else if (wait == "0") expect(mutex.try_lock(), errc::busy);
        else expect(mutex.try_lock_for(ms(wait)), errc::timed_out);
    }

    words call(const std::string& verb, const words& args) override {
        if (verb == "fence") return {text(mutex.fence())};
        if (verb == "remaining") return {text(mutex.remaining().count())};
        if (verb == "extend") return mutex.extend(ms(args[0])), words{};
        if (verb == "release") return mutex.release(), words{};
        unknown(verb);
    }

    memlock::mutex mutex;
};

struct held_permit : object {
    explicit held_permit(memlock::permit acquired) : permit{std::move(acquired)} {}

    words call(const std::string& verb, const words& args) override {
        if (verb == "remaining") return {text(permit.remaining().count())};
        if (verb == "extend") return permit.extend(ms(args[0])), words{};
        if (verb == "release") return permit.release(), words{};
        unknown(verb);
    }

    memlock::permit permit;
};

inline std::string why(memlock::loss loss) {
    switch (loss) {
        case memlock::loss::expired: return "expired";
        case memlock::loss::gone: return "gone";
        case memlock::loss::max_hold: return "max_hold";
    }
    return "?";
}

/// What the callbacks were told.
class notices {
public:
    memlock::renewal options(const std::string& max_hold) {
        memlock::renewal how;
        if (max_hold != "-") how.max_hold = ms(max_hold);
        how.on_lease_at_risk = [this](milliseconds left) { add(":" + text(left.count())); };
        how.on_lost = [this](memlock::loss loss) { add(why(loss)); };
        return how;
    }

    words all() {
        const std::lock_guard guard{mutex_};
        return all_;
    }

private:
    void add(const std::string& notice) {
        const std::lock_guard guard{mutex_};
        all_.push_back(notice);
    }

    std::mutex mutex_;
    words all_;
};

inline void release(memlock::renewed_lock& held) { held.unlock(); }
inline void release(memlock::renewed_permit& held) { held.release(); }

template <class Renewed>
struct renewed : object {
    template <class Of, class... Wanted>
    renewed(Of& of, const std::string& max_hold, const Wanted&... wanted)
        : held{of, wanted..., heard.options(max_hold)} {}

    words call(const std::string& verb, const words& args) override {
        if (verb == "is_held") return {held.is_held() ? "1" : "0"};
        if (verb == "check") return {held.check() ? "1" : "0"};
        if (verb == "lost") return reason(held.lost());
        if (verb == "wait_lost") return reason(held.wait_lost_for(ms(args[0])));
        if (verb == "notices") return heard.all();
        if (verb == "release") return release(held), words{};
        unknown(verb);
    }

    static words reason(std::optional<memlock::loss> loss) { return loss ? words{why(*loss)} : words{}; }

    notices heard;  // Lives longer than what calls it.
    Renewed held;
};

struct a_semaphore : object {
    a_semaphore(const memlock::client& client, const words& args)
        : semaphore{args[2] == "-" ? std::make_unique<memlock::counting_semaphore>(
                                         client, from_hex(args[1]), ms(args[3]))
                                   : std::make_unique<memlock::counting_semaphore>(
                                         client, from_hex(args[1]),
                                         static_cast<std::uint32_t>(std::stoul(args[2])), ms(args[3]),
                                         otherwise(args[4]))} {}

    static memlock::on_mismatch otherwise(const std::string& word) {
        if (word == "resize") return memlock::on_mismatch::resize;
        return word == "refuse" ? memlock::on_mismatch::refuse : memlock::on_mismatch::follow;
    }

    words call(const std::string& verb, const words& args) override {
        if (verb == "acquire") {
            const memlock::request wanted{number(args[1]), std::stoll(args[2]), args[3] == "0"};
            return everything.add(args[0], std::make_shared<held_permit>(acquired(wanted, args[4]))), words{};
        }
        if (verb == "acquire_renewed") {
            const memlock::request wanted{number(args[1]), 0, false};
            everything.add(args[0], std::make_shared<renewed<memlock::renewed_permit>>(*semaphore, args[2], wanted));
            return {};
        }
        if (verb == "set_up") return {semaphore->set_up(ms(args[0])) ? text(MEMLOCK_OK) : text(MEMLOCK_EXISTS)};
        if (verb == "tear_down") return expect(semaphore->tear_down(), errc::not_found), words{};
        if (verb == "resize") return expect(semaphore->resize(number(args[0])), errc::not_found), words{};
        if (verb == "permits") {
            const auto permits = semaphore->permits();
            return expect(permits.has_value(), errc::not_found), words{text(*permits)};
        }
        if (verb == "available") {
            const auto available = semaphore->available();
            return expect(available.has_value(), errc::not_found), words{text(*available)};
        }
        if (verb == "holders") {
            words all;
            for (const auto& holder : semaphore->holders()) {
                for (const auto& value : {to_hex(holder.token), to_hex(holder.host), text(holder.pid),
                                          text(holder.permits), since_1970(holder.since),
                                          text(holder.remaining.count())}) {
                    all.push_back(value);
                }
            }
            return all;
        }
        unknown(verb);
    }

    static std::uint32_t number(const std::string& word) { return static_cast<std::uint32_t>(std::stoul(word)); }

    memlock::permit acquired(const memlock::request& wanted, const std::string& wait) {
        if (wait == "-1") return semaphore->acquire_permit(wanted);
        auto got = wait == "0" ? semaphore->try_acquire_permit(wanted)
                               : semaphore->try_acquire_permit_for(ms(wait), wanted);
        expect(got.has_value(), refusal(wait));
        return std::move(*got);
    }

    std::unique_ptr<memlock::counting_semaphore> semaphore;
};

struct a_counter : object {
    a_counter(const memlock::client& client, const words& args) : counter{client, from_hex(args[1])} {}

    words call(const std::string& verb, const words& args) override {
        if (verb == "set_up") {
            return {counter.set_up(std::stoull(args[0])) ? text(MEMLOCK_OK) : text(MEMLOCK_EXISTS)};
        }
        if (verb == "try_acquire") return expect(counter.try_acquire(), errc::busy), words{};
        if (verb == "retry") {
            if (args[0] == "-1") counter.retry();
            else expect(counter.retry_for(ms(args[0])), refusal(args[0]));
            return {};
        }
        if (verb == "park") {
            if (args[1] == "-1") counter.park(std::stoll(args[0]));
            else expect(counter.park_for(ms(args[1]), std::stoll(args[0])), refusal(args[1]));
            return {};
        }
        if (verb == "release") return counter.release(), words{};
        if (verb == "available") {
            const auto available = counter.available();
            return expect(available.has_value(), errc::not_found), words{text(*available)};
        }
        unknown(verb);
    }

    memlock::counter counter;
};

struct a_list : object {
    template <class... Duration>
    a_list(const memlock::client& client, const words& args, Duration... duration)
        : list{client, from_hex(args[1]), duration...} {}

    words call(const std::string& verb, const words& args) override {
        if (verb == "insert") return became(list.insert(from_hex(args[0])));
        if (verb == "insert_many") {
            words keys, all;
            for (const auto& key : args) keys.push_back(from_hex(key));
            for (const auto& insertion : list.insert_many(keys)) {
                for (auto& value : became(insertion)) all.push_back(std::move(value));
            }
            return all;
        }
        if (verb == "id") {
            const auto id = list.id(from_hex(args[0]));
            return id ? words{text(*id)} : words{};
        }
        if (verb == "count") return {text(list.count())};
        if (verb == "walk") {
            words all;
            for (const auto& [id, key] : list) {
                all.push_back(text(id));
                all.push_back(to_hex(key));
            }
            return all;
        }
        if (verb == "tear_down") return expect(list.tear_down(), errc::not_found), words{};
        unknown(verb);
    }

    static words became(const memlock::insertion& insertion) {
        return {text(insertion.id), insertion.first ? "1" : "0"};
    }

    memlock::distinct_list list;
};

struct a_client : object {
    explicit a_client(const std::string& url) : client{url} {}

    words call(const std::string& verb, const words& args) override {
        if (verb == "lock") return add<held_lock>(args, args[3]);
        if (verb == "lock_renewed") {
            const memlock::mutex mutex{client, from_hex(args[1]), ms(args[2])};
            everything.add(args[0], std::make_shared<renewed<memlock::renewed_lock>>(mutex, args[3]));
            return {};
        }
        if (verb == "owner") {
            const auto owner = memlock::mutex{client, from_hex(args[0]), milliseconds{1000}}.owner();
            if (!owner) return {};
            return {to_hex(owner->token), text(owner->pid), since_1970(owner->since)};
        }
        if (verb == "force_unlock") {
            memlock::mutex mutex{client, from_hex(args[0]), milliseconds{1000}};
            return expect(mutex.force_unlock(from_hex(args[1])), errc::not_held), words{};
        }
        if (verb == "semaphore") return add<a_semaphore>(args);
        if (verb == "counter") return add<a_counter>(args);
        if (verb == "set_up_list") {
            const auto made = std::make_shared<a_list>(client, args, ms(args[2]));
            everything.add(args[0], made);
            return {made->list.created() ? text(MEMLOCK_OK) : text(MEMLOCK_EXISTS)};
        }
        if (verb == "list") return add<a_list>(args);
        if (verb == "cancel_waits") return client.cancel_waits(), words{};
        unknown(verb);
    }

    template <class Object, class... More>
    words add(const words& args, const More&... more) {
        everything.add(args[0], std::make_shared<Object>(client, args, more...));
        return {};
    }

    memlock::client client;
};

#endif
