/* Does the jobs that producers have handed in, each of them once, whichever consumer comes first.
 *
 *     consumer URL RESULTS
 *
 * A job that is begun has a mutex, and a job that is done is in the list "done". The mutex alone would let a job be done
 * again as soon as it is free; the list alone, were the job put into it first, would lose the jobs of those who die:
 *
 * | the consumer dies                          | what becomes of the job |
 * | ------------------------------------------ | ----------------------- |
 * | before the work, or in the middle of it    | its mutex comes free when the lease ends, and another does the job |
 * | after the work, and before the job is in "done" | another does it AGAIN |
 * | after that                                 | it stays done |
 *
 * The second row is the price of the first, and no lock and no list removes it: so the work has to bear being repeated. It
 * is repeated, too, when a consumer stands still for longer than its lease and then goes on: see ../payments.
 *
 * It ends when its standard input is at its end and no job is left. With DEDUPE_DIES=before or =after in its
 * environment it waits to be killed there, at its first job.
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

constexpr auto lease = 2s;          // a dead consumer's job is free after this
constexpr auto longest_job = 10min; // one that hangs for longer is taken from it
constexpr auto session = 24h;       // the same as the producers'
constexpr auto pace = 20ms;         // how often it looks for new jobs

/// Does jobs, and writes down which.
class consumer {
public:
    consumer(const std::string& url, const std::string& results)
        : client_{url}, results_{results, std::ios::app} {
        results_.exceptions(std::ios::failbit | std::ios::badbit);
    }

    /// Goes through all jobs that are there. False when some are left that others are at.
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
    /// Sees to it that a job is done. False when another consumer is at it.
    bool attend(const std::string& job) try {
        const memlock::mutex mutex{client_, "job:" + job, lease};
        memlock::renewal how;
        how.max_hold = longest_job;
        memlock::renewed_lock lock{mutex, 0s, std::move(how)};
        // Only now: as long as somebody else had the mutex, the answer could change at any time.
        if (!done_.contains(job)) {
            wait_to_be_killed("before");
            work(job);
            wait_to_be_killed("after");
            // While we still have the mutex: the next to have it must find the job done.
            if (!done_.insert(job).first) std::cerr << job << " was done by two: a lock was lost\n";
        }
        lock.unlock();
        return true;
    } catch (const memlock::error& error) {
        if (error.code() == memlock::errc::busy) return false;
        // It stood still, or the server did. Somebody else may be at the job now: it is looked at again.
        if (error.code() == memlock::errc::lost) return false;
        throw;
    }

    /// The work. To do it twice must do no harm: here it would write the same line twice.
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
    std::set<std::uint64_t> settled_;  // what is done for good need not be asked again
};

/// Whether no more jobs come: then our standard input is at its end.
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
