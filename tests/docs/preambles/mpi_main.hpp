#include <reshard/comm/mpi.hpp>
#include <reshard/reshard.hpp>

#include <cstdio>

template <class World>
void train(World world) {
    sharded_model<policy<full_shard>, World> model{world};
}
void example(int argc, char** argv) {
    // snippet
}
