// What a trainer tells: progress lines for people, and the report in JSON for programs.
#pragma once

#include "options.hpp"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace gpt {

/// 3.0e-4
std::string short_power(double value);
/// 870, 49 k, 1.2 M
std::string short_count(double value);
/// 9 s, 1 min 10 s, 2 h 5 min
std::string short_time(double seconds);

struct step_facts {
    double loss = 0, norm = 0, learning_rate = 0;
    bool skipped = false;
    double seconds = 0;
};

/// step 12/400 | loss 2.314 | norm 0.84 | lr 3.0e-4 | 41 ms | 49 k tok/s | 1 min 10 s left
std::string progress_line(integer number, integer steps, const step_facts& step, double tokens_per_second,
                          double seconds_left);

/// Keeps every step, prints about forty lines of a run, and writes the report.
class journal {
public:
    /// `speaks`: one rank of several prints and writes. std::runtime_error where the report could not be written.
    journal(const options& chosen, bool speaks);

    void begin_step() { start_ = std::chrono::steady_clock::now(); }

    /// Ends the step that began, and prints it if it is its turn.
    void end_step(step_facts step);

    /// Mean validation loss after `number` steps.
    void validation(integer number, double loss);

    void say(const std::string& text) const;

    /// Tokens of all ranks over the time inside steps.
    double tokens_per_second() const;

    /// What every trainer reports: steps, validations, speed.
    nlohmann::ordered_json facts() const;

    /// Writes the report where one is wanted; std::runtime_error where that fails.
    void write(const nlohmann::ordered_json& report) const;

    /// Writes the report of a trainer that knows no more than the hash of its weights.
    void finish(const std::string& weights_xxh3) const;

private:
    struct measured_loss {
        integer step;
        double loss;
    };

    options options_;
    bool speaks_;
    std::vector<step_facts> steps_;
    std::vector<measured_loss> validations_;
    std::chrono::steady_clock::time_point start_{};
    double seconds_ = 0;
};

}  // namespace gpt
