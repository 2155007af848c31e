// The checker of event edges, on logs made by hand.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "support/happens_before.hpp"

namespace {

using test_support::access_log;
using test_support::byte_range;
using test_support::edge_kind;
using test_support::happens_before;
using test_support::logging_communicator;
using test_support::logging_device;

const byte_range here{1000, 1064}, there{2000, 2064};

struct fixture {
    logging_device device;
    logging_device::stream gathers = device.make_stream("gathers"), reductions = device.make_stream("reductions");
    logging_device::event ready = device.make_event(), free = device.make_event();

    std::set<std::string> races() const {
        const happens_before checker(device.log());
        return checker.words(checker.races());
    }
};

}  // namespace

TEST_CASE("unordered accesses race if one of them writes") {
    fixture on;
    on.device.touch(on.gathers, "fill", {}, {here});
    on.device.touch(on.device.caller(), "use", {here}, {});
    CHECK(on.races() == std::set<std::string>{"gathers: fill | caller: use"});

    fixture reading;
    reading.device.touch(reading.gathers, "send", {here}, {});
    reading.device.touch(reading.device.caller(), "use", {here}, {});
    CHECK(reading.races().empty());

    fixture apart;
    apart.device.touch(apart.gathers, "fill", {}, {here});
    apart.device.touch(apart.device.caller(), "use", {there, {1064, 1100}}, {{900, 1000}});
    CHECK(apart.races().empty());

    fixture one_byte;
    one_byte.device.touch(one_byte.gathers, "fill", {}, {here});
    one_byte.device.touch(one_byte.device.caller(), "use", {{1063, 1100}}, {});
    CHECK(one_byte.races().size() == 1);
}

TEST_CASE("one stream is in order") {
    fixture on;
    on.device.touch(on.gathers, "fill", {}, {here});
    on.device.touch(on.gathers, "fill again", {here}, {here});
    CHECK(on.races().empty());
}

TEST_CASE("a wait orders what was before the record with what is behind the wait, and nothing else") {
    fixture on;
    on.device.touch(on.gathers, "fill", {}, {here});
    on.device.record(on.ready, on.gathers);
    on.device.touch(on.gathers, "late", {}, {there});
    on.device.touch(on.device.caller(), "early", {here}, {});
    on.device.wait(on.device.caller(), on.ready);
    on.device.touch(on.device.caller(), "use", {here, there}, {});
    CHECK(on.races() == std::set<std::string>{"gathers: fill | caller: early", "gathers: late | caller: use"});
}

TEST_CASE("an event stands for its last record at the time of the wait") {
    fixture on;
    on.device.touch(on.gathers, "fill", {}, {here});
    on.device.record(on.ready, on.gathers);
    on.device.touch(on.reductions, "fill too", {}, {there});
    on.device.record(on.ready, on.reductions);  // replaces the first
    on.device.wait(on.device.caller(), on.ready);
    on.device.touch(on.device.caller(), "use", {here, there}, {});
    CHECK(on.races() == std::set<std::string>{"gathers: fill | caller: use"});
}

TEST_CASE("an event that was never recorded orders nothing") {
    fixture on;
    on.device.wait(on.device.caller(), on.ready);
    on.device.touch(on.gathers, "fill", {}, {here});
    on.device.record(on.ready, on.gathers);
    on.device.touch(on.device.caller(), "use", {here}, {});
    CHECK(on.races().size() == 1);
}

TEST_CASE("order goes on through a third stream") {
    fixture on;
    on.device.touch(on.gathers, "fill", {}, {here});
    on.device.record(on.ready, on.gathers);
    on.device.wait(on.reductions, on.ready);
    on.device.record(on.free, on.reductions);
    on.device.wait(on.device.caller(), on.free);
    on.device.touch(on.device.caller(), "use", {here}, {});
    CHECK(on.races().empty());
}

TEST_CASE("what the host has waited for is behind all that it issues afterwards") {
    fixture on;
    std::byte memory[8] = {}, local[8] = {};
    on.device.upload(memory, local, 8);
    on.device.touch(on.gathers, "fill", {test_support::bytes_of(memory, 8)}, {here});
    on.device.record(on.ready, on.gathers);
    on.device.synchronize(on.ready);
    on.device.touch(on.device.caller(), "use", {here}, {});
    on.device.upload(memory, local, 8);
    CHECK(on.races().empty());

    on.device.touch(on.gathers, "again", {test_support::bytes_of(memory, 8)}, {});
    on.device.upload(memory, local, 8);
    on.device.download(local, memory, 8);
    CHECK(on.races() == std::set<std::string>{"gathers: again | host: upload"});
}

TEST_CASE("waits of one kind are left out, and only they") {
    fixture on;
    for (int round = 0; round < 3; ++round) {
        on.device.wait(on.gathers, on.free);
        on.device.touch(on.gathers, "fill", {}, {here});
        on.device.record(on.ready, on.gathers);
        on.device.wait(on.device.caller(), on.ready);
        on.device.touch(on.device.caller(), "use", {here}, {});
        on.device.record(on.free, on.device.caller());
    }
    on.device.wait(on.reductions, on.free);  // for nothing: no operation follows
    const happens_before checker(on.device.log());
    CHECK(checker.races().empty());
    const edge_kind filled{"gathers", "fill", "caller", "use"}, freed{"caller", "use", "gathers", "fill"},
        idle{"caller", "use", "reductions", ""};
    CHECK(checker.kinds() == std::set<edge_kind>{filled, freed, idle});
    CHECK(checker.words(checker.races_without(filled)) == std::set<std::string>{"gathers: fill | caller: use"});
    CHECK(checker.words(checker.races_without(freed)) == std::set<std::string>{"caller: use | gathers: fill"});
    CHECK(checker.races_without(idle).empty());
}

TEST_CASE("collectives read and write what they should") {
    const logging_communicator world(2, 1);
    const logging_device device = world.device();
    const logging_device::stream side = device.make_stream("side");
    float all[4] = {1, 2, 3, 4}, own[2] = {5, 6};
    const std::span<float> span(all), block(own);
    world.all_gather_in_place(span, side, {"gather", "h.0"});
    CHECK(all[0] == 3.0f);
    CHECK(all[1] == 4.0f);
    world.all_gather<float>(block, span, side);
    CHECK(all[0] == 5.0f);
    world.reduce_scatter_in_place(span, side, {"reduce", "h.0"});
    world.reduce_scatter<float>(span, block, side);
    world.all_reduce_in_place(span, side);
    world.all_reduce<float>(block, block, side);
    world.broadcast(span, 1, side);
    world.broadcast(span, 0, side);
    world.barrier(side);
    const auto sizes = [](const std::vector<byte_range>& ranges) {
        std::size_t bytes = 0;
        for (const byte_range& one : ranges) bytes += one.end - one.begin;
        return bytes;
    };
    std::vector<std::pair<std::size_t, std::size_t>> bytes;
    for (const access_log::entry& entry : device.log().entries)
        bytes.push_back({sizes(entry.reads), sizes(entry.writes)});
    CHECK(bytes == std::vector<std::pair<std::size_t, std::size_t>>{
                       {8, 16}, {8, 16}, {16, 16}, {16, 8}, {16, 16}, {8, 8}, {16, 0}, {0, 16}, {0, 0}});
    CHECK(device.log().entries.front().name == "gather");
    CHECK(device.log().entries.front().reads.front().begin == reinterpret_cast<std::uintptr_t>(all + 2));

    const logging_communicator alone(1);
    alone.all_reduce_in_place(span, {});
    CHECK(alone.device().log().entries.empty());
}
