// What a pipeline tells at its end: for every stage and unit, what was predicted from the schedule and what was
// counted.
#pragma once

#include "counted_units.hpp"
#include "traffic.hpp"

#include <reshard/schedule/order.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace gpt {

/// What the list of a stage's passes says of every unit, summed over steps.
class unit_forecast {
public:
    unit_forecast() = default;
    unit_forecast(const reshard::model_plan& plan, std::span<const reshard::pass> passes, std::size_t microbatches);

    /// `weights_seen`: an evaluation or a discarded step went before with the same weights, so that copies which the
    /// policy keeps until they change are there. `skipped`: the step is discarded.
    void add_step(bool weights_seen, bool skipped);
    const std::vector<reshard::unit_counts>& sum() const { return sum_; }

private:
    std::vector<reshard::unit_counts> after_update_, after_evaluation_, sum_;
};

/// The facts of one stage, as one of its ranks sees them.
struct stage_facts {
    std::size_t stage = 0;
    sharding_facts sharding;
    const unit_counter* measured = nullptr;
    const unit_forecast* predicted = nullptr;
    std::string embedding_xxh3;  // of this stage's copy of the tied embedding; empty: has none
};

nlohmann::ordered_json to_json(const stage_facts& facts);
/// Of the facts of all stages.
std::string units_table(const nlohmann::ordered_json& stages);

}  // namespace gpt
