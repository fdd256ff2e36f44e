/* Submits jobs that may arrive several times, at several producers, and again after a crash: each
 * becomes one job.
 *
 *     producer URL < JOBS
 *
 * The list "jobs" is the queue itself. Detecting that a job is new and submitting it is one step,
 * so a producer cannot die in between and leave a job that counts as submitted and is never done.
 */

#include <memlock.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

using namespace std::chrono_literals;

constexpr auto session = 24h;       // a job that is submitted again after this is a new one
constexpr std::size_t batch = 500;  // jobs per insert_many, at three or four round trips

int main(int argc, char** argv) try {
    if (argc != 2) throw std::runtime_error{"usage: producer URL < JOBS"};
    memlock::client client{argv[1]};
    // The first process sets the list up, and the others join it.
    memlock::distinct_list jobs{client, "jobs", session};
    std::vector<std::string> given;
    std::size_t fresh = 0, again = 0;
    bool is_over = false;
    while (!is_over) {
        given.clear();
        for (std::string job; given.size() < batch && !is_over;) {
            is_over = !std::getline(std::cin, job);
            if (!is_over && !job.empty()) given.push_back(job);
        }
        for (const memlock::insertion& answer : jobs.insert_many(given)) (answer.first ? fresh : again)++;
        // From here on the jobs will be done, and their source need not submit them again.
        std::cout << fresh << " new, " << again << " known" << std::endl;
    }
} catch (const std::exception& error) {
    std::cerr << "producer.cpp: " << error.what() << '\n';
    return 1;
}
