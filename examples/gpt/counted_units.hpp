// A communicator that counts by unit: how often each was gathered, refreshed and reduced while a step went on.
#pragma once

#include <reshard/comm/counted.hpp>
#include <reshard/schedule/replay.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {

/// Of one rank; owned by its trainer.
struct unit_counter {
    std::vector<std::string> names;
    std::vector<reshard::unit_counts> counts;
    bool counting = false;

    void add_unit(const std::string& name) {
        names.push_back(name);
        counts.emplace_back();
    }
    void note(const reshard::label& name) {
        for (std::size_t u = 0; counting && u < names.size(); ++u) {
            if (names[u] == name.unit) {
                const std::string_view what = name.what;
                ++(what == "gather"    ? counts[u].gathers
                   : what == "refresh" ? counts[u].refreshes
                                       : counts[u].reductions);
            }
        }
    }
};

/// What reshard::counted does, and the units too: the engine names them to every collective, one for each since their
/// parameters are all of one type and trained.
template <class Inner>
class counted_units : public reshard::counted<Inner> {
    using base = reshard::counted<Inner>;

public:
    using typename base::stream_ref;

    counted_units(const Inner& inner, reshard::counter& into, unit_counter& units)
        : base(inner, into), units_(&units) {}

    template <reshard::Transferable Type>
    void all_gather_in_place(std::span<Type> all, stream_ref stream, reshard::label name = {}) const {
        base::all_gather_in_place(all, stream, name);
        units_->note(name);
    }
    template <reshard::Element Type>
    void reduce_scatter_in_place(std::span<Type> all, stream_ref stream, reshard::label name = {}) const {
        base::reduce_scatter_in_place(all, stream, name);
        units_->note(name);
    }
    template <reshard::Element Type>
    void all_reduce_in_place(std::span<Type> all, stream_ref stream, reshard::label name = {}) const {
        base::all_reduce_in_place(all, stream, name);
        units_->note(name);
    }

private:
    unit_counter* units_;
};

}  // namespace gpt
