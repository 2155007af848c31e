#include <reshard/reshard.hpp>
#include <reshard/comm/idle.hpp>

void example() {
    [[maybe_unused]] idle_communicator world{2};
    // snippet
}
