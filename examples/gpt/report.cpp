// Progress lines and the report.
#include "report.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>

namespace gpt {

namespace {

template <class... Values>
std::string formatted(const char* format, Values... values) {
    char text[160];
    std::snprintf(text, sizeof text, format, values...);
    return text;
}

}  // namespace

std::string short_power(double value) {
    int power = value > 0 ? static_cast<int>(std::floor(std::log10(value))) : 0;
    double digits = value / std::pow(10.0, power);
    if (digits >= 9.95) {  // would be printed as 10.0
        digits /= 10;
        ++power;
    }
    return formatted("%.1fe%d", digits, power);
}

std::string short_count(double value) {
    if (value < 999.5) {
        return formatted("%.0f", value);
    }
    return value < 999.5e3 ? formatted("%.0f k", value / 1e3) : formatted("%.1f M", value / 1e6);
}

std::string short_time(double seconds) {
    const long whole = std::lround(seconds);
    if (whole < 60) {
        return formatted("%ld s", whole);
    }
    return whole < 3600 ? formatted("%ld min %ld s", whole / 60, whole % 60)
                        : formatted("%ld h %ld min", whole / 3600, whole / 60 % 60);
}

std::string progress_line(integer number, integer steps, const step_facts& step, double tokens_per_second,
                          double seconds_left) {
    return formatted("step %td/%td | loss %.3f | norm %.2f | lr ", number, steps, step.loss, step.norm) +
           short_power(step.learning_rate) + formatted(" | %.0f ms | ", step.seconds * 1e3) +
           short_count(tokens_per_second) + " tok/s | " + short_time(seconds_left) + " left" +
           (step.skipped ? " | skipped: outlier" : "");
}

journal::journal(const options& chosen, bool speaks) : options_(chosen), speaks_(speaks) {
    steps_.reserve(static_cast<std::size_t>(chosen.steps));
    if (speaks && !chosen.report.empty() && !std::ofstream(chosen.report, std::ios::app)) {
        throw std::runtime_error("cannot write report " + chosen.report);  // now, not after the training
    }
}

void journal::end_step(step_facts step) {
    step.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    seconds_ += step.seconds;
    steps_.push_back(step);
    const auto number = static_cast<integer>(steps_.size());
    const integer pace = options_.steps > 40 ? options_.steps / 40 : 1;
    if (speaks_ && (number == 1 || number % pace == 0 || number == options_.steps || step.skipped)) {
        const double left = seconds_ / static_cast<double>(number) * static_cast<double>(options_.steps - number);
        say(progress_line(number, options_.steps, step, tokens_per_second(), left));
    }
}

void journal::validation(integer number, double loss) {
    validations_.push_back({number, loss});
    say(formatted("step %td/%td | validation loss %.3f", number, options_.steps, loss));
}

void journal::say(const std::string& text) const {
    if (speaks_) {
        std::cout << text << std::endl;
    }
}

double journal::tokens_per_second() const {
    return seconds_ > 0 ? static_cast<double>(options_.tokens()) * static_cast<double>(steps_.size()) / seconds_ : 0;
}

nlohmann::ordered_json journal::facts() const {
    auto steps = nlohmann::ordered_json::array();
    for (const step_facts& step : steps_) {
        steps.push_back({{"loss", step.loss},
                         {"norm", step.norm},
                         {"learning_rate", step.learning_rate},
                         {"skipped", step.skipped},
                         {"seconds", step.seconds}});
    }
    auto validations = nlohmann::ordered_json::array();
    for (const measured_loss& one : validations_) {
        validations.push_back({{"step", one.step}, {"loss", one.loss}});
    }
    return {{"steps", steps}, {"validations", validations}, {"tokens_per_second", tokens_per_second()}};
}

void journal::write(const nlohmann::ordered_json& report) const {
    if (!speaks_ || options_.report.empty()) {
        return;
    }
    std::ofstream file(options_.report);
    file << report.dump(2) << '\n';
    file.close();
    if (!file) {
        throw std::runtime_error("cannot write report " + options_.report);
    }
}

void journal::finish(const std::string& weights_xxh3) const {
    auto report = facts();
    report["weights_xxh3"] = weights_xxh3;
    write(report);
}

}  // namespace gpt
