/* Does the jobs that producers have submitted, each job once, in the first consumer that locks it.
 *
 *     consumer URL RESULTS
 *
 * A mutex locks a job in progress, and the list "done" contains the completed jobs. The mutex alone
 * would let a job be done again as soon as it is free. The list alone, with the job inserted first,
 * would lose the jobs of consumers that die:
 *
 * | the consumer dies             | the job |
 * | ----------------------------- | ------- |
 * | before or during the work     | is done by another consumer when the lease of its mutex ends |
 * | between the work and the insertion into "done" | is done AGAIN by another consumer |
 * | after the insertion           | remains done |
 *
 * The second row is the cost of the first; no lock and no list avoids it. The work must therefore
 * be idempotent. It is also repeated when a consumer is stopped for longer than its lease and then
 * continues: see ../payments.
 *
 * The consumer ends when its standard input is at its end and no job is left. With
 * DEDUPE_DIES=before or =after in its environment it waits at that point of its first job to be
 * killed.
 */

#include <memlock.hpp>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include <poll.h>
#include <unistd.h>

using namespace std::chrono_literals;

constexpr auto lease = 10s;         // a dead consumer's job is free after this
constexpr auto longest_job = 10min; // the lock of a job that hangs for longer is lost
constexpr auto session = 24h;       // the same as the producers'
constexpr auto pace = 20ms;         // the interval between checks for new jobs

/// Does jobs and records them.
class consumer {
public:
    consumer(const std::string& url, const std::string& results)
        : client_{url}, results_{results, std::ios::app} {
        results_.exceptions(std::ios::failbit | std::ios::badbit);
    }

    /// Iterates over all submitted jobs. False if other consumers are working on some of them.
    bool go_through() {
        bool all = true;
        for (const memlock::entry& job : jobs_) {
            if (settled_.count(job.id) != 0) continue;
            if (attend(std::string{job.key}))
                settled_.insert(job.id);
            else
                all = false;
        }
        return all;
    }

private:
    /// Ensures that a job is done. False if another consumer is working on it.
    bool attend(const std::string& job) try {
        const memlock::mutex mutex{client_, "job:" + job, lease};
        memlock::renewal how;
        how.max_hold = longest_job;
        memlock::renewed_lock lock{mutex, 0s, std::move(how)};
        // Check under the mutex: while another consumer holds it, the answer may change.
        if (!done_.contains(job)) {
            wait_to_be_killed("before");
            work(job);
            wait_to_be_killed("after");
            // Still under the mutex: the next holder must find the job done.
            if (!done_.insert(job).first) std::cerr << job << " was done by two: a lock was lost\n";
        }
        lock.unlock();
        return true;
    } catch (const memlock::error& error) {
        if (error.code() == memlock::errc::busy) return false;
        // This process or the server was stopped, and another consumer may be working on the job.
        // Check the job again.
        if (error.code() == memlock::errc::lost) return false;
        throw;
    }

    /// The work. It must be idempotent: a repetition here would write the same line twice.
    void work(const std::string& job) {
        std::this_thread::sleep_for(2ms);
        results_ << job << '\n' << std::flush;
    }

    static void wait_to_be_killed(std::string_view where) {
        const char* dies = std::getenv("DEDUPE_DIES");
        if (dies == nullptr || dies != where) return;
        std::cout << "dies" << std::endl;
        for (;;) pause();
    }

    memlock::client client_;
    memlock::distinct_list jobs_{client_, "jobs", session};
    memlock::distinct_list done_{client_, "done", session};
    std::ofstream results_;
    std::set<std::uint64_t> settled_;  // completed jobs need not be checked again
};

/// Whether no more jobs will be submitted: standard input is at its end.
bool is_over() {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    return poll(&input, 1, pace.count()) > 0;
}

int main(int argc, char** argv) try {
    if (argc != 3) throw std::runtime_error{"usage: consumer URL RESULTS"};
    consumer consumer{argv[1], argv[2]};
    for (bool last = false; !consumer.go_through() || !last;) {
        if (last)
            std::this_thread::sleep_for(pace);
        else
            last = is_over();
    }
} catch (const std::exception& error) {
    std::cerr << "consumer.cpp: " << error.what() << '\n';
    return 1;
}
