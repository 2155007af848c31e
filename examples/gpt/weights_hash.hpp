// A hash by which two runs show that they ended with the same weights.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

namespace gpt {

/// XXH3 (64 bits) over numbers as little-endian fp32, in the order in which they are added.
class weights_hash {
public:
    weights_hash() { XXH3_64bits_reset(&state_); }

    template <class Real>
    void add(std::span<const Real> numbers) {
        for (const Real number : numbers) {
            const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(number));
            const unsigned char bytes[] = {static_cast<unsigned char>(bits), static_cast<unsigned char>(bits >> 8),
                                           static_cast<unsigned char>(bits >> 16),
                                           static_cast<unsigned char>(bits >> 24)};
            XXH3_64bits_update(&state_, bytes, sizeof bytes);
        }
    }

    std::string text() const {
        char digits[17];
        std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(XXH3_64bits_digest(&state_)));
        return digits;
    }

private:
    XXH3_state_t state_;
};

}  // namespace gpt
