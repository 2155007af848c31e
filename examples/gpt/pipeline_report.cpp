// The table and the report of a pipeline.
#include "pipeline_report.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>

namespace gpt {

unit_forecast::unit_forecast(const reshard::model_plan& plan, std::span<const reshard::pass> passes,
                             std::size_t microbatches)
    : sum_(plan.units.size()) {
    std::vector<std::uint32_t> uses(plan.units.size());
    for (std::uint32_t use = 0; use < uses.size(); ++use) {
        uses[use] = use;
    }
    reshard::order_list order(uses);
    const auto needs = reshard::needs_of(plan);
    const auto slots = reshard::map_slots(order, needs, plan.slots);
    order.plan(passes, microbatches);
    after_update_ = reshard::replay_step(order, plan, needs, slots).units;
    after_evaluation_ = reshard::replay_step(order, plan, needs, slots, true).units;
}

void unit_forecast::add_step(bool weights_seen, bool skipped) {
    for (std::size_t u = 0; u < sum_.size(); ++u) {
        const reshard::unit_counts& more = (weights_seen ? after_evaluation_ : after_update_)[u];
        sum_[u].gathers += more.gathers;
        sum_[u].refreshes += skipped ? 0 : more.refreshes;
        sum_[u].reductions += more.reductions;
        sum_[u].secondary_gathers += more.secondary_gathers;
        sum_[u].outer_reductions += more.outer_reductions;
    }
}

nlohmann::ordered_json to_json(const stage_facts& f) {
    const auto numbers = [](const reshard::unit_counts& c) {
        return nlohmann::ordered_json{{"gathers", c.gathers},
                                      {"secondary_gathers", c.secondary_gathers},
                                      {"refreshes", c.refreshes},
                                      {"reductions", c.reductions},
                                      {"outer_reductions", c.outer_reductions}};
    };
    nlohmann::ordered_json out = to_json(f.sharding);
    out["stage"] = f.stage;
    out["units"] = nlohmann::ordered_json::array();
    for (std::size_t u = 0; u < f.measured->names.size(); ++u) {
        out["units"].push_back({{"name", f.measured->names[u]},
                                {"predicted", numbers(f.predicted->sum()[u])},
                                {"measured", numbers(f.measured->counts[u])}});
    }
    if (!f.embedding_xxh3.empty()) {
        out["embedding_xxh3"] = f.embedding_xxh3;
    }
    return out;
}

std::string units_table(const nlohmann::ordered_json& stages) {
    char text[160];
    std::string out =
        "predicted, measured      gathers    within group       refreshes      reductions  between blocks\n";
    for (const auto& stage : stages) {
        for (const auto& unit : stage["units"]) {
            std::snprintf(text, sizeof text, "%5zu %-10s", stage["stage"].get<std::size_t>(),
                          unit["name"].get<std::string>().c_str());
            out += text;
            for (const char* kind : {"gathers", "secondary_gathers", "refreshes", "reductions", "outer_reductions"}) {
                std::snprintf(text, sizeof text, " %7zu %7zu", unit["predicted"][kind].get<std::size_t>(),
                              unit["measured"][kind].get<std::size_t>());
                out += text;
            }
            out += '\n';
        }
    }
    for (const auto& stage : stages) {
        std::snprintf(text, sizeof text, "stage %zu: missed prefetches %zu, allocations after the first step %zu\n",
                      stage["stage"].get<std::size_t>(), stage["missed_prefetches"].get<std::size_t>(),
                      stage["allocations_after_first_step"].get<std::size_t>());
        out += text;
    }
    out.pop_back();
    return out;
}

}  // namespace gpt
