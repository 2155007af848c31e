#include <reshard/comm/idle.hpp>
#include <reshard/reshard.hpp>

void example() {
    sharded_model<policy<full_shard>, idle_communicator> model{idle_communicator{2}};
    [[maybe_unused]] auto& first = model.add_unit("first", {{"weight", {4, 4}}});
    [[maybe_unused]] auto& second = model.add_unit("second", {{"weight", {4, 4}}});
    [[maybe_unused]] const auto weight = first.layout().parameter("weight");
    // snippet
}
