// Policies as values: chosen by a configuration file or the command line.
#pragma once

#include "any_reshard.hpp"
#include "any_sharding.hpp"
#include "any_topology.hpp"
#include "policy.hpp"

namespace reshard {
inline namespace v0 {

/// Strategy, reshard policy and topology as values, through the same engine.
template <class Precision = precision<float>>
using runtime_policy = policy<any_sharding, any_reshard, any_topology, Precision>;

}  // namespace v0
}  // namespace reshard
