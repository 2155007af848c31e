// Event edges of the engine: with all of them no two streams touch the same bytes unordered, without any one kind some
// do. Streams log what they would do; nothing runs.
#include <doctest/doctest.h>
#include <reshard/engine/model.hpp>
#include <reshard/optim/adamw.hpp>
#include <reshard/policy/runtime.hpp>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "schedule/toy.hpp"
#include "support/happens_before.hpp"

namespace {

using test_support::access_log;
using test_support::byte_range;
using test_support::bytes_of;
using test_support::edge_kind;
using test_support::happens_before;
using test_support::logging_communicator;
using test_support::logging_device;

/// What a trainer does beside the plain loop.
struct habits {
    const char* name;
    bool tied = false;            // the first of five units is used at the end again
    bool second_stream = false;   // one parameter is read, and its gradient written, on a stream of the trainer's
    bool changes_stream = false;  // ... in every other microbatch only
    bool half = false;            // bf16 parameters
    bool overlaps_refresh = false;
    bool evaluates = false;         // between microbatches and between steps
    bool stops_evaluating = false;  // in the middle of a pass, right before the step ends
    bool reads_norm = false;        // before the step ends
    bool writes_weights = false;    // between steps
    bool discards = false;          // the second step
    bool recomputes = false;        // parameters are read once more before each backward
    bool keeps_pointers = false;    // parameters that rest whole are read in forward without scopes
    std::size_t depth = 1;
    std::vector<reshard::pass> schedule = {};
};

struct run_case {
    std::string strategy, reshard;
    std::size_t ranks;
    habits how;
    std::string topology = "flat";
    std::vector<std::size_t> groups = {};  // sizes of the smaller groups, in the order in which they are made

    std::string words() const {
        return strategy + " " + reshard + " ranks " + std::to_string(ranks) + " " + topology + " " + how.name;
    }
};

/// Three steps of two microbatches over five units; every scope touches all that it shows.
template <class Precision>
class trainer {
public:
    using policy_type = reshard::runtime_policy<Precision>;
    using model_type = reshard::sharded_model<policy_type, logging_communicator>;
    using compute_type = typename model_type::compute_type;

    trainer(const logging_communicator& world, const run_case& all)
        : device_(world.device()),
          how_(all.how),
          side_(device_.make_stream("side")),
          model_(world, {.slots = {.prefetch_depth = how_.depth}, .overlap_refresh = how_.overlaps_refresh},
                 policy_of(all)),
          loss_(model_.add_metric("loss")),
          optimizer_(model_),
          rests_(all.ranks == 1 || rests_whole(all.strategy)) {
        const auto& layout = model_.layout({{"weight", {100}}, {"bias", {20}}});
        for (std::size_t u = 0; u < 5; ++u) {
            order_.push_back(
                &model_.add_unit("h." + std::to_string(u), layout, {.uses = how_.tied && u == 0 ? 2u : 1u}));
        }
        if (how_.tied) order_.push_back(order_.front());
        model_.set_order(order_);
    }

    void run() {
        model_.initialize([](const reshard::parameter_info&, std::size_t, auto) {});
        std::vector<reshard::pass> passes = how_.schedule;
        if (passes.empty()) {
            passes = {{reshard::phase::forward, 0},
                      {reshard::phase::backward, 0},
                      {reshard::phase::forward, 1},
                      {reshard::phase::backward, 1}};
        }
        for (std::size_t step = 0; step < 3; ++step) {
            if (how_.evaluates) evaluate(order_.size());
            model_.begin_step({.microbatches = 2, .schedule = how_.schedule});
            if (how_.keeps_pointers && rests_ && step == 0) {
                for (unit* one : order_) kept_.push_back(bytes_of(one->resting(weight(*one))));
            }
            for (const reshard::pass& one : passes) {
                run_pass(one);
                if (how_.evaluates) evaluate(order_.size());
            }
            if (how_.stops_evaluating) evaluate(1);
            model_.set_metric(loss_, 1.0);
            if (how_.reads_norm) model_.gradient_norm();
            if (how_.discards && step == 1) {
                model_.discard_step();
            } else {
                optimizer_.step();
            }
            if (how_.writes_weights) {
                evaluate(1);
                model_.initialize([](const reshard::parameter_info&, std::size_t, auto) {});
                evaluate(1);
                model_.synchronize_weights();
                model_.check_replicas();
                model_.outcome();
            }
        }
    }

private:
    using unit = typename model_type::unit;
    using handle = reshard::parameter<compute_type>;

