#include <reshard/comm/idle.hpp>
#include <reshard/reshard.hpp>

void example() {
    [[maybe_unused]] idle_communicator world{2};
    // snippet
}
