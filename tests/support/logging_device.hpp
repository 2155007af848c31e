// A device that writes down what its streams would read, write, record and wait for, and a communicator to go with it.
// Nothing is computed but the control records, so that an engine above it goes on; one rank stands for all.
#pragma once

#include <reshard/comm/checks.hpp>
#include <reshard/comm/self.hpp>
#include <reshard/core/shared.hpp>
#include <reshard/device/kernels.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace test_support {

struct byte_range {
    std::uintptr_t begin = 0, end = 0;

    bool meets(const byte_range& other) const { return begin < other.end && other.begin < end; }
};

template <class Type>
byte_range bytes_of(const Type* data, std::size_t count) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    return {begin, begin + count * sizeof(Type)};
}
template <class Type>
byte_range bytes_of(std::span<Type> items) {
    return bytes_of(items.data(), items.size());
}

/// What happened, in the order of the calls. Stream 0 is the host: it issues everything, and what it has seen is
/// behind it for all that it issues later.
struct access_log {
    static constexpr std::size_t host = 0, caller = 1, none = static_cast<std::size_t>(-1);
    enum class kind { operation, record, wait };
    struct entry {
        kind what = kind::operation;
        std::size_t stream = host;
        std::string name;                       // of an operation
        std::vector<byte_range> reads, writes;  // of an operation
        std::size_t recorded = none;            // a wait: the entry that recorded the event
    };

    std::vector<std::string> streams = {"host", "caller"};
    std::vector<entry> entries;

    void operation(std::size_t stream, std::string name, std::vector<byte_range> reads,
                   std::vector<byte_range> writes) {
        entries.push_back({kind::operation, stream, std::move(name), std::move(reads), std::move(writes), none});
    }
    std::size_t record(std::size_t stream) {
        entries.push_back({kind::record, stream, {}, {}, {}, none});
        return entries.size() - 1;
    }
    void wait(std::size_t stream, std::size_t recorded) {
        if (recorded != none) entries.push_back({kind::wait, stream, {}, {}, {}, recorded});
    }
};

/// All streams are queues, the caller's too, and no event is ever seen done: what orders operations is waits alone.
class logging_device {
public:
    struct stream_ref {
        std::size_t number = access_log::caller;
        bool operator==(const stream_ref&) const = default;
    };
    struct event {
        std::size_t recorded = access_log::none;
    };
    using memory = reshard::host_memory;
    class stream {
    public:
        explicit stream(std::size_t number) : number_(number) {}
        stream(stream&&) = default;
        stream& operator=(stream&&) = default;
        operator stream_ref() const { return {number_}; }

    private:
        std::size_t number_;
    };

    stream_ref caller() const { return {}; }
    stream make_stream(const char* name) const {
        log_->streams.push_back(name);
        return stream(log_->streams.size() - 1);
    }
    event make_event() const { return {}; }
    memory allocate(std::size_t bytes) const { return memory(bytes, account_); }
    std::size_t allocated() const { return account_->held; }
    access_log& log() const { return *log_; }

    void record(event& point, stream_ref on) const { point.recorded = log_->record(on.number); }
    void wait(stream_ref waiter, const event& point) const { log_->wait(waiter.number, point.recorded); }
    void synchronize(const event& point) const { log_->wait(access_log::host, point.recorded); }
    bool done(const event& point) const { return point.recorded == access_log::none; }
    bool blocks(stream_ref /*on*/) const { return false; }
    void settle(stream_ref /*on*/) const {}

    /// A kernel of the trainer's own.
    void touch(stream_ref on, std::string name, std::vector<byte_range> reads, std::vector<byte_range> writes) const {
        log_->operation(on.number, std::move(name), std::move(reads), std::move(writes));
    }

