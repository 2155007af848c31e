// Prints the table of README.md: memory a rank on 8 ranks, of three shapes under five policies, from the plan alone.
#include <reshard/layout/unit_layout.hpp>
#include <reshard/policy/policy.hpp>
#include <reshard/schedule/memory.hpp>

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace reshard;

struct unit {
    std::string name;
    std::vector<parameter_spec> parameters;
    std::size_t uses = 1;
};

std::vector<unit> gpt2(std::size_t layers, std::size_t width) {
    std::vector<unit> units{{"embedding", {{"wte", {50257, width}}, {"wpe", {1024, width}}}, 2}};
    for (std::size_t layer = 0; layer < layers; ++layer) {
        units.push_back({"h." + std::to_string(layer),
                         {{"ln1w", {width}},
                          {"ln1b", {width}},
                          {"qkvw", {3 * width, width}},
                          {"qkvb", {3 * width}},
                          {"projw", {width, width}},
                          {"projb", {width}},
                          {"ln2w", {width}},
                          {"ln2b", {width}},
                          {"fcw", {4 * width, width}},
                          {"fcb", {4 * width}},
                          {"fcprojw", {width, 4 * width}},
                          {"fcprojb", {width}}}});
    }
    units.push_back({"ln_f", {{"weight", {width}}, {"bias", {width}}}});
    return units;
}

std::vector<unit> llama3_8b() {
    const std::size_t width = 4096, wide = 14336, keys = 1024, vocabulary = 128256;
    std::vector<unit> units{{"embedding", {{"table", {vocabulary, width}}}}};
    for (std::size_t layer = 0; layer < 32; ++layer) {
        units.push_back({"layer." + std::to_string(layer),
                         {{"norm1", {width}},
                          {"q", {width, width}},
                          {"k", {keys, width}},
                          {"v", {keys, width}},
                          {"o", {width, width}},
                          {"norm2", {width}},
                          {"gate", {wide, width}},
                          {"up", {wide, width}},
                          {"down", {width, wide}}}});
    }
    units.push_back({"head", {{"norm", {width}}, {"weight", {vocabulary, width}}}});
    return units;
}

/// Bytes that one of 8 ranks owns, with AdamW; everything in float.
template <class Strategy, class Reshard>
std::size_t owned_by_a_rank(const std::vector<unit>& units, Strategy strategy, Reshard reshard) {
    model_plan plan;
    plan.ranks = 8;
    std::vector<std::uint32_t> order;
    for (std::size_t index = 0; index < units.size(); ++index) {
        const unit_place place{index, units.size()};
        unit_plan one{units[index].name,
                      units[index].uses,
                      strategy.parameters(place),
                      strategy.gradients(place),
                      strategy.optimizer_state(place),
                      reshard.after_forward(place),
                      reshard.after_backward(place),
                      {}};
        const auto layout = unit_layout::build(0, units[index].parameters, plan.ranks, {}, dtype::f32);
        for (const segment& part : layout.segments()) {
            one.segments.push_back({part.type, part.trainable, part.elements});
        }
        plan.units.push_back(one);
        order.push_back(static_cast<std::uint32_t>(index));
    }
    if (units.front().uses == 2) order.push_back(0);
    return predict_memory(plan, map_slots(order_list(order), needs_of(plan), plan.slots), 0).total();
}

void print_row(const char* policy_name, const std::size_t (&bytes)[3]) {
    std::printf("| %s |", policy_name);
    for (const std::size_t each : bytes) std::printf(" %.2f GiB |", static_cast<double>(each) / (1 << 30));
    std::printf("\n");
}

template <class Strategy, class Reshard>
void print_policy(const char* name, Strategy strategy, Reshard reshard) {
    const std::vector<unit> shapes[] = {gpt2(12, 768), gpt2(48, 1600), llama3_8b()};
    std::size_t bytes[3];
    for (std::size_t k = 0; k < 3; ++k) bytes[k] = owned_by_a_rank(shapes[k], strategy, reshard);
    print_row(name, bytes);
}

}  // namespace

int main() {
    print_policy("`no_shard`", no_shard{}, reshard_always{});
    print_policy("`shard_optimizer`", shard_optimizer{}, reshard_always{});
    print_policy("`shard_gradients`", shard_gradients{}, reshard_always{});
    print_policy("`full_shard` + `keep_until_step`", full_shard{}, keep_until_step{});
    print_policy("`full_shard` + `keep_last<2>`", full_shard{}, keep_last<2>{});
}
