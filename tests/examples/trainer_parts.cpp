// The parts that the example trainers share beside the model: options, text and batches, draws, schedule, report.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "gpt/options.hpp"
#include "gpt/pipeline.hpp"
#include "gpt/random.hpp"
#include "gpt/report.hpp"
#include "gpt/sample.hpp"
#include "gpt/schedule.hpp"
#include "gpt/text.hpp"
#include "gpt/weights_hash.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <vector>

using namespace gpt;
using reshard::phase;

namespace {

options parsed(std::vector<const char*> arguments, bool sharded = true) {
    arguments.insert(arguments.begin(), {"trainer", "--text", "book"});
    return parse_options(static_cast<int>(arguments.size()), arguments.data(), sharded);
}

/// The sentence and status with which parsing ends, as "status: sentence".
std::string refusal(const std::vector<const char*>& arguments, bool sharded = true) {
    try {
        parsed(arguments, sharded);
    } catch (const early_end& end) {
        return std::to_string(end.status) + ": " + end.what();
    }
    return "accepted";
}

std::vector<std::uint8_t> numbered_bytes(std::size_t count) {
    std::vector<std::uint8_t> out(count);
    for (std::size_t i = 0; i < count; ++i) {
        out[i] = static_cast<std::uint8_t>(draw(3, 4, i));
    }
    return out;
}

std::string thrown(const std::string& path, std::size_t context) {
    try {
        text::read(path, context, 1);
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "read";
}

}  // namespace

TEST_CASE("options: defaults, and what they become") {
    const options o = parsed({});
    CHECK(o.batch == 24);
    CHECK(o.backend == "threads");
    CHECK(o.ranks == 4);
    CHECK(parsed({"--backend", "self"}).ranks == 1);
    CHECK(parsed({"--backend", "mpi"}).ranks == 0);
    CHECK(parsed({}, false).ranks == 1);
    const options all = parsed({"--steps",         "9",
                                "--layers",        "2",
                                "--width",         "12",
                                "--heads",         "3",
                                "--context",       "8",
                                "--batch",         "12",
                                "--microbatches",  "2",
                                "--type",          "double",
                                "--seed",          "5",
                                "--ranks",         "3",
                                "--strategy",      "shard_optimizer",
                                "--reshard",       "keep_last:1",
                                "--accumulate",    "once",
                                "--learning-rate", "1e-3",
                                "--eval-every",    "0",
                                "--sample-bytes",  "0",
                                "--report",        "r"});
    CHECK(all.steps == 9);
    CHECK(all.shape.width == 12);
    CHECK(all.tokens() == 96);
    CHECK(all.learning_rate == 1e-3);
    CHECK(all.reshard == "keep_last:1");
}

TEST_CASE("pipeline: every pass once, after what it needs, in as many ticks as there must be") {
    const auto through = [](const std::vector<tick>& timeline, phase what, std::size_t chunk, std::size_t microbatch) {
        std::size_t seen = 0, at = 0;
        for (std::size_t t = 0; t < timeline.size(); ++t) {
            for (std::size_t stage = 0; stage < stages; ++stage) {
                const auto& one = timeline[t][stage];
                if (!one || one->what != what || one->chunk != chunk || one->microbatch != microbatch) continue;
                CHECK(chunk % stages == stage);
                ++seen;
                at = t;
            }
        }
        CHECK(seen == 1);
        return at;
    };
    for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "split"}) {
        for (const std::size_t microbatches : std::vector<std::size_t>{2, 4, 10}) {
            CAPTURE(schedule);
            CAPTURE(microbatches);
            const auto timeline = timeline_of(schedule, microbatches);
            const bool split = schedule == "split";
            const std::size_t chunks = schedule == "interleaved" ? 4 : 2;
            std::size_t passes = 0;
            for (const tick& now : timeline)
                passes += static_cast<std::size_t>(now[0].has_value()) + static_cast<std::size_t>(now[1].has_value());
            CHECK(passes == microbatches * chunks * (split ? 3 : 2));
            // The second stage starts a tick late, and the first ends a tick after it.
            CHECK(timeline.size() == passes / 2 + (split ? 1 : 2));
            for (std::size_t m = 0; m < microbatches; ++m) {
                const phase back = split ? phase::backward_input : phase::backward;
                std::size_t last = through(timeline, phase::forward, 0, m);
                for (std::size_t c = 1; c < chunks; ++c) {
                    const std::size_t at = through(timeline, phase::forward, c, m);
                    CHECK(at > last);
                    last = at;
                }
                for (std::size_t c = chunks; c-- > 0;) {
                    const std::size_t at = through(timeline, back, c, m);
                    CHECK(at > last);
                    last = at;
                    if (split) CHECK(through(timeline, phase::backward_weight, c, m) > at);
                }
            }
        }
    }
}

