// A program of somebody else's that uses the library over MPI: one step down, on however many ranks it is started.
#include <reshard/comm/mpi.hpp>
#include <reshard/reshard.hpp>

int main(int argc, char** argv) {
    auto session = reshard::mpi_session::adopt_or_init(argc, argv);
    using model_type = reshard::sharded_model<reshard::policy<reshard::full_shard>, reshard::mpi_communicator>;
    model_type model{session.world()};
    auto& layer = model.add_unit("layer", {{"weight", {5, 3}}});
    const auto weight = layer.layout().parameter("weight");
    reshard::adamw optimizer{model};
    model.initialize([](const reshard::parameter_info&, std::size_t, auto values) {
        for (float& value : values) value = 1;
    });
    float before = 0, after = 0;
    for (float* seen : {&before, &after}) {
        {
            const auto weights = layer.forward();
            *seen = weights[weight][14];
        }
        {
            auto scope = layer.backward();
            for (float& each : scope.gradient(weight)) each += 1;
        }
        optimizer.step();
    }
    return before == 1 && after < before && model.outcome().applied == 2 ? 0 : 1;
}
