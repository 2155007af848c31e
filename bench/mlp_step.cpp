// A training step of a 50-million-parameter multilayer perceptron over MPI: 12 layers of 2048 x 2048, 64 rows a rank,
// fp32, AdamW, one compute thread a rank; start with mpirun -np 4. Four ways in one run, alternating:
//   alone    the same arithmetic without communication, every rank holding and updating the whole model
//   engine   full_shard + keep_last<2> through the library
//   ring     the same step written by hand on the library's communicator
//   mpi      the same step written by hand on MPI_Allgather and MPI_Reduce_scatter_block
// Floor of what is sent: (ranks-1)/ranks * (2 * 201 MB gathered, less the two layers kept, + 201 MB reduced) a rank.
#include <reshard/comm/mpi.hpp>
#include <reshard/optim/adamw.hpp>

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "support/ranks.hpp"

using namespace reshard;

namespace {

constexpr Eigen::Index width = 2048, rows = 64;
constexpr std::size_t layers = 12, count = static_cast<std::size_t>(width) * width;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using weights_view = Eigen::Map<const matrix>;
using gradient_view = Eigen::Map<matrix>;

/// The arithmetic that all ways share: activations, one layer forward, one backward.
struct network {
    network() : values(layers + 1, matrix::Constant(rows, width, 0.01f)), slope(matrix::Zero(rows, width)) {}

    void forward(std::size_t layer, const float* weights) {
        values[layer + 1].noalias() = values[layer] * weights_view(weights, width, width).transpose();
        values[layer + 1] = values[layer + 1].cwiseMax(0.0f);
    }
    void begin_backward() { slope = values[layers]; }  // of half the sum of squares
    /// Adds to `gradient`.
    void backward(std::size_t layer, const float* weights, float* gradient) {
        slope = (values[layer + 1].array() > 0).select(slope, 0.0f);
        gradient_view(gradient, width, width).noalias() += slope.transpose() * values[layer];
        below.noalias() = slope * weights_view(weights, width, width);
        slope.swap(below);
    }

