#include <reshard/comm/threads.hpp>
#include <reshard/reshard.hpp>

#include <cstdio>

char draw_letter(std::span<const float>, const std::string&);
void run_layer(int, std::span<const float>);
float next_draw(std::string_view);

void example(threads_communicator world, std::size_t my_batches, std::size_t most_batches, double my_samples) {
    sharded_model<policy<full_shard>, threads_communicator> model{world};
    auto& block = model.add_unit("h.0", {{"weight", {64, 64}}});
    const auto weight = block.layout().parameter("weight");
    const metric samples = model.add_metric("samples");
    sgd optimizer{model};
    const std::vector<int> validation_batches;
    // snippet
}