    static policy_type policy_of(const run_case& all) {
        policy_type policy(reshard::any_sharding::parse(all.strategy), reshard::any_reshard::parse(all.reshard));
        policy.topology = reshard::any_topology::parse(all.topology);
        return policy;
    }
    static bool rests_whole(const std::string& strategy) {
        return reshard::any_sharding::parse(strategy).parameters({}) == reshard::placement::replicated;
    }
    void evaluate(std::size_t uses) {
        const auto evaluation = model_.evaluate();
        for (std::size_t k = 0; k < uses; ++k) read(*order_[k], order_[k]->forward(), "forward", true);
    }
    void run_pass(const reshard::pass& one) {
        const bool aside = !how_.changes_stream || one.microbatch == 0;
        for (std::size_t k = 0; k < order_.size(); ++k) {
            unit& now = one.what == reshard::phase::forward ? *order_[k] : *order_[order_.size() - 1 - k];
            if (one.what == reshard::phase::forward && k < kept_.size()) {
                device_.touch(device_.caller(), "forward", {kept_[k]}, {});
            } else if (one.what == reshard::phase::forward) {
                read(now, now.forward(), "forward", aside);
            } else if (one.what == reshard::phase::backward_input) {
                read(now, now.backward_input(), "backward_input", aside);
            } else if (one.what == reshard::phase::backward_weight) {
                write(now, now.backward_weight(), aside);
            } else {
                if (how_.recomputes) read(now, now.recompute(), "recompute", aside);
                write(now, now.backward(), aside);
            }
        }
    }
    template <class Scope>
    void read(const unit& one, Scope&& scope, const char* what, bool aside) {
        device_.touch(device_.caller(), what, {bytes_of(scope[weight(one)])}, {});
        if (how_.second_stream && aside) scope.use_on(side_);
        const auto stream = how_.second_stream && aside ? logging_device::stream_ref(side_) : device_.caller();
        device_.touch(stream, what, {bytes_of(scope[bias(one)])}, {});
    }
    template <class Scope>
    void write(const unit& one, Scope&& scope, bool aside) {
        write_gradient(scope, device_.caller(), weight(one));
        if (how_.second_stream && aside) scope.use_on(side_);
        write_gradient(scope, how_.second_stream && aside ? logging_device::stream_ref(side_) : device_.caller(),
                       bias(one));
    }
    template <class Scope>
    void write_gradient(Scope& scope, logging_device::stream_ref stream, const handle& which) {
        const byte_range gradient = bytes_of(scope.gradient(which));
        std::vector<byte_range> reads = {gradient};
        if constexpr (requires { scope[which]; }) reads.push_back(bytes_of(scope[which]));
        device_.touch(stream, "backward", std::move(reads), {gradient});
    }
    static handle weight(const unit& one) { return one.layout().parameter("weight"); }
    static handle bias(const unit& one) { return one.layout().parameter("bias"); }

