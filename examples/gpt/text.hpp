// A text as bytes: the last tenth for validation, sequences drawn by (seed, step, number in the global batch).
#pragma once

#include "random.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Whole sequences, one after the other; targets[i] is the byte that follows inputs[i].
struct batch {
    std::vector<std::uint8_t> inputs, targets;
};

class text {
public:
    /// Both parts must hold a sequence of `context` bytes and its targets.
    text(std::vector<std::uint8_t> bytes, std::size_t context, std::uint64_t seed, const std::string& name = "text")
        : bytes_(std::move(bytes)), context_(context), seed_(seed), training_(bytes_.size() - bytes_.size() / 10) {
        if (bytes_.size() / 10 < context + 1) {
            throw std::runtime_error(name + " is too short: " + std::to_string(bytes_.size()) +
                                     " bytes, but --context " + std::to_string(context) + " needs " +
                                     std::to_string(10 * (context + 1)) + " (a tenth is kept for validation)");
        }
    }

    static text read(const std::string& path, std::size_t context, std::uint64_t seed) {
        std::FILE* file = std::fopen(path.c_str(), "rb");
        std::vector<std::uint8_t> bytes(file == nullptr ? 0 : 1 << 16);
        std::size_t size = 0;
        while (file != nullptr) {
            const std::size_t read = std::fread(bytes.data() + size, 1, bytes.size() - size, file);
            if (read == 0) {
                break;
            }
            size += read;
            bytes.resize(2 * size + (1 << 16));
        }
        const bool failed = file == nullptr || std::ferror(file) != 0;
        const std::string why = failed ? std::strerror(errno) : "";
        if (file != nullptr) {
            std::fclose(file);
        }
        if (failed) {
            throw std::runtime_error("cannot read text " + path + ": " + why);
        }
        bytes.resize(size);
        return text(std::move(bytes), context, seed, path);
    }

    /// Sequences first .. first+count of the global batch of `step`: the same whoever asks, and in whatever portions.
    void training(batch& out, integer step, integer first, integer count) const {
        const std::uint64_t places = training_ - context_;
        resize(out, count);
        for (integer i = 0; i < count; ++i) {
            const auto number = (static_cast<std::uint64_t>(step) << 32) + static_cast<std::uint64_t>(first + i);
            copy(out, i, draw(seed_, purpose_of("batch"), number) % places);
        }
    }

    /// Sequences first .. first+count of `total` that are spread evenly over the validation part.
    void validation(batch& out, integer total, integer first, integer count) const {
        const std::size_t places = bytes_.size() - training_ - context_;
        resize(out, count);
        for (integer i = 0; i < count; ++i) {
            copy(out, i, training_ + static_cast<std::size_t>(first + i) * places / static_cast<std::size_t>(total));
        }
    }

    std::size_t size() const { return bytes_.size(); }

private:
    void resize(batch& out, integer count) const {
        out.inputs.resize(static_cast<std::size_t>(count) * context_);
        out.targets.resize(static_cast<std::size_t>(count) * context_);
    }

    void copy(batch& out, integer number, std::size_t start) const {
        const std::size_t place = static_cast<std::size_t>(number) * context_;
        std::memcpy(out.inputs.data() + place, bytes_.data() + start, context_);
        std::memcpy(out.targets.data() + place, bytes_.data() + start + 1, context_);
    }

    std::vector<std::uint8_t> bytes_;
    std::size_t context_;
    std::uint64_t seed_;
    std::size_t training_;  // bytes of the training part
};

}  // namespace gpt
