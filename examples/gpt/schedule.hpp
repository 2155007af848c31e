// What a trainer decides from step to step: the learning rate, and whether a step is an outlier and left out.
#pragma once

#include "layers.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace gpt {

/// Linear warm-up over the first tenth (at most 100 steps), then a cosine down to a tenth of the peak.
inline double learning_rate_at(integer step, integer steps, double peak) {
    const integer warm_up = std::clamp<integer>(steps / 10, 1, 100);
    if (step < warm_up) {
        return peak * static_cast<double>(step + 1) / static_cast<double>(warm_up);
    }
    const double way = static_cast<double>(step - warm_up) / static_cast<double>(std::max<integer>(steps - warm_up, 1));
    return peak * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * way)));
}

/// The last values of a number, and how many deviations a new one lies above their mean.
class outlier_detector {
public:
    /// 0 while fewer than 16 values are known.
    double deviations(double value) const {
        if (known_ < 16) {
            return 0;
        }
        const double count = static_cast<double>(known_);
        double mean = 0, variance = 0;
        for (std::size_t i = 0; i < known_; ++i) {
            mean += values_[i] / count;
        }
        for (std::size_t i = 0; i < known_; ++i) {
            variance += (values_[i] - mean) * (values_[i] - mean) / count;
        }
        return variance > 0 ? (value - mean) / std::sqrt(variance) : 0;
    }

    /// Whether to leave out a step with this value: more than `limit` deviations above the window (limit 0: never), or
    /// no finite number.
    /// Every number joins the window, so that a lasting change is an outlier for a few steps only.
    bool rejects(double value, double limit) {
        if (!std::isfinite(value)) {
            return true;
        }
        const bool rejected = limit > 0 && deviations(value) > limit;
        values_[next_] = value;
        next_ = (next_ + 1) % values_.size();
        known_ = std::min(known_ + 1, values_.size());
        return rejected;
    }

private:
    std::array<double, 64> values_{};
    std::size_t next_ = 0, known_ = 0;
};

}  // namespace gpt
