// The table and the report of a sharded run.
#include "traffic.hpp"

#include <array>
#include <cstdio>

namespace gpt {

reshard::counter traffic_split::since_last() {
    reshard::counter now = counts_ - last_;
    last_ = counts_;
    return now;
}

void traffic_split::add(reshard::counter& sum, const reshard::counter& more) {
    for (const auto& group : more.groups) {
        auto& into = sum.groups[sum.number_of(group.name)];
        for (std::size_t k = 0; k < reshard::operations; ++k) {
            into.by_operation[k].calls += group.by_operation[k].calls;
            into.by_operation[k].bytes += group.by_operation[k].bytes;
        }
    }
}

void evaluation_forecast::add(const reshard::model_plan& plan, std::size_t more_passes, std::size_t sums_of_metrics) {
    sum -= reshard::predict_evaluation(plan, passes);
    passes += more_passes;
    sum += reshard::predict_evaluation(plan, passes);
    for (; sums_of_metrics > 0; --sums_of_metrics) {
        sum += reshard::predict_exchange(plan);
    }
}

namespace {

using reshard::operation;

struct line_of_traffic {
    const char* name;
    operation kind;
    reshard::operation_count reshard::collective_counts::* predicted;
};
constexpr line_of_traffic lines[] = {
    {"all_gather", operation::all_gather, &reshard::collective_counts::all_gather},
    {"reduce_scatter", operation::reduce_scatter, &reshard::collective_counts::reduce_scatter},
    {"all_reduce", operation::all_reduce, &reshard::collective_counts::all_reduce}};

struct section {
    const char* name;
    const reshard::counter& measured;
    const reshard::group_counts& predicted;
};
auto sections(const sharding_facts& f) {
    return std::array{section{"setup", f.measured->setup(), f.model.predicted_setup},
                      section{"train", f.measured->train(), f.model.predicted_steps},
                      section{"evaluate", f.measured->evaluate(), f.evaluate}};
}
constexpr reshard::rank_set groups[] = {reshard::rank_set::whole, reshard::rank_set::inner, reshard::rank_set::outer,
                                        reshard::rank_set::secondary};

/// Calls visit(section, group, line, measured, predicted) for all of them.
template <class Visit>
void for_each_line(const sharding_facts& f, Visit&& visit) {
    for (const section& part : sections(f)) {
        for (const reshard::rank_set group : groups) {
            for (const line_of_traffic& line : lines) {
                visit(part.name, name_of(group), line.name, part.measured.of(name_of(group), line.kind),
                      part.predicted[group].*line.predicted);
            }
        }
    }
}

nlohmann::ordered_json numbers(std::size_t calls, std::size_t bytes) { return {{"calls", calls}, {"bytes", bytes}}; }

}  // namespace

nlohmann::ordered_json to_json(const sharding_facts& f) {
    nlohmann::ordered_json measured, predicted;
    for_each_line(
        f, [&](const char* section, const std::string& group, const char* line, const auto& seen, const auto& planned) {
            if (group != "whole" && seen.calls == 0 && planned.calls == 0) {
                return;
            }
            measured[section][group][line] = numbers(seen.calls, seen.bytes);
            predicted[section][group][line] = numbers(planned.calls, planned.bytes);
        });
    return {{"collectives", measured},
            {"predicted", predicted},
            {"missed_prefetches", f.model.missed_prefetches},
            {"memory",
             {{"predicted_owned_bytes", f.model.predicted_owned.total()},
              {"measured_owned_bytes", f.model.measured_owned},
              {"planned_live_bytes", f.model.planned_live},
              {"measured_live_bytes", f.model.measured_live}}},
            {"allocations_after_first_step", f.allocations_after_first_step}};
}

std::string to_table(const sharding_facts& f) {
    char text[160];
    std::string out =
        "this rank sent                        predicted calls and bytes       measured calls and bytes\n";
    for_each_line(f,
                  [&](const char* section, const char* group, const char* line, const auto& seen, const auto& planned) {
                      if (seen.calls == 0 && planned.calls == 0) {
                          return;
                      }
                      std::snprintf(text, sizeof text, "  %-9s %-9s %-15s %8zu %16zu        %8zu %16zu\n", section,
                                    group, line, planned.calls, planned.bytes, seen.calls, seen.bytes);
                      out += text;
                  });
    std::snprintf(text, sizeof text, "  owned memory                               %16zu                 %16zu\n",
                  f.model.predicted_owned.total(), f.model.measured_owned);
    out += text;
    std::snprintf(text, sizeof text, "  buffers in use at most                     %16zu                 %16zu\n",
                  f.model.planned_live, f.model.measured_live);
    out += text;
    std::snprintf(text, sizeof text, "  missed prefetches %llu, allocations after the first step %zu",
                  static_cast<unsigned long long>(f.model.missed_prefetches), f.allocations_after_first_step);
    return out + text;
}

}  // namespace gpt
