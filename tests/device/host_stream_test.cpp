// Host streams and their worker: order, waits, errors, deadlines, delays and ends, in all three modes.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <reshard/device/host.hpp>

using namespace reshard;

namespace {

constexpr worker_mode modes[] = {worker_mode::threaded, worker_mode::at_issue, worker_mode::pumped};

void pause_us(unsigned us) { usleep(us); }

host_event last_of(const host_device& device, host_device::stream_ref stream) {
    host_event point;
    device.record(point, stream);
    return point;
}

/// A command of a group that a test completes by hand.
struct gate {
    std::atomic<bool>* open;
    visit operator()() const { return open->load() ? visit::done : visit::stuck; }
};
struct gate_with_deadline {
    std::atomic<bool>* open;
    visit operator()() const { return open->load() ? visit::done : visit::stuck; }
    std::string late() const { return "gate of h.3 waits for rank 2"; }
};
/// Touches its memory until abandoned, and is asked three times for that.
struct slow_to_abandon {
    std::atomic<int>* refusals;
    std::atomic<bool>* started;
    visit operator()() const {
        *started = true;
        return visit::stuck;
    }
    bool abandon() const { return refusals->fetch_sub(1) <= 1; }
    std::string late() const { return "slow to abandon"; }
};
/// Needs `left` visits, and counts them.
struct counts_down {
    int left;
    int* visits;
    visit operator()() {
        ++*visits;
        return --left == 0 ? visit::done : visit::moved;
    }
};

template <class Error, class Call>
std::string thrown(const Call& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    } catch (const std::exception& error) {
        return text("another error: ", error.what());
    }
    return "no error";
}

