// Everything that is refused, once: id, names and numbers of the text. One process, ranks that send nothing.
#include <doctest/doctest.h>

#include <reshard/comm/idle.hpp>

#include <initializer_list>

#include "support/toy_trainer.hpp"

namespace {

using namespace toy;
using reshard::idle_communicator;
using reshard::pass;
using reshard::phase;
using policy_type = runtime_policy<precision<float>>;
using model_type = sharded_model<policy_type, idle_communicator>;
using unit_type = model_type::unit;

template <class Body>
std::string error_of(Body body) {
    try {
        body();
    } catch (const reshard::error& known) {
        return known.what();
    }
    return "no error";
}
void expect(const std::string& words, const char* id, std::initializer_list<const char*> parts) {
    CAPTURE(words);
    CHECK(words.find("[" + std::string(id) + "]") != std::string::npos);
    for (const char* part : parts) {
        CAPTURE(part);
        CHECK(words.find(part) != std::string::npos);
    }
}

/// Six units "h.0" to "h.5" of 64 floats over two ranks, full_shard.
struct model_of_six {
    explicit model_of_six(reshard::model_options options = {}, const char* reshard = "reshard_always",
                          const char* strategy = "full_shard")
        : model(idle_communicator(2), options, parse_policy(strategy, reshard)), optimizer(model) {
        for (int u = 0; u < 6; ++u) units.push_back(&model.add_unit("h." + std::to_string(u), {{"w", {64}, {}}}));
        w = units[0]->layout().parameter("w");
    }
    void forwards() {
        for (unit_type* unit : units) auto scope = unit->forward();
    }
    void backwards() {
        for (std::size_t u = 6; u-- > 0;) auto scope = units[u]->backward();
    }
    model_type model;
    reshard::sgd<model_type> optimizer;
    std::vector<unit_type*> units;
    reshard::parameter<float> w{};
};

TEST_CASE("refused before the build") {
    model_of_six six;
    model_type& model = six.model;
    expect(error_of([&] { model.add_unit("h.3", {{"w", {4}, {}}}); }), "E-ARGUMENT-6", {"h.3"});
    expect(error_of([&] { model.add_unit("none", {{"w", {4}, {}}}, {.uses = 0}); }), "E-ARGUMENT-8", {"none", "0"});
    model_of_six other;
    expect(error_of([&] { model.add_unit("foreign", other.units[0]->layout()); }), "E-ARGUMENT-7", {"foreign"});
    expect(error_of([&] { model.set_order({six.units[0], six.units[0]}); }), "E-ORDER-10", {"h.0", "2", "uses = 1"});
    expect(error_of([&] { model.reset(); }), "E-RESET-5", {"never built"});
    expect(error_of([&] { model.begin_step({.microbatches = 0}); }), "E-ARGUMENT-1", {"microbatches = 0"});
    expect(error_of([&] { six.units[1]->resting(six.w); }), "E-STATE-13", {"h.1", "full_shard"});
    for (const auto& slots : {reshard::slot_options{1, 0, 1}, reshard::slot_options{1, 1, 0}}) {
        reshard::model_options options;
        options.slots = slots;
        expect(error_of([&] { model_of_six refused(options); }), "E-ARGUMENT-5",
               {"max_open", "recompute_segment", "0"});
    }
    model_type empty(idle_communicator(2));
    expect(error_of([&] { empty.begin_step(); }), "E-STATE-6", {"no units"});
    model_type tied(idle_communicator(2));
    tied.add_unit("embedding", {{"w", {4}, {}}}, {.uses = 2});
    expect(error_of([&] { tied.begin_step(); }), "E-ORDER-8", {"embedding", "2", "set_order"});
    expect(error_of([&] { model_of_six({}, "keep_last:7").model.begin_step(); }), "E-POLICY-3", {"7", "6"});
}

TEST_CASE("refused after the build") {
    model_of_six six;
    six.model.begin_step();
    for (const auto& words :
         {error_of([&] { six.model.add_unit("late", {{"w", {4}, {}}}); }),
          error_of([&] { six.model.add_state("late"); }), error_of([&] { six.model.add_metric("late"); }),
          error_of([&] { six.model.set_order({}); }), error_of([&] { six.model.layout({{"w", {4}, {}}}); })}) {
        expect(words, "E-STATE-17", {"after the model was built"});
    }
}

TEST_CASE("refused orders") {
    model_of_six six;
    expect(error_of([&] { six.units[2]->backward([](auto&) {}); }), "E-ORDER-9", {"backward of \"h.2\"", "0 steps"});
    expect(error_of([&] { auto opened = six.units[2]->recompute(); }), "E-ORDER-9", {"recompute of \"h.2\""});
    expect(
        error_of([&] { auto opened = six.units[1]->forward(); }), "E-ORDER-1",
        {"rank 0", "forward of \"h.1\"", "forward of \"h.0\" in microbatch 0", "step 1", "{\"h.1\"}", "set_order()"});
    {
        auto scope = six.units[0]->forward(0);
    }
    expect(error_of([&] { auto opened = six.units[0]->forward(); }), "E-ORDER-5",
           {"h.0", "uses = 1", "forward of \"h.1\""});
    expect(error_of([&] { auto opened = six.units[1]->forward(3); }), "E-ORDER-6",
           {"h.1", "microbatch 3", "microbatch 0"});
    expect(error_of([&] { six.optimizer.step(); }), "E-ORDER-12",
           {"rank 0", "step()", "step 1", "forward of \"h.1\" in microbatch 0", "1 microbatches"});
    expect(error_of([&] { six.model.discard_step(); }), "E-ORDER-12", {"discard_step()"});
    expect(error_of([&] { six.model.gradient_norm(); }), "E-ORDER-12", {"gradient_norm()"});
    for (std::size_t u = 1; u < 6; ++u) auto scope = six.units[u]->forward();
    expect(error_of([&] { six.units[3]->backward([](auto&) {}); }), "E-ORDER-1",
           {"backward of \"h.3\"", "backward of \"h.5\""});
    six.backwards();
    expect(error_of([&] { auto opened = six.units[0]->forward(); }), "E-ORDER-4",
           {"forward of \"h.0\"", "step 1", "all 1"});
    expect(error_of([&] { six.model.idle_microbatch(); }), "E-ORDER-11", {"all 1", "step 1"});
    six.optimizer.step();

    auto evaluating = six.model.evaluate();
    {
        auto scope = six.units[0]->forward();
    }
    expect(error_of([&] { auto opened = six.units[2]->forward(); }), "E-ORDER-7",
           {"rank 0", "\"h.2\"", "\"h.1\" next", "\"h.0\""});
}

TEST_CASE("refused states") {
    model_of_six six;
    expect(error_of([&] { six.optimizer.step(); }), "E-STATE-4", {"step()", "0 steps so far"});
    expect(error_of([&] { six.model.discard_step(); }), "E-STATE-4", {"discard_step()"});
    expect(error_of([&] { six.model.write_gradients(); }), "E-STATE-4", {"write_gradients()"});
    six.model.begin_step({.microbatches = 2});
    expect(error_of([&] { six.model.begin_step(); }), "E-STATE-7", {"step 1"});
    expect(error_of([&] { six.model.gradients(); }), "E-STATE-16", {"gradients()", "step 1", "not final"});
    expect(error_of([&] { six.model.write_gradients(); }), "E-STATE-16", {"write_gradients()", "not final"});
    {
        auto scope = six.units[0]->forward();
        expect(error_of([&] { auto opened = six.units[1]->forward(); }), "E-STATE-8",
               {"h.1", "number 2", "max_open is 1", "\"h.0\""});
        expect(error_of([&] { six.optimizer.step(); }), "E-STATE-5", {"step()"});
        expect(error_of([&] { six.model.write_gradients(); }), "E-STATE-5", {"write_gradients()"});
        expect(error_of([&] { auto opened = six.model.write_weights(); }), "E-STATE-15", {"h.0"});
        expect(error_of([&] { auto opened = six.model.evaluate(); }), "E-STATE-14", {"h.0"});
        scope.weights_done();
        expect(error_of([&] { static_cast<void>(scope[six.w]); }), "E-STATE-12", {"h.0"});
    }
    expect(error_of([&] { auto opened = six.units[1]->recompute(); }), "E-STATE-9", {"h.1", "step 1"});
    {
        auto evaluating = six.model.evaluate();
        expect(error_of([&] { six.units[0]->backward([](auto&) {}); }), "E-STATE-11", {"backward of \"h.0\""});
        expect(error_of([&] { auto opened = six.units[0]->recompute(); }), "E-STATE-11", {"recompute of \"h.0\""});
        expect(error_of([&] { auto opened = six.model.evaluate(); }), "E-STATE-14", {"evaluat"});
        expect(error_of([&] { auto opened = six.model.write_weights(); }), "E-STATE-15", {"evaluat"});
    }
    {
        auto writing = six.model.write_weights();
        expect(error_of([&] { auto opened = six.units[1]->forward(); }), "E-STATE-5",
               {"forward of \"h.1\"", "write_weights()"});
        expect(error_of([&] { auto opened = six.model.write_weights(); }), "E-STATE-15", {"write_weights()"});
    }
    {
        auto scope = six.units[1]->forward();
        model_of_six other;
        auto& second = other.model.add_unit("more", {{"w", {64}, {}}});
        expect(error_of([&] { static_cast<void>(scope[second.layout().parameter("w")]); }), "E-ARGUMENT-3",
               {"h.1", "layout 1", "another model"});
    }
    model_of_six between;
    {
        auto writing = between.model.write_weights();
        expect(error_of([&] { between.model.begin_step(); }), "E-STATE-5", {"begin_step()"});
    }
    {
        auto evaluating = between.model.evaluate();
        expect(error_of([&] { between.model.begin_step(); }), "E-STATE-5", {"begin_step()"});
    }
}

TEST_CASE("refused buffers poison the model, and reset() mends it") {
    {
        model_of_six six;
        six.forwards();
        {
            auto scope = six.units[3]->recompute();
        }
        expect(error_of([&] { six.units[5]->backward([](auto&) {}); }), "E-STATE-2",
               {"\"h.5\"", "\"h.3\"", "recomput", "recompute_segment"});
        expect(error_of([&] { auto opened = six.model.evaluate(); }), "E-STATE-1", {"h.5", "step 1", "reset()"});
    }
    {
        reshard::model_options three_open;
        three_open.slots.max_open = 3;
        model_of_six six(three_open);
        six.forwards();
        auto fifth = six.units[5]->backward();
        auto fourth = six.units[4]->backward();
        expect(error_of([&] { auto opened = six.units[3]->backward(); }), "E-STATE-3", {"\"h.3\"", "\"h.5\""});
    }
    {
        reshard::model_options segment_of_two;
        segment_of_two.slots.recompute_segment = 2;
        model_of_six six(segment_of_two);
        six.forwards();
        for (const std::size_t u : {3u, 4u}) auto scope = six.units[u]->recompute();
        expect(error_of([&] { auto opened = six.units[5]->recompute(); }), "E-STATE-10",
               {"\"h.5\"", "number 3", "recompute_segment is 2"});
    }
    model_of_six six;
    const auto leave = [&] {
        auto scope = six.units[0]->forward();
        throw std::runtime_error("the user's own");
    };
    CHECK_THROWS_AS(leave(), std::runtime_error);
    expect(error_of([&] { auto opened = six.units[1]->forward(); }), "E-STATE-1", {"\"h.0\"", "forward", "step 1"});
}

TEST_CASE("refused arguments of scopes and steps") {
    model_type model(idle_communicator(2));
    reshard::sgd<model_type> optimizer(model);
    auto& unit = model.add_unit("only", {{"w", {4}, {}}, {"fixed", {4}, {.trainable = false}}});
    const auto fixed = unit.layout().parameter("fixed");
    {
        auto scope = unit.forward();
    }
    {
        auto scope = unit.backward();
        expect(error_of([&] { scope.gradient(fixed); }), "E-ARGUMENT-4", {"only", "fixed", "not trainable"});
        scope.gradients_done();
        expect(error_of([&] { scope.gradient(unit.layout().parameter("w")); }), "E-STATE-12", {"only"});
    }
    const double infinity = std::numeric_limits<double>::infinity();
    expect(error_of([&] { optimizer.step({.gradient_scale = infinity}); }), "E-ARGUMENT-9", {"gradient_scale", "inf"});
    expect(error_of([&] { optimizer.step({.clip_norm = -1}); }), "E-ARGUMENT-9", {"clip_norm", "-1"});
    expect(error_of([&] { model.synchronize_weights(2); }), "E-ARGUMENT-10", {"rank 2 of 2"});
    expect(error_of([&] { optimizer.step({.learning_rate = -1}); }), "E-OPTIM-1", {"sgd", "learning_rate", "-1"});
    optimizer.step();  // none of these has ended the step
    CHECK(model.steps() == 1);
}

TEST_CASE("refused optimizers") {
    const auto with = [](const reshard::adamw_options& options, const char* group) {
        return error_of([&] {
            model_type model(idle_communicator(2));
            reshard::adamw<model_type> optimizer(model, options);
            auto& unit = model.add_unit("only", {{"w", {4}, {.group = group}}});
            {
                auto scope = unit.forward();
            }
            {
                auto scope = unit.backward();
            }
            optimizer.step();
        });
    };
    CHECK(with({}, "") == "no error");
    expect(with({.beta1 = 1}, ""), "E-OPTIM-1", {"adamw", "beta1", "1", "at least 0 and below 1"});
    expect(with({.epsilon = -1}, ""), "E-OPTIM-1", {"epsilon", "-1"});
    expect(with({.groups = {{"bias", {.beta2 = 2}}}}, "bias"), "E-OPTIM-1", {"beta2", "2"});
    expect(with({.groups = {{"bias", {}}}}, "biases"), "E-OPTIM-2",
           {"adamw", "\"w\"", "\"only\"", "\"biases\"", "bias"});
    expect(with({}, "biases"), "E-OPTIM-2", {"none"});
    expect(with({.groups = {{"bias", {}}}}, ""), "E-OPTIM-3", {"adamw", "\"bias\""});
    model_type model(idle_communicator(2));
    expect(error_of([&] { reshard::sgd<model_type> refused(model, {.momentum = -0.5}); }), "E-OPTIM-1",
           {"sgd", "momentum", "-0.5"});
}

TEST_CASE("refused schedules") {
    model_of_six six({}, "keep_last:1");
    const pass two_forwards[] = {{phase::forward, 0}, {phase::forward, 1}, {phase::backward, 0}, {phase::backward, 1}};
    expect(error_of([&] { six.model.begin_step({.microbatches = 2, .schedule = two_forwards}); }), "E-ORDER-3", {"5"});
    const pass half[] = {{phase::forward, 0}};
    expect(error_of([&] { six.model.begin_step({.microbatches = 1, .schedule = half}); }), "E-ORDER-2", {"backward"});
    // refused before anything began
    six.forwards();
    six.backwards();
    six.optimizer.step();
    CHECK(six.model.steps() == 1);
}

/// A rank whose control channel cannot bring ranks together again after a fault.
class one_way_communicator : public idle_communicator {
public:
    struct one_way {
        reshard::self_control* inner;
        void raise(const std::string& why) { inner->raise(why); }
        const reshard::fault_report* raised() const { return inner->raised(); }
    };
    using idle_communicator::idle_communicator;
    one_way control() const { return {&idle_communicator::control()}; }
};

TEST_CASE("reset() where ranks cannot agree again") {
    sharded_model<policy_type, one_way_communicator> model(one_way_communicator(2));
    auto& unit = model.add_unit("only", {{"w", {4}, {}}});
    const auto leave = [&] {
        auto scope = unit.forward();
        throw std::runtime_error("the user's own");
    };
    CHECK_THROWS_AS(leave(), std::runtime_error);
    expect(error_of([&] { model.reset(); }), "E-RESET-1", {"2 ranks", "checkpoint"});
}

}  // namespace
