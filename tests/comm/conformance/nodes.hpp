// Which ranks share a machine.
#pragma once

#include "check.hpp"

namespace conformance {

/// 0, then in each place a number seen before or the next new one.
inline void demand_numbered(const std::vector<size_t>& nodes, size_t ranks) {
    demand(nodes.size() == ranks, "nodes of ", ranks, " ranks has ", nodes.size(), " entries");
    size_t next = 0;
    for (const size_t node : nodes) {
        demand(node <= next, "node ", node, " appears before node ", next);
        next += node == next ? 1 : 0;
    }
}

/// Numbers are in order of first appearance and the same on all ranks; a split group keeps who shares with whom.
/// Nothing is issued for it.
template <class Harness>
void nodes(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(
            ranks,
            [ranks](auto comm) {
                using communicator = decltype(comm);
                static_assert(reshard::KnowsNodes<communicator>);
                const std::vector<size_t> all = comm.nodes();
                demand_numbered(all, ranks);
                std::vector<double> told(ranks * ranks);
                for (size_t r = 0; r < ranks; ++r) told[comm.rank() * ranks + r] = static_cast<double>(all[r]);
                comm.all_gather_in_place(whole(told), comm.device().caller());
                for (size_t i = 0; i < told.size(); ++i)
                    demand_equal(told[i], static_cast<double>(all[i % ranks]), "nodes", i, ranks, told.size());

                if constexpr (reshard::Splittable<communicator>) {
                    auto owner = comm.split(comm.rank() % 2, ranks - comm.rank());  // backwards
                    auto part = owner.view();
                    if constexpr (requires { part.issued(); }) {
                        const auto before = part.issued();
                        for (int i = 0; i < 10; ++i) part.nodes();
                        demand(part.issued() == before, "nodes() issues operations");
                    }
                    const std::vector<size_t> of_part = part.nodes();
                    demand_numbered(of_part, part.size());
                    const auto in_whole = [&](size_t place) {
                        return all[2 * (part.size() - 1 - place) + comm.rank() % 2];
                    };
                    for (size_t i = 0; i < part.size(); ++i) {
                        for (size_t j = 0; j < i; ++j) {
                            demand((of_part[i] == of_part[j]) == (in_whole(i) == in_whole(j)), "ranks ", i, " and ", j,
                                   " of a split group are on nodes ", of_part[i], " and ", of_part[j]);
                        }
                    }
                    owner.close();
                }
            },
            settings{});
    }
}

}  // namespace conformance
