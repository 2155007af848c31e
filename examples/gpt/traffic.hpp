// What a sharded run sent and held, predicted beside measured: the table at the end and its part of the report.
#pragma once

#include "report.hpp"

#include <reshard/comm/counted.hpp>
#include <reshard/engine/model.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>

namespace gpt {

/// Splits the counted traffic of a rank into setup, train and evaluate.
class traffic_split {
public:
    explicit traffic_split(const reshard::counter& counts) : counts_(counts), last_(counts) {}

    void end_setup() { setup_ = since_last(); }
    void end_train() { add(train_, since_last()); }
    void end_evaluate() { add(evaluate_, since_last()); }

    const reshard::counter& setup() const { return setup_; }
    const reshard::counter& train() const { return train_; }
    const reshard::counter& evaluate() const { return evaluate_; }

private:
    reshard::counter since_last();
    static void add(reshard::counter& sum, const reshard::counter& more);

    const reshard::counter& counts_;
    reshard::counter last_, setup_, train_, evaluate_;
};

/// What the plan says of evaluations: passes over the whole order and sums of metrics, by weight version.
struct evaluation_forecast {
    std::size_t passes = 0;  // since the weights changed
    reshard::group_counts sum;

    void new_weights() { passes = 0; }
    void add(const reshard::model_plan& plan, std::size_t more_passes, std::size_t sums_of_metrics);
};

/// Everything about one rank that the report and the table show.
struct sharding_facts {
    reshard::model_report model;
    const traffic_split* measured = nullptr;
    reshard::group_counts evaluate;
    std::size_t allocations_after_first_step = 0;
};

nlohmann::ordered_json to_json(const sharding_facts& facts);
std::string to_table(const sharding_facts& facts);

}  // namespace gpt
