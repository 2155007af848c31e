// What the votes of all ranks come to; every rank judges them alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "concept.hpp"
#include "numbers.hpp"

namespace reshard {
inline namespace v0 {
namespace kernels {

inline const vote_record& record_at(const std::byte* records, std::size_t stride, std::size_t rank) {
    return *reinterpret_cast<const vote_record*>(records + rank * stride);
}

/// Whether the records agree, and on what; overflow is judged by the caller.
inline verdict agreed(const std::byte* records, std::size_t stride, std::size_t ranks, std::uint64_t step) {
    const std::uint32_t says = record_at(records, stride, 0).says;
    const std::uint64_t numbers = record_at(records, stride, 0).numbers;
    for (std::size_t r = 0; r < ranks; ++r) {
        const vote_record& record = record_at(records, stride, r);
        if (record.step != step || record.says != says || record.numbers != numbers) return verdict::fault;
    }
    return says == vote_apply ? verdict::applied : says == vote_discard ? verdict::discarded : verdict::fault;
}

inline void decide(const std::byte* records, std::size_t stride, std::size_t ranks, std::uint64_t step,
                   const commit_terms& terms, commit_outcome& outcome) {
    outcome.result = agreed(records, stride, ranks, step);
    outcome.norm = outcome.factor = 0;
    outcome.non_finite = 0;
    if (outcome.result == verdict::fault) return;
    ++outcome.committed;
    double sum = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
        const vote_record& record = record_at(records, stride, r);
        outcome.non_finite += record.non_finite;
        sum += record.square_norm;
        fence(sum);
    }
    outcome.norm = __builtin_sqrt(sum) * terms.gradient_scale;
    if (outcome.result == verdict::discarded) return;
    if (outcome.non_finite != 0 || !is_finite(outcome.norm)) {
        outcome.result = verdict::overflow;
        ++outcome.skipped;
        return;
    }
    outcome.factor = terms.gradient_scale;
    if (terms.clip_norm > 0 && outcome.norm > terms.clip_norm) outcome.factor *= terms.clip_norm / outcome.norm;
    outcome.applied = terms.count != 0 ? terms.count : outcome.applied + 1;
}

}  // namespace kernels
}  // namespace v0
}  // namespace reshard
