#include <reshard/reshard.hpp>

void example() {
    [[maybe_unused]] self_communicator world;
    // snippet
}