TEST_CASE("pipeline: how many microbatches the first stage holds at most") {
    const auto most = [](const char* schedule) {
        std::size_t held = 0, largest = 0;
        for (const tick& now : timeline_of(schedule, 8)) {
            if (!now[0] || now[0]->what == phase::backward_weight) continue;
            held = now[0]->is_forward() ? held + 1 : held - 1;
            largest = std::max(largest, held);
        }
        return largest;
    };
    CHECK(most("gpipe") == 8);
    CHECK(most("1f1b") == 2);
    CHECK(most("split") == 2);
    CHECK(most("interleaved") == 5);  // of its 16 halves
}

TEST_CASE("options that cannot work end with one line and status 2, help with status 0") {
    CHECK(refusal({"--batch", "25"}) ==
          "2: --batch 25 cannot be divided by ranks x microbatches = 4 x 1 = 4; choose a multiple of 4");
    CHECK(refusal({"--batch", "24", "--ranks", "3", "--microbatches", "5"}) ==
          "2: --batch 24 cannot be divided by ranks x microbatches = 3 x 5 = 15; choose a multiple of 15");
    CHECK(refusal({"--batch", "25"}, false) == "accepted");
    CHECK(refusal({"--heads", "5"}) == "2: --width 64 cannot be divided by --heads 5");
    CHECK(refusal({"--backend", "self", "--ranks", "2"}) ==
          "2: --backend self has one rank, not --ranks 2; use threads or mpi");
    for (const auto& wrong : std::vector<std::vector<const char*>>{{"--steps", "0"},
                                                                   {"--steps", "many"},
                                                                   {"--steps", "1.5"},
                                                                   {"--layers", "-1"},
                                                                   {"--learning-rate", "nan"},
                                                                   {"--learning-rate", "inf"},
                                                                   {"--microbatches", "9000000000000000000"},
                                                                   {"--type", "half"},
                                                                   {"--backend", "pigeon"},
                                                                   {"--accumulate", "twice"},
                                                                   {"--unknown"},
                                                                   {"stray"}}) {
        const std::string end = refusal(wrong);
        CAPTURE(end);
        CHECK(end.substr(0, 3) == "2: ");
        CHECK(end.find('\n') == std::string::npos);
        CHECK(end.find(wrong.back()) != std::string::npos);
    }
    CHECK(refusal({"--help"}).substr(0, 3) == "0: ");
    CHECK(refusal({"--ranks", "2"}, false).substr(0, 3) == "2: ");  // no ranks without the library
}

TEST_CASE("text: every portion of the global batch is the same bytes, and validation bytes are never trained on") {
    const std::size_t context = 6;
    const auto bytes = numbered_bytes(1000);
    const text source(bytes, context, 9);
    batch whole, part;
    source.training(whole, 17, 0, 12);
    REQUIRE(whole.inputs.size() == 72);
    for (const integer portion : {1, 2, 3, 4, 6}) {
        for (integer first = 0; first < 12; first += portion) {
            source.training(part, 17, first, portion);
            for (std::size_t i = 0; i < part.inputs.size(); ++i) {
                REQUIRE(part.inputs[i] == whole.inputs[static_cast<std::size_t>(first) * context + i]);
                REQUIRE(part.targets[i] == whole.targets[static_cast<std::size_t>(first) * context + i]);
            }
        }
    }
    batch other;
    source.training(other, 18, 0, 12);
    CHECK(other.inputs != whole.inputs);
    text(bytes, context, 10).training(other, 17, 0, 12);
    CHECK(other.inputs != whole.inputs);

    // Same places whatever stands there: changing the validation part changes no training batch, and the reverse.
    auto changed = bytes;
    for (std::size_t i = 900; i < 1000; ++i) {
        changed[i] = static_cast<std::uint8_t>(~changed[i]);
    }
    const text other_end(changed, context, 9);
    for (integer step = 0; step < 300; ++step) {
        source.training(whole, step, 0, 12);
        other_end.training(other, step, 0, 12);
        REQUIRE(whole.inputs == other.inputs);
        REQUIRE(whole.targets == other.targets);
    }
    source.validation(whole, 12, 0, 12);
    other_end.validation(other, 12, 0, 12);
    for (std::size_t i = 0; i < whole.inputs.size(); ++i) {
        REQUIRE(whole.inputs[i] == static_cast<std::uint8_t>(~other.inputs[i]));
        REQUIRE(whole.targets[i] == static_cast<std::uint8_t>(~other.targets[i]));
        if (i % context + 1 < context) {
            REQUIRE(whole.targets[i] == whole.inputs[i + 1]);
        }
    }
    source.validation(part, 12, 4, 2);
    CHECK(part.inputs == std::vector<std::uint8_t>(whole.inputs.begin() + 24, whole.inputs.begin() + 36));
}

