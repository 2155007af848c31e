#include <reshard/reshard.hpp>
#include <reshard/comm/threads.hpp>

// snippet
