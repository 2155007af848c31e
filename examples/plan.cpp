// Plans sharded training of a transformer before a machine is rented: memory and bytes of every policy, no time.
#include "plan/figures.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace {

using reshard::bytes_text;

using namespace planning;

struct request {
    transformer model;
    cluster where;
    std::string memory, report;
    std::size_t tokens = 0;       // of a rank's microbatch; 0: activations are not looked at
    std::size_t activations = 0;  // bytes, estimated
};

std::string count_text(std::size_t count, const std::string& one, const std::string& many) {
    return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::size_t parameters_of(const transformer& model) {
    double sum = 0;
    for (const unit_of_model& unit : units_of(model)) sum += planning::parameters_of(unit);
    return static_cast<std::size_t>(sum);
}

/// Bytes of "80GiB", read as the library reads those of reshard_within.
std::size_t read_memory(const std::string& given) {
    try {
        if (given.find(',') == std::string::npos) return reshard::any_reshard::parse("reshard_within:" + given).cap();
    } catch (const reshard::argument_error&) {
    }
    throw gpt::early_end(
        "--memory wants a number of bytes above 0, plain or with KiB, MiB or GiB, as in 80GiB, not " + given, 2);
}

request read_options(int argc, const char* const* argv) {
    request asked;
    transformer& model = asked.model;
    cluster& where = asked.where;
    std::string config, compute = "float";
    CLI::App app{"Memory and bytes of every policy for a transformer on a cluster, and which to take."};
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    std::vector<CLI::Option*> sizes;
    const auto size = [&](const char* name, std::size_t& value, std::size_t most, const char* what) {
        sizes.push_back(app.add_option(name, value, what)->check(CLI::Range(std::size_t{1}, most)));
    };
    size("--layers", model.layers, most_layers, "blocks");
    size("--width", model.width, most_width, "numbers of the residual stream");
    size("--heads", model.heads, most_width, "attention heads; must divide --width");
    size("--vocabulary", model.vocabulary, most_rows, "different tokens");
    size("--context", model.context, most_rows, "tokens of a sequence");
    const std::size_t needed = sizes.size();
    size("--ffn", model.ffn, most_width, "numbers inside the feed-forward layer; 4 x --width by default");
    app.add_option("--config", config, "config.json of a model, after GPT-2 or Llama, instead of sizes");
    app.add_option("--nodes", where.nodes, "machines")->check(CLI::Range(1, 4096));
    app.add_option("--ranks-per-node", where.node_ranks, "ranks of a machine")->check(CLI::Range(1, 64));
    app.add_option("--microbatches", where.microbatches, "forward and backward passes of a step")
        ->check(CLI::Range(1, 256));
    app.add_option("--compute", compute, "type of parameters in use; all others are float")
        ->check(CLI::IsMember({"float", "bf16"}));
    app.add_option("--memory", asked.memory, "what a rank may use, as in 80GiB");
    app.add_option("--tokens", asked.tokens, "tokens of a rank's microbatch, to estimate activations")
        ->check(CLI::Range(std::size_t{1}, most_rows));
    app.add_option("--report", asked.report, "file for all figures (JSON)");
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        throw gpt::early_end(app.help(), 0);
    } catch (const CLI::ParseError& error) {
        throw gpt::early_end(error.what(), 2);
    }
    for (std::size_t k = 0; k < sizes.size(); ++k) {
        const bool given = sizes[k]->count() != 0;
        if (given && !config.empty()) {
            throw gpt::early_end(sizes[k]->get_name() + " and --config contradict each other", 2);
        }
        if (!given && config.empty() && k < needed) {
            throw gpt::early_end(sizes[k]->get_name() + " is missing; give all sizes, or --config FILE", 2);
        }
    }
    model = completed(config.empty() ? model : read_config(config));
    where.compute = compute == "bf16" ? reshard::dtype::bf16 : reshard::dtype::f32;
    if (!asked.memory.empty()) where.cap = read_memory(asked.memory);
    return asked;
}