TEST_CASE("text: what cannot be read or is too short says so with the numbers") {
    CHECK(thrown("no/such/file", 8) == "cannot read text no/such/file: No such file or directory");
    CHECK(thrown(".", 8) == "cannot read text .: Is a directory");
    const char* path = "trainer_parts_text.tmp";
    std::ofstream(path) << std::string(89, 'x');
    CHECK(thrown(path, 8) == std::string(path) + " is too short: 89 bytes, but --context 8 needs 90"
                                                 " (a tenth is kept for validation)");
    std::ofstream(path) << std::string(90, 'x');
    CHECK(thrown(path, 8) == "read");
    std::ofstream(path) << std::string(300000, 'x');
    CHECK(text::read(path, 8, 1).size() == 300000);
    std::remove(path);
}

TEST_CASE("initial values depend on seed, unit, name and place alone") {
    const parameter_facts facts = matrix_parameter("qkvw", 40, 50, 0.5);
    std::vector<double> whole(facts.count()), part(700), other(whole.size());
    fill_initial<double>(whole, 1, "h.0", facts);
    fill_initial<double>(part, 1, "h.0", facts, 600);
    for (std::size_t i = 0; i < part.size(); ++i) {
        REQUIRE(part[i] == whole[600 + i]);
    }
    const auto differ = [&](std::uint64_t seed, const char* unit, const char* name) {
        fill_initial<double>(other, seed, unit, matrix_parameter(name, 40, 50, 0.5));
        return other != whole;
    };
    CHECK(differ(2, "h.0", "qkvw"));
    CHECK(differ(1, "h.1", "qkvw"));
    CHECK(differ(1, "h.0", "fcw"));
    CHECK_FALSE(differ(1, "h.0", "qkvw"));

    double mean = 0, square = 0;
    for (const double x : whole) {
        mean += x / 2000;
        square += x * x / 2000;
    }
    CHECK(std::abs(mean) < 4 * 0.5 / std::sqrt(2000.0));
    CHECK(std::sqrt(square) == doctest::Approx(0.5).epsilon(0.06));

    std::vector<float> ones(5);
    fill_initial<float>(ones, 1, "h.0", line_parameter("ln1w", 5, 1));
    CHECK(ones == std::vector<float>(5, 1.0F));
}

TEST_CASE("learning rate: up, then down to a tenth") {
    CHECK(learning_rate_at(0, 400, 1) == doctest::Approx(1.0 / 40));
    CHECK(learning_rate_at(39, 400, 1) == doctest::Approx(1));
    CHECK(learning_rate_at(40, 400, 1) == doctest::Approx(1));
    CHECK(learning_rate_at(220, 400, 1) == doctest::Approx(0.55));
    CHECK(learning_rate_at(400, 400, 1) == doctest::Approx(0.1));
    CHECK(learning_rate_at(0, 1, 1) == doctest::Approx(1));
    CHECK(learning_rate_at(99, 5000, 1) == doctest::Approx(1));  // a long run warms up over 100 steps
}

TEST_CASE("outliers: a jump is rejected, noise is not, a lasting change only for a while") {
    outlier_detector seen;
    for (int i = 0; i < 15; ++i) {
        CHECK_FALSE(seen.rejects(i % 2 == 0 ? 1.0 : 3.0, 6));
    }
    CHECK_FALSE(seen.rejects(1e6, 6));  // the sixteenth value: too few are known
    outlier_detector jump;
    for (int i = 0; i < 64; ++i) {
        CHECK_FALSE(jump.rejects(i % 2 == 0 ? 1.0 : 3.0, 6));  // mean 2, deviation 1
    }
    CHECK(jump.deviations(7.5) == doctest::Approx(5.5));
    CHECK_FALSE(outlier_detector(jump).rejects(7.9, 6));
    CHECK(outlier_detector(jump).rejects(8.1, 6));
    CHECK_FALSE(outlier_detector(jump).rejects(-100, 6));  // low is welcome
    CHECK_FALSE(outlier_detector(jump).rejects(1e6, 0));
    CHECK(jump.rejects(std::numeric_limits<double>::quiet_NaN(), 6));
    CHECK(jump.rejects(std::numeric_limits<double>::infinity(), 0));
    int rejected = 0;
    for (int i = 0; i < 64; ++i) {
        rejected += jump.rejects(20, 6) ? 1 : 0;
    }
    CHECK(rejected > 0);
    CHECK(rejected < 8);
}

