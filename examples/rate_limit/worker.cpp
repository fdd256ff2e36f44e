/* A worker of the rate limit, in C++: at most three of all workers are in the section.
 *
 *     worker URL REPORT TURNS
 *
 * The report gets a line `in <time>` after each grant and `out <time>` before each release, in
 * nanoseconds of the boot clock. With RATE_LIMIT_DIES=1 in its environment, the worker stays in the
 * section until it is killed; its permit becomes available when its lease ends.
 */

#include <memlock.hpp>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include <time.h>
#include <unistd.h>

using namespace std::chrono_literals;

constexpr std::uint32_t permits = 3;
constexpr auto lease = 60s;       // a dead worker's permit is free after this
constexpr auto brief_lease = 2s;  // the same for the worker that is to be killed

/// Without buffering: a killed worker cannot flush.
void say(std::ofstream& report, std::string_view what) {
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    report << what << ' ' << std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec << std::endl;
}

bool dies() {
    const char* value = std::getenv("RATE_LIMIT_DIES");
    return value != nullptr && std::string_view{value} == "1";
}

void stay() {
    while (dies()) pause();
    std::this_thread::sleep_for(20ms);
}

int main(int argc, char** argv) try {
    if (argc != 4) throw std::runtime_error{"usage: worker URL REPORT TURNS"};
    std::ofstream report;
    report.exceptions(std::ios::failbit | std::ios::badbit);
    report.open(argv[2]);

    const memlock::client client{argv[1]};
    memlock::counting_semaphore section{client, "section", permits, dies() ? brief_lease : lease};

    for (int turns = std::stoi(argv[3]); turns > 0; turns--) {
        auto permit = section.acquire_permit();
        say(report, "in");
        stay();
        say(report, "out");
        // The destructor would release it without a report; release() throws if it was lost.
        permit.release();
    }
} catch (const std::exception& error) {
    std::cerr << "worker.cpp: " << error.what() << '\n';
    return 1;
}