    logging_device device_;
    habits how_;
    logging_device::stream side_;
    model_type model_;
    reshard::metric loss_;
    reshard::adamw<model_type> optimizer_;
    std::vector<unit*> order_;
    bool rests_;
    std::vector<byte_range> kept_;
};

/// The engine's edges by name, as engine/state.hpp lists them; a further stream's have a name of their own.
std::string edge_name(const edge_kind& wait) {
    const std::string& from = wait.recorded_on;
    const std::string& to = wait.waits;
    if (to == "host") return "host waits";
    if (from == "gathers" && to == "caller") {
        return wait.before == "square_norm" || wait.before.empty() ? "gathers idle" : "gathered";
    }
    if (from == "reductions" && to == "caller") return wait.before == "zero" ? "gradient free" : "all reduced";
    if (from == "reductions" && to == "outer") return "block reduced";
    if (from == "outer" && to == "caller") return wait.before == "zero" ? "gradient free of outer" : "outer reduced";
    if (from == "outer" && to == "gathers") return "refreshed";
    if (from == "caller" && to == "outer") return wait.before == "cast" ? "weights written to outer" : "step begins";
    if (from == "caller" && to == "gathers") {
        if (wait.before != "cast") return "step begins";
        return wait.behind == "update" || wait.behind == "decide" ? "weights written" : "buffer free";
    }
    if (from == "caller" && to == "reductions") return wait.behind == "backward" ? "written" : "step begins";
    if (from == "caller" && to == "side") return "side starts";
    if (from == "side" && to == "gathers") return "buffer free of side";
    if (from == "side" && to == "reductions") return "written by side";
    if (from == "side" && to == "caller")
        return wait.behind == "backward" ? "accumulated by side" : "masters read by side";
    return wait.words();
}

const std::vector<habits> all_habits = {
    {.name = "plain"},
    {.name = "tied", .tied = true},
    {.name = "second stream", .second_stream = true},
    {.name = "tied, second stream", .tied = true, .second_stream = true},
    {.name = "second stream now and then", .second_stream = true, .changes_stream = true},
    {.name = "bf16", .half = true},
    {.name = "refresh overlapped", .overlaps_refresh = true},
    {.name = "bf16, refresh overlapped", .second_stream = true, .half = true, .overlaps_refresh = true},
    {.name = "evaluates", .evaluates = true},
    {.name = "evaluates, tied, second stream", .tied = true, .second_stream = true, .evaluates = true},
    {.name = "stops evaluating", .stops_evaluating = true},
    {.name = "reads norm", .reads_norm = true},
    {.name = "writes weights", .second_stream = true, .writes_weights = true},
    {.name = "discards", .discards = true},
    {.name = "recomputes", .recomputes = true},
    {.name = "keeps pointers", .keeps_pointers = true},
    {.name = "bf16, keeps pointers", .half = true, .keeps_pointers = true},
    {.name = "depth 0", .depth = 0},
    {.name = "depth 3", .depth = 3},
    {.name = "GPipe", .second_stream = true, .schedule = toy::gpipe(2)},
    {.name = "split backward", .second_stream = true, .schedule = toy::split_backward(2)},
};

/// Policies with groups smaller than the whole, and the sizes of those that the model makes.
struct grouped {
    const char *strategy, *reshard, *topology;
    std::size_t ranks;
    std::vector<std::size_t> groups;
};
const std::vector<grouped> groupings = {
    {"hybrid_shard", "reshard_always", "mesh:2x2", 4, {2, 2}},
    {"hybrid_shard", "accumulate_unsharded:keep_last:1", "mesh:2x3", 6, {3, 2}},
    {"hybrid_shard", "reshard_to_group:2", "mesh:2x4", 8, {4, 2, 2}},
    {"hybrid_full_shard", "reshard_always", "mesh:2x2", 4, {2, 2}},
    {"hybrid_full_shard", "accumulate_unsharded:reshard_never", "mesh:3x2", 6, {2, 3}},
    {"hybrid_full_shard", "keep_until_step", "mesh:2x2", 4, {2, 2}},
    {"hybrid_full_shard", "reshard_to_group:2,until_step", "mesh:2x4", 8, {4, 2, 2}},
    {"sharding:inner,whole,whole", "reshard_always", "mesh:2x2", 4, {2, 2}},
    {"sharding:inner,whole,whole", "accumulate_unsharded:reshard_always", "mesh:2x2", 4, {2, 2}},
    {"sharding:inner,whole,whole", "reshard_to_group:2,until_step", "mesh:2x4", 8, {4, 2, 2}},
    {"sharding:replicated,inner,whole", "reshard_always", "mesh:2x2", 4, {2, 2}},
    {"sharding:replicated,inner,inner", "reshard_always", "mesh:2x2", 4, {2, 2}},
    {"sharding:replicated,replicated,inner", "reshard_always", "mesh:2x2", 4, {2, 2}},
    {"full_shard", "reshard_to_group:2", "flat", 4, {2}},
    {"full_shard", "accumulate_unsharded:reshard_to_group:2", "flat", 4, {2}},
    {"full_shard", "reshard_to_group:2,until_step", "flat", 4, {2}},
};

std::vector<run_case> all_cases() {
    const std::vector<std::pair<std::string, std::string>> policies = {
        {"no_shard", "reshard_always"},        {"shard_optimizer", "reshard_always"},
        {"shard_gradients", "reshard_always"}, {"shard_gradients", "accumulate_unsharded:reshard_always"},
        {"full_shard", "reshard_always"},      {"full_shard", "accumulate_unsharded:reshard_always"},
        {"full_shard", "keep_last:1"},         {"full_shard", "accumulate_unsharded:keep_last:3"},
        {"full_shard", "reshard_never"},       {"full_shard", "accumulate_unsharded:reshard_never"},
        {"full_shard", "keep_until_step"},     {"full_shard", "accumulate_unsharded:keep_until_step"},
    };
    std::vector<run_case> cases;
    for (const auto& [strategy, reshard] : policies) {
        for (const habits& how : all_habits) {
            // Forwards that overlap do not go with copies kept in some rotating buffers only.
            if (!how.schedule.empty() && reshard.find("keep_last") != std::string::npos) continue;
            for (const std::size_t ranks : {1u, 2u, 3u}) cases.push_back({strategy, reshard, ranks, how});
        }
    }
    for (const grouped& one : groupings) {
        for (const habits& how : all_habits) {
            const bool keeps_some = std::string(one.reshard).find("keep_last") != std::string::npos;
            if (how.schedule.empty() || !keeps_some) {
                cases.push_back({one.strategy, one.reshard, one.ranks, how, one.topology, one.groups});
            }
        }
    }
    return cases;
}

void log_run(const logging_communicator& world, const run_case& all) {
    if (all.how.half) {
        trainer<reshard::precision<reshard::bf16>>(world, all).run();
    } else {
        trainer<reshard::precision<float>>(world, all).run();
    }
}

}  // namespace

