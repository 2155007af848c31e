// A program of somebody else's that uses the library without MPI: two ranks as threads learn one slope from points on a
// line.
#include <reshard/comm/threads.hpp>
#include <reshard/reshard.hpp>

/// Squared error of slope * x against 3 x; gradient in slope.
template <class World>
bool falls(World world) {
    reshard::sharded_model<reshard::policy<reshard::full_shard>, World> model{world};
    auto& line = model.add_unit("line", {{"slope", {1}}});
    const auto slope = line.layout().parameter("slope");
    reshard::sgd optimizer{model, {.learning_rate = 0.125}};
    const auto loss = model.add_metric("loss");
    const float x = static_cast<float>(world.rank() + 1);
    double losses[2] = {};
    for (double& each : losses) {
        float error = 0;
        {
            const auto weights = line.forward();
            error = weights[slope][0] * x - 3 * x;
        }
        {
            auto scope = line.backward();
            scope.gradient(slope)[0] += 2 * error * x;
        }
        model.set_metric(loss, static_cast<double>(error * error));
        optimizer.step();
        each = model.metric_sum(loss);
    }
    return losses[1] > 0 && losses[1] < losses[0] && model.steps() == 2;
}

int main() {
    bool good[2] = {};
    reshard::run_threads(2, [&](reshard::threads_communicator world) { good[world.rank()] = falls(world); });
    return good[0] && good[1] && reshard::version_major == 0 ? 0 : 1;
}
