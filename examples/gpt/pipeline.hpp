// Schedules of a pipeline: which stage does what in which tick, and what is sent behind it.
#pragma once

#include <reshard/schedule/order.hpp>

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace gpt {

inline constexpr std::size_t stages = 2;

/// Layers are cut into chunks, numbered along the model: chunk c lies on stage c % stages as its number c / stages.
/// Interleaved schedules have two chunks on every stage, others one.
inline std::size_t chunks_of_a_stage(const std::string& schedule) { return schedule == "interleaved" ? 2 : 1; }

/// One pass over one chunk.
struct work {
    reshard::phase what;
    std::size_t microbatch, chunk;

    bool is_forward() const { return what == reshard::phase::forward; }
    /// The chunk that goes on with what this pass found: activations forward, their gradients backward.
    std::optional<std::size_t> next_chunk(std::size_t chunks) const {
        const bool ends = is_forward() ? chunk + 1 == chunks : chunk == 0 || what == reshard::phase::backward_weight;
        return ends ? std::nullopt : std::optional(is_forward() ? chunk + 1 : chunk - 1);
    }
};

/// What each stage does at a time; nothing where it waits. Results go to the other stage at the end of the tick.
using tick = std::vector<std::optional<work>>;

/// Forwards and backwards of one stage in the order of the schedule; weight parts stand nowhere yet.
///
/// All schedules are one rule: `ahead` forwards, then forward and backward in turn, then the backwards that are left.
/// Where a stage has several chunks, they take turns with groups of `stages` microbatches.
inline std::vector<work> work_of_stage(const std::string& schedule, std::size_t stage, std::size_t microbatches) {
    using reshard::phase;
    const std::size_t chunks = chunks_of_a_stage(schedule), total = microbatches * chunks;
    const phase back = schedule == "split" ? phase::backward_input : phase::backward;
    const auto numbered = [&](phase what, std::size_t number) {
        const std::size_t group = number / (stages * chunks), within = number % (stages * chunks);
        const std::size_t turn = within / stages, local = what == phase::forward ? turn : chunks - 1 - turn;
        return work{what, group * stages + within % stages, local * stages + stage};
    };
    const std::size_t behind = stages - 1 - stage;
    std::size_t ahead = schedule == "gpipe" ? total : chunks == 1 ? behind : 2 * behind + (chunks - 1) * stages;
    if (ahead > total) {
        ahead = total;
    }
    std::vector<work> list;
    for (std::size_t k = 0; k < total + ahead; ++k) {
        if (k < total) {
            list.push_back(numbered(phase::forward, k));
        }
        if (k >= ahead) {
            list.push_back(numbered(back, k - ahead));
        }
    }
    return list;
}

/// The whole step, tick by tick: a stage starts its next pass as soon as what it needs was sent. A weight part fills a
/// tick in which the stage would wait otherwise, or comes at the end.
inline std::vector<tick> timeline_of(const std::string& schedule, std::size_t microbatches) {
    using reshard::phase;
    const std::size_t chunks = stages * chunks_of_a_stage(schedule);
    std::vector<std::deque<work>> due(stages), weight_parts(stages);
    for (std::size_t stage = 0; stage < stages; ++stage) {
        const auto list = work_of_stage(schedule, stage, microbatches);
        due[stage].assign(list.begin(), list.end());
    }
    std::vector<std::vector<bool>> forward(chunks, std::vector<bool>(microbatches)), backward = forward;  // are through
    const auto can_start = [&](const work& one) -> bool {
        if (one.is_forward()) {
            return one.chunk == 0 || forward[one.chunk - 1][one.microbatch];
        }
        return one.chunk + 1 == chunks ? forward[one.chunk][one.microbatch] : backward[one.chunk + 1][one.microbatch];
    };
    std::vector<tick> timeline;
    for (bool moved = true; moved;) {
        moved = false;
        tick now(stages);
        for (std::size_t stage = 0; stage < stages; ++stage) {
            auto& from = !due[stage].empty() && can_start(due[stage].front()) ? due[stage] : weight_parts[stage];
            if (!from.empty()) {
                now[stage] = from.front();
                from.pop_front();
                moved = true;
            }
        }
        for (const auto& done : now) {
            if (!done || done->what == phase::backward_weight) {
                continue;
            }
            (done->is_forward() ? forward : backward)[done->chunk][done->microbatch] = true;
            if (done->what == phase::backward_input) {
                weight_parts[done->chunk % stages].push_back({phase::backward_weight, done->microbatch, done->chunk});
            }
        }
        if (moved) {
            timeline.push_back(now);
        }
    }
    return timeline;
}

}  // namespace gpt
