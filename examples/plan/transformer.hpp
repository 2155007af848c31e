// A transformer as units: its sizes, from a config.json or by hand, and the parameters that a trainer would give each.
#pragma once

#include "../gpt/early_end.hpp"

#include <reshard/layout/unit_layout.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

namespace planning {

inline constexpr std::size_t most_layers = 1000, most_width = 1000000, most_rows = 10000000;
inline constexpr double most_parameters = 1e14;  // so that no sum of bytes overflows

struct transformer {
    std::string source = "options";
    std::size_t layers = 0, width = 0, heads = 0, vocabulary = 0, context = 0, ffn = 0;
    std::size_t key_value_heads = 0, head_width = 0;
    bool llama = false;  // gated feed-forward and one number a norm; else biases and learned positions as in GPT-2
    bool attention_biases = false, tied = true;

    std::size_t query_width() const { return heads * head_width; }
    std::size_t key_value_width() const { return key_value_heads * head_width; }
};

/// A unit of the model; `alike` equal ones stand behind one another.
struct unit_of_model {
    std::string name;
    std::size_t uses, alike;
    std::vector<reshard::parameter_spec> parameters;
};

inline std::vector<reshard::parameter_spec> llama_block(const transformer& model) {
    const std::size_t d = model.width, q = model.query_width(), kv = model.key_value_width(), ffn = model.ffn;
    std::vector<reshard::parameter_spec> list{{"input_norm", {d}}, {"q", {q, d}}, {"k", {kv, d}},
                                              {"v", {kv, d}},      {"o", {d, q}}, {"post_norm", {d}}};
    if (model.attention_biases) {
        list.insert(list.end(), {{"q_bias", {q}}, {"k_bias", {kv}}, {"v_bias", {kv}}, {"o_bias", {d}}});
    }
    list.insert(list.end(), {{"gate", {ffn, d}}, {"up", {ffn, d}}, {"down", {d, ffn}}});
    return list;
}

inline std::vector<reshard::parameter_spec> gpt2_block(const transformer& model) {
    const std::size_t d = model.width, ffn = model.ffn;
    return {{"ln1w", {d}},     {"ln1b", {d}},  {"qkvw", {3 * d, d}},  {"qkvb", {3 * d}},
            {"projw", {d, d}}, {"projb", {d}}, {"ln2w", {d}},         {"ln2b", {d}},
            {"fcw", {ffn, d}}, {"fcb", {ffn}}, {"fcprojw", {d, ffn}}, {"fcprojb", {d}}};
}

/// Embedding (used again as the head where it is tied), blocks, last norm (with a head of its own otherwise).
inline std::vector<unit_of_model> units_of(const transformer& model) {
    unit_of_model embedding{"embedding", model.tied ? 2u : 1u, 1, {{"tokens", {model.vocabulary, model.width}}}};
    if (!model.llama) embedding.parameters.push_back({"positions", {model.context, model.width}});
    unit_of_model last{model.tied ? "norm" : "norm and head", 1, 1, {{"weight", {model.width}}}};
    if (!model.llama) last.parameters.push_back({"bias", {model.width}});
    if (!model.tied) last.parameters.push_back({"head", {model.vocabulary, model.width}});
    return {embedding, {"block", 1, model.layers, model.llama ? llama_block(model) : gpt2_block(model)}, last};
}

inline double parameters_of(const unit_of_model& unit) {
    double sum = 0;
    for (const reshard::parameter_spec& one : unit.parameters) {
        double count = 1;
        for (const std::size_t extent : one.shape) count *= static_cast<double>(extent);
        sum += count;
    }
    return sum * static_cast<double>(unit.alike);
}

/// What a microbatch of `tokens` leaves for its backward, roughly: what enters norms and matrix products of each block,
/// and the logits with their gradient. Nothing recomputed, and attention that stores no scores.
inline std::size_t activation_elements(const transformer& model, std::size_t tokens) {
    const std::size_t heads = 2 * model.query_width() + 2 * model.key_value_width();
    const std::size_t block = 4 * model.width + heads + (model.llama ? 3 : 2) * model.ffn;
    return tokens * (model.layers * block + model.width + 2 * model.vocabulary);
}

/// The numbers and switches of a config.json; whatever is wrong with one is a sentence with its name.
class config_file {
public:
    explicit config_file(std::string path) : path_(std::move(path)) {
        std::ifstream file(path_);
        if (!file) throw gpt::early_end("cannot read --config " + path_, 2);
        json_ = nlohmann::json::parse(file, nullptr, false);
        if (!json_.is_object()) throw gpt::early_end("--config " + path_ + " is no JSON object", 2);
    }