TEST_CASE("no two streams touch the same bytes unordered, and every edge is needed somewhere") {
    std::map<std::string, std::set<std::string>> needed_for;  // edge to sorts of race without it
    for (const run_case& one : all_cases()) {
        const logging_communicator world =
            one.groups.empty() ? logging_communicator(one.ranks) : logging_communicator(one.ranks, one.groups);
        log_run(world, one);
        const happens_before checker(world.device().log());
        const std::set<std::string> races = checker.words(checker.races());
        std::string listed = one.words() + ": ";
        for (const std::string& race : races) listed += "[" + race + "] ";
        CHECK_MESSAGE(races.empty(), listed);
        std::set<std::string> edges;
        for (const edge_kind& wait : checker.kinds()) edges.insert(edge_name(wait));
        for (const std::string& edge : edges) {
            std::set<std::string>& into = needed_for[edge];
            into.merge(checker.words(checker.races([&](const edge_kind& each) { return edge_name(each) == edge; })));
            for (const std::string& race : races) into.erase(race);
        }
    }
    const std::set<std::string> expected = {
        "gathered",
        "gathers idle",
        "buffer free",
        "weights written",
        "written",
        "gradient free",
        "all reduced",
        "host waits",
        "side starts",
        "buffer free of side",
        "written by side",
        "step begins",
        "accumulated by side",
        "masters read by side",
        "block reduced",
        "outer reduced",
        "gradient free of outer",
        "weights written to outer",
        "refreshed",
    };
    std::set<std::string> found;
    for (const auto& [edge, races] : needed_for) {
        CAPTURE(edge);
        found.insert(edge);
        CHECK(expected.count(edge) == 1);
        // A step is self-contained for captured graphs; here the other edges order the same.
        if (edge != "step begins") CHECK_FALSE(races.empty());
    }
    CHECK(found == expected);
}
