#include <reshard/comm/threads.hpp>
#include <reshard/reshard.hpp>

void example() {
    run_threads(2, [](threads_communicator world) {
        sharded_model<policy<full_shard>, threads_communicator> model{world};
        [[maybe_unused]] auto& first = model.add_unit("first", {{"weight", {4, 4}}});
        [[maybe_unused]] auto& second = model.add_unit("second", {{"weight", {4, 4}}});
        // snippet
    });
}
