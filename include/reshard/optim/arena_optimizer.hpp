// What an optimizer does around its kernel: groups, the table of a step, the place behind the commit.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "../engine/model.hpp"
#include "settings.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Tables of a few steps, since a device may still read the last ones; one is written again when its step is over.
template <class Range, class DeviceType>
class range_tables {
public:
    static constexpr std::size_t copies = 4;

    bool filled() const { return filled_; }
    void fill(const std::vector<group_range>& ranges, const DeviceType& device) {
        filled_ = true;
        for (std::size_t k = 0; k < copies; ++k) {
            tables_[k].resize(ranges.size());
            read_[k] = device.make_event();
            for (std::size_t r = 0; r < ranges.size(); ++r) {
                tables_[k][r].begin = ranges[r].begin;
                tables_[k][r].count = ranges[r].count;
            }
        }
    }
    std::vector<Range>& next(const DeviceType& device) {
        now_ = (now_ + 1) % copies;
        device.synchronize(read_[now_]);
        return tables_[now_];
    }
    const std::vector<Range>& now() const { return tables_[now_]; }
    void mark_read(const DeviceType& device, typename DeviceType::stream_ref stream) {
        device.record(read_[now_], stream);
    }

private:
    std::vector<Range> tables_[copies];
    typename DeviceType::event read_[copies] = {};
    std::size_t now_ = 0;
    bool filled_ = false;
};

/// One kernel over the owned arena behind each commit. Derived has `name`, `numbers_of(options, step, group)` giving a
/// Range without its place, `check(options, Range)`, `mix(hash, Range)` over what ranks must share, `terms_of(step)`,
/// and `enqueue(state, table, size)` for the kernel.
template <class Derived, class Model, class Range, class Options, class Step>
class arena_optimizer {
public:
    arena_optimizer(const arena_optimizer&) = delete;
    arena_optimizer& operator=(const arena_optimizer&) = delete;

    /// Ends the step: one commit, then the update if all ranks voted for it and every gradient is finite;
    /// model.outcome() tells. Throws argument_error before anything is sent.
    void step(const Step& now = {}) {
        State& state = model_.internals();
        require_step_through(state, "step()");
        if (!tables_.filled()) {
            ranges_ = group_ranges(state, names_, Derived::name);
            tables_.fill(ranges_, state.device);
        }
        make_numbers(now);
        std::vector<Range>& table = tables_.next(state.device);
        for (std::size_t r = 0; r < ranges_.size(); ++r) {
            table[r] = numbers_[ranges_[r].group];
            table[r].begin = ranges_[r].begin;
            table[r].count = ranges_[r].count;
        }
        commit_options terms = Derived::terms_of(now);
        for (const Range& numbers : numbers_) terms.numbers = Derived::mix(terms.numbers, numbers);
        model_.step(terms, {&arena_optimizer::update, this});
    }

protected:
    using State = typename Model::state_type;

    arena_optimizer(Model& model, Options options) : model_(model), options_(std::move(options)) {
        for (const auto& group : options_.groups) names_.push_back(group.name);
        make_numbers({});
    }
    ~arena_optimizer() { device_.settle(compute_); }  // which may still read the tables

    const Options& options() const { return options_; }

private:
    /// Of the default group and the named ones; checked.
    void make_numbers(const Step& now) {
        numbers_.clear();
        numbers_.push_back(Derived::numbers_of(options_, now, {}));
        for (const auto& group : options_.groups) numbers_.push_back(Derived::numbers_of(options_, now, group.numbers));
        for (const Range& numbers : numbers_) Derived::check(options_, numbers);
    }
    /// Runs between vote and the next use of the weights. One kernel: it is enqueued, or this throws.
    static void update(void* self) {
        auto& me = *static_cast<arena_optimizer*>(self);
        State& state = me.model_.internals();
        static_cast<Derived&>(me).enqueue(state, me.tables_.now().data(), me.tables_.now().size());
        me.tables_.mark_read(state.device, state.compute);
    }

    Model& model_;
    typename State::device_type device_ = model_.internals().device;
    typename State::stream_ref compute_ = model_.internals().compute;
    Options options_;
    std::vector<std::string> names_;
    std::vector<group_range> ranges_;
    std::vector<Range> numbers_;
    range_tables<Range, typename State::device_type> tables_;
};

}  // namespace detail
}  // namespace v0
}  // namespace reshard
