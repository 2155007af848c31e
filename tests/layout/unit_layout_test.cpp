// Where parameters lie in a unit: alignment, padding, segments, names and handles.
#include <doctest/doctest.h>
#include <reshard/layout/unit_layout.hpp>

#include <string>
#include <vector>

using namespace reshard;
using doctest::Contains;

namespace {

constexpr layout_options arithmetic_options{.parameter_alignment = 1, .slice_alignment = 1};

unit_layout built(const std::vector<parameter_spec>& specs, std::size_t ranks = 1, layout_options options = {},
                  dtype type = dtype::f32) {
    return unit_layout::build(5, specs, ranks, options, type);
}

}  // namespace

TEST_CASE("one segment, alignment 1: parameters touch and the end is padded") {
    const unit_layout layout = built({{"w", {3, 2}}, {"b", {3}}}, 4, arithmetic_options);
    CHECK(layout.id() == 5);
    CHECK(layout.ranks() == 4);
    REQUIRE(layout.segments().size() == 1);
    const segment& part = layout.segments()[0];
    CHECK(part.elements == 12);
    CHECK(part.slice == 3);
    CHECK(part.byte_offset == 0);
    CHECK(part.gradient_offset == 0);
    CHECK(layout.elements() == 9);
    CHECK(layout.bytes() == 48);
    CHECK(layout.gradient_elements() == 12);
    CHECK(layout.parameters()[0].offset == 0);
    CHECK(layout.parameters()[1].offset == 6);
    CHECK(layout.parameters()[1].count == 3);
    CHECK(layout.parameters()[1].shape == std::vector<std::size_t>{3});
}

TEST_CASE("the same unit with the usual alignments") {
    const unit_layout layout = built({{"w", {3, 2}}, {"b", {3}}}, 4);
    CHECK(layout.parameters()[1].offset == 64);
    CHECK(layout.segments()[0].elements == 256);
    CHECK(layout.segments()[0].slice == 64);
    CHECK(layout.elements() == 9);
}

TEST_CASE("segments by type and by trainable, in the order of their first parameter") {
    const std::vector<parameter_spec> specs = {
        {"w", {5}, {.group = "plain", .write = gradient_write::overwrites}},
        {"norm", {3}, {.type = dtype::f64}},
        {"table", {2, 2}, {.trainable = false}},
        {"v", {4}},
        {"norm2", {2}, {.type = dtype::f64}},
    };
    const unit_layout layout = built(specs, 2, arithmetic_options);
    REQUIRE(layout.segments().size() == 3);
    const auto& segments = layout.segments();
    CHECK(segments[0].type == dtype::f32);
    CHECK(segments[0].trainable);
    CHECK(segments[0].elements == 10);
    CHECK(segments[1].type == dtype::f64);
    CHECK(segments[1].elements == 6);
    CHECK(segments[1].byte_offset == 40);
    CHECK(segments[1].gradient_offset == 10);
    CHECK(segments[2].type == dtype::f32);
    CHECK_FALSE(segments[2].trainable);
    CHECK(segments[2].elements == 4);
    CHECK(segments[2].byte_offset == 88);
    CHECK(segments[2].gradient_offset == no_gradient);
    CHECK(layout.bytes() == 104);
    CHECK(layout.gradient_elements() == 16);
    CHECK(layout.elements() == 18);

    std::vector<std::size_t> in_segment, offset, byte_offset, gradient_offset;
    for (std::uint32_t index = 0; index < specs.size(); ++index) {
        in_segment.push_back(layout.parameters()[index].segment);
        offset.push_back(layout.parameters()[index].offset);
        byte_offset.push_back(layout.byte_offset_of(index));
        gradient_offset.push_back(layout.gradient_offset_of(index));
    }
    CHECK(in_segment == std::vector<std::size_t>{0, 1, 2, 0, 1});
    CHECK(offset == std::vector<std::size_t>{0, 0, 0, 5, 3});
    CHECK(byte_offset == std::vector<std::size_t>{0, 40, 88, 20, 64});
    CHECK(gradient_offset == std::vector<std::size_t>{0, 10, no_gradient, 5, 13});
    CHECK(layout.parameters()[0].group == "plain");
    CHECK(layout.parameters()[0].write == gradient_write::overwrites);
    CHECK(layout.parameters()[3].group == "");
    CHECK(layout.parameters()[3].write == gradient_write::adds);
}

TEST_CASE("an element never straddles its own alignment, whatever lies before its segment") {
    const unit_layout layout =
        built({{"a", {3}, {.type = dtype::bf16}}, {"b", {3}}, {"c", {1}, {.type = dtype::f64}}}, 1, arithmetic_options);
    CHECK(layout.byte_offset_of(1) == 8);
    CHECK(layout.byte_offset_of(2) == 24);
}

TEST_CASE("every parameter starts at a multiple of 256 bytes, in the gather and in the gradient buffer") {
    const dtype types[] = {dtype::f64, dtype::f32, dtype::bf16, dtype::fp16};
    for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
        for (const dtype model_type : types) {
            for (const dtype other : types) {
                for (const std::size_t smallest : {2u, 4u, 8u}) {
                    const unit_layout layout = built({{"a", {7, 3}},
                                                      {"frozen", {65}, {.trainable = false}},
                                                      {"b", {129}, {.type = other}},
                                                      {"none", {0}},
                                                      {"c", {1}},
                                                      {"d", {300}, {.type = other}},
                                                      {"frozen too", {1}, {.trainable = false, .type = other}},
                                                      {"e", {2}, {.type = dtype::bf16}}},
                                                     ranks, {.smallest_element = smallest}, model_type);
                    for (std::uint32_t index = 0; index < layout.parameters().size(); ++index) {
                        CHECK(layout.byte_offset_of(index) % 256 == 0);
                        const std::size_t gradient = layout.gradient_offset_of(index);
                        if (gradient != no_gradient) CHECK(gradient * smallest % 256 == 0);
                    }
                    for (const segment& part : layout.segments()) {
                        CHECK(part.elements % (ranks * 64) == 0);
                        CHECK(part.slice * ranks == part.elements);
                    }
                }
            }
        }
    }
}

