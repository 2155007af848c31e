// The options of the example trainers: what they are called, and which of them contradict each other.
#include "options.hpp"

#include "pipeline.hpp"

#include <CLI/CLI.hpp>

#include <cstdlib>
#include <string>

namespace gpt {

namespace {

/// A number above 0, or from 0 on; so far below the limits of its type that products of two fit.
CLI::Validator number_check(bool zero_is_fine) {
    const auto check = [zero_is_fine](const std::string& given) -> std::string {
        char* end = nullptr;
        const double value = std::strtod(given.c_str(), &end);
        const bool is_number = !given.empty() && *end == 0 && value <= 1e9;
        if (is_number && (value > 0 || (zero_is_fine && value == 0))) {
            return {};
        }
        return (zero_is_fine ? "wants a number from 0 to 1e9, not " : "wants a number above 0, up to 1e9, not ") +
               given;
    };
    return CLI::Validator(check, "");
}

void add_trainer_options(CLI::App& app, options& o) {
    const CLI::Validator above_zero = number_check(false), from_zero = number_check(true);
    app.add_option("--text", o.text, "file to learn, byte by byte")->required();
    app.add_option("--steps", o.steps, "optimizer steps")->check(above_zero);
    app.add_option("--layers", o.shape.layers, "blocks")->check(above_zero);
    app.add_option("--width", o.shape.width, "numbers of the residual stream")->check(above_zero);
    app.add_option("--heads", o.shape.heads, "attention heads; must divide --width")->check(above_zero);
    app.add_option("--context", o.shape.context, "bytes of a sequence")->check(above_zero);
    app.add_option("--batch", o.batch, "sequences of a step in all; ranks x microbatches must divide it")
        ->check(above_zero);
    app.add_option("--microbatches", o.microbatches, "forward and backward passes of a step")->check(above_zero);
    app.add_option("--type", o.type, "arithmetic")->check(CLI::IsMember({"float", "double"}));
    app.add_option("--learning-rate", o.learning_rate, "highest learning rate")->check(above_zero);
    app.add_option("--outlier-limit", o.outlier_limit,
                   "skip a step whose loss or norm is so many deviations high; 0: never")
        ->check(from_zero);
    app.add_option("--eval-every", o.eval_every, "steps from one validation to the next; 0: none")->check(from_zero);
    if (o.stages == 1) {
        app.add_option("--sample-bytes", o.sample_bytes, "bytes to write at the end")->check(from_zero);
    }
    app.add_option("--seed", o.seed, "seed of initial values, batches and sample");
    app.add_option("--report", o.report, "file for the report (JSON)");
}

void add_sharding_options(CLI::App& app, options& o) {
    const bool pipeline = o.stages > 1;
    app.add_option("--backend", o.backend, "communicator")
        ->check(pipeline ? CLI::IsMember({"threads", "mpi"}) : CLI::IsMember({"self", "threads", "mpi"}));
    app.add_option("--ranks", o.ranks, "ranks; for mpi the world's size")->check(number_check(false));
    if (pipeline) {
        app.add_option("--schedule", o.schedule, "order of forwards and backwards on a stage")
            ->check(CLI::IsMember({"gpipe", "1f1b", "interleaved", "split"}));
    }
    app.add_option("--strategy", o.strategy,
                   "no_shard, shard_optimizer, shard_gradients, full_shard, hybrid_shard, hybrid_full_shard "
                   "or sharding:P,G,O");
    app.add_option("--reshard", o.reshard,
                   "reshard_always, reshard_never, keep_until_step, keep_last:N, reshard_to_group:K[,until_step], "
                   "pipeline_default[:BYTES] or reshard_within:BYTES[,MICROBATCHES]");
    app.add_option("--topology", o.topology, "flat, mesh:OUTERxINNER (* for any) or by_node");
    app.add_option("--accumulate", o.accumulate, "reduce after each microbatch, or once a step")
        ->check(CLI::IsMember({"each", "once"}));
}

}  // namespace

void check_division(const options& o, integer ranks) {
    if (ranks % o.stages != 0) {
        throw early_end(std::to_string(ranks) + " ranks cannot be divided among " + std::to_string(o.stages) +
                            " stages; choose a multiple of " + std::to_string(o.stages),
                        2);
    }
    if (o.schedule == "interleaved" && o.microbatches % o.stages != 0) {
        throw early_end("--schedule interleaved takes microbatches in groups of " + std::to_string(o.stages) +
                            ", one for each stage; --microbatches " + std::to_string(o.microbatches) +
                            " is no multiple of it",
                        2);
    }
    const integer sharing = ranks / o.stages, parts = sharing * o.microbatches;
    if (o.batch % parts != 0) {
        throw early_end("--batch " + std::to_string(o.batch) + " cannot be divided by " +
                            (o.stages > 1 ? "ranks of a stage" : "ranks") +
                            " x microbatches = " + std::to_string(sharing) + " x " + std::to_string(o.microbatches) +
                            " = " + std::to_string(parts) + "; choose a multiple of " + std::to_string(parts),
                        2);
    }
}

options parse_options(int argc, const char* const* argv, bool sharded, integer stage_count) {
    options o;
    o.stages = stage_count;
    if (stage_count > 1) {
        o.microbatches = 4;
    }
    CLI::App app{stage_count > 1 ? "Trains a small GPT of bytes in a pipeline of stages, each sharded over ranks."
                 : sharded       ? "Trains a small GPT of bytes, sharded over ranks."
                                 : "Trains a small GPT of bytes."};
    app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    add_trainer_options(app, o);
    if (sharded) {
        add_sharding_options(app, o);
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        throw early_end(app.help(), 0);
    } catch (const CLI::ParseError& error) {
        throw early_end(error.what(), 2);
    }
    if (o.shape.width % o.shape.heads != 0) {
        throw early_end("--width " + std::to_string(o.shape.width) + " cannot be divided by --heads " +
                            std::to_string(o.shape.heads),
                        2);
    }
    const integer chunks = o.stages * static_cast<integer>(chunks_of_a_stage(o.schedule));
    if (stage_count > 1 && o.shape.layers < chunks) {
        throw early_end("--layers " + std::to_string(o.shape.layers) + " are too few: --schedule " + o.schedule +
                            " cuts them into " + std::to_string(chunks) + " chunks",
                        2);
    }
    if (o.backend == "self" && o.ranks > 1) {
        throw early_end("--backend self has one rank, not --ranks " + std::to_string(o.ranks) + "; use threads or mpi",
                        2);
    }
    if (!sharded) {
        o.ranks = 1;
    } else if (o.ranks == 0 && o.backend != "mpi") {
        o.ranks = o.backend == "self" ? 1 : 4;
    }
    if (o.ranks > 0) {
        check_division(o, o.ranks);
    }
    return o;
}

}  // namespace gpt