/// Activations take their part of the memory before the library gets the rest.
void estimate_activations(request& asked) {
    if (asked.tokens == 0) return;
    asked.activations = activation_elements(asked.model, asked.tokens) * reshard::size_of(asked.where.compute);
    if (!asked.where.has_cap()) return;
    if (asked.activations >= asked.where.cap) {
        throw gpt::early_end("--memory " + asked.memory + " is all taken by activations, about " +
                                 bytes_text(asked.activations) + " (estimate); give fewer --tokens",
                             2);
    }
    asked.where.cap -= asked.activations;
}

void print_head(const request& asked) {
    const cluster& where = asked.where;
    const std::size_t units = asked.model.layers + 2;
    std::cout << "model     " << parameters_of(asked.model) << " parameters in " << units << " units: embedding"
              << (asked.model.tied ? " (tied, used twice), " : ", ")
              << count_text(asked.model.layers, "block, ", "blocks, ") << units_of(asked.model).back().name << "; "
              << (where.compute == reshard::dtype::bf16 ? "bf16, all else float" : "float") << ", AdamW\n"
              << "cluster   " << count_text(where.nodes, "node", "nodes") << " x "
              << count_text(where.node_ranks, "rank", "ranks") << ", topology " << where.topology() << "; "
              << count_text(where.microbatches, "microbatch", "microbatches") << " a step in a plain loop\n";
    if (asked.activations != 0) {
        std::cout << "estimate  " << bytes_text(asked.activations) << " of activations for " << asked.tokens
                  << " tokens: tokens x (layers x (4 width + 2 queries + 2 keys + " << (asked.model.llama ? 3 : 2)
                  << " ffn) + width + 2 vocabulary) numbers, nothing recomputed, no "
                  << "attention scores stored\n";
    }
    if (where.has_cap()) {
        std::cout << "memory    " << where.cap << " bytes a rank (" << bytes_text(where.cap)
                  << ") for what the library "
                  << "owns" << (asked.activations != 0 ? ": --memory without the estimate" : "") << "\n";
    }
    std::cout << "sends     bytes that a rank sends in a step, all collectives as rings: (n - 1) / n of a gather or "
                 "reduce-scatter over n ranks, twice that of an all-reduce\n";
    if (where.nodes > 1) {
        std::cout << "link      bytes that a node sends to others in a step: those of 1 rank over all ranks (such a "
                     "ring crosses "
                  << where.nodes << " of its " << where.ranks() << " edges) and those of its "
                  << count_text(where.node_ranks, "rank", "ranks") << " over outer groups; other groups lie inside a "
                  << "node\n";
    }
    std::cout << '\n';
}

void print_table(const std::vector<figures>& table, const cluster& where, const figures* best) {
    std::size_t wide = 8;
    for (const figures& one : table) wide = std::max(wide, one.reshard.size());
    const auto line = [&](const char* mark, const std::string& strategy, const std::string& reshard,
                          const std::string& owns, const std::string& sends, const std::string& link,
                          const std::string& collectives, const std::string& fits) {
        std::printf("%s %-17s  %-*s  %12s  %12s", mark, strategy.c_str(), static_cast<int>(wide), reshard.c_str(),
                    owns.c_str(), sends.c_str());
        if (where.nodes > 1) std::printf("  %12s", link.c_str());
        std::printf("  %11s", collectives.c_str());
        if (where.has_cap()) std::printf("  %s", fits.c_str());
        std::printf("\n");
    };
    line(" ", "strategy", "reshard policy", "owns a rank", "sends a rank", "link a node", "collectives", "fits");
    for (const figures& one : table) {
        line(&one == best ? "*" : " ", one.strategy, one.reshard, bytes_text(one.owned.total()), bytes_text(one.sent),
             bytes_text(one.link), std::to_string(one.collectives), one.fits ? "yes" : "no");
    }
}

/// How many that fit share the first `keys` keys with the best, itself included.
template <class Key>
std::size_t as_good(const std::vector<figures>& table, const figures& best, Key key) {
    std::size_t found = 0;
    for (const figures& one : table) found += one.fits && key(one) == key(best);
    return found;
}

