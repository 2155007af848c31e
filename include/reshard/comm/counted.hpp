// A communicator that counts what passes through it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "checks.hpp"
#include "concept.hpp"

namespace reshard {
inline namespace v0 {

struct traffic {
    std::size_t calls = 0;
    std::size_t bytes = 0;  // that this rank sends in a ring

    friend bool operator==(const traffic&, const traffic&) = default;
};

/// Calls and bytes by group and operation. A plain value of the user's, one a rank: copy it for a snapshot, subtract
/// an earlier one for what happened between.
struct counter {
    struct group {
        std::string name;
        traffic by_operation[operations];

        friend bool operator==(const group&, const group&) = default;
    };
    std::vector<group> groups;

    /// The number of the group with this name; a new one is added.
    std::size_t number_of(std::string_view name) {
        for (std::size_t g = 0; g < groups.size(); ++g) {
            if (groups[g].name == name) return g;
        }
        groups.push_back({std::string(name), {}});
        return groups.size() - 1;
    }
    /// Nothing, where the group never did that.
    traffic of(std::string_view name, operation kind) const {
        for (const group& each : groups) {
            if (each.name == name) return each.by_operation[static_cast<std::size_t>(kind)];
        }
        return {};
    }

    friend counter operator-(counter later, const counter& earlier) {
        for (group& each : later.groups) {
            for (std::size_t k = 0; k < operations; ++k) {
                const traffic before = earlier.of(each.name, static_cast<operation>(k));
                each.by_operation[k].calls -= before.calls;
                each.by_operation[k].bytes -= before.bytes;
            }
        }
        return later;
    }
    friend bool operator==(const counter&, const counter&) = default;
};

/// Passes everything on to another communicator and counts it under a group's name. Bytes are those of a ring:
/// (n - 1) / n of the full buffer for all_gather, reduce_scatter and broadcast, twice that for all_reduce. A group of
/// one counts nothing. The counter outlives it.
template <Communicator Inner>
class counted {
public:
    using device_type = typename Inner::device_type;
    using stream_ref = typename device_type::stream_ref;

    /// Owns a split-off group; its traffic is counted under "split" until view() names it otherwise.
    class owner {
    public:
        owner() = default;
        owner(typename Inner::owner&& inner, counter& into) : inner_(std::move(inner)), into_(&into) {}
        bool empty() const { return inner_.empty(); }
        void close() { inner_.close(); }
        counted view(std::string_view name = "split") const { return counted(inner_.view(), *into_, name); }

    private:
        typename Inner::owner inner_;
        counter* into_ = nullptr;
    };

    counted(const Inner& inner, counter& into, std::string_view name = "whole")
        : inner_(inner), into_(&into), group_(into.number_of(name)) {}

    const Inner& inner() const { return inner_; }
    std::size_t rank() const { return inner_.rank(); }
    std::size_t size() const { return inner_.size(); }
    decltype(auto) device() const { return inner_.device(); }
    decltype(auto) control() const { return inner_.control(); }
    std::string describe() const { return inner_.describe(); }
    void prepare(std::size_t bytes) const { inner_.prepare(bytes); }
    owner split(std::size_t colour, std::size_t key) const
        requires Splittable<Inner>
    {
        return owner(inner_.split(colour, key), *into_);
    }
    std::vector<std::size_t> nodes() const
        requires KnowsNodes<Inner>
    {
        return inner_.nodes();
    }
    std::uint64_t issued() const
        requires requires(const Inner& inner) { inner.issued(); }
    {
        return inner_.issued();
    }
    std::size_t sent_bytes() const
        requires CountsTraffic<Inner>
    {
        return inner_.sent_bytes();
    }

    template <Transferable Type>
    void all_gather(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                    label name = {}) const {
        inner_.all_gather(in, out, stream, name);
        count(operation::all_gather, out.size_bytes());
    }
    template <Transferable Type>
    void all_gather_in_place(std::span<Type> all, stream_ref stream, label name = {}) const {
        inner_.all_gather_in_place(all, stream, name);
        count(operation::all_gather, all.size_bytes());
    }
    template <Element Type>
    void reduce_scatter(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                        label name = {}) const {
        inner_.reduce_scatter(in, out, stream, name);
        count(operation::reduce_scatter, in.size_bytes());
    }
    template <Element Type>
    void reduce_scatter_in_place(std::span<Type> all, stream_ref stream, label name = {}) const {
        inner_.reduce_scatter_in_place(all, stream, name);
        count(operation::reduce_scatter, all.size_bytes());
    }
    template <Element Type>
    void all_reduce(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                    label name = {}) const {
        inner_.all_reduce(in, out, stream, name);
        count(operation::all_reduce, 2 * in.size_bytes());
    }
    template <Element Type>
    void all_reduce_in_place(std::span<Type> all, stream_ref stream, label name = {}) const {
        inner_.all_reduce_in_place(all, stream, name);
        count(operation::all_reduce, 2 * all.size_bytes());
    }
    template <Transferable Type>
    void broadcast(std::span<Type> all, std::size_t root, stream_ref stream, label name = {}) const {
        inner_.broadcast(all, root, stream, name);
        count(operation::broadcast, all.size_bytes());
    }
    void barrier(stream_ref stream, label name = {"barrier"}) const {
        inner_.barrier(stream, name);
        count(operation::barrier, 0);
    }

private:
    void count(operation kind, std::size_t full_bytes) const {
        if (size() == 1) return;
        traffic& here = into_->groups[group_].by_operation[static_cast<std::size_t>(kind)];
        ++here.calls;
        here.bytes += full_bytes * (size() - 1) / size();
    }

    Inner inner_;
    counter* into_;
    std::size_t group_;
};

}  // namespace v0
}  // namespace reshard
