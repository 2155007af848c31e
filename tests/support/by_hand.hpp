// Models of one parameter a unit whose gradients a test gives by hand, for scenarios with answers known by heart.
#pragma once

#include <doctest/doctest.h>

#include "toy_trainer.hpp"

namespace toy {

/// All ranks have come here; one that goes on at once may raise a fault before the others have left.
template <class Communicator>
void meet(Communicator world) {
    try {
        world.barrier({});
    } catch (const reshard::peer_error&) {
    }
}

/// One unit (or several) of one parameter each, gradients given by hand, SGD with rate 1.
template <class Policy, class Communicator>
struct by_hand {
    using model_type = sharded_model<Policy, Communicator>;

    by_hand(Communicator world, const Policy& policy, std::vector<std::size_t> shape, std::size_t units = 1,
            std::size_t uses = 1, reshard::model_options options = {})
        : by_hand(world, policy, shape, units, uses, options, world.device().caller()) {}
    by_hand(Communicator world, const Policy& policy, std::vector<std::size_t> shape, std::size_t units,
            std::size_t uses, reshard::model_options options, typename model_type::stream_ref compute)
        : model(world, options, policy, compute), optimizer(model, {.learning_rate = 1}) {
        std::vector<typename model_type::unit*> order;
        const auto& layout = model.layout({{"w", shape, {}}});
        for (std::size_t u = 0; u < units; ++u) {
            list.push_back(&model.add_unit("unit." + std::to_string(u), layout, {.uses = uses}));
        }
        for (std::size_t use = 0; use < uses; ++use) order.insert(order.end(), list.begin(), list.end());
        model.set_order(order);
        w = list[0]->layout().parameter("w");
        initialize(0);
    }

    void initialize(float value) {
        model.initialize([value](const auto&, std::size_t, auto values) {
            for (auto& each : values) each = value;
        });
    }
    /// A microbatch in which each use of each unit adds `gradient`.
    void microbatch(float gradient) {
        const std::size_t uses = list[0]->record().uses;
        for (std::size_t use = 0; use < uses; ++use) {
            for (auto* unit : list) {
                auto scope = unit->forward();
                seen = scope[w].empty() ? 0.0f : scope[w][0];
            }
        }
        for (std::size_t use = 0; use < uses; ++use) {
            for (std::size_t u = list.size(); u-- > 0;) {
                auto scope = list[u]->backward();
                for (auto& each : scope.gradient(w)) each += gradient;
            }
        }
    }
    /// All elements of the first unit; NaN where another rank owns them.
    std::vector<float> weights() {
        std::vector<float> out(list[0]->layout().parameters()[0].count, std::numeric_limits<float>::quiet_NaN());
        for (const auto& slice : model.owned()) {
            if (slice.parameter.unit_index != 0) continue;
            for (std::size_t i = 0; i < slice.count; ++i) out[slice.global_offset + i] = slice.master[i];
        }
        return out;
    }

    model_type model;
    reshard::sgd<model_type> optimizer;
    std::vector<typename model_type::unit*> list;
    reshard::parameter<float> w{};
    float seen = 0;
};
/// Whether all elements that a rank owns are `value`, and all ranks together own all.
inline bool all_are(const std::vector<std::vector<float>>& ranks, float value) {
    for (std::size_t i = 0; i < ranks[0].size(); ++i) {
        bool owned = false;
        for (const auto& one : ranks) {
            if (std::isnan(one[i])) continue;
            owned = true;
            if (one[i] != value) return false;
        }
        if (!owned) return false;
    }
    return true;
}

template <class Body>
void under_every_policy(Body body) {
    for (const char* strategy : strategies) {
        for (const char* reshard : reshards) {
            for (const bool once : {false, true}) {
                CAPTURE(named(strategy, reshard, once, 0, 0));
                body(parse_policy(strategy, reshard, once));
            }
        }
    }
}

}  // namespace toy
