// What the compiler refuses in a policy, each with its sentence and its numbers.
#include <reshard/policy/runtime.hpp>

using namespace reshard;

// A policy of one's own, complete; the sections take it apart.
struct my_strategy {
    static constexpr auto parameters(unit_place) { return fact<placement::replicated>; }
    static placement gradients(unit_place unit) { return unit.index == 0 ? placement::replicated : placement::whole; }
    static constexpr auto optimizer_state(unit_place) { return fact<placement::whole>; }
};

#if defined(SECTION_slots_swapped)
// expect: slot 1 of policy<Strategy, Reshard, Topology, Precision> takes a sharding strategy
// expect: keep_last<2>
// expect: refused::reshard_policy
using wrong = policy<keep_last<2>, full_shard, flat<dynamic>>;
#elif defined(SECTION_slot_left_out)
// expect: slot 2 of policy<Strategy, Reshard, Topology, Precision> takes a reshard policy
// expect: flat<4>
// expect: refused::group_topology
using wrong = policy<full_shard, flat<4>>;
#elif defined(SECTION_topology_left_out)
// expect: slot 3 of policy<Strategy, Reshard, Topology, Precision> takes a group topology
// expect: refused::element_types
using wrong = policy<full_shard, reshard_never, precision<double>>;
#elif defined(SECTION_type_for_precision)
// expect: slot 4 of policy<Strategy, Reshard, Topology, Precision> takes the element types
// expect: given<double>
using wrong = policy<full_shard, reshard_never, flat<4>, double>;
#elif defined(SECTION_int)
// expect: slot 1 of policy<Strategy, Reshard, Topology, Precision> takes a sharding strategy
// expect: given<int>
// expect: refused::nothing_known
using wrong = policy<int>;
#elif defined(SECTION_strategy_lacks_a_fact)
// expect: a policy of your own lacks the functions named as missing, or they return another type
// expect: forgetful
// expect: missing<
// expect: refused::optimizer_state
struct forgetful {
    static constexpr auto parameters(unit_place) { return fact<placement::whole>; }
    static constexpr auto gradients(unit_place) { return fact<placement::whole>; }
};
using wrong = policy<forgetful>;
#elif defined(SECTION_strategy_returns_another_type)
// expect: a policy of your own lacks the functions named as missing, or they return another type
// expect: talkative
// expect: refused::gradients
struct talkative : full_shard {
    static constexpr int gradients(unit_place) { return 2; }
};
using wrong = policy<talkative>;
#elif defined(SECTION_reshard_policy_lacks_a_fact)
// expect: a policy of your own lacks the functions named as missing, or they return another type
// expect: refused::reduce_once
struct forgetful {
    static constexpr auto after_forward(unit_place) { return fact<afterwards::keep>; }
    static constexpr auto after_backward(unit_place) { return fact<afterwards::keep>; }
};
using wrong = policy<full_shard, forgetful>;
#elif defined(SECTION_accumulate_lacks_a_fact)
// expect: a policy of your own lacks the functions named as missing, or they return another type
// expect: accumulate_unsharded<
// expect: refused::after_forward
using wrong = policy<full_shard, accumulate_unsharded<full_shard>>;
#elif defined(SECTION_topology_lacks_a_fact)
// expect: a policy of your own lacks the functions named as missing, or they return another type
// expect: refused::levels
struct forgetful {
    static group_shape resolve(std::size_t world) { return {1, world}; }
};
using wrong = policy<full_shard, reshard_always, forgetful>;
#elif defined(SECTION_states_out_of_order)
// expect: gradients must be sharded at least as much as parameters, and the optimizer state at least as much
// expect: upside_down
// expect: rest_where<
// expect: refused::whole
// expect: refused::replicated
struct upside_down : full_shard {
    static constexpr auto optimizer_state(unit_place) { return fact<placement::replicated>; }
};
using wrong = policy<upside_down>;
#elif defined(SECTION_parameters_sharded_gradients_not)
// expect: gradients must be sharded at least as much as parameters, and the optimizer state at least as much
// expect: rest_where<
struct upside_down : no_shard {
    static constexpr auto parameters(unit_place) { return fact<placement::whole>; }
};
using wrong = policy<upside_down>;
#elif defined(SECTION_inner_on_flat)
// expect: a state rests over the inner group, but a flat topology has none; write mesh<outer, inner> or by_node
// expect: flat<8>
// expect: refused::inner
struct hybrid {
    static constexpr auto parameters(unit_place) { return fact<placement::inner>; }
    static constexpr auto gradients(unit_place) { return fact<placement::inner>; }
    static constexpr auto optimizer_state(unit_place) { return fact<placement::inner>; }
};
using wrong = policy<hybrid, reshard_always, flat<8>>;
#elif defined(SECTION_flat_of_no_ranks)
// expect: a group has no ranks; every size is at least 1
// expect: flat<0>
using wrong = policy<full_shard, reshard_always, flat<0>>;
#elif defined(SECTION_keep_no_units)
// expect: keep_last<0> keeps nothing; write reshard_always or a number of units
using wrong = policy<full_shard, keep_last<0>>;
#elif defined(SECTION_keep_no_units_accumulating)
// expect: keep_last<0> keeps nothing; write reshard_always or a number of units
using wrong = policy<full_shard, accumulate_unsharded<keep_last<0>>>;
#elif defined(SECTION_accumulate_twice)
// expect: accumulate_unsharded<> inside accumulate_unsharded<>; write it once
// expect: keep_last<3>
using wrong = policy<full_shard, accumulate_unsharded<accumulate_unsharded<keep_last<3>>>>;
#elif defined(SECTION_accumulate_what_is_planned)
// expect: [E-POLICY-9]: accumulate_unsharded<> around a policy that decides itself how often to reduce
// expect: pipeline_default
using wrong = policy<full_shard, accumulate_unsharded<pipeline_default>>;
#elif defined(SECTION_group_does_not_divide_flat)
// expect: [E-TOPOLOGY-1]: the secondary group does not divide the shard group of the parameters
// expect: secondary_group_of<3>
// expect: shard_group_of<8>
// expect: use_one_of<1, 2, 4, 8>
// expect: flat<8>
using wrong = policy<full_shard, reshard_to_group<3>, flat<8>>;
#elif defined(SECTION_group_larger_than_flat)
// expect: the secondary group does not divide the shard group of the parameters
// expect: secondary_group_of<16>
// expect: shard_group_of<8>
using wrong = policy<full_shard, accumulate_unsharded<reshard_to_group<16, until_step>>, flat<8>>;
#elif defined(SECTION_group_does_not_divide_the_inner_group)
// expect: the secondary group does not divide the shard group of the parameters
// expect: secondary_group_of<3>
// expect: shard_group_of<8>
// expect: use_one_of<1, 2, 4, 8>
// expect: mesh<2, 8>
using wrong = policy<hybrid_shard, reshard_to_group<3>, mesh<2, 8>>;
#elif defined(SECTION_group_does_not_divide_the_inner_group_alone_known)
// expect: the secondary group does not divide the shard group of the parameters
// expect: secondary_group_of<4>
// expect: shard_group_of<6>
// expect: use_one_of<1, 2, 3, 6>
using wrong = policy<hybrid_full_shard, reshard_to_group<4>, mesh<dynamic, 6>>;
#elif defined(SECTION_group_does_not_divide_the_whole_mesh)
// expect: the secondary group does not divide the shard group of the parameters
// expect: secondary_group_of<4>
// expect: shard_group_of<6>
using wrong = policy<sharding<placement::whole, placement::whole, placement::whole>, reshard_to_group<4>, mesh<2, 3>>;
#elif defined(SECTION_group_of_no_ranks)
// expect: [E-TOPOLOGY-1]: a group has no ranks; every size is at least 1
// expect: reshard_to_group<0
using wrong = policy<full_shard, reshard_to_group<0>>;
#elif defined(SECTION_mesh_of_no_ranks)
// expect: a group has no ranks; every size is at least 1
// expect: mesh<2, 0>
using wrong = policy<hybrid_shard, reshard_always, mesh<2, 0>>;
#elif defined(SECTION_mesh_of_unknown_sizes)
// expect: [E-TOPOLOGY-4]: mesh<dynamic, dynamic>: one of the two must be known
// expect: use by_node to take it from the machines
// expect: refused::mesh_of_unknown_sizes
using wrong = policy<hybrid_shard, reshard_always, mesh<dynamic, dynamic>>;
#elif defined(SECTION_group_fact_missing)
// expect: a policy of your own lacks the functions named as missing, or they return another type
// expect: missing<
// expect: refused::group
struct forgetful : reshard_always {
    static constexpr auto after_forward(unit_place) { return fact<afterwards::group>; }
};
using wrong = policy<full_shard, forgetful>;
#elif defined(SECTION_hybrid_out_of_order)
// expect: gradients must be sharded at least as much as parameters
// expect: refused::inner
using wrong = policy<sharding<placement::whole, placement::inner, placement::whole>, reshard_always, mesh<2, 4>>;
#elif defined(SECTION_hybrid_shard_on_flat)
// expect: [E-TOPOLOGY-2]: a state rests over the inner group, but a flat topology has none
// expect: hybrid_full_shard
using wrong = policy<hybrid_full_shard, reshard_to_group<2>, flat<8>>;
#elif defined(SECTION_compute_type)
// expect: precision<> takes the compute type first: double, float, bf16 or fp16
// expect: int
using wrong = policy<full_shard, reshard_always, flat<dynamic>, precision<int>>;
#elif defined(SECTION_precision_slot)
// expect: after the compute type, precision<> takes gradient<>, reduce<>, accumulate<>, master<> and moments<>
// expect: gradient<int>
using wrong = policy<full_shard, reshard_always, flat<dynamic>, precision<float, gradient<int>>>;
#elif defined(SECTION_precision_slot_without_name)
// expect: after the compute type, precision<> takes gradient<>, reduce<>, accumulate<>, master<> and moments<>
using wrong = policy<full_shard, reshard_always, flat<dynamic>, precision<bf16, float>>;
#elif defined(SECTION_precision_slot_twice)
// expect: precision<> takes each slot at most once
// expect: master<double>
using wrong = policy<full_shard, reshard_always, flat<dynamic>, precision<float, master<float>, master<double>>>;
#else
using hybrid = policy<hybrid_full_shard, accumulate_unsharded<reshard_to_group<4, until_step>>, mesh<2, 8>>;
using planned = policy<hybrid_shard, pipeline_default, mesh<dynamic, 4>>;
using group_without_effect = policy<shard_gradients, reshard_to_group<3>, flat<8>>;
using group_found_later = policy<full_shard, reshard_to_group<3>, mesh<dynamic, 2>>;
std::string describe_all() {
    return hybrid{}.describe() + planned{}.describe() + group_without_effect{}.describe() +
           group_found_later{}.describe() + policy<hybrid_shard, any_reshard, by_node>{}.describe();
}
using wrong = policy<my_strategy, accumulate_unsharded<keep_last<3>>, flat<4>, precision<bf16, gradient<bf16>>>;
#endif

// A program goes on to use it; none of this may add an error of its own.
std::string use() {
    const wrong chosen{};
    chosen.check(4);
    const unit_place unit{1, 4};
    const placement where = chosen.strategy.parameters(unit);
    const afterwards what = chosen.reshard.after_forward(unit);
    const group_shape shape = chosen.resolve(4);
    const wrong::precision_type::compute zero{};
    const wrong::precision_type::master one{};
    return text(chosen.describe(), name_of(where), name_of(what), shape.inner, chosen.reduces_once(unit),
                sizeof(zero) + sizeof(one));
}