void print_advice(const std::vector<figures>& table, const request& asked, const figures& best) {
    const cluster& where = asked.where;
    const auto fitting = static_cast<std::size_t>(
        std::count_if(table.begin(), table.end(), [](const figures& one) { return one.fits; }));
    std::cout << "\nTake " << best.name() << ". Of " << count_text(fitting, "policy", "policies");
    std::cout << (where.has_cap() ? " that fit" : "") << (where.has_cap() && fitting == 1 ? "s" : "") << ", ";
    const std::size_t by_link =
        where.nodes > 1 ? as_good(table, best, [](const figures& one) { return one.link; }) : fitting;
    const std::size_t by_bytes = as_good(table, best, [](const figures& one) { return std::pair(one.link, one.sent); });
    if (where.nodes > 1) {
        std::cout << (by_link == 1 ? "it sends" : count_text(by_link, "", "send"))
                  << " the fewest bytes between nodes, " << bytes_text(best.link) << " a node and step";
        if (by_link > 1) std::cout << "; of these, ";
    }
    if (by_link > 1 || where.nodes == 1) {
        std::cout << (by_bytes == 1 ? "it sends" : count_text(by_bytes, "", "send")) << " the fewest in all, "
                  << bytes_text(best.sent) << " a rank";
        if (by_bytes > 1) std::cout << ", and none of these owns less";
    }
    std::cout << ". A rank owns " << best.owned.total() << " bytes (" << bytes_text(best.owned.total()) << ")";
    if (where.has_cap()) std::cout << ", " << bytes_text(where.cap - best.owned.total()) << " below the cap";
    std::cout << ", and takes part in " << best.collectives
              << " collectives a step. As options of a trainer such as train_gpt: "
              << "--strategy " << best.strategy << (best.reshard == "-" ? "" : " --reshard " + best.reshard)
              << " --topology " << where.topology() << ".\n";
}

void write_report(const request& asked, const std::vector<figures>& table, const figures& best) {
    if (asked.report.empty()) return;
    nlohmann::json units = nlohmann::json::array(), policies = nlohmann::json::array();
    for (const unit_of_model& unit : units_of(asked.model)) {
        units.push_back({{"name", unit.name},
                         {"uses", unit.uses},
                         {"alike", unit.alike},
                         {"parameters", static_cast<std::size_t>(planning::parameters_of(unit)) / unit.alike}});
    }
    for (const figures& one : table) {
        nlohmann::json kinds;
        for (const reshard::owned_row& row : rows(one.owned)) kinds[row.kind] = row.bytes;
        policies.push_back({{"strategy", one.strategy},
                            {"reshard", one.reshard},
                            {"owned", one.owned.total()},
                            {"kinds", kinds},
                            {"sent", one.sent},
                            {"link", one.link},
                            {"collectives", one.collectives},
                            {"fits", one.fits}});
    }
    const nlohmann::json all = {{"units", units},
                                {"activations", asked.activations},
                                {"policies", policies},
                                {"take", {{"strategy", best.strategy}, {"reshard", best.reshard}}}};
    std::ofstream file(asked.report);
    file << all.dump(1) << '\n';
    if (!file.flush()) throw gpt::early_end("cannot write report " + asked.report, 1);
}

void plan(int argc, const char* const* argv) {
    request asked = read_options(argc, argv);
    estimate_activations(asked);
    const std::vector<figures> table = all_policies(asked.model, asked.where);
    const figures* best = best_of(table);
    if (best == nullptr) {
        const figures& least = *std::min_element(table.begin(), table.end(), [](const figures& a, const figures& b) {
            return a.owned.total() < b.owned.total();
        });
        throw gpt::early_end("--memory " + asked.memory +
                                 (asked.activations == 0
                                      ? ""
                                      : ", less " + bytes_text(asked.activations) + " of activations (estimate),") +
                                 " is below the least that any policy needs, " + std::to_string(least.owned.total()) +
                                 " bytes a rank (" + bytes_text(least.owned.total()) + "), that of " + least.name() +
                                 "; raise it, or use more ranks",
                             2);
    }
    print_head(asked);
    std::cout.flush();
    print_table(table, asked.where, best);
    std::fflush(stdout);
    print_advice(table, asked, *best);
    write_report(asked, table, *best);
}

}  // namespace

int main(int argc, char** argv) {
    return gpt::guarded("plan", [&] { plan(argc, argv); });
}
