#include <reshard/comm/threads.hpp>
#include <reshard/reshard.hpp>

#include <chrono>
#include <thread>

void example() {
    // snippet
}
