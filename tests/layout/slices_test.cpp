// A unit cut into slices and put together again is the unit.
#include <doctest/doctest.h>
#include <reshard/layout/slices.hpp>

#include <string>
#include <vector>

using namespace reshard;

namespace {

unit_layout built(const std::vector<parameter_spec>& specs, std::size_t ranks, std::size_t alignment) {
    return unit_layout::build(0, specs, ranks, {.parameter_alignment = alignment, .slice_alignment = alignment},
                              dtype::f32);
}

// Values by parameter that no two elements share; 0 is left to gaps.
std::vector<std::vector<float>> numbered(const unit_layout& layout) {
    std::vector<std::vector<float>> values;
    float next = 1;
    for (const parameter_place& place : layout.parameters()) {
        values.emplace_back();
        for (std::size_t at = 0; at < place.count; ++at) values.back().push_back(next++);
    }
    return values;
}

// The flat buffer of a unit of one float segment, written parameter by parameter.
std::vector<float> flat_buffer(const unit_layout& layout, const std::vector<std::vector<float>>& values) {
    std::vector<float> whole(layout.segments()[0].elements, 0.0f);
    for (std::size_t index = 0; index < values.size(); ++index) {
        const std::size_t begin = layout.byte_offset_of(static_cast<std::uint32_t>(index)) / sizeof(float);
        for (std::size_t at = 0; at < values[index].size(); ++at) whole.at(begin + at) = values[index][at];
    }
    return whole;
}

std::size_t next_multiple(std::size_t value, std::size_t of) {
    while (value % of != 0) ++value;
    return value;
}

}  // namespace

TEST_CASE("gather(shard(x)) = x") {
    for (const std::size_t alignment : {1u, 64u}) {
        for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
            for (std::size_t size = 0; size <= 3 * ranks + 1; ++size) {
                CAPTURE(alignment);
                CAPTURE(ranks);
                CAPTURE(size);
                // sizes that are short against 64 fall into rank 0 alone: at 64 a second parameter is wide enough
                const unit_layout layout =
                    built({{"a", {size}}, {"b", {2, 3}}, {"c", {size * alignment}}}, ranks, alignment);
                const auto values = numbered(layout);
                const std::vector<float> whole = flat_buffer(layout, values);
                const std::size_t end_of_b = next_multiple(size, alignment) + 6;
                const std::size_t end = size == 0 ? end_of_b : next_multiple(end_of_b, alignment) + size * alignment;
                CHECK(layout.segments()[0].elements == next_multiple(end, ranks * alignment));

                std::vector<float> gathered;
                for (std::size_t rank = 0; rank < ranks; ++rank) {
                    std::vector<float> slice(layout.segments()[0].slice, 0.0f);
                    for (const slice_piece& piece : pieces_of_slice(layout, 0, ranks, rank)) {
                        for (std::size_t at = 0; at < piece.count; ++at)
                            slice.at(piece.offset_in_slice + at) =
                                values.at(piece.parameter).at(piece.offset_in_parameter + at);
                    }
                    gathered.insert(gathered.end(), slice.begin(), slice.end());
                }
                CHECK(gathered == whole);
            }
        }
    }
}

TEST_CASE("slices of every group that divides the ranks hold each element exactly once") {
    for (const std::size_t alignment : {1u, 64u}) {
        for (std::size_t ranks = 1; ranks <= 12; ++ranks) {
            const unit_layout layout =
                unit_layout::build(0,
                                   {{"a", {10, 7}},
                                    {"b", {9}, {.type = dtype::f64}},
                                    {"c", {1}},
                                    {"d", {0}},
                                    {"e", {3}, {.trainable = false}},
                                    {"f", {200}, {.type = dtype::f64}}},
                                   ranks, {.parameter_alignment = alignment, .slice_alignment = alignment}, dtype::f32);
            for (std::size_t shards = 1; shards <= ranks; ++shards) {
                if (ranks % shards != 0) continue;
                std::vector<std::vector<int>> times;
                for (const parameter_place& place : layout.parameters()) times.emplace_back(place.count);
                for (std::size_t part = 0; part < layout.segments().size(); ++part) {
                    for (std::size_t number = 0; number < shards; ++number) {
                        for (const slice_piece& piece : pieces_of_slice(layout, part, shards, number)) {
                            CHECK(layout.parameters()[piece.parameter].segment == part);
                            CHECK(piece.offset_in_slice + piece.count <= layout.segments()[part].elements / shards);
                            for (std::size_t at = 0; at < piece.count; ++at)
                                ++times.at(piece.parameter).at(piece.offset_in_parameter + at);
                        }
                    }
                }
                for (const auto& parameter_times : times) {
                    for (const int each : parameter_times) CHECK(each == 1);
                }
            }
        }
    }
}

TEST_CASE("fewer rows than ranks, and a parameter across several slices") {
    // 3 rows of 2 and 1 number on 4 ranks: slices of 2
    const unit_layout layout = built({{"w", {3, 2}}, {"b", {1}}}, 4, 1);
    REQUIRE(layout.segments()[0].slice == 2);
    const auto second = pieces_of_slice(layout, 0, 4, 1);
    REQUIRE(second.size() == 1);
    CHECK(second[0].parameter == 0);
    CHECK(second[0].offset_in_parameter == 2);
    CHECK(second[0].offset_in_slice == 0);
    CHECK(second[0].count == 2);
    const auto last = pieces_of_slice(layout, 0, 4, 3);
    REQUIRE(last.size() == 1);
    CHECK(last[0].parameter == 1);
    CHECK(last[0].count == 1);
    // 1 number on 8 ranks: all but the first have nothing
    const unit_layout single = built({{"b", {1}}}, 8, 1);
    for (std::size_t rank = 0; rank < 8; ++rank) CHECK(pieces_of_slice(single, 0, 8, rank).size() == (rank == 0));
}

TEST_CASE("five rows over a group of two and over four ranks") {
    // one element a row at alignment 1, and rows of 64 bytes
    for (const std::size_t row : {1u, 16u}) {
        const unit_layout layout = built({{"w", {5, row}}}, 4, row);
        CHECK(layout.segments()[0].elements == 8 * row);
        const auto first = pieces_of_slice(layout, 0, 2, 0), second = pieces_of_slice(layout, 0, 2, 1);
        REQUIRE(first.size() == 1);
        REQUIRE(second.size() == 1);
        CHECK(first[0].count == 4 * row);
        CHECK(second[0].offset_in_parameter == 4 * row);
        CHECK(second[0].count == row);
    }
}

TEST_CASE("slices that do not exist") {
    const unit_layout layout = built({{"w", {5}}}, 4, 1);
    const auto text_of = [&](std::size_t shards, std::size_t number) -> std::string {
        try {
            pieces_of_slice(layout, 0, shards, number);
        } catch (const argument_error& thrown) {
            return thrown.what();
        }
        return "";
    };
    CHECK(text_of(3, 0) == "reshard [E-LAYOUT-8] slice 0 of 3 asked for; a layout of 4 ranks has slices 0 to n - 1 of "
                           "n, n dividing 4");
    CHECK(text_of(4, 4) != "");
    CHECK(text_of(0, 0) != "");
    CHECK(text_of(2, 1) == "");
}
