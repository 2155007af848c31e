// The contract of a communicator as cases that every backend runs. A harness runs a function on n ranks:
//   std::vector<std::size_t> sizes();                       rank counts to try
//   void run(std::size_t ranks, function, settings);        function(communicator) on every rank; throws what one threw
//   static constexpr bool survives_errors, sums_in_fp32;    whether a failed operation leaves the process standing
//                                                           within run(); whether bf16 sums are rounded once
#pragma once

#include "conformance/failures.hpp"
#include "conformance/groups.hpp"
#include "conformance/mesh.hpp"
#include "conformance/nodes.hpp"
#include "conformance/operations.hpp"
#include "conformance/order.hpp"

namespace conformance {

template <class Harness>
void run_all(Harness& harness) {
    struct named {
        const char* name;
        void (*run)(Harness&);
    };
    const named cases[] = {
        {"all operations", all_operations<Harness>},
        {"large blocks", large_blocks<Harness>},
        {"averages of one and three", averages_of_one_and_three<Harness>},
        {"rounded sums", rounded_sums<Harness>},
        {"narrow sums", narrow_sums_are_kept_in_fp32<Harness>},
        {"stream order", stream_order<Harness>},
        {"across streams", across_streams<Harness>},
        {"interleaved streams", interleaved_streams<Harness>},
        {"run ahead", run_ahead<Harness>},
        {"groups of one", groups_of_one<Harness>},
        {"splits", splits<Harness>},
        {"groups of a mesh", groups_of_a_mesh<Harness>},
        {"owners that go early", owners_that_go_early<Harness>},
        {"nodes", nodes<Harness>},
        {"wrong sizes", wrong_sizes<Harness>},
        {"mismatches", mismatches<Harness>},
        {"deadlines", deadlines<Harness>},
        {"faults", faults<Harness>},
        {"faults in groups", faults_in_groups<Harness>},
        {"faults in split", faults_in_split<Harness>},
        {"one rank throws", one_rank_throws<Harness>},
    };
    for (const named& each : cases) {
        try {
            each.run(harness);
        } catch (const std::exception& error) {
            throw std::runtime_error(text("conformance, ", each.name, ": ", error.what()));
        }
    }
}

}  // namespace conformance
