// Writes text with a trained model, byte after byte.
#pragma once

#include "random.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gpt {

/// `forward(inputs)` runs the model on one sequence and leaves logits in `a`. The same text on every rank.
template <class Real, class Forward>
std::string sample_text(const activations<Real>& a, Forward forward, std::size_t bytes, double temperature,
                        std::uint64_t seed) {
    const auto context = static_cast<std::size_t>(a.shape.context);
    std::string written = "\n";  // the line to go on from
    std::vector<std::uint8_t> window(context);
    std::vector<double> weights(static_cast<std::size_t>(vocabulary));
    while (written.size() <= bytes) {
        const std::size_t seen = std::min(written.size(), context);  // what follows them in the window is not looked at
        std::copy(written.end() - static_cast<integer>(seen), written.end(), window.begin());
        forward(std::span<const std::uint8_t>(window));
        const auto logits = line(a.logits.data() + (static_cast<integer>(seen) - 1) * vocabulary, vocabulary);
        const double largest = static_cast<double>(logits.maxCoeff());
        double total = 0;
        for (std::size_t i = 0; i < weights.size(); ++i) {
            weights[i] = std::exp((static_cast<double>(logits[static_cast<integer>(i)]) - largest) / temperature);
            total += weights[i];
        }
        double left = total * uniform(draw(seed, purpose_of("sample"), written.size()));
        std::size_t chosen = 0;
        while (chosen + 1 < weights.size() && left >= weights[chosen]) {
            left -= weights[chosen++];
        }
        written.push_back(static_cast<char>(chosen));
    }
    return written.substr(1);
}

/// The same with bytes that a terminal would obey shown as '?'.
inline std::string printable(std::string text) {
    std::replace_if(
        text.begin(), text.end(),
        [](char letter) { return (letter >= 0 && letter < ' ' && letter != '\n' && letter != '\t') || letter == 127; },
        '?');
    return text;
}

}  // namespace gpt