    std::vector<matrix> values;
    matrix slope, below;
};

float initial(std::size_t element) {
    return 0.02f * (static_cast<float>(element * 2654435761u % 2048) / 1024.0f - 1.0f);
}

constexpr adamw_range numbers{0, 0, 1e-5, 0.9, 0.95, 1e-8, 0.0};

void update(std::vector<float>& masters, const std::vector<float>& gradients, std::vector<float>& first,
            std::vector<float>& second, std::uint64_t step) {
    commit_outcome outcome;
    outcome.factor = 1;
    outcome.applied = step;
    adamw_range range = numbers;
    range.count = masters.size();
    kernels::adamw(range, outcome, masters.data(), gradients.data(), first.data(), second.data());
}

class alone {
public:
    alone() : masters_(layers * count), gradients_(layers * count), first_(layers * count), second_(layers * count) {
        for (std::size_t i = 0; i < masters_.size(); ++i) masters_[i] = initial(i % count);
    }
    void step() {
        std::fill(gradients_.begin(), gradients_.end(), 0.0f);
        for (std::size_t l = 0; l < layers; ++l) net_.forward(l, &masters_[l * count]);
        net_.begin_backward();
        for (std::size_t l = layers; l-- > 0;) net_.backward(l, &masters_[l * count], &gradients_[l * count]);
        update(masters_, gradients_, first_, second_, ++step_);
    }

private:
    std::vector<float> masters_, gradients_, first_, second_;
    network net_;
    std::uint64_t step_ = 0;
};

class engine {
    using model_type = sharded_model<policy<full_shard, keep_last<2>>, mpi_communicator>;

public:
    explicit engine(mpi_communicator world) : model_(world) {
        const auto& shape = model_.layout({{"weight", {count}}});
        weight_.push_back(shape.parameter("weight"));
        for (std::size_t l = 0; l < layers; ++l)
            units_.push_back(&model_.add_unit("layer." + std::to_string(l), shape));
        optimizer_.emplace(model_);
        model_.initialize([](const parameter_info&, std::size_t offset, auto values) {
            for (std::size_t i = 0; i < values.size(); ++i) values[i] = initial(offset + i);
        });
    }
    void step() {
        for (std::size_t l = 0; l < layers; ++l) {
            const auto weights = units_[l]->forward();
            net_.forward(l, weights[weight_[0]].data());
        }
        net_.begin_backward();
        for (std::size_t l = layers; l-- > 0;) {
            auto scope = units_[l]->backward();
            net_.backward(l, scope[weight_[0]].data(), scope.gradient(weight_[0]).data());
        }
        optimizer_.get().step({.learning_rate = numbers.learning_rate, .beta2 = 0.95, .weight_decay = 0.0});
    }
    double checksum() {
        double sum = 0;
        for (const float value : model_.masters()) sum += static_cast<double>(value);
        return sum;
    }

private:
    struct optimizer_place {  // made once the units are there
        void emplace(model_type& model) { held = new adamw<model_type>(model); }
        adamw<model_type>& get() { return *held; }
        ~optimizer_place() { delete held; }
        adamw<model_type>* held = nullptr;
    };
    model_type model_;
    std::vector<model_type::unit*> units_;
    std::vector<parameter<float>> weight_;
    optimizer_place optimizer_;
    network net_;
};

/// What a trainer of its own would hold: slices of the whole, two buffers for gathered layers, two for gradients.
struct slices {
    explicit slices(std::size_t ranks, std::size_t rank)
        : slice(count / ranks),
          own(rank * slice),
          masters(layers * slice),
          gradients(layers * slice),
          first(layers * slice),
          second(layers * slice),
          gathered(2, std::vector<float>(count)),
          summed(2, std::vector<float>(count)) {
        for (std::size_t i = 0; i < masters.size(); ++i) masters[i] = initial(own + i % slice);
    }
    void place_own(std::size_t layer) {
        std::copy_n(masters.begin() + static_cast<std::ptrdiff_t>(layer * slice), slice,
                    gathered[layer % 2].begin() + static_cast<std::ptrdiff_t>(own));
    }
    void keep_sum(std::size_t layer, float ranks) {
        const float* sum = summed[layer % 2].data() + own;
        float* out = gradients.data() + layer * slice;
        for (std::size_t i = 0; i < slice; ++i) out[i] = sum[i] / ranks;
    }
    std::size_t slice, own;
    std::vector<float> masters, gradients, first, second;
    std::vector<std::vector<float>> gathered, summed;
    std::uint64_t step = 0;
};

class by_hand_on_ring {
public:
    explicit by_hand_on_ring(mpi_communicator world)
        : world_(world),
          device_(world.device()),
          gathers_(device_.make_stream("hand gathers")),
          reductions_(device_.make_stream("hand reductions")),
          s_(world.size(), world.rank()),
          here_(2),
          reduced_(2) {}
    void step() {
        gather(0);
        for (std::size_t l = 0; l < layers; ++l) {
            if (l + 1 < layers) gather(l + 1);
            device_.wait(device_.caller(), here_[l % 2]);
            net_.forward(l, s_.gathered[l % 2].data());
        }
        net_.begin_backward();
        for (std::size_t l = layers; l-- > 0;) {
            if (l > 0 && l + 1 < layers) gather(l - 1);  // the last two layers are still in the two buffers
            device_.wait(device_.caller(), here_[l % 2]);
            device_.wait(device_.caller(), reduced_[l % 2]);
            std::fill(s_.summed[l % 2].begin(), s_.summed[l % 2].end(), 0.0f);
            net_.backward(l, s_.gathered[l % 2].data(), s_.summed[l % 2].data());
            reduce(l);
        }
        for (auto& event : reduced_) device_.wait(device_.caller(), event);
        update(s_.masters, s_.gradients, s_.first, s_.second, ++s_.step);
    }
    double checksum() const {
        double sum = 0;
        for (const float value : s_.masters) sum += static_cast<double>(value);
        return sum;
    }

private:
    void gather(std::size_t layer) {
        s_.place_own(layer);
        world_.all_gather_in_place(std::span(s_.gathered[layer % 2]), gathers_, {"gather", "by hand"});
        device_.record(here_[layer % 2], gathers_);
    }
    void reduce(std::size_t layer) {
        world_.reduce_scatter_in_place(std::span(s_.summed[layer % 2]), reductions_, {"reduce", "by hand"});
        device_.accumulate(s_.summed[layer % 2].data() + s_.own, s_.gradients.data() + layer * s_.slice, s_.slice,
                           write_mode::overwrite, world_.size(), host_device::stream_ref(reductions_));
        device_.record(reduced_[layer % 2], reductions_);
    }

