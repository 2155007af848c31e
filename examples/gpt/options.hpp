// Options of the example trainers.
#pragma once

#include "early_end.hpp"
#include "model.hpp"

#include <cstdint>
#include <string>

namespace gpt {

struct options {
    std::string text, report, type = "float";
    std::uint64_t seed = 1;
    integer steps = 1500, eval_every = 100, sample_bytes = 400;
    model_shape shape{4, 64, 4, 64};
    integer batch = 24, microbatches = 1;  // batch: sequences of a step, over all ranks and microbatches
    double learning_rate = 4e-3, weight_decay = 0.1, clip_norm = 1, outlier_limit = 6, temperature = 0.7;

    // Read by the trainer that uses the library alone.
    std::string backend = "threads", strategy = "full_shard", reshard = "reshard_always", topology = "flat";
    std::string accumulate = "each";
    integer ranks = 0;  // 0: 4 for threads, 1 for self, the size of the world for mpi

    // Read by the pipeline trainer alone.
    std::string schedule = "1f1b";
    integer stages = 1;  // ranks of one stage share a batch

    integer tokens() const { return batch * shape.context; }
};

/// `ranks` share a batch: throws a sentence with the numbers where they cannot.
void check_division(const options& o, integer ranks);

/// The options of a program; early_end for help and for what cannot work. `sharded`: the library is used, behind
/// `stage_count` stages of a pipeline.
options parse_options(int argc, const char* const* argv, bool sharded, integer stage_count = 1);

}  // namespace gpt
