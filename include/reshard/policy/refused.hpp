// The sentences of the compiler's refusals, each a type whose arguments are the facts.
#pragma once

#include <cstddef>

#include "precision.hpp"

namespace reshard {
inline namespace v0 {

namespace refused {

// The facts of a refusal, for the reader of the error.
template <class Type>
struct given;
template <class... Names>
struct missing;
struct parameters;
struct gradients;
struct optimizer_state;
struct after_forward;
struct after_backward;
struct reduce_once;
struct group;
struct levels;
struct resolve;
struct sharding_strategy;
struct reshard_policy;
struct group_topology;
struct element_types;
struct nothing_known;
template <class Kind>
struct which_is;
template <class Parameters, class Gradients, class OptimizerState>
struct rest_where;
struct replicated;
struct inner;
struct whole;
template <std::size_t Ranks>
struct secondary_group_of;
template <std::size_t Ranks>
struct shard_group_of;
template <std::size_t... Ranks>
struct use_one_of;

template <class... Facts>
struct slot_1_takes_a_sharding_strategy {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-1]: slot 1 of policy<Strategy, Reshard, Topology, Precision> takes a sharding "
                  "strategy (full_shard, no_shard, ...); slots cannot be swapped or left out");
};
template <class... Facts>
struct slot_2_takes_a_reshard_policy {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-1]: slot 2 of policy<Strategy, Reshard, Topology, Precision> takes a reshard "
                  "policy (reshard_always, keep_last<n>, ...); slots cannot be swapped or left out");
};
template <class... Facts>
struct slot_3_takes_a_group_topology {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-1]: slot 3 of policy<Strategy, Reshard, Topology, Precision> takes a group "
                  "topology (flat<dynamic>, flat<n>, mesh<outer, inner>, by_node); slots cannot be swapped or left "
                  "out");
};
template <class... Facts>
struct slot_4_takes_element_types {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-1]: slot 4 of policy<Strategy, Reshard, Topology, Precision> takes the element "
                  "types: precision<float>, precision<bf16, gradient<float>>, ...");
};
template <class... Facts>
struct a_model_lacks_facts {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-6]: a policy of your own lacks the functions named as missing, or they return "
                  "another type");
};
template <class... Facts>
struct states_out_of_order {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-2]: gradients must be sharded at least as much as parameters, and the optimizer "
                  "state at least as much as gradients");
};
template <class... Facts>
struct inner_group_needs_two_levels {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-TOPOLOGY-2]: a state rests over the inner group, but a flat topology has none; write "
                  "mesh<outer, inner> or by_node");
};
template <class... Facts>
struct keep_last_of_no_units {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-4]: keep_last<0> keeps nothing; write reshard_always or a number of units");
};
template <class... Facts>
struct accumulate_unsharded_twice {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-5]: accumulate_unsharded<> inside accumulate_unsharded<>; write it once");
};
template <class... Facts>
struct group_of_no_ranks {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-TOPOLOGY-1]: a group has no ranks; every size is at least 1");
};
template <class... Facts>
struct secondary_group_does_not_divide_the_shard_group {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-TOPOLOGY-1]: the secondary group does not divide the shard group of the parameters");
};
template <class... Facts>
struct mesh_of_unknown_sizes {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-TOPOLOGY-4]: mesh<dynamic, dynamic>: one of the two must be known; use by_node to take "
                  "it from the machines");
};
template <class... Facts>
struct accumulate_unsharded_around_a_planned_policy {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-9]: accumulate_unsharded<> around a policy that decides itself how often to "
                  "reduce; leave accumulate_unsharded<> away");
};

}  // namespace refused

}  // namespace v0
}  // namespace reshard