    bool has(const char* name) const { return json_.contains(name) && !json_.at(name).is_null(); }
    std::size_t number(const char* name, std::size_t most) const {
        if (!has(name)) throw gpt::early_end("--config " + path_ + " has no \"" + name + '"', 2);
        const nlohmann::json& value = json_.at(name);
        if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > static_cast<double>(most)) {
            throw gpt::early_end("--config " + path_ + ": \"" + name + "\" is to be a whole number from 1 to " +
                                     std::to_string(most) + ", not " + value.dump(),
                                 2);
        }
        return value.get<std::size_t>();
    }
    std::size_t number(const char* name, std::size_t most, std::size_t otherwise) const {
        return has(name) ? number(name, most) : otherwise;
    }
    bool flag(const char* name, bool otherwise) const {
        if (!has(name)) return otherwise;
        if (!json_.at(name).is_boolean()) {
            throw gpt::early_end(
                "--config " + path_ + ": \"" + name + "\" is to be true or false, not " + json_.at(name).dump(), 2);
        }
        return json_.at(name).get<bool>();
    }

private:
    std::string path_;
    nlohmann::json json_;
};

/// A model after the names of GPT-2 (n_embd, ...) or of Llama and its kin (hidden_size, ...).
inline transformer read_config(const std::string& path) {
    const config_file file(path);
    for (const char* experts : {"num_local_experts", "num_experts", "n_routed_experts"}) {
        if (file.has(experts)) {
            throw gpt::early_end("--config " + path + " has \"" + experts + "\": only dense models are known here", 2);
        }
    }
    transformer model;
    model.source = path;
    model.llama = !file.has("n_embd");
    if (model.llama) {
        model.width = file.number("hidden_size", most_width);
        model.layers = file.number("num_hidden_layers", most_layers);
        model.ffn = file.number("intermediate_size", most_width);
        model.heads = file.number("num_attention_heads", most_width);
        model.context = file.number("max_position_embeddings", most_rows, 1);
    } else {
        model.width = file.number("n_embd", most_width);
        model.layers = file.number("n_layer", most_layers);
        model.ffn = file.number("n_inner", most_width, 4 * model.width);
        model.heads = file.number("n_head", most_width);
        model.context = file.number("n_positions", most_rows);
    }
    model.vocabulary = file.number("vocab_size", most_rows);
    model.key_value_heads = file.number("num_key_value_heads", most_width, model.heads);
    model.head_width = file.number("head_dim", most_width, 0);
    model.attention_biases = file.flag("attention_bias", false);
    model.tied = file.flag("tie_word_embeddings", !model.llama);
    return model;
}

/// The same with what follows from other sizes; a sentence where they do not go together.
inline transformer completed(transformer model) {
    if (model.ffn == 0) model.ffn = 4 * model.width;
    if (model.key_value_heads == 0) model.key_value_heads = model.heads;
    if (model.head_width == 0) {
        if (model.width % model.heads != 0) {
            throw gpt::early_end("a width of " + std::to_string(model.width) + " cannot be divided by " +
                                     std::to_string(model.heads) + " heads",
                                 2);
        }
        model.head_width = model.width / model.heads;
    }
    if (model.heads % model.key_value_heads != 0) {
        throw gpt::early_end(std::to_string(model.heads) + " heads cannot share " +
                                 std::to_string(model.key_value_heads) + " heads of keys and values evenly",
                             2);
    }
    double parameters = 0;
    for (const unit_of_model& unit : units_of(model)) parameters += parameters_of(unit);
    if (parameters > most_parameters) {
        throw gpt::early_end("a model of more than 1e14 parameters is too large to be planned", 2);
    }
    return model;
}

}  // namespace planning
