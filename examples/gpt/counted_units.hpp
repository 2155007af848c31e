// A communicator that counts by unit: how often each was gathered, refreshed and reduced while a step went on.
#pragma once

#include <reshard/comm/counted.hpp>
#include <reshard/schedule/replay.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
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
                reshard::unit_counts& of_unit = counts[u];
                of_unit.gathers += what == "gather";
                of_unit.secondary_gathers += what == "secondary gather";
                of_unit.refreshes += what == "refresh";
                of_unit.reductions += what == "reduce";
                of_unit.outer_reductions += what == "reduce between blocks";
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

    class owner {
    public:
        owner() = default;
        owner(typename Inner::owner&& inner, reshard::counter& into, unit_counter& units)
            : inner_(std::move(inner)), into_(&into), units_(&units) {}
        bool empty() const { return inner_.empty(); }
        void close() { inner_.close(); }
        counted_units view(std::string_view name = "split") const {
            return counted_units(inner_.view(), *into_, *units_, name);
        }

    private:
        typename Inner::owner inner_;
        reshard::counter* into_ = nullptr;
        unit_counter* units_ = nullptr;
    };

    counted_units(const Inner& inner, reshard::counter& into, unit_counter& units, std::string_view name = "whole")
        : base(inner, into, name), into_(&into), units_(&units) {}

    owner split(std::size_t colour, std::size_t key) const
        requires reshard::Splittable<Inner>
    {
        return owner(this->inner().split(colour, key), *into_, *units_);
    }

    template <reshard::Transferable Type>
    void all_gather(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                    reshard::label name = {}) const {
        base::all_gather(in, out, stream, name);
        units_->note(name);
    }

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
    reshard::counter* into_;
    unit_counter* units_;
};

}  // namespace gpt
