#include <reshard/comm/threads.hpp>
#include <reshard/reshard.hpp>

// snippet
