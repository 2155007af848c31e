// Odd but legal programs: empty units, a tied unit in a broken-off evaluation, a norm asked for inside the last scope,
// a rank that arrives after its peers gave up.
#include <reshard/comm/threads.hpp>
#include <reshard/reshard.hpp>

#include <doctest/doctest.h>

#include <ctime>
#include <string>
#include <thread>
#include <vector>

using namespace reshard;

// A model can be instantiated whole, members that its policy does not offer included.
template class reshard::sharded_model<policy<>, self_communicator>;

namespace {
using model_type = sharded_model<policy<full_shard>, threads_communicator>;

void sevens(model_type& model) {
    model.initialize([](const parameter_info&, std::size_t, std::span<float> values) {
        for (float& value : values) value = 7;
    });
}
}  // namespace

TEST_CASE("a unit whose parameters are all empty is trained like any other") {
    std::vector<float> seen(3, 0);
    run_threads(3, [&](threads_communicator world) {
        model_type model{world};
        auto& empty = model.add_unit("empty", {{"nothing", {0}}});
        auto& full = model.add_unit("full", {{"weight", {5}}});
        const auto nothing = empty.layout().parameter("nothing");
        const auto weight = full.layout().parameter("weight");
        sgd optimizer{model, {.learning_rate = 1}};
        sevens(model);
        for (int step = 0; step < 2; ++step) {
            {
                auto w = empty.forward();
            }
            {
                auto w = full.forward();
            }
            {
                auto scope = full.backward();
                for (float& slope : scope.gradient(weight)) slope = 1;
            }
            auto scope = empty.backward();
            if (scope[nothing].size() != 0) throw std::runtime_error("an empty parameter has elements");
            scope.close();
            optimizer.step();
        }
        auto evaluation = model.evaluate();
        {
            auto w = empty.forward();
        }
        auto w = full.forward();
        seen[world.rank()] = w[weight][4];
    });
    CHECK(seen == std::vector<float>{5, 5, 5});
}

TEST_CASE("an evaluation that breaks off starts again, also where the first unit is tied") {
    std::vector<float> sums(2, 0);
    run_threads(2, [&](threads_communicator world) {
        model_type model{world};
        auto& tokens = model.add_unit("tokens", {{"weight", {4}}}, {.uses = 2});
        auto& block = model.add_unit("block", {{"weight", {4}}});
        model.set_order({&tokens, &block, &tokens});
        const auto weight = block.layout().parameter("weight");
        sevens(model);
        auto evaluation = model.evaluate();
        for (int pass = 0; pass < 3; ++pass) {  // never as far as the second use
            {
                auto w = tokens.forward();
            }
            auto w = block.forward();
            sums[world.rank()] += w[weight][0];
        }
    });
    CHECK(sums == std::vector<float>{21, 21});
}

TEST_CASE("a norm is not remembered across the reduction that follows") {
    std::vector<double> norms(2, 0);
    run_threads(2, [&](threads_communicator world) {
        model_type model{world};
        auto& unit = model.add_unit("unit", {{"weight", {4}}});
        const auto weight = unit.layout().parameter("weight");
        const metric loss = model.add_metric("loss");
        sgd optimizer{model};
        sevens(model);
        {
            auto w = unit.forward();
        }
        {
            auto scope = unit.backward();
            for (float& slope : scope.gradient(weight)) slope = 10;
            model.set_metric(loss, 1);
            static_cast<void>(model.metric_sum(loss));  // shares norm and metrics before the gradients are reduced
        }
        norms[world.rank()] = model.gradient_norm();
        optimizer.step();
    });
    CHECK(norms == std::vector<double>{20, 20});
}

TEST_CASE("a rank that arrives after its peers gave up does not wait for ever") {
    std::string why;
    try {
        run_threads(2,
                    [](threads_communicator world) {
                        std::vector<float> values(64, 1);
                        auto stream = world.device().make_stream("late");
                        if (world.rank() == 1) {
                            stream.launch([] {
                                const timespec time{0, 700'000'000};
                                nanosleep(&time, nullptr);
                            });
                        }
                        world.all_reduce_in_place(std::span(values), stream, {"sum", "late"});
                        auto done = world.device().make_event();
                        world.device().record(done, stream);
                        world.device().synchronize(done);
                    },
                    {.deadline_seconds = 0.2});
    } catch (const timeout_error& error) {
        why = error.what();
    }
    CHECK(why.find("E-TIME-1") != std::string::npos);
}

TEST_CASE("a fault in another group is a peer's, also on the rank of the same number there") {
    const auto trains = [](threads_communicator world) {
        const auto group = world.split(world.rank() / 2, world.rank());
        model_type model{group.view()};
        model.add_unit("unit", {{"weight", {6}}});
        sevens(model);
        if (world.rank() == 0) throw std::runtime_error("ends here");
        while (world.control().raised() == nullptr) std::this_thread::yield();
        model.begin_step();
    };
    std::vector<std::string> seen(4);
    const auto watched = [&](threads_communicator world) {
        try {
            trains(world);
        } catch (const std::exception& failure) {
            seen[world.rank()] = failure.what();
            throw;
        }
    };
    CHECK_THROWS_WITH(run_threads(4, watched), "ends here");
    const std::string peers = "reshard [E-PEER-1] rank 0 failed: an exception ended its model";
    CHECK(seen == std::vector<std::string>{"ends here", peers, peers, peers});
}