    mpi_communicator world_;
    host_device device_;
    host_device::stream gathers_, reductions_;
    slices s_;
    std::vector<host_device::event> here_, reduced_;
    network net_;
};

class by_hand_on_mpi {
public:
    explicit by_hand_on_mpi(mpi_communicator world) : s_(world.size(), world.rank()), ranks_(world.size()) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    }
    ~by_hand_on_mpi() { MPI_Comm_free(&comm_); }
    by_hand_on_mpi(const by_hand_on_mpi&) = delete;
    void step() {
        for (std::size_t l = 0; l < layers; ++l) {
            gather(l);
            net_.forward(l, s_.gathered[l % 2].data());
        }
        net_.begin_backward();
        for (std::size_t l = layers; l-- > 0;) {
            if (l + 2 < layers) gather(l);
            auto& sum = s_.summed[l % 2];
            std::fill(sum.begin(), sum.end(), 0.0f);
            net_.backward(l, s_.gathered[l % 2].data(), sum.data());
            float* out = s_.gradients.data() + l * s_.slice;
            MPI_Reduce_scatter_block(sum.data(), out, static_cast<int>(s_.slice), MPI_FLOAT, MPI_SUM, comm_);
            for (std::size_t i = 0; i < s_.slice; ++i) out[i] /= static_cast<float>(ranks_);
        }
        update(s_.masters, s_.gradients, s_.first, s_.second, ++s_.step);
    }

private:
    void gather(std::size_t layer) {
        s_.place_own(layer);
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, s_.gathered[layer % 2].data(), static_cast<int>(s_.slice),
                      MPI_FLOAT, comm_);
    }
    slices s_;
    std::size_t ranks_;
    network net_;
    MPI_Comm comm_ = MPI_COMM_NULL;
};

template <class Way>
double timed(const mpi_communicator& world, Way& way) {
    return bench::best_of(world, 1, [&] { way.step(); });
}

}  // namespace

int main(int argc, char** argv) {
    const std::size_t rounds = argc > 1 ? static_cast<std::size_t>(std::atoi(argv[1])) : 7;
    mpi_session session = mpi_session::adopt_or_init(argc, argv);
    const mpi_communicator world = session.world();
    if (count % world.size() != 0) {
        if (world.rank() == 0) std::fprintf(stderr, "mlp_step: %zu ranks do not divide %zu\n", world.size(), count);
        return 2;
    }
    alone whole;
    engine sharded(world);
    by_hand_on_ring ring(world);
    by_hand_on_mpi mpi(world);
    double sums[4] = {}, best[4] = {1e300, 1e300, 1e300, 1e300};
    for (std::size_t round = 0; round <= rounds; ++round) {  // round 0 warms up
        const double now[4] = {timed(world, whole), timed(world, sharded), timed(world, ring), timed(world, mpi)};
        for (std::size_t k = 0; k < 4 && round > 0; ++k) {
            sums[k] += now[k];
            best[k] = now[k] < best[k] ? now[k] : best[k];
        }
    }
    const double difference = sharded.checksum() - ring.checksum();
    if (world.rank() != 0) return 0;
    const char* names[] = {"alone", "engine", "ring", "mpi"};
    std::printf("%s\n", session.describe().c_str());
    for (std::size_t k = 0; k < 4; ++k) {
        std::printf("%-7s best %8.1f ms, mean %8.1f ms, best / alone's %5.2f\n", names[k], best[k],
                    sums[k] / static_cast<double>(rounds), best[k] / best[0]);
    }
    std::printf(
        "engine / ring %.3f (mean %.3f), engine / mpi %.3f; weights differ by %.3g in the sum of rank 0's slices\n",
        best[1] / best[2], sums[1] / sums[2], best[1] / best[3], difference);
    return 0;
}
