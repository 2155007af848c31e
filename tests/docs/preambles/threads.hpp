#include <reshard/reshard.hpp>
#include <reshard/comm/threads.hpp>

#include <chrono>
#include <thread>

void example() {
    // snippet
}