TEST_CASE("numbers for people") {
    CHECK(short_power(3e-4) == "3.0e-4");
    CHECK(short_power(9.96e-4) == "1.0e-3");
    CHECK(short_power(0) == "0.0e0");
    CHECK(short_power(1) == "1.0e0");
    CHECK(short_count(870) == "870");
    CHECK(short_count(49123) == "49 k");
    CHECK(short_count(999.7) == "1 k");
    CHECK(short_count(1234567) == "1.2 M");
    CHECK(short_time(9.4) == "9 s");
    CHECK(short_time(70) == "1 min 10 s");
    CHECK(short_time(59.7) == "1 min 0 s");
    CHECK(short_time(7500) == "2 h 5 min");
    CHECK(progress_line(12, 400, {2.3141, 0.8399, 3e-4, false, 0.0411}, 49123, 70) ==
          "step 12/400 | loss 2.314 | norm 0.84 | lr 3.0e-4 | 41 ms | 49 k tok/s | 1 min 10 s left");
}

TEST_CASE("report: losses keep all digits") {
    options o;
    o.steps = 2;
    o.report = "trainer_parts_report.tmp";
    journal quiet(o, false);
    quiet.begin_step();
    quiet.end_step({1, 1, 1, false});
    quiet.finish("ignored");
    CHECK_FALSE(std::ifstream(o.report).good());

    const double third = 7.0 / 3;
    {
        journal loud(o, true);
        loud.begin_step();
        loud.end_step({third, 0.1, 1e-3, true});
        loud.validation(1, third);
        loud.finish("0123456789abcdef");
    }
    std::ifstream file(o.report);
    const auto read = nlohmann::json::parse(file);
    CHECK(read["steps"].size() == 1);
    CHECK(read["steps"][0]["loss"].get<double>() == third);
    CHECK(read["steps"][0]["skipped"] == true);
    CHECK(read["validations"][0]["loss"].get<double>() == third);
    CHECK(read["tokens_per_second"].get<double>() > 0);
    CHECK(read["weights_xxh3"] == "0123456789abcdef");
    std::remove(o.report.c_str());

    o.report = "no/such/folder/report";
    CHECK_THROWS_WITH(journal(o, true), "cannot write report no/such/folder/report");
}

TEST_CASE("weights hash: the bytes of fp32, whatever the type and the portions") {
    const std::array<float, 3> numbers{1.0F, -2.5F, 3e-5F};
    const std::array<double, 3> doubles{1.0, -2.5, static_cast<double>(3e-5F)};
    unsigned char bytes[12];  // written out: 0x3f800000, 0xc0200000, and the bits of 3e-5
    const auto last = std::bit_cast<std::uint32_t>(numbers[2]);
    const std::uint32_t words[3] = {0x3f800000, 0xc0200000, last};
    for (std::size_t i = 0; i < 12; ++i) {
        bytes[i] = static_cast<unsigned char>(words[i / 4] >> (8 * (i % 4)));
    }
    char expected[17];
    std::snprintf(expected, sizeof expected, "%016llx", static_cast<unsigned long long>(XXH3_64bits(bytes, 12)));
    weights_hash floats, wide, parts;
    floats.add(std::span<const float>(numbers));
    wide.add(std::span<const double>(doubles));
    parts.add(std::span<const float>(numbers).first(1));
    parts.add(std::span<const float>(numbers).last(2));
    CHECK(floats.text() == expected);
    CHECK(wide.text() == expected);
    CHECK(parts.text() == expected);
}

TEST_CASE("sample: follows the logits, slides past the context, is the same each time") {
    const model_shape shape{1, 2, 1, 4};
    activations<float> a(shape, 1);
    std::vector<std::size_t> windows;
    // The next byte after c is c + 1, starting from the newline before the text.
    const auto forward = [&](std::span<const std::uint8_t> inputs) {
        windows.push_back(inputs.size());
        for (std::size_t t = 0; t < inputs.size(); ++t) {
            for (std::size_t v = 0; v < 256; ++v) {
                a.logits[t * 256 + v] = v == inputs[t] + 1U ? 50.0F : 0.0F;
            }
        }
    };
    CHECK(sample_text(a, forward, 6, 0.7, 1) == "\x0b\x0c\x0d\x0e\x0f\x10");
    CHECK(windows == std::vector<std::size_t>(6, 4));
    const auto even = [&](std::span<const std::uint8_t>) { a.logits.assign(a.logits.size(), 0.0F); };
    const std::string one = sample_text(a, even, 200, 1, 1);
    CHECK(one.size() == 200);
    CHECK(one == sample_text(a, even, 200, 1, 1));
    CHECK(one != sample_text(a, even, 200, 1, 2));
    CHECK(printable("a\x1b\n\tb\x7f\xc3\xa9") == "a?\n\tb?\xc3\xa9");
}
