// Options of the example trainers. What cannot work ends with one line on stderr and a non-zero exit.
#pragma once

#include "model.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iostream>
#include <stdexcept>
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

/// Ends a program early and in order: help, or a sentence about an option.
struct early_end : std::runtime_error {
    early_end(const std::string& text, int code) : std::runtime_error(text), status(code) {}
    int status;
};

/// `ranks` share a batch: throws a sentence with the numbers where they cannot.
void check_division(const options& o, integer ranks);

/// The options of a program; early_end for help and for what cannot work. `sharded`: the library is used, behind
/// `stage_count` stages of a pipeline.
options parse_options(int argc, const char* const* argv, bool sharded, integer stage_count = 1);

/// Runs the body of main; every error is one line on stderr and a non-zero exit.
template <class Body>
int guarded(const std::string& program, Body body) {
    try {
        body();
        return 0;
    } catch (const early_end& end) {
        if (end.status == 0) {
            std::cout << end.what();
            return 0;
        }
        std::cerr << program << ": " << end.what() << '\n';
        return end.status;
    } catch (const std::exception& error) {
        std::string text = error.what();
        std::replace(text.begin(), text.end(), '\n', ' ');
        std::cerr << program << ": " << text << '\n';
        return 1;
    }
}

}  // namespace gpt
