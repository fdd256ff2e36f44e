/* A worker of the demo, in C++. worker.c, worker.py and worker.rs do the same steps; ../README.md
 * describes their behaviour and output.
 *
 *     worker URL PLAN REPORT FIRST [--stall]
 */

#include <memlock.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <time.h>
#include <unistd.h>

using namespace std::chrono_literals;

constexpr auto lease = 3s;      // a dead worker's unit is free after this
constexpr auto patience = 10s;  // how long to wait for a unit that another worker holds
constexpr auto session = 10min; // the lists expire after this

std::int64_t boot_clock_ns() {
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// A word is a longest run of ASCII letters and of bytes from 0x80 up; A to Z become a to z.
bool in_word(unsigned char byte) {
    return byte >= 0x80 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

/// A piece of a file.
struct unit {
    std::streamoff offset;
    std::streamsize length;
    std::string path;

    std::string read() const {
        std::string text(static_cast<std::size_t>(length), '\0');
        std::ifstream file{path, std::ios::binary};
        if (!file.seekg(offset).read(text.data(), length)) throw std::runtime_error{path + " cannot be read"};
        for (char& byte : text)
            if (byte >= 'A' && byte <= 'Z') byte += 'a' - 'A';
        return text;
    }
};

/// The words of a text, as views into it.
std::vector<std::string_view> split(std::string_view text) {
    std::vector<std::string_view> found;
    for (std::size_t i = 0; i < text.size(); i++) {
        if (!in_word(text[i])) continue;
        const std::size_t start = i;
        while (i < text.size() && in_word(text[i])) i++;
        found.push_back(text.substr(start, i - start));
    }
    return found;
}

/// Processes units, and reports each step.
class worker {
public:
    worker(const std::string& url, const std::string& report, bool stall)
        : client_{url}, report_{report, std::ios::binary}, stall_{stall} {
        report_.exceptions(std::ios::failbit | std::ios::badbit);
    }

    /// All units, from a different starting point in each worker; busy units come last.
    void work(const std::vector<unit>& units, std::size_t first) {
        std::vector<std::size_t> left;
        for (std::size_t i = 0; i < units.size(); i++) {
            const std::size_t number = (first + i) % units.size();
            if (!work_on(number, units[number], 0s)) left.push_back(number);
        }
        for (const std::size_t number : left)
            if (!work_on(number, units[number], patience)) throw std::runtime_error{"a unit never came free"};
        report_ << "total " << units_done_ << ' ' << words_read_ << ' ' << words_new_ << ' ' << left.size()
                << '\n';
        report_.close();
    }

private:
    /// False if another worker holds the unit for all of `limit`.
    bool work_on(std::size_t number, const unit& piece, std::chrono::seconds limit) {
        const std::string name = "unit:" + std::to_string(number);
        memlock::mutex mutex{client_, name, lease};
        std::unique_lock<memlock::mutex> lock{mutex, limit};
        if (!lock) return false;

        report_ << "hold " << number << ' ' << mutex.fence() << ' ' << boot_clock_ns() << '\n';
        if (!done_.contains(name)) {
            count_words(piece, name);
            // Still under the mutex: the next holder must find the unit done.
            if (!done_.insert(name).first) throw std::runtime_error{name + " was done by two"};
            report_ << "done " << number << '\n';
            std::cout << "done " << name << std::endl;
            units_done_++;
        }
        report_ << "free " << number << ' ' << boot_clock_ns() << '\n';
        // The guard would unlock, too, but without a report; release() throws if the lock was lost.
        lock.release()->release();
        return true;
    }

    void count_words(const unit& piece, const std::string& name) {
        const std::string text = piece.read();
        std::vector<std::string_view> found = split(text);
        if (stall_) {
            found.resize(found.size() / 2);
            insert(found);
            die_in_the_middle(name);
        }
        insert(found);
    }

    /// One call for all words. The first inserter creates the id, and all inserters get it.
    void insert(const std::vector<std::string_view>& keys) {
        auto key = keys.begin();
        for (const auto& [id, first] : words_.insert_many(keys)) {
            words_new_ += first;
            report_ << "id " << id << (first ? " new " : " dup ") << *key++ << '\n';
        }
        words_read_ += keys.size();
    }

    [[noreturn]] void die_in_the_middle(const std::string& name) {
        report_.flush();
        std::cout << "holding " << name << std::endl;
        for (;;) pause();
    }

    memlock::client client_;
    // The first process sets the lists up, and the others join them.
    memlock::distinct_list words_{client_, "words", session};
    memlock::distinct_list done_{client_, "done", session};
    std::ofstream report_;
    bool stall_;
    std::size_t units_done_ = 0, words_read_ = 0, words_new_ = 0;
};

std::vector<unit> read_plan(const std::string& path) {
    std::vector<unit> units;
    std::ifstream plan{path, std::ios::binary};
    for (unit next; plan >> next.offset >> next.length && std::getline(plan.ignore(), next.path);)
        units.push_back(next);
    if (units.empty() || !plan.eof()) throw std::runtime_error{path + " cannot be read"};
    return units;
}

int main(int argc, char** argv) try {
    if (argc < 5) throw std::runtime_error{"usage: worker URL PLAN REPORT FIRST [--stall]"};
    const bool stall = argc > 5 && std::string_view{argv[5]} == "--stall";
    const std::vector<unit> units = read_plan(argv[2]);
    worker worker{argv[1], argv[3], stall};
    // All workers start at the same time: the demo answers when the last one is ready.
    std::cout << "ready" << std::endl;
    std::cin.get();
    worker.work(units, std::stoul(argv[4]));
} catch (const std::exception& error) {
    std::cerr << "worker.cpp: " << error.what() << '\n';
    return 1;
}