bool says(const std::string& whole, const std::string& part) { return whole.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("host stream: a timeline wakes whoever sleeps on it") {
    timeline line;
    CHECK(line.reached(0));
    CHECK_FALSE(line.reached(1));
    std::thread writer([&] {
        for (std::uint64_t at = 1; at <= 1000; ++at) line.reach(at);
    });
    while (!line.reached(1000)) {
        const int seen = line.changed().now();
        if (!line.reached(1000)) line.changed().sleep(seen, 10'000'000);
    }
    writer.join();
    CHECK(line.value() == 1000);
    CHECK(host_event{}.reached());
    CHECK_FALSE(host_event{&line, 1001}.reached());
    const std::uint64_t begun = now_us();
    line.changed().sleep(line.changed().now(), 20'000);
    CHECK(now_us() - begun >= 19'000);  // nobody rings: the time is up
    line.changed().sleep(line.changed().now() - 1, 10'000'000);
    CHECK(now_us() - begun < 5'000'000);  // a ring that was missed does not put to sleep
}

TEST_CASE("host stream: commands of one stream run in order, after one another") {
    for (const worker_mode mode : modes) {
        host_worker worker({mode});
        const host_device device(worker);
        const auto stream = device.make_stream("s", 8);  // fuller than full
        std::vector<int> order;
        int visits = 0;
        for (int i = 0; i < 200; ++i) {
            stream.launch([&order, i] { order.push_back(i); });
            if (i % 50 == 0) host_device::stream_ref(stream).queue->post(counts_down{3, &visits});
        }
        device.synchronize(last_of(device, stream));
        REQUIRE(order.size() == 200);
        for (int i = 0; i < 200; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
        CHECK(visits == 12);
    }
}

TEST_CASE("host stream: a stream waits for another, however slow") {
    const random_delays delays(3, 500);
    for (const worker_mode mode : modes) {
        host_worker worker({mode, 60, 0, &delays});
        const host_device device(worker);
        const auto one = device.make_stream("one"), two = device.make_stream("two");
        int value = 0, wrong = 0;
        for (int i = 0; i < 50; ++i) {
            auto made = device.make_event(), used = device.make_event();
            one.launch([&value, i] {
                if (i % 8 == 0) pause_us(500);
                value = i;
            });
            device.record(made, one);
            device.wait(two, made);
            two.launch([&value, &wrong, i] {
                if (value != i) ++wrong;
            });
            device.record(used, two);
            device.wait(one, used);
        }
        device.wait(device.caller(), last_of(device, two));
        CHECK(wrong == 0);
        CHECK(value == 49);
    }
}

TEST_CASE("host stream: a stuck stream does not hold up another") {
    for (const worker_mode mode : {worker_mode::threaded, worker_mode::pumped}) {
        host_worker worker({mode});
        const host_device device(worker);
        std::atomic<bool> open{false};
        const auto stuck = device.make_stream("stuck"), free = device.make_stream("free");
        host_device::stream_ref(stuck).queue->post(gate{&open});
        bool ran = false;
        free.launch([&ran] { ran = true; });
        device.synchronize(last_of(device, free));
        CHECK(ran);
        const host_event behind = last_of(device, stuck);
        CHECK_FALSE(device.done(behind));
        open = true;
        device.launch(free, [] {});  // and so the bell rings
        device.synchronize(behind);
    }
}

TEST_CASE("host stream: kernels on caller() run inside the call") {
    host_worker worker;
    const host_device device(worker);
    std::thread::id where;
    device.launch(device.caller(), [&where] { where = std::this_thread::get_id(); });
    CHECK(where == std::this_thread::get_id());
    CHECK(last_of(device, device.caller()).reached());
    const auto stream = device.make_stream("s");
    device.launch(stream, [&where] { where = std::this_thread::get_id(); });
    device.synchronize(last_of(device, stream));
    CHECK(where != std::this_thread::get_id());
}

TEST_CASE("host stream: pumped work moves in progress() and in waits only") {
    host_worker worker({worker_mode::pumped});
    const host_device device(worker);
    const auto stream = device.make_stream("s");
    int done = 0;
    for (int i = 0; i < 3; ++i) stream.launch([&done] { ++done; });
    pause_us(2000);
    CHECK(done == 0);
    CHECK(worker.progress());
    CHECK(done == 3);
    CHECK_FALSE(worker.progress());
}

TEST_CASE("host stream: work at issue is complete when the call returns") {
    host_worker worker({worker_mode::at_issue});
    const host_device device(worker);
    const auto stream = device.make_stream("s");
    int done = 0, visits = 0;
    stream.launch([&done] { ++done; });
    CHECK(done == 1);
    host_device::stream_ref(stream).queue->post(counts_down{5, &visits});
    CHECK(visits == 5);
    CHECK(device.done(last_of(device, stream)));
}

TEST_CASE("host stream: an error is kept, work behind it is dropped, nobody hangs") {
    for (const worker_mode mode : modes) {
        host_worker worker({mode});
        const host_device device(worker);
        const auto stream = device.make_stream("s"), other = device.make_stream("other");
        bool ran = false;
        std::atomic<bool> never{false};
        const std::string said = thrown<std::domain_error>([&] {
            stream.launch([] { throw std::domain_error("a kernel failed"); });
            stream.launch([&ran] { ran = true; });
            host_device::stream_ref(other).queue->post(gate{&never});
            device.wait(other, last_of(device, stream));
            device.synchronize(last_of(device, other));
        });
        CHECK(said == "a kernel failed");
        CHECK_THROWS_AS(stream.launch([] {}), std::domain_error);
        CHECK_THROWS_AS(device.synchronize(last_of(device, stream)), std::domain_error);
        CHECK_THROWS_AS(worker.check(), std::domain_error);
        worker.settle();
        CHECK(device.done(last_of(device, stream)));
        CHECK(device.done(last_of(device, other)));
        CHECK_FALSE(ran);
        worker.resume();
        CHECK_THROWS_AS(worker.check(), std::domain_error);  // not to be taken back
    }
}

TEST_CASE("host stream: the deadline of a command that waits for peers") {
    struct asking final : worker_backend {
        std::atomic<int> asked{0}, failures{0};
        bool ask() override { return ++asked >= 5; }
        void failed(const std::string& why) override {
            if (says(why, "gate of h.3")) ++failures;
        }
    };
    for (const worker_mode mode : modes) {
        asking backend;
        host_worker worker({mode, 0.05, 0, nullptr, &backend});
        const host_device device(worker);
        const auto stream = device.make_stream("s");
        std::atomic<bool> open{false};
        const std::uint64_t begun = now_us();
        const std::string said = thrown<timeout_error>([&] {
            host_device::stream_ref(stream).queue->post(gate_with_deadline{&open});
            device.synchronize(last_of(device, stream));
        });
        CHECK(said == "reshard [E-TIME-1] timeout after 50 ms: gate of h.3 waits for rank 2");
        CHECK(now_us() - begun >= 50'000);
        CHECK(now_us() - begun < 5'000'000);
        CHECK(backend.asked >= 5);
        CHECK(backend.failures == 1);
    }
}

TEST_CASE("host stream: a command that waits for no peer has no deadline") {
    host_worker worker({worker_mode::threaded, 0.02});
    const host_device device(worker);
    const auto stream = device.make_stream("s");
    std::atomic<bool> open{false};
    host_device::stream_ref(stream).queue->post(gate{&open});
    std::thread opener([&] {
        pause_us(80'000);
        open = true;
        worker.hub()->door().ring();
    });
    CHECK_NOTHROW(device.synchronize(last_of(device, stream)));
    opener.join();
}

TEST_CASE("host stream: an interruption wakes waits but leaves the work") {
    for (const worker_mode mode : modes) {
        host_worker worker({mode});
        const host_device device(worker);
        const auto stream = device.make_stream("s");
        std::atomic<bool> open{false};
        bool ran = false;
        std::thread raiser([&] {
            pause_us(5000);
            worker.interrupt(std::make_exception_ptr(peer_error(3, "trouble")));
            worker.interrupt(std::make_exception_ptr(peer_error(4, "more trouble")));
        });
        const std::string said = thrown<peer_error>([&] {
            host_device::stream_ref(stream).queue->post(gate{&open});
            if (mode != worker_mode::at_issue) stream.launch([&ran] { ran = true; });
            device.synchronize(last_of(device, stream));
        });
        raiser.join();
        CHECK(says(said, "rank 3 failed: trouble"));
        CHECK_THROWS_AS(stream.launch([] {}), peer_error);
        CHECK_FALSE(device.done(last_of(device, stream)));
        open = true;
        worker.resume();
        CHECK_NOTHROW(device.synchronize(last_of(device, stream)));
        CHECK(ran == (mode != worker_mode::at_issue));
    }
}

TEST_CASE("host stream: a call on the caller's account that throws has let go of its memory") {
    for (const worker_mode mode : modes) {
        host_worker worker({mode, 600});
        std::atomic<int> refusals{3};
        std::atomic<bool> started{false};
        std::thread raiser([&] {
            while (!started) pause_us(100);
            worker.interrupt(std::make_exception_ptr(peer_error(1, "trouble")));
        });
        CHECK_THROWS_AS(worker.issue(nullptr, [&] { return slow_to_abandon{&refusals, &started}; }), peer_error);
        CHECK(refusals == 0);
        raiser.join();
    }
}

TEST_CASE("host stream: make() is not called when the command cannot be queued") {
    host_worker worker;
    worker.interrupt(std::make_exception_ptr(peer_error(1, "trouble")));
    bool made = false;
    CHECK_THROWS_AS(worker.issue(nullptr,
                                 [&] {
                                     made = true;
                                     return counts_down{1, nullptr};
                                 }),
                    peer_error);
    CHECK_FALSE(made);
}

TEST_CASE("host stream: a full queue makes the poster wait, and a fault ends that wait") {
    host_worker worker;
    const host_device device(worker);
    const auto stream = device.make_stream("s", 4);
    std::atomic<bool> open{false};
    host_device::stream_ref(stream).queue->post(gate{&open});
    int ran = 0;
    for (int i = 0; i < 3; ++i) stream.launch([&ran] { ++ran; });
    std::thread opener([&] {
        pause_us(20'000);
        open = true;
        worker.hub()->door().ring();
    });
    const std::uint64_t begun = now_us();
    stream.launch([&ran] { ++ran; });
    CHECK(now_us() - begun >= 15'000);
    opener.join();
    device.synchronize(last_of(device, stream));
    CHECK(ran == 4);

    std::atomic<bool> shut{false};
    host_device::stream_ref(stream).queue->post(gate{&shut});
    for (int i = 0; i < 3; ++i) stream.launch([&ran] { ++ran; });
    std::thread raiser([&] {
        pause_us(5000);
        worker.interrupt(std::make_exception_ptr(peer_error(1, "trouble")));
    });
    CHECK_THROWS_AS(stream.launch([&ran] { ++ran; }), peer_error);
    raiser.join();
}

TEST_CASE("host stream: delays hold back one command and no other stream") {
    struct only_slow final : delay_source {
        std::uint64_t before(std::size_t rank, const char* stream, std::uint64_t number) const override {
            return rank == 7 && std::string(stream) == "slow" && number == 2 ? 30'000 : 0;
        }
    };
    const only_slow delays;
    for (const worker_mode mode : modes) {
        host_worker worker({mode, 60, 7, &delays});
        const host_device device(worker);
        const auto slow = device.make_stream("slow"), fast = device.make_stream("fast");
        std::uint64_t first = 0, second = 0, beside = 0;
        const std::uint64_t begun = now_us();
        slow.launch([&first] { first = now_us(); });
        if (mode != worker_mode::at_issue) slow.launch([&second] { second = now_us(); });
        fast.launch([&beside] { beside = now_us(); });
        device.synchronize(last_of(device, fast));
        if (mode == worker_mode::at_issue) slow.launch([&second] { second = now_us(); });
        device.synchronize(last_of(device, slow));
        CHECK(second - begun >= 30'000);
        CHECK(first < second);
        CHECK(beside < second);
    }
    const random_delays drawn(1, 100), again(1, 100), other(2, 100);
    bool differs = false;
    for (std::uint64_t number = 1; number < 50; ++number) {
        CHECK(drawn.before(0, "s", number) == again.before(0, "s", number));
        CHECK(drawn.before(0, "s", number) <= 100);
        differs = differs || drawn.before(0, "s", number) != other.before(0, "s", number);
    }
    CHECK(differs);
}

TEST_CASE("host stream: ends wait for work in flight") {
    for (const worker_mode mode : modes) {
        int done = 0;
        {
            host_worker worker({mode});
            const host_device device(worker);
            {
                const auto stream = device.make_stream("s");
                for (int i = 0; i < 20; ++i) {
                    stream.launch([&done] {
                        pause_us(200);
                        ++done;
                    });
                }
            }
            CHECK(done == 20);
            worker.add_stream("bare").post(counts_down{2, &done});
        }
        CHECK(done == 22);
    }
}

TEST_CASE("host stream: after a fault ends drop the work, and destroy what it holds") {
    struct held {
        std::atomic<int>* alive;
        explicit held(std::atomic<int>& count) : alive(&count) { ++*alive; }
        held(const held& other) : alive(other.alive) { ++*alive; }
        ~held() { --*alive; }
    };
    for (const worker_mode mode : {worker_mode::threaded, worker_mode::pumped}) {
        std::atomic<int> alive{0}, refusals{3};
        std::atomic<bool> never{false}, started{false};
        bool ran = false;
        {
            host_worker worker({mode, 600});
            const host_device device(worker);
            const auto stream = device.make_stream("s"), other = device.make_stream("other");
            host_device::stream_ref(stream).queue->post(gate_with_deadline{&never});
            host_device::stream_ref(other).queue->post(slow_to_abandon{&refusals, &started});
            stream.launch([&ran, keeps = held(alive)] { ran = keeps.alive != nullptr; });
            CHECK(alive == 1);
            while (!started) worker.progress();
            worker.interrupt(std::make_exception_ptr(peer_error(1, "trouble")));
        }
        CHECK(alive == 0);
        CHECK(refusals == 0);
        CHECK_FALSE(ran);
    }
}

TEST_CASE("host stream: streams that were given back are used again") {
    host_worker worker;
    const host_device device(worker);
    const host_stream* first = nullptr;
    host_event kept;
    {
        const auto stream = device.make_stream("first");
        first = host_device::stream_ref(stream).queue;
        stream.launch([] {});
        kept = last_of(device, stream);
    }
    const auto second = device.make_stream("second"), third = device.make_stream("third");
    CHECK(host_device::stream_ref(second).queue == first);
    CHECK(host_device::stream_ref(third).queue != first);
    CHECK(std::string(first->name()) == "second");
    CHECK(device.done(kept));
    CHECK_THROWS_AS(device.make_stream("none", 0), argument_error);
}

TEST_CASE("host stream: workers of one rank wait for each other and fail together") {
    host_worker first({worker_mode::pumped});
    {
        host_worker second({}, first);
        const host_device device(first), queued(second);
        const auto compute = queued.make_stream("compute"), side = device.make_stream("side");
        std::vector<int> order;
        for (int i = 0; i < 50; ++i) {
            compute.launch([&order, i] { order.push_back(2 * i); });
            device.wait(side, last_of(device, compute));
            side.launch([&order, i] { order.push_back(2 * i + 1); });
            device.synchronize(last_of(device, side));
            queued.wait(compute, last_of(device, side));
        }
        REQUIRE(order.size() == 100);
        for (int i = 0; i < 100; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
        compute.launch([] { throw std::domain_error("a kernel failed"); });
        CHECK_THROWS_AS(first.wait(last_of(device, compute)), std::domain_error);
        CHECK_THROWS_AS(side.launch([] {}), std::domain_error);
    }
    CHECK_THROWS_AS(host_worker({worker_mode::pumped}, first), argument_error);
}

TEST_CASE("host stream: a backend is polled, and its error is the worker's") {
    struct polled final : worker_backend {
        std::atomic<int> polls{0};
        bool poll() override {
            if (++polls == 50) throw std::domain_error("the network is on fire");
            return false;
        }
        bool needs_polling() const override { return true; }
    };
    for (const worker_mode mode : modes) {
        polled backend;
        host_worker worker({mode, 60, 0, nullptr, &backend});
        std::atomic<bool> never{false};
        CHECK_THROWS_AS(worker.issue(nullptr, [&] { return gate{&never}; }), std::domain_error);
        CHECK(backend.polls >= 50);
    }
}
