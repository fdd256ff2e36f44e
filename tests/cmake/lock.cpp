#include <cstdlib>
#include <memlock.hpp>
#include <mutex>

int main() {
    const memlock::client client{std::getenv("MEMLOCK_URL")};
    memlock::mutex mutex{client, "x", std::chrono::seconds{5}};
    std::unique_lock guard{mutex};
    guard.unlock();
    return mutex.last_unlock().value();
}