    void put(std::byte* to, const reshard::packet& few, stream_ref on) const {
        touch(on, "put", {}, {bytes_of(to, few.size)});
        std::memcpy(to, few.bytes, few.size);
    }
    void upload(std::byte* to, const std::byte* from, std::size_t bytes) const {
        log_->operation(access_log::host, "upload", {}, {bytes_of(to, bytes)});
        if (bytes != 0) std::memcpy(to, from, bytes);
    }
    void download(std::byte* to, const std::byte* from, std::size_t bytes) const {
        log_->operation(access_log::host, "download", {bytes_of(from, bytes)}, {});
        if (bytes != 0) std::memcpy(to, from, bytes);
    }
    void zero(std::span<std::byte> bytes, stream_ref on) const { touch(on, "zero", {}, {bytes_of(bytes)}); }
    template <class From, class To>
    void cast(const From* in, To* out, std::size_t count, stream_ref on) const {
        touch(on, "cast", {bytes_of(in, count)}, {bytes_of(out, count)});
    }
    template <class Gradient, class Acc>
    void accumulate(const Gradient* in, Acc* out, std::size_t count, reshard::write_mode mode, std::size_t /*divisor*/,
                    stream_ref on) const {
        std::vector<byte_range> reads = {bytes_of(in, count)};
        if (mode == reshard::write_mode::add) reads.push_back(bytes_of(out, count));
        touch(on, "accumulate", std::move(reads), {bytes_of(out, count)});
    }
    template <class Acc>
    void square_norm(const Acc* base, const reshard::arena_range* ranges, std::size_t n_ranges,
                     reshard::vote_record* record, stream_ref on) const {
        std::vector<byte_range> reads;
        for (std::size_t r = 0; r < n_ranges; ++r) reads.push_back(bytes_of(base + ranges[r].begin, ranges[r].count));
        touch(on, "square_norm", std::move(reads), {bytes_of(record, 1)});
    }
    void seal(reshard::vote_record* record, std::uint32_t says, std::uint64_t step, std::uint64_t numbers,
              stream_ref on) const {
        touch(on, "seal", {}, {bytes_of(record, 1)});
        record->says = says;
        record->step = step;
        record->numbers = numbers;
    }
    void decide(const std::byte* records, std::size_t stride, std::size_t ranks, std::uint64_t step,
                reshard::commit_terms terms, reshard::commit_outcome* outcome, stream_ref on) const {
        touch(on, "decide", {bytes_of(records, stride * ranks), bytes_of(outcome, 1)}, {bytes_of(outcome, 1)});
        reshard::kernels::decide(records, stride, ranks, step, terms, *outcome);
    }
    template <class Master, class Acc, class Moment>
    void adamw(const reshard::adamw_range* ranges, std::size_t n_ranges, const reshard::commit_outcome* outcome,
               Master* master, const Acc* gradient, Moment* first, Moment* second, stream_ref on) const {
        std::vector<byte_range> reads = {bytes_of(outcome, 1)}, writes;
        for (std::size_t r = 0; r < n_ranges; ++r) {
            const std::size_t begin = ranges[r].begin, count = ranges[r].count;
            reads.push_back(bytes_of(gradient + begin, count));
            writes.push_back(bytes_of(master + begin, count));
            writes.push_back(bytes_of(first + begin, count));
            writes.push_back(bytes_of(second + begin, count));
        }
        touch(on, "update", std::move(reads), std::move(writes));
    }
    template <class Master, class Acc, class Moment>
    void sgd(const reshard::sgd_range* ranges, std::size_t n_ranges, const reshard::commit_outcome* outcome,
             Master* master, const Acc* gradient, Moment* momentum, stream_ref on) const {
        std::vector<byte_range> reads = {bytes_of(outcome, 1)}, writes;
        for (std::size_t r = 0; r < n_ranges; ++r) {
            const std::size_t begin = ranges[r].begin, count = ranges[r].count;
            reads.push_back(bytes_of(gradient + begin, count));
            writes.push_back(bytes_of(master + begin, count));
            if (momentum != nullptr) writes.push_back(bytes_of(momentum + begin, count));
        }
        touch(on, "update", std::move(reads), std::move(writes));
    }

private:
    reshard::shared<access_log> log_;
    reshard::shared<reshard::host_account> account_;
};
static_assert(reshard::Device<logging_device>);

