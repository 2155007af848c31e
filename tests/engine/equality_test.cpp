// Training under every policy equals the same training in plain loops.
#include <doctest/doctest.h>

#include "support/toy_trainer.hpp"

namespace {

using namespace toy;

template <class Number>
struct reference {
    std::vector<double> losses;
    std::vector<oracle::layer_values<Number>> weights;
};

template <class Number>
reference<Number> adamw_reference(const oracle::net& net, std::size_t steps) {
    oracle::trainer<Number> plain(net);
    reference<Number> out;
    for (std::size_t s = 0; s < steps; ++s) {
        out.losses.push_back(plain.run(s, 0, net.batch, static_cast<double>(net.batch)));
        plain.adamw({});
    }
    out.weights = plain.weights;
    return out;
}

template <class Number>
reference<Number> sgd_reference(const oracle::net& net, std::size_t steps) {
    oracle::trainer<Number> plain(net);
    reference<Number> out;
    for (std::size_t s = 0; s < steps; ++s) {
        out.losses.push_back(plain.run(s, 0, net.batch, 1));
        plain.sgd({});
    }
    out.weights = plain.weights;
    return out;
}

/// Mean (averaged) or sum of all ranks' losses of each step, and what they own together.
struct run_result {
    std::vector<double> losses;
    joined_values values;
};

template <class Policy>
run_result train_on_threads(const oracle::net& net, const Policy& policy, std::size_t ranks, std::size_t microbatches,
                            std::size_t steps, const trainer_options& options) {
    std::vector<std::vector<double>> losses(ranks);
    std::vector<owned_values> owned(ranks);
    run_threads(ranks, [&](threads_communicator world) {
        trainer<Policy, threads_communicator> one(net, world, policy, options);
        for (std::size_t s = 0; s < steps; ++s) one.train(microbatches);
        owned[world.rank()] = one.owned();
        losses[world.rank()] = one.losses;
    });
    run_result out{std::vector<double>(steps, 0.0), join(owned)};
    const double share = options.averaged ? static_cast<double>(ranks * microbatches) : 1;
    for (std::size_t s = 0; s < steps; ++s) {
        for (const auto& one : losses) out.losses[s] += one[s] / share;
    }
    return out;
}

double worst_difference(const std::vector<double>& a, const std::vector<double>& b) {
    double worst = a.size() == b.size() ? 0 : 1;
    for (std::size_t s = 0; s < a.size(); ++s) worst = std::max(worst, std::fabs(a[s] - b[s]) / std::fabs(b[s]));
    return worst;
}

template <class Number>
void every_policy(double tolerance, const std::vector<std::size_t>& all_counts, const oracle::net& net) {
    const auto rank_counts = thinned(all_counts);
    const auto right = adamw_reference<Number>(net, 20);
    for (const char* strategy : strategies) {
        for (const char* reshard : reshards) {
            for (const bool once : {false, true}) {
                for (const std::size_t ranks : rank_counts) {
                    for (const std::size_t m : {1u, 2u, 3u}) {
                        if (ranks == 8 && once != (m == 2)) continue;  // eight threads take long
                        CAPTURE(named(strategy, reshard, once, ranks, m));
                        const auto policy = parse_policy<precision<Number>>(strategy, reshard, once);
                        const auto found = train_on_threads(net, policy, ranks, m, 20, {});
                        CHECK(worst_difference(found.losses, right.losses) < tolerance);
                        CHECK(found.values.whole);
                        CHECK(found.values.all.applied == 20);
                    }
                }
            }
        }
    }
}

TEST_CASE("twenty AdamW steps in float have the losses of plain loops under every policy") {
    SUBCASE("plain") { every_policy<float>(1e-4, {1, 2, 3, 4, 8}, {}); }
    SUBCASE("tied, gradients overwritten") {
        oracle::net net;
        net.tied = net.overwrites = true;
        every_policy<float>(1e-4, {1, 2, 3}, net);
    }
}

TEST_CASE("twenty AdamW steps in double have the losses of plain loops under every policy") {
    SUBCASE("plain") { every_policy<double>(1e-9, {1, 3, 4, 8}, {}); }
    SUBCASE("tied, gradients overwritten") {
        oracle::net net;
        net.tied = net.overwrites = true;
        every_policy<double>(1e-9, {2, 4}, net);
    }
}

void whole_numbers(const oracle::net& net, const std::vector<std::size_t>& all_counts) {
    const auto rank_counts = thinned(all_counts);
    constexpr std::size_t steps = 6;
    const auto right = sgd_reference<float>(net, steps);
    trainer_options options;
    options.sgd = true;
    options.averaged = false;
    for (const char* strategy : strategies) {
        for (const char* reshard : reshards) {
            for (const bool once : {false, true}) {
                for (const std::size_t ranks : rank_counts) {
                    for (const std::size_t m : {1u, 2u, 3u}) {
                        if (ranks == 8 && once != (m == 2)) continue;  // eight threads take long
                        CAPTURE(named(strategy, reshard, once, ranks, m));
                        const auto found =
                            train_on_threads(net, parse_policy(strategy, reshard, once), ranks, m, steps, options);
                        CHECK(found.losses == right.losses);
                        CHECK(found.values.whole);
                        CHECK(same_weights(found.values.all, right.weights));
                    }
                }
            }
        }
    }
}

TEST_CASE("SGD on whole numbers equals plain loops to the bit under every policy") {
    oracle::net net;
    net.whole = true;
    SUBCASE("plain") { whole_numbers(net, {1, 2, 3, 4, 8}); }
    SUBCASE("tied") {
        net.tied = true;
        whole_numbers(net, {1, 2, 3});
    }
    SUBCASE("tied, gradients overwritten") {
        net.tied = net.overwrites = true;
        whole_numbers(net, {1, 4});
    }
    SUBCASE("gradients overwritten") {
        net.overwrites = true;
        whole_numbers(net, {1, 3});
    }
}

TEST_CASE("one rank through self_communicator equals plain loops") {
    oracle::net net;
    net.tied = true;
    const auto right = adamw_reference<double>(net, 20);
    for (const char* strategy : strategies) {
        for (const char* reshard : reshards) {
            for (const std::size_t m : {1u, 3u}) {
                CAPTURE(named(strategy, reshard, false, 1, m));
                const auto policy = parse_policy<precision<double>>(strategy, reshard);
                trainer<runtime_policy<precision<double>>, self_communicator> one(net, self_communicator(), policy);
                std::vector<double> losses;
                for (std::size_t s = 0; s < 20; ++s) {
                    one.train(m);
                    losses.push_back(one.losses[s] / static_cast<double>(m));
                }
                CHECK(worst_difference(losses, right.losses) < 1e-9);
                CHECK(join({one.owned()}).whole);
            }
        }
    }
}

}  // namespace