TEST_CASE("parameters and segments never overlap and stay inside the buffers") {
    for (std::size_t ranks = 1; ranks <= 5; ++ranks) {
        for (const layout_options options : {arithmetic_options, layout_options{}}) {
            const unit_layout layout = built({{"a", {5}},
                                              {"b", {3}, {.type = dtype::f64}},
                                              {"c", {2}, {.trainable = false}},
                                              {"d", {0}},
                                              {"e", {67}},
                                              {"f", {1}, {.type = dtype::f64}}},
                                             ranks, options);
            std::vector<int> bytes(layout.bytes()), gradients(layout.gradient_elements());
            for (std::uint32_t index = 0; index < layout.parameters().size(); ++index) {
                const std::size_t count = layout.parameters()[index].count;
                for (std::size_t at = 0; at < count * size_of(layout.type_of(index)); ++at)
                    ++bytes.at(layout.byte_offset_of(index) + at);
                if (layout.gradient_offset_of(index) == no_gradient) continue;
                for (std::size_t at = 0; at < count; ++at) ++gradients.at(layout.gradient_offset_of(index) + at);
            }
            for (const int times : bytes) CHECK(times <= 1);
            for (const int times : gradients) CHECK(times <= 1);
            for (const segment& part : layout.segments()) {
                CHECK(part.byte_offset + part.elements * size_of(part.type) <= layout.bytes());
                if (part.trainable) CHECK(part.gradient_offset + part.elements <= layout.gradient_elements());
            }
        }
    }
}

TEST_CASE("empty parameters are ordinary") {
    const unit_layout only = built({{"none", {0, 7}}}, 3);
    CHECK(only.elements() == 0);
    CHECK(only.bytes() == 0);
    CHECK(only.segments()[0].slice == 0);
    const unit_layout between = built({{"a", {2}}, {"none", {0}}, {"b", {2}}}, 2, arithmetic_options);
    CHECK(between.segments()[0].elements == 4);
    CHECK(between.parameters()[1].count == 0);
    CHECK(between.parameters()[2].offset == 2);
}

TEST_CASE("typed handles") {
    const typed_layout<float> layout(
        built({{"w", {4}}, {"norm", {3}, {.type = dtype::bf16}}, {"table", {2}, {.trainable = false}}}, 2,
              arithmetic_options));
    const parameter<float> weight = layout.parameter("w");
    CHECK(weight.layout == 5);
    CHECK(weight.index == 0);
    CHECK(weight.byte_offset == 0);
    CHECK(weight.gradient_offset == 0);
    CHECK(weight.count == 4);
    const parameter<bf16> norm = layout.parameter("norm", as<bf16>);
    CHECK(norm.index == 1);
    CHECK(norm.byte_offset == 16);
    CHECK(norm.gradient_offset == 4);
    CHECK(layout.parameter("table").gradient_offset == no_gradient);

    CHECK_THROWS_WITH_AS(layout.parameter("wieght"),
                         "reshard [E-LAYOUT-6] no parameter \"wieght\" in this unit; it has w, norm, table",
                         argument_error);
    CHECK_THROWS_WITH_AS(
        layout.parameter("norm"),
        "reshard [E-LAYOUT-7] parameter \"norm\" is bf16, asked for as float; write parameter(\"norm\", as<bf16>)",
        argument_error);
    CHECK_THROWS_AS(layout.parameter("w", as<double>), argument_error);
}

TEST_CASE("what cannot be a unit") {
    CHECK_THROWS_WITH_AS(built({}), Contains("at least one parameter"), argument_error);
    CHECK_THROWS_WITH_AS(built({{"a", {1}}, {"", {1}}}), Contains("parameter 1 of the unit has an empty name"),
                         argument_error);
    CHECK_THROWS_WITH_AS(built({{"a", {1}}, {"b", {1}}, {"a", {2}}}),
                         Contains("two parameters of the unit are called \"a\""), argument_error);
    CHECK_THROWS_WITH_AS(built({{"a", {}}}), Contains("parameter \"a\" has a shape without extents"), argument_error);
    const std::size_t minus_one = static_cast<std::size_t>(-1), huge = std::size_t{1} << 40;
    CHECK_THROWS_WITH_AS(built({{"a", {3, minus_one}}}),
                         Contains("parameter \"a\" of shape {3, 18446744073709551615} is too large; was an extent "
                                  "negative"),
                         argument_error);
    CHECK_THROWS_WITH_AS(built({{"a", {huge, huge}}}), Contains("too large"), argument_error);
    CHECK_THROWS_WITH_AS(built({{"a", {std::size_t{1} << 56}}, {"b", {1}}}),
                         Contains("a unit with parameter \"b\" of shape {1} is too large"), argument_error);
    CHECK_THROWS_WITH_AS(built({{"a", {1}}}, 0), Contains("ranks (0) and slice alignment (64)"), argument_error);
    CHECK_THROWS_WITH_AS(built({{"a", {1}}}, 2, {.slice_alignment = 0}), Contains("slice alignment (0)"),
                         argument_error);
}