/// Rank `rank` of `size` whose peers do what it does: a gather fills all blocks with its own. Operations are ordered
/// by their streams only, as if each had a communicator of its own. Peers are not there to say their colours: the sizes
/// of groups that are split off are given beforehand.
class logging_communicator {
public:
    using device_type = logging_device;
    using stream_ref = device_type::stream_ref;
    class owner;

    explicit logging_communicator(std::size_t size, std::size_t rank = 0) : size_(size), rank_(rank) {}
    /// The sizes of the groups that split() makes, in the order of its calls; this rank is the first of each.
    logging_communicator(std::size_t size, std::vector<std::size_t> groups) : size_(size), rank_(0) {
        *groups_ = std::move(groups);
    }
    owner split(std::size_t colour, std::size_t key) const;

    std::size_t rank() const { return rank_; }
    std::size_t size() const { return size_; }
    const device_type& device() const { return device_; }
    reshard::self_control& control() const { return *control_; }
    std::string describe() const { return "logging: " + std::to_string(size_) + " ranks that send nothing"; }
    void prepare(std::size_t /*bytes*/) const {}

    template <reshard::Transferable Type>
    void all_gather(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref on,
                    reshard::label name = {}) const {
        note(on, name, {bytes_of(in)}, {bytes_of(out)});
        for (std::size_t r = 0; r < size_ && !in.empty(); ++r) {
            std::memmove(out.data() + r * in.size(), in.data(), in.size_bytes());
        }
    }
    template <reshard::Transferable Type>
    void all_gather_in_place(std::span<Type> all, stream_ref on, reshard::label name = {}) const {
        const std::size_t block = all.size() / size_;
        const std::span<Type> own = all.subspan(rank_ * block, block);
        note(on, name, {bytes_of(own)}, {bytes_of(all)});
        for (std::size_t r = 0; r < size_ && block != 0; ++r) {
            std::memmove(all.data() + r * block, own.data(), own.size_bytes());
        }
    }
    template <reshard::Element Type>
    void reduce_scatter(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref on,
                        reshard::label name = {}) const {
        note(on, name, {bytes_of(in)}, {bytes_of(out)});
    }
    template <reshard::Element Type>
    void reduce_scatter_in_place(std::span<Type> all, stream_ref on, reshard::label name = {}) const {
        note(on, name, {bytes_of(all)}, {bytes_of(all)});
    }
    template <reshard::Element Type>
    void all_reduce(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref on,
                    reshard::label name = {}) const {
        note(on, name, {bytes_of(in)}, {bytes_of(out)});
    }
    template <reshard::Element Type>
    void all_reduce_in_place(std::span<Type> all, stream_ref on, reshard::label name = {}) const {
        note(on, name, {bytes_of(all)}, {bytes_of(all)});
    }
    template <reshard::Transferable Type>
    void broadcast(std::span<Type> all, std::size_t root, stream_ref on, reshard::label name = {}) const {
        if (root == rank_) {
            note(on, name, {bytes_of(all)}, {});
        } else {
            note(on, name, {}, {bytes_of(all)});
        }
    }
    void barrier(stream_ref on, reshard::label name = {}) const { note(on, name, {}, {}); }

private:
    void note(stream_ref on, reshard::label name, std::vector<byte_range> reads, std::vector<byte_range> writes) const {
        if (size_ > 1) device_.touch(on, name.what, std::move(reads), std::move(writes));
    }

    device_type device_;
    reshard::shared<reshard::self_control> control_;
    reshard::shared<std::vector<std::size_t>> groups_;  // sizes of those still to be split off
    std::size_t size_, rank_;
};

class logging_communicator::owner {
public:
    explicit owner(const logging_communicator& group) : group_(group) {}
    logging_communicator view() const { return group_; }
    bool empty() const { return false; }
    void close() {}

private:
    logging_communicator group_;
};

inline logging_communicator::owner logging_communicator::split(std::size_t, std::size_t) const {
    logging_communicator group = *this;  // the same device and log
    group.size_ = groups_->at(0);
    group.rank_ = 0;
    groups_->erase(groups_->begin());
    return owner(group);
}
static_assert(reshard::Communicator<logging_communicator>);
static_assert(reshard::Splittable<logging_communicator>);

}  // namespace test_support
